//! Frames that a run records, replayed on other networks.

use std::time::Duration;

use briquette::core::comm::{Compute, replay};
use briquette_examples::record::read_frames;

use crate::common::{CIFAR, Runs, SMALL};

#[test]
fn recorded_frames_replay_to_the_seconds_of_a_run_on_another_network() {
    let runs = Runs::default();
    // Two epochs of eight steps, each with an evaluation and a checkpoint, which are outside of simulated time.
    let run = |out: &str, more: &str| {
        let small = SMALL.replace("--steps 6", "--epochs 2").replace("--network 100mbit,1ms", "");
        runs.run(CIFAR, &format!("{small} --compressor topk:10x --out {out} {more}")).succeeds();
        runs.metrics(out).iter().map(|step| step.simulated_seconds.unwrap()).collect::<Vec<_>>()
    };
    run("recorded", "--network unlimited --record-frames on");
    let frames = read_frames(&runs.path("recorded"), 2).unwrap();
    let compute = Compute::Fixed(Duration::from_millis(50));
    for (out, network) in [("slow", "3mbit,2ms"), ("fast", "100mbit,1ms")] {
        let expected = run(out, &format!("--network {network}"));
        let got = replay(&frames, network.parse().unwrap(), &compute).unwrap();
        assert_eq!((got.len(), got[0].len()), (2, 16));
        for (got, expected) in got[0].iter().zip(&expected) {
            assert!((got - expected).abs() < 1e-9 * expected, "{got} s on {network}, expected {expected}");
        }
    }
    assert!(!runs.path("slow/frames").exists(), "nothing is recorded unless it is asked for");
}

#[test]
fn a_run_that_records_its_frames_cannot_be_resumed() {
    let runs = Runs::default();
    runs.run(CIFAR, &format!("{SMALL} --record-frames on --out run --checkpoint-every 2")).succeeds();
    runs.run(CIFAR, "--resume run --steps 8 --plain").refused(&["--record-frames on", "--overwrite"]);
}
