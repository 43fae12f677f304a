//! Ranks of unequal speed: shares of the samples.

use crate::common::{AG_NEWS, Runs, SMALL};

/// Rank 3 takes ten times as long for a sample: 80 ms for each eight, then 11 ms for 11, 10, 10 and 1.
#[test]
fn balanced_shares_follow_speeds_and_resume_to_the_bit() {
    let runs = Runs::default();
    let run = |out: &str, steps: u64, flags: &str| {
        let small = SMALL.replace("--steps 6", &format!("--steps {steps}")).replace("--ranks 2", "--ranks 4");
        let small = small.replace("fixed:50ms", "fixed:8ms,8ms,8ms,80ms;samples=8").replace("100mbit,1ms", "unlimited");
        let small = small.replace("--batch 4", "--batch 8").replace("--train-limit 64", "--train-limit 320");
        runs.run(AG_NEWS, &format!("{small} --model lstm --out {out} --reducer dense {flags}")).succeeds();
    };
    run("equal", 30, "");
    run("whole", 30, "--balance auto");
    // Between the first look and the second.
    run("broken", 7, "--balance auto");
    runs.run(AG_NEWS, "--resume broken --steps 30 --plain").succeeds();
    assert_eq!(runs.text("whole", "metrics.jsonl"), runs.text("broken", "metrics.jsonl"));
    let shares: Vec<Vec<usize>> = runs.metrics("whole").into_iter().map(|step| step.shares).collect();
    assert_eq!([&shares[2], &shares[3], &shares[29]], [&[8, 8, 8, 8], &[11, 10, 10, 1], &[11, 10, 10, 1]]);
    let seconds = |out: &str| runs.summary(out).simulated_seconds.expect("a simulated clock");
    // Three steps of 80 ms and 27 of 11 ms, instead of 30 of 80 ms.
    assert!((seconds("equal") - 2.4).abs() < 1e-6 && (seconds("whole") - 0.537).abs() < 1e-6, "{}", seconds("whole"));
    // The same samples, so the same mean gradients, to rounding.
    let losses = |out: &str| runs.metrics(out).into_iter().map(|step| step.loss.expect("a loss")).collect::<Vec<_>>();
    assert!(
        losses("equal").iter().zip(losses("whole")).all(|(a, b)| (a - b).abs() < 1e-3 * a),
        "{:?}",
        losses("whole")
    );
}

/// As above with six local steps: ranks agree on speeds after each of the first three, and continue with the shares within the period. The samples of
/// a period are recorded at its end, and are the weights of its average.
#[test]
fn balanced_local_steps_follow_speeds_within_the_first_period_and_resume_to_the_bit() {
    let runs = Runs::default();
    let run = |out: &str, steps: u64, flags: &str| {
        let small = SMALL.replace("--steps 6", &format!("--steps {steps}")).replace("--ranks 2", "--ranks 4");
        let small = small.replace("fixed:50ms", "fixed:8ms,8ms,8ms,80ms;samples=8").replace("100mbit,1ms", "unlimited");
        let small = small.replace("--batch 4", "--batch 8").replace("--train-limit 64", "--train-limit 320");
        runs.run(AG_NEWS, &format!("{small} --model lstm --out {out} --local-steps 6 --reducer dense {flags}"))
            .succeeds();
    };
    run("equal", 30, "");
    run("whole", 30, "--balance auto");
    // Within a period.
    run("broken", 10, "--balance auto");
    runs.run(AG_NEWS, "--resume broken --steps 30 --plain").succeeds();
    assert_eq!(runs.text("whole", "metrics.jsonl"), runs.text("broken", "metrics.jsonl"));
    let steps = runs.metrics("whole");
    assert_eq!(
        [&steps[2].shares, &steps[3].shares, &steps[29].shares],
        [&[8, 8, 8, 8], &[11, 10, 10, 1], &[11, 10, 10, 1]]
    );
    let seconds = |out: &str| runs.summary(out).simulated_seconds.expect("a simulated clock");
    assert!((seconds("equal") - 2.4).abs() < 1e-6 && (seconds("whole") - 0.537).abs() < 1e-6, "{}", seconds("whole"));
}
