//! The comparison as one page: HTML that is XML too, with charts and style inside, and nothing from elsewhere.

use std::fmt::{Display, Write as _};

use briquette_cli::terminal::bytes;
use briquette_examples::record::{SlotRecord, StepRecord};

use crate::comparison::{COLUMNS, Comparison, Curve, SMOOTHED};
use crate::svg::{Chart, escaped, number};

const STYLE: &str = include_str!("report.css");

/// The page; `facts` are names and values of where and how it was made.
pub(crate) fn page(comparison: &Comparison, facts: &[(&str, String)]) -> String {
    let Comparison { network, ranks, dense, auto } = comparison;
    let [loss, sent] = [[dense.loss(), auto.loss()], [dense.bytes(), auto.bytes()]];
    let rows = comparison.runs().map(|run| run.row().to_vec());
    let chart = |title, x, curves, label| {
        let chart = Chart { title, x, curves, is_stepped: false, notes: &[], label };
        legend(curves) + &chart.svg()
    };
    let sections = [
        ("Result", table("numbers", &COLUMNS, &rows)),
        (
            "Loss over simulated time",
            chart("loss over simulated time", "seconds on the simulated link", &loss, number)
                + &dim(format!("On training samples: each point is the mean of {SMOOTHED} steps.")),
        ),
        (
            "Bytes a step",
            chart("bytes over steps", "step", &sent, |y| bytes(y as u64))
                + &dim("What rank 0 sends, headers included."),
        ),
        ("The ratio that auto chose", ratio(comparison)),
        ("What compression costs each layer", layers(comparison)),
        (
            "Made by",
            table(
                "",
                &["", ""],
                &facts.iter().map(|(name, value)| vec![(*name).to_owned(), value.clone()]).collect::<Vec<_>>(),
            ),
        ),
    ];
    let (verdict, network) = (escaped(&comparison.verdict()), escaped(network));
    let mut page = format!(
        "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>Briquette: dense and auto</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>Dense and auto, side by side</h1>\n<p class=\"verdict\">{verdict}</p>\n\
         <ul>\n\
         <li><b>Simulated:</b> the link ({network}) between {ranks} ranks, and 50 ms of computing a step on each. Seconds on the simulated \
         link are these 50 ms and what the bytes of each exchange take on such a link. Compressing takes no time there.</li>\n\
         <li><b>Measured:</b> losses and accuracies, of models that were trained; bytes, counted where they are handed over; and the \
         time here, by this machine's clock, with all that compressing takes.</li>\n\
         <li><b>Data:</b> generated images. Accuracies say how both runs compare, and nothing of other data.</li>\n</ul>\n"
    );
    for (title, body) in sections {
        // Writing to a string does not fail.
        let _ = writeln!(page, "<h2>{title}</h2>\n{body}");
    }
    page + "</body>\n</html>\n"
}

/// The chart of ratios, and a line for each change with what the controller said.
fn ratio(comparison: &Comparison) -> String {
    let reasons: Vec<_> =
        comparison.auto.records.iter().filter_map(|record| Some((record, record.reason.as_ref()?))).collect();
    let note =
        |(record, reason): &(&StepRecord, &String)| Some((record.step as f64, record.factor?, (*reason).clone()));
    let notes: Vec<_> = reasons.iter().filter_map(note).collect();
    let curves = [comparison.auto.ratios()];
    if curves[0].points.is_empty() {
        return dim("Nothing was sent, so there was nothing to choose.");
    }
    let label = |y| format!("{}x", number(y));
    let chart = Chart { title: "ratio over steps", x: "step", curves: &curves, is_stepped: true, notes: &notes, label };
    let rows: Vec<_> = (reasons.iter())
        .map(|(record, reason)| {
            vec![record.step.to_string(), record.factor.map_or("–".to_owned(), label), (*reason).clone()]
        })
        .collect();
    chart.svg()
        + &dim("Dense size over compressed size, without overhead; 1x is dense.")
        + &table("", &["step", "ratio", "why"], &rows)
}

fn layers(comparison: &Comparison) -> String {
    let Some(record) = comparison.auto.layers() else {
        return dim("No step had a table of layers.");
    };
    let row = |slot: &SlotRecord| {
        let share = |value: f64| format!("{:.1} %", 100.0 * value);
        vec![
            slot.path.clone(),
            slot.factor.map_or("–".to_owned(), |factor| format!("{}x", number(factor))),
            share(slot.gain),
            slot.relative_error.map_or("–".to_owned(), share),
            slot.residual_norm.map_or("–".to_owned(), |norm| format!("{norm:.2e}")),
            bytes(slot.bytes),
        ]
    };
    let columns = ["layer", "ratio", "energy sent", "error", "norm that waits", "bytes"];
    let rows: Vec<_> = record.slots.iter().map(row).collect();
    let note = format!(
        "Step {} of auto on rank 0, which kept what it did not send for later steps: the error is that part's norm, over the norm of \
         what was to be sent.",
        record.step
    );
    dim(note) + &table("numbers", &columns, &rows)
}

fn legend(curves: &[Curve]) -> String {
    let name = |curve: &Curve| format!("<b class=\"{0}\">— {0}</b> ", curve.name);
    format!("<p>{}</p>\n", curves.iter().map(name).collect::<String>())
}

fn dim(text: impl Display) -> String {
    format!("<p class=\"dim\">{}</p>\n", escaped(&text.to_string()))
}

fn table(class: &str, columns: &[&str], rows: &[Vec<String>]) -> String {
    let cells = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
        let cells: String = cells.map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let head = if columns.iter().all(|name| name.is_empty()) {
        String::new()
    } else {
        cells("th", &mut columns.iter().copied())
    };
    let body: String = rows.iter().map(|row| cells("td", &mut row.iter().map(String::as_str))).collect();
    format!("<table class=\"{class}\">\n{head}{body}</table>\n")
}
