//! An unstable case: a large learning rate and 1000x, with and without the guard of the loss.

use super::{Model, Rates, Row, Table};

/// Bare and guarded.
pub const TABLE: Table = Table {
    name: "unstable",
    trainer: None,
    models: &[Model::ResNet8],
    rows,
    networks: |_| vec!["100mbit,1ms"],
    compute: "50ms",
    rates: Rates::Fixed(0.8),
};

fn rows(_: Model) -> Vec<Row> {
    let under = |name: &str, controller: &str| {
        Row::new(name, format!("--compressor topk:1000x:q8 --feedback error --controller {controller}"))
    };
    vec![Row::dense(), under("1000x", "constant:1000x"), under("1000x, guarded", "loss-guard:(constant:1000x)")]
}
