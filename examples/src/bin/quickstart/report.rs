//! The comparison as one self-contained page: HTML that is also XML, with embedded charts and style.

use briquette_cli::report::html::{dim, legend, page as whole, section, table};
use briquette_cli::report::svg::{Chart, escaped, number};
use briquette_cli::terminal::bytes;
use briquette_examples::record::{SlotRecord, StepRecord};

use crate::comparison::{COLUMNS, Comparison, SMOOTHED};

/// Returns the page; `facts` are names and values of the circumstances.
pub(crate) fn page(comparison: &Comparison, facts: &[(&str, String)]) -> String {
    let Comparison { network, ranks, dense, auto } = comparison;
    let [loss, sent] = [[dense.loss(), auto.loss()], [dense.bytes(), auto.bytes()]];
    let rows = comparison.runs().map(|run| run.row().to_vec());
    let made_by: Vec<_> = facts.iter().map(|(name, value)| vec![(*name).to_owned(), value.clone()]).collect();
    let chart = |title, x, curves, is_stepped, label| {
        let chart = Chart { title, x, curves, is_stepped, label, is_from_zero: true, ..Chart::default() };
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
    let sections: String = sections.iter().map(|(title, body)| section(title, body)).collect();
    let (verdict, network) = (escaped(&comparison.verdict()), escaped(network));
    let about = format!(
        "<h1>Dense and auto, side by side</h1>
<p class=\"verdict\">{verdict}</p>
<ul>
<li><b>Simulated:</b> the link ({network}) between {ranks} ranks, and 50 ms of compute time per step on each rank. Simulated time
is the sum of these 50 ms and the time of each exchange on this link. It excludes encoding and decoding.</li>
<li><b>Measured:</b> losses and accuracies of the trained models; bytes, counted at the transport; and the wall time on this
machine, with encoding and decoding.</li>
<li><b>Data:</b> generated images. Accuracies compare the two runs only; they do not transfer to other data.</li>
</ul>
"
    );
    whole("Briquette: dense and auto", &(about + &sections))
}

/// Returns the chart of ratios, with the controller's reasons.
fn ratio(comparison: &Comparison) -> String {
    let records = &comparison.auto.records;
    let note = |record: &StepRecord| Some((record.step as f64, record.ratio?, record.reason.clone()?));
    let notes: Vec<_> = records.iter().filter_map(note).collect();
    let curves = [comparison.auto.ratios()];
    let label = |y| format!("{}x", number(y));
    let chart = Chart {
        title: "ratio over steps",
        x: "step",
        curves: &curves,
        is_stepped: true,
        notes: &notes,
        label,
        is_from_zero: true,
        ..Chart::default()
    };
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
