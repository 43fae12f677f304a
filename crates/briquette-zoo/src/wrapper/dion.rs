//! Dion's momentum: error feedback on each rank's own momentum, for low-rank messages and an optimizer that orthonormalizes.
//!
//! **Why, and when not.** Muon steps with an orthonormalized momentum. With this feedback around [`PowerSgd`], ranks exchange only `r` columns and `r` rows
//! of that momentum, and a rank keeps what they do not contain. Use it with Muon *without* a momentum (the trainers' `--optimizer muon` then has
//! none). Do not use it for gradients that are averaged exactly, or with an optimizer that has its own momentum. If another optimizer steps with some of
//! the matrices, name those of Muon in `slots`.
//!
//! **Method.** For each slot that is a matrix and matches `slots`, with `C` the reducer:
//!
//! | paper | here |
//! |---|---|
//! | `B ← M + G` | input + `residual` |
//! | `P, R ←` one power iteration from `Q`; `P Rᵀ` | `sent` |
//! | `M ← B − (1−μ) P Rᵀ` | the new `residual` |
//! | the step, `P·(columns of R, each of length 1)ᵀ` | the optimizer's orthonormalization of the average |
//!
//! The other slots are sent with error feedback, without a momentum.
//!
//! | setting | equivalent to |
//! |---|---|
//! | `momentum` 0 | feedback `error` |
//! | an exact reducer | SGD's momentum on these matrices: `m ← μm + g` |
//!
//! **On the wire.** The messages of the reducer: with [`PowerSgd`], all-reduces of `r·(n+m)` values of an `n × m` matrix.
//!
//! **Properties.** Conserves: `input + residual_before = (1−μ)·sent + residual_after` on these matrices, and with `sent` instead of `(1−μ)·sent` elsewhere.
//!
//! **State.** The residual, Dion's momentum buffer `M`: one vector per rank.
//!
//! **Knobs.** `momentum` μ in [0, 1), default 0.95; `slots`, a pattern of paths, default `*`.
//!
//! **Deviations.** Paper: columns of `R` are scaled to length 1, which depends on the basis of `P`. Here: the optimizer orthonormalizes the whole average. Burn's Muon
//! does so by five Newton–Schulz iterations, which bring the nonzero singular values to between about 0.7 and 1.2, and scales by the size of the matrix. A
//! rank subtracts its own projection from its residual, as [`PowerSgd`] reports it; the mean over ranks is the same.
//!
//! **Reference.** K. Ahn, B. Xu, N. Abreu, J. Langford, *Dion: Distributed Orthonormalized Updates*, 2025 (arXiv 2504.05295), algorithm 1.
//!
//! [`PowerSgd`]: briquette_core::reduce::power_sgd::PowerSgd
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::comm::Local;
//! use briquette_core::reduce::{AgreedStep, Reducer, Round, dense::Dense};
//! use briquette_zoo::wrapper::dion::{Dion, DionConfig};
//! let mut comm = Local::world(1).remove(0);
//! let mut reducer = Dion::new(Dense, DionConfig { momentum: 0.5, ..Default::default() })?;
//! let layout = Layout::new([("matrix", vec![2, 2])]);
//! let mut averages = vec![];
//! for input in [4.0, 4.0, -8.0] {
//!     let mut average = [0.0; 4];
//!     reducer.exchange(Round { key: Key::new(0), slots: layout.slots(), agreed_step: &AgreedStep::default(),
//!         input: &[input; 4], average: &mut average, sent: None }, &mut comm)?;
//!     averages.push(average[0]);
//! }
//! assert_eq!(averages, [4.0, 6.0, -5.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ops::Range;

use super::clear_absent;
use briquette_core::config::{
    Described, Exchange, FeedbackRequirement, FeedbackSettings, SlotPattern, combine::InnerOptimizer,
};
use briquette_core::error::{ConfigError, ReduceError};
use briquette_core::layout::absent;
use briquette_core::reduce::{Exchanged, Reducer, Round};
use briquette_core::report::Report;
use briquette_core::state::Staged;
use briquette_core::wrapper::check_finite;
use briquette_core::{Layout, Session, Slot, stateful};

/// Settings of [`Dion`].
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "dion",
    help = "a momentum (0.95) on each rank keeps what was not sent; for power-sgd and Muon without a momentum",
    representatives("dion", "dion:0.75,slots=*weight")
)]
pub struct DionConfig {
    /// The share of what was sent that stays in the residual, in [0, 1).
    #[setting(default = 0.95, range = "[0, 1)", syntax = "MOMENTUM")]
    pub momentum: f32,
    /// Matrices with a momentum, by their path.
    #[setting(default = "*", syntax = "PATTERN")]
    pub slots: SlotPattern,
}

impl DionConfig {
    /// Returns the share of a slot's sent values that leaves the residual.
    pub fn removed(&self, slot: &Slot) -> f32 {
        let has_momentum = slot.matrix().is_some() && self.slots.matches(slot.path());
        if has_momentum { 1.0 - self.momentum } else { 1.0 }
    }
}

/// Keeps what was not sent, and a share of what was; see the [module](self).
#[derive(Debug)]
pub struct Dion<R> {
    inner: R,
    settings: DionConfig,
    /// During an exchange, the next value is the fed vector.
    residual: Staged<Vec<f32>>,
    sent: Vec<f32>,
}

impl<R: Reducer> Dion<R> {
    /// Creates a wrapper around any reducer that reports its contribution in `sent`.
    ///
    /// # Errors
    /// [`ConfigError`] if `momentum` is outside [0, 1).
    pub fn new(inner: R, settings: DionConfig) -> Result<Self, ConfigError> {
        settings.check()?;
        Ok(Dion { inner, settings, residual: Staged::default(), sent: Vec::new() })
    }
}

stateful! {
    impl<R: Reducer> Stateful for Dion<R> {
        residual: vector("residual").rank_local(Waits),
        inner: part("inner"),
    }
}

impl<R: Reducer> Reducer for Dion<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let (len, rank) = (round.input.len(), comm.rank());
        self.residual.fit(len)?;
        self.sent.resize(len, 0.0);
        let (before, next) = self.residual.both();
        next.iter_mut().zip(before).zip(round.input).for_each(|((next, before), input)| *next = before + input);
        let Round { key, slots, agreed_step, average, sent, .. } = round;
        clear_absent(next, slots);
        check_finite(next, slots, rank)?;
        let part = Round { key, slots, agreed_step, input: next, average, sent: Some(&mut self.sent) };
        let exchanged = self.inner.reduce(part, comm)?;
        for slot in slots {
            let removed = self.settings.removed(slot);
            let values = next[slot.range()].iter_mut().zip(&self.sent[slot.range()]);
            values.for_each(|(next, sent)| *next -= removed * sent);
        }
        check_finite(next, slots, rank)?;
        if let Some(sent) = sent {
            sent.copy_from_slice(&self.sent);
        }
        self.residual.stage();
        self.residual.hold(&absent(slots));
        Ok(exchanged)
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        self.residual.hold(absent);
        self.inner.hold(absent);
    }

    fn report(&self, report: &mut Report) {
        self.inner.report(report);
    }
}

impl FeedbackSettings for DionConfig {
    fn wrap(&self, inner: Box<dyn Reducer>, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(Dion::new(inner, self.clone())?))
    }

    fn requirement(&self) -> FeedbackRequirement {
        FeedbackRequirement::Bounded
    }

    fn has_momentum(&self) -> bool {
        true
    }

    /// Returns none: an optimizer that steps differently with matrices and vectors does not show its momentum.
    fn optimizer(&self) -> Option<InnerOptimizer> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::Key;
    use briquette_core::comm::Local;
    use briquette_core::reduce::{AgreedStep, dense::Dense, power_sgd::PowerSgd};
    use briquette_core::state::Stateful;

    const WORLD: usize = 3;

    fn layout() -> Layout {
        Layout::new([("matrix", vec![4, 6]), ("vector", vec![3])])
    }

    fn gradient(rank: usize, step: u64) -> Vec<f32> {
        (0..27).map(|i| ((i * 37 + rank * 11 + step as usize * 53) % 101) as f32 / 50.0 - 1.0).collect()
    }

    /// Returns averages and contributions of every step, and the last residual, of each rank.
    #[allow(clippy::type_complexity)]
    fn run<R: Reducer>(steps: u64, momentum: f32, inner: impl Fn() -> R + Sync) -> Vec<(Vec<[Vec<f32>; 2]>, Vec<f32>)> {
        let ranks = Local::run(WORLD, |mut comm| {
            let mut reducer = Dion::new(inner(), DionConfig { momentum, ..DionConfig::default() }).unwrap();
            let (layout, rank) = (layout(), comm.rank());
            let exchanges = (0..steps).map(|step| {
                let (mut average, mut sent) = (vec![9.0; 27], vec![9.0; 27]);
                let (key, slots, agreed_step) = (Key::new(1).step(step), layout.slots(), &AgreedStep::default());
                let input = &gradient(rank, step);
                let round = Round { key, slots, agreed_step, input, average: &mut average, sent: Some(&mut sent) };
                reducer.exchange(round, &mut comm).unwrap();
                reducer.commit();
                [average, sent]
            });
            Ok::<_, ReduceError>((exchanges.collect(), reducer.residual.now().clone()))
        });
        ranks.into_iter().map(Result::unwrap).collect()
    }

    /// A naive twin in f64: with an exact reducer the average is SGD's momentum of the mean gradient on the matrix, and the mean on the vector.
    #[test]
    fn an_exact_reducer_leaves_the_momentum_of_sgd_on_matrices_alone() {
        let ranks = run(6, 0.75, || Dense);
        let mut velocity = vec![0.0_f64; 27];
        for (step, [average, _]) in ranks[0].0.iter().enumerate() {
            for i in 0..27 {
                let mean = (0..WORLD).map(|rank| f64::from(gradient(rank, step as u64)[i])).sum::<f64>() / 3.0;
                velocity[i] = if i < 24 { 0.75 * velocity[i] } else { 0.0 } + mean;
                assert!((f64::from(average[i]) - velocity[i]).abs() < 1e-5, "step {step}, value {i}");
            }
        }
    }

    /// The claim of the paper at full rank: the low-rank step has the whole momentum.
    #[test]
    fn at_full_rank_nothing_of_the_momentum_is_lost() {
        let [low, exact] =
            [run(6, 0.9, || PowerSgd::new(4).unwrap()), run(6, 0.9, || Box::new(Dense) as Box<dyn Reducer>)];
        let pairs = low[0].0.iter().zip(&exact[0].0).flat_map(|([a, _], [b, _])| a.iter().zip(b));
        assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-4));
    }

    /// Law 3, summed over steps: `Σ input = Σ (1−μ)·sent + residual`, with a factor of 1 on vectors.
    #[test]
    fn what_was_not_sent_stays() {
        for (rank, (exchanges, residual)) in run(9, 0.75, || PowerSgd::new(1).unwrap()).iter().enumerate() {
            for i in 0..27 {
                let entered: f64 = (0..9).map(|step| f64::from(gradient(rank, step)[i])).sum();
                let removed = if i < 24 { 0.25 } else { 1.0 };
                let left: f64 = exchanges.iter().map(|[_, sent]| removed * f64::from(sent[i])).sum();
                assert!((entered - left - f64::from(residual[i])).abs() < 1e-4, "rank {rank}, value {i}");
            }
            let kept = residual[..24].iter().any(|v| v.abs() > 0.1);
            assert!(kept && residual[24..] == [0.0; 3], "rank {rank}: {residual:?}");
        }
    }

    #[test]
    fn a_momentum_of_one_is_refused() {
        for momentum in [1.0, -0.1, f32::NAN] {
            let error = Dion::new(Dense, DionConfig { momentum, ..DionConfig::default() }).unwrap_err().to_string();
            assert!(error.contains("momentum of dion must be in [0, 1)"), "{error}");
        }
    }

    #[test]
    fn matrices_that_the_pattern_does_not_name_have_no_momentum() {
        let settings = DionConfig { momentum: 0.75, slots: "lstm.*".parse().unwrap() };
        let layout = Layout::new([("lstm.w", vec![2, 2]), ("lstm.b", vec![2]), ("embedding.w", vec![2, 2])]);
        let removed: Vec<f32> = layout.slots().iter().map(|slot| settings.removed(slot)).collect();
        assert_eq!(removed, [0.25, 1.0, 1.0]);
    }
}
