//! Rules for parts that are not named: they give the same whichever part is named, depend on the length of the run, and
//! print the reason.

use crate::common::{CIFAR, Runs, SMALL};

/// Returns the bytes that a run sent, its simulated time and its final test loss, to the bit.
fn outcome(runs: &Runs, out: &str, flags: &str) -> (u64, Option<u64>, u64) {
    // A slow link, and steps enough for the controller to decide; compressing takes what it takes elsewhere.
    let flags = format!("{SMALL} --out {out} {flags}").replace("100mbit", "20mbit").replace("--steps 6", "--epochs 3");
    runs.run(CIFAR, &flags).succeeds();
    let summary = runs.summary(out);
    (summary.bytes_sent, summary.simulated_seconds.map(f64::to_bits), summary.final_test_loss.to_bits())
}

#[test]
fn each_part_of_the_default_typed_out_is_the_default() {
    let runs = Runs::default();
    let default = outcome(&runs, "default", "");
    for (out, flags) in [
        ("controller", "--controller auto"),
        ("others", "--strategy every-step --reducer ladder --feedback by-optimizer --aggregator mean"),
    ] {
        assert_eq!(outcome(&runs, out, flags), default, "{flags}");
    }
    let other = outcome(&runs, "error", "--controller auto --feedback error");
    assert_ne!(other, default, "another feedback is another run");
}

#[test]
fn every_part_is_printed_with_its_reason() {
    let runs = Runs::default();
    let said = runs.cifar("run", "--controller auto").succeeds().stdout;
    for line in [
        "# strategy every-step, because no other was named",
        "# reducer ladder:topk:20x:q8, because controller auto chooses among its ratios",
        "# controller auto:50x, as given",
        "# feedback inner-momentum:0.9, because the optimizer is SGD with momentum 0.9",
    ] {
        assert!(said.lines().any(|said| said == line), "no `{line}` in {said}");
    }
    let said = runs.cifar("signs", "--optimizer sign-sgd --lr 0.0002").succeeds().stdout;
    assert!(said.contains("# feedback error, because the optimizer is sign-sgd, not SGD with momentum"), "{said}");
    assert!(said.contains("# --optimizer sign-sgd: ") && said.contains("about a hundredth of SGD's"), "{said}");
    let votes = "--reducer two-way:plain-sign,down=plain-sign --momentum 0 --lr 0.001";
    let said = runs.cifar("votes", votes).succeeds().stderr;
    assert_eq!(said.matches("use about a hundredth of SGD's").count(), 1, "{said}");
}

#[test]
fn periods_follow_from_the_number_of_steps_and_stay_when_a_run_is_made_longer() {
    let runs = Runs::default();
    let flags = |steps: &str, more: &str| format!("{SMALL} --epochs 8 {more}").replace("--steps 6", steps);
    let run = runs.run(CIFAR, &format!("{} --out run", flags("--steps 40", "--strategy diloco"))).succeeds();
    assert!(
        run.stdout.contains("# strategy diloco:2, because a run of 40 steps has 20 periods of 2 steps"),
        "{}",
        run.stdout
    );
    assert!(!run.stderr.contains("exchanges in"), "{}", run.stderr);
    let kept = || assert!(runs.text("run", "config.toml").contains("strategy = \"diloco:2\""));
    kept();
    runs.run(CIFAR, "--resume run --steps 60 --plain").succeeds();
    kept();
    let summary = runs.summary("run");
    runs.run(CIFAR, &format!("{} --out named", flags("--steps 60", "--strategy diloco:2"))).succeeds();
    let named = runs.summary("named");
    assert_eq!((summary.final_test_loss, summary.bytes_sent), (named.final_test_loss, named.bytes_sent));

    let few = runs.run(CIFAR, &format!("{} --out few", flags("--steps 40", "--strategy diloco:30"))).succeeds().stderr;
    assert_eq!(few.matches("strategy diloco:30 has 1 exchanges in 40 steps").count(), 1, "{few}");
    runs.run(CIFAR, &format!("{} --out parle", flags("--steps 40", "--strategy parle"))).succeeds();
    let parle = runs.text("parle", "config.toml");
    assert!(parle.contains("strategy = \"parle:2,scope=0.8") && !parle.contains("0.999"), "{parle}");
}
