//! An unstable case: a large learning rate and 1000x, with and without the guard of the loss.

use super::{Model, Row, Table};

/// Bare and guarded.
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
    let under = |name: &str, controller: String| {
        Row::new(name, format!("--compressor topk:1000x:q8 --feedback error --controller {controller}"))
    };
    // Points of 5 steps, as the run has 237; dense at once.
    let guarded = under(
        "1000x from step 60, guarded",
        format!("loss-guard:({JUMP}),window=5,points=12,noises=4,hold=32,back=1000"),
    );
    vec![Row::dense(), under("1000x from step 60", JUMP.to_owned()), guarded]
}
