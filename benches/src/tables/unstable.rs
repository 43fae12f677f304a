//! Unstable case: a large learning rate and 1000x, without a guard, under the loss guard, and under `auto`.
//!
//! The guard has its default settings, which are those of the guard in `auto`. Seeds 1, 2 and 3 were used while it was
//! designed: report others (`tables unstable --data DIR --seeds 21,22,23`).

use super::{Model, Row, Table};

/// Unguarded and guarded rows.
pub const TABLE: Table = Table {
    name: "unstable",
    trainer: None,
    models: &[Model::ResNet8],
    rows,
    networks: |_| vec!["100mbit,1ms"],
    compute: "50ms",
    rate: Some(1.6),
};

/// Dense for the first quarter of the run, then 1000x: a controller that compresses too much.
const JUMP: &str = "schedule:1x,to=1000x,steps=60,stages=1";

fn rows(_: Model) -> Vec<Row> {
    let under = |name: &str, controller: &str| {
        Row::new(name, format!("--compressor topk:1000x:q8 --feedback error --controller {controller}"))
    };
    let unguarded = under("1000x from step 60", JUMP);
    let guarded = under("1000x from step 60, loss-guard", &format!("loss-guard:({JUMP})"));
    vec![Row::dense(), unguarded, guarded, Row::auto()]
}
