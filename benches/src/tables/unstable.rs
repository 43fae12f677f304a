//! An unstable case: a large learning rate and 1000x, unguarded, under the loss guard, and under `auto`.
//!
//! The guard has its default settings, which are those of the guard in `auto`; in another row, settings for a run of 237 steps. Seeds 1, 2 and 3 were looked at while it was designed:
//! report others (`tables unstable --data DIR --seeds 21,22,23`).

use super::{Model, Row, Table};

/// Unguarded and guarded.
pub const TABLE: Table = Table {
    name: "unstable",
    trainer: None,
    models: &[Model::ResNet8],
    rows,
    networks: |_| vec!["100mbit,1ms"],
    compute: "50ms",
    rate: Some(1.6),
};

/// Dense for the first quarter of the run, then 1000x: a controller that takes too much.
const JUMP: &str = "schedule:1x,to=1000x,steps=60,stages=1";

fn rows(_: Model) -> Vec<Row> {
    let under = |name: &str, controller: &str| {
        Row::new(name, format!("--compressor topk:1000x:q8 --feedback error --controller {controller}"))
    };
    let unguarded = under("1000x from step 60", JUMP);
    let guarded = under("1000x from step 60, loss-guard", &format!("loss-guard:({JUMP})"));
    // Points of 5 steps, earlier alarms, dense at once.
    let short = under(
        "1000x from step 60, loss-guard for short runs",
        &format!("loss-guard:({JUMP}),window=5,points=12,noises=4,hold=32,back=1000"),
    );
    vec![Row::dense(), unguarded, guarded, short, Row::auto()]
}
