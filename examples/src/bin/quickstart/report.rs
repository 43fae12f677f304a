//! The comparison as one self-contained page: HTML that is also XML, with embedded charts and style.

use std::fmt::Display;

use briquette_cli::terminal::bytes;
use briquette_examples::record::{SlotRecord, StepRecord};

use crate::comparison::{COLUMNS, Comparison, Curve, SMOOTHED};
use crate::svg::{Chart, escaped, number};

/// Returns the page; `facts` are names and values of the circumstances.
pub(crate) fn page(comparison: &Comparison, facts: &[(&str, String)]) -> String {
    let Comparison { network, ranks, dense, auto } = comparison;
    let [loss, sent] = [[dense.loss(), auto.loss()], [dense.bytes(), auto.bytes()]];
    let rows = comparison.runs().map(|run| run.row().to_vec());
    let made_by: Vec<_> = facts.iter().map(|(name, value)| vec![(*name).to_owned(), value.clone()]).collect();
    let chart = |title, x, curves, is_stepped, label| {
        let chart = Chart { title, x, curves, is_stepped, notes: &[], label };
        legend(curves) + &chart.svg()
    };
    let is_silent = dense.summary.bytes_sent == 0;
    let exchanged = |section: &dyn Fn() -> String| {
        if is_silent { dim("Nothing was sent: there is one rank.") } else { section() }
    };
    let sections = [
        ("Result", table("numbers", &COLUMNS, &rows)),
        (
            "Loss over simulated time",
            chart("loss over simulated time", "simulated seconds", &loss, false, number)
                + &dim(format!("On training samples: each point is the mean of {SMOOTHED} steps.")),
        ),
        (
            "Bytes per step",
            exchanged(&|| {
                chart("bytes over steps", "step", &sent, true, |y| bytes(y as u64).replace(".0 ", " "))
                    + &dim("Sent by rank 0, headers included.")
            }),
        ),
        ("Compression ratio chosen by auto", exchanged(&|| ratio(comparison))),
        ("Compression error by layer", exchanged(&|| layers(comparison))),
        ("Run", table("", &["", ""], &made_by)),
    ];
    let section = |(title, body)| format!("<h2>{title}</h2>\n{body}");
    format!(
        include_str!("report.html"),
        style = include_str!("report.css"),
        verdict = escaped(&comparison.verdict()),
        network = escaped(network),
        ranks = ranks,
        sections = sections.map(section).concat(),
    )
}

/// Returns the chart of ratios, with the controller's reasons.
fn ratio(comparison: &Comparison) -> String {
    let records = &comparison.auto.records;
    let note = |record: &StepRecord| Some((record.step as f64, record.ratio?, record.reason.clone()?));
    let notes: Vec<_> = records.iter().filter_map(note).collect();
    let curves = [comparison.auto.ratios()];
    let label = |y| format!("{}x", number(y));
    let chart = Chart { title: "ratio over steps", x: "step", curves: &curves, is_stepped: true, notes: &notes, label };
    let said = |record: &StepRecord| {
        let words = [record.reason.clone().unwrap_or_default(), record.state.clone().unwrap_or_default()];
        let ratio = record.ratio.map_or("–".to_owned(), label);
        words
            .iter()
            .any(|text| !text.is_empty())
            .then(|| [vec![record.step.to_string(), ratio], words.to_vec()].concat())
    };
    let rows: Vec<_> = records.iter().filter_map(said).collect();
    let text = "Dense size over compressed size, without overhead; 1x is dense. A dot marks a change and shows its reason. auto regularly times \
                other ratios for a few steps.";
    chart.svg() + &dim(text) + &table("", &["step", "ratio", "reason", "controller state"], &rows)
}

fn layers(comparison: &Comparison) -> String {
    let Some(record) = comparison.auto.layers() else {
        return dim("No step had a table of layers.");
    };
    let row = |slot: &SlotRecord| {
        let share = |value: f64| format!("{:.1} %", 100.0 * value);
        vec![
            slot.path.clone(),
            slot.ratio.map_or("–".to_owned(), |ratio| format!("{}x", number(ratio))),
            share(slot.gain),
            slot.relative_error.map_or("–".to_owned(), share),
            slot.residual_norm.map_or("–".to_owned(), |norm| format!("{norm:.2e}")),
            bytes(slot.bytes),
        ]
    };
    let columns = ["layer", "ratio", "gain", "relative error", "residual norm", "bytes"];
    let rows: Vec<_> = record.slots.iter().map(row).collect();
    let note = format!(
        "Step {} of auto on rank 0. The relative error is the norm of the part that was not sent, divided by the norm of the vector \
         before compression.",
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
