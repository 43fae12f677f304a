//! Frames that a run records, replayed on other networks.

use std::time::Duration;

use briquette::sim::{Compute, replay};
use briquette_examples::record::read_frames;
use briquette_examples::train::{Control, train};

use crate::common::{CIFAR, Fault, Runs, SMALL, Toy, quiet, settings};

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
fn a_trace_that_ends_before_the_run_starts_over_and_the_run_says_so() {
    let runs = Runs::default();
    // Six steps of 50 ms, of which the third one begins on a link that is 1000 times slower.
    std::fs::write(runs.path("link.csv"), "seconds,mbit,ms\n0,1000,0\n0.11,1,0\n0.2,,\n").unwrap();
    let small = SMALL.replace("100mbit,1ms", "trace:link.csv");
    let ended = runs.run(CIFAR, &format!("{small} --compressor topk:100x --feedback error --out run")).succeeds();
    assert!(ended.stdout.contains("s on trace:link.csv, which starts over every 0.2 s"), "{}", ended.stdout);
    let ends: Vec<f64> = runs.metrics("run").iter().map(|step| step.simulated_seconds.unwrap()).collect();
    let steps: Vec<f64> = ends.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // The second step is on the fast link and the third on the slow one; in the second round it is fast again.
    assert!(steps[0] < 0.055 && steps[1] > 0.06 && steps[2..].iter().any(|step| *step < 0.055), "{ends:?}");
}

#[test]
fn seconds_of_compressing_are_replayed_too() {
    let runs = Runs::default();
    std::fs::write(runs.path("codecs.csv"), "reducer,ratio,values,seconds\ngather:topk:10x,10,77850,0.01\n").unwrap();
    let run = |out: &str, more: &str| {
        let small = SMALL.replace("--network 100mbit,1ms", "");
        runs.run(CIFAR, &format!("{small} --compressor topk:10x --out {out} {more}")).succeeds();
        runs.metrics(out).iter().map(|step| step.simulated_seconds.unwrap()).collect::<Vec<_>>()
    };
    let codecs = "--compress-seconds codecs.csv";
    run("recorded", &format!("--network unlimited --record-frames on {codecs}"));
    let (expected, free) = (run("slow", &format!("--network 3mbit,2ms {codecs}")), run("free", "--network 3mbit,2ms"));
    let frames = read_frames(&runs.path("recorded"), 2).unwrap();
    let got = replay(&frames, "3mbit,2ms".parse().unwrap(), &Compute::Fixed(Duration::from_millis(50))).unwrap();
    assert!(expected[5] > 1.001 * free[5] && got[0].len() == 6, "{expected:?} and {free:?}");
    for (got, expected) in got[0].iter().zip(&expected) {
        assert!((got - expected).abs() < 1e-9 * expected, "{got} s, expected {expected}");
    }
}

#[test]
fn the_frames_of_an_interrupted_run_end_with_its_last_step() {
    let runs = Runs::default();
    let toml =
        "ranks = 2\nbatch = 8\nepochs = 9\ncompressor = \"topk:10x\"\nrecord-frames = \"on\"\nclock = \"fixed:50ms\"";
    let toy = Toy::new(64, Some(Fault::Stop(3)));
    let stopped =
        train(&settings(&runs.path("run"), toml), &toy, &Control { stop: toy.stop.clone(), ..quiet() }).unwrap();
    assert!(stopped.interrupted && stopped.steps >= 4, "{stopped:?}");
    let frames = read_frames(&runs.path("run"), 2).unwrap();
    let got = replay(&frames, "3mbit,2ms".parse().unwrap(), &Compute::Fixed(Duration::from_millis(50))).unwrap();
    assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), [stopped.steps as usize; 2]);
}

#[test]
fn a_run_that_decides_by_seconds_cannot_be_recorded() {
    let runs = Runs::default();
    for (part, name, others) in [("controller", "auto", ""), ("strategy", "diloco:4,adapt=true", " --reducer dense")] {
        let flags = format!("{SMALL} --{part} {name}{others} --record-frames on --out run");
        let said = [format!("--{part} {name} decides by seconds"), format!("choose a {part} that reads no seconds")];
        runs.run(CIFAR, &flags).refused(&said.each_ref().map(String::as_str));
    }
}

#[test]
fn a_run_that_records_its_frames_cannot_be_resumed() {
    let runs = Runs::default();
    runs.run(CIFAR, &format!("{SMALL} --reducer dense --record-frames on --out run --checkpoint-every 2")).succeeds();
    runs.run(CIFAR, "--resume run --steps 8 --plain").refused(&["--record-frames on", "--overwrite"]);
}
