//! Laws of one exchange: agreement, honesty, accounting, equal decisions.

use super::data::{gradient, learning_rate};
use super::driver::{Outcome, Setup, same_bits};
use super::{Reduces, Synchronizes};
use crate::seam::ErrorBound;
use crate::settings::DownlinkResidual;
use crate::state::Value;

/// Checks law 1: if a strategy declares that replicas are equal, every rank has the same bits. State that is declared as
/// replicated is the same on every rank.
///
/// # Panics
/// If ranks differ in their plans or in a bit, or if they step alone and do not differ.
pub fn agrees<C: Synchronizes + Clone>(setup: &Setup<C>) {
    let runs = setup.run(5);
    for rank in &runs[1..] {
        for (step, (a, b)) in runs[0].iter().zip(rank).enumerate() {
            assert_eq!(a.plan, b.plan, "law 1 broken: {setup}, step {step}: what is done");
            let Some(plan) = a.plan else { continue };
            let same = same_bits(&a.average, &b.average);
            assert!(same || !plan.replicas_equal, "law 1 broken: {setup}, step {step}");
            assert!(!same || plan.exchanges(), "law 1 broken: {setup}, step {step}: equal without an exchange");
            for (ours, theirs) in a.state.replicated().zip(b.state.replicated()) {
                assert_eq!(ours, theirs, "law 1 broken: {setup}, step {step}: declared as the same on every rank");
            }
        }
    }
}

/// Checks law 1 where replicas differ: an exchange of parameters does not change the mean over ranks of the conserved vector,
/// up to the rounding of `4W + 4` operations on the mixed vectors.
///
/// # Panics
/// If it changes. Also if replicas are never equal while law 2 [does not bound](Synchronizes::bounds_replica_differences) their
/// distance, nothing is conserved, and no vector of the state is the same on every rank.
pub fn conserves_its_mean<C: Synchronizes + Clone>(setup: &Setup<C>) {
    let runs = setup.run(6);
    for step in 0..6 {
        let all: Option<Vec<&[Vec<f32>; 2]>> = runs.iter().map(|run| run[step].conserved.as_ref()).collect();
        let Some(all) = all else { continue };
        for i in 0..setup.layout.len() {
            let sum = |side: usize| all.iter().map(|c| f64::from(c[side][i])).sum::<f64>();
            let size = all.iter().map(|c| f64::from(c[0][i].abs() + c[1][i].abs())).sum::<f64>();
            // Mixed vectors (parameters, and state from the previous step) may be longer than their result.
            let kept = |run: &Vec<Outcome>| {
                let before = step.checked_sub(1).map_or_else(Vec::new, |before| vectors(&run[before]));
                before.iter().map(|v| f64::from(v.get(i).copied().unwrap_or_default().abs())).sum::<f64>()
            };
            let mixed = runs.iter().map(|run| f64::from(run[step].average[i].abs()) + kept(run)).sum::<f64>();
            let bound = (4.0 * setup.world as f64 + 4.0) * f64::from(f32::EPSILON) * (size + mixed) + 1e-12;
            let off = (sum(1) - sum(0)).abs();
            assert!(off <= bound, "law 1 broken: {setup}, step {step}, value {i}: off by {off:e}, bound {bound:e}");
        }
    }
    let holds = |run: &Vec<Outcome>| {
        run.iter().any(|o| {
            let holds_vector = o.state.replicated().any(|(_, value)| matches!(value, Value::F32s(v) if !v.is_empty()));
            o.conserved.is_some() || holds_vector || o.plan.is_some_and(|plan| plan.replicas_equal)
        })
    };
    let is_bounded = setup.config.bounds_replica_differences(setup.layout.len());
    assert!(is_bounded || runs.iter().all(holds), "law 1 broken: {setup}: replicas differ, and nothing is conserved");
}

/// Returns the vectors in the saved state after a step.
fn vectors(outcome: &Outcome) -> Vec<&[f32]> {
    let values = outcome.state.iter().map(|(_, value)| value);
    let vectors = values.filter_map(|value| match value {
        Value::F32s(vector) => Some(&vector[..]),
        _ => None,
    });
    vectors.collect()
}

/// Checks law 2 for a mean: the mean over ranks of what was sent is the average, up to rounding. The rounding is that of `W +
/// 1` additions of what was sent, and of the earlier inputs that may be in a residual, because a sent value may be the
/// difference of two of these.
///
/// # Panics
/// If it is not.
pub fn is_honest<C: Reduces + Clone>(setup: &Setup<C>, runs: &[Vec<Outcome>], step: usize) {
    let ranks = (0..setup.world).flat_map(|rank| (0..=step as u64).map(move |step| (rank, step)));
    let entered: Vec<Vec<f32>> = ranks.map(|(rank, step)| gradient(&setup.layout, rank, step)).collect();
    for i in 0..setup.layout.len() {
        let sent = runs.iter().map(|run| f64::from(run[step].sent[i]));
        let (sum, size) = sent.fold((0.0, 0.0), |(sum, size), v| (sum + v, size + v.abs()));
        let size = size + entered.iter().map(|vector| f64::from(vector[i].abs())).sum::<f64>();
        let bound = 2.0 * (setup.world as f64 + 1.0) * f64::from(f32::EPSILON) * size + 1e-12;
        let off = (f64::from(runs[0][step].average[i]) - sum / setup.world as f64).abs();
        assert!(off <= bound, "law 2 broken: {setup}, step {step}, value {i}: off by {off:e}, bound {bound:e}");
    }
}

/// Checks law 2 where the mean is compressed again on the downlink: over the steps, the error of the average is within `class`
/// and, if that is unbiased, has no systematic sign.
///
/// # Panics
/// If it is not.
pub fn is_honest_within<C: Reduces + Clone>(setup: &Setup<C>, runs: &[Vec<Outcome>], class: ErrorBound) {
    let (mut errors, mut along) = (Vec::new(), Vec::new());
    for step in 0..runs[0].len() {
        let mean = |i: usize| runs.iter().map(|run| f64::from(run[step].sent[i])).sum::<f64>() / setup.world as f64;
        let [mut energy, mut error, mut product] = [0.0; 3];
        for (i, average) in runs[0][step].average.iter().enumerate() {
            let (mean, off) = (mean(i), f64::from(*average) - mean(i));
            (energy, error, product) = (energy + mean * mean, error + off * off, product + off * mean);
        }
        errors.push(error / energy.max(f64::MIN_POSITIVE));
        along.push(product / energy.max(f64::MIN_POSITIVE));
    }
    // 5.5 standard deviations of the mean over steps, and rounding.
    let of = |samples: &[f64]| {
        let count = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / count;
        (mean, 5.5 * (samples.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / count / count).sqrt() + 1e-6)
    };
    let ((error, noise), (side, side_noise)) = (of(&errors), of(&along));
    assert!(
        error <= class.error() + noise,
        "law 2 broken: {setup}: off by {error:e} of the energy, {:e} declared",
        class.error()
    );
    let is_unbiased = matches!(class, ErrorBound::Unbiased { .. });
    assert!(
        !is_unbiased || side.abs() <= side_noise,
        "law 2 broken: {setup}: to one side, by {side:e} ± {side_noise:e}"
    );
}

/// Checks law 2 where the downlink has a residual: on every rank the sum of the averages differs from the sum of the means by
/// at most the declared bound of the residual. The downlink must lose something.
///
/// # Panics
/// If either does not hold.
pub fn is_honest_in_sum<C: Reduces + Clone>(setup: &Setup<C>, runs: &[Vec<Outcome>], residual: DownlinkResidual) {
    let DownlinkResidual { contraction, loss, in_rate } = residual;
    for (rank, run) in runs.iter().enumerate() {
        let (mut off, mut held, mut loses) = (vec![0.0; setup.layout.len()], 0.0, false);
        for (step, outcome) in run.iter().enumerate() {
            let unit = if in_rate { learning_rate(step as u64) } else { 1.0 };
            let (mut energy, mut rounding) = (0.0, 0.0);
            for (i, off) in off.iter_mut().enumerate() {
                let mean = runs.iter().map(|run| f64::from(run[step].sent[i])).sum::<f64>() / setup.world as f64;
                let average = f64::from(outcome.average[i]);
                *off += unit * (average - mean);
                energy += (unit * mean).powi(2);
                rounding += (1e-5 * unit * (average.abs() + mean.abs())).powi(2);
            }
            held = contraction * held + energy.sqrt();
            let kept = off.iter().map(|off| off * off).sum::<f64>().sqrt();
            loses |= kept > 1e-3 * loss * held;
            let bound = loss * held + rounding.sqrt();
            assert!(
                kept <= bound,
                "law 2 broken: {setup}, rank {rank}, step {step}: {kept:e} kept, at most {bound:e} can be"
            );
        }
        // One rank's compressed vector may be compressed again without loss.
        let declared =
            format!("law 2 broken: {setup}, rank {rank}: declared as losing on the way down, and loses nothing");
        assert!(loses || setup.world == 1, "{declared}");
    }
}

/// Checks law 2 for an aggregate that is not a mean: every value lies in the range of what was sent, and some are not the mean.
///
/// # Panics
/// If either does not hold.
pub fn stays_in_range<C: Reduces + Clone>(setup: &Setup<C>, runs: &[Vec<Outcome>], step: usize) {
    let mut differs_from_mean = false;
    for i in 0..setup.layout.len() {
        let sent = runs.iter().map(|run| run[step].sent[i]);
        let (least, most) = sent.clone().fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
        let (average, mean) = (runs[0][step].average[i], sent.sum::<f32>() / setup.world as f32);
        assert!(
            (least..=most).contains(&average),
            "law 2 broken: {setup}, step {step}, value {i}: {average} of {least} to {most}"
        );
        differs_from_mean |= (average - mean).abs() > 1e-3 * (most - least);
    }
    assert!(differs_from_mean, "law 2 broken: {setup}, step {step}: declared as no mean, and is one");
}

/// Checks law 8: the reported traffic equals the traffic that the transport counted.
///
/// # Panics
/// If it does not.
pub fn accounts_for_its_bytes<C: Synchronizes + Clone>(setup: &Setup<C>) {
    for outcome in setup.run(3).into_iter().flatten() {
        assert_eq!(outcome.reported, outcome.counted, "law 8 broken: {setup}");
    }
}

/// Checks law 9: every rank reports the same compression ratio at every step.
///
/// # Panics
/// If one does not.
pub fn decides_identically<C: Synchronizes + Clone>(setup: &Setup<C>) {
    let runs = setup.run(12);
    for rank in &runs[1..] {
        let ratios = |run: &[Outcome]| run.iter().map(|o| o.ratio).collect::<Vec<_>>();
        assert_eq!(ratios(rank), ratios(&runs[0]), "law 9 broken: {setup}");
    }
}
