//! Rank-local momentum before the exchange: the input of Signum's vote, and a defense for robust aggregation.
//!
//! **Why, and when not.** The sign of one noisy gradient is often wrong, that of a running mean rarely. An aggregator separates Byzantine
//! ranks from honest ones better if honest ranks differ less: a mean over the last `1/(1−β)` steps has `(1+β)/(1−β)` times less variance.
//! Not for an optimizer with its own momentum, and not for repairing compression error: it keeps no residual
//! ([`MomentumCorrection`](briquette_core::wrapper::momentum_correction::MomentumCorrection) does).
//!
//! **Method.**
//!
//! | paper | here |
//! |---|---|
//! | `vᵢ ← (1−β)gᵢ + βvᵢ` | `velocity`, before the exchange |
//! | send `sign(vᵢ)` | up to the reducer |
//!
//! **Properties.** Honest (law 2) as the inner reducer: `sent` refers to the velocity. Linear: with an exact mean the average is the
//! momentum of the mean gradient.
//!
//! **State.** `vᵢ`: one vector per rank. After a change of the world size every rank gets the mean.
//!
//! **Knobs.** `momentum` in [0, 1): 0.9. At 0 it equals the inner reducer.
//!
//! **Deviations.** None; `v` starts at 0, as in algorithm 1, without bias correction.
//!
//! **Reference.** J. Bernstein, J. Zhao, K. Azizzadenesheli, A. Anandkumar, *signSGD with Majority Vote is Communication Efficient and
//! Fault Tolerant*, ICLR 2019 (arXiv 1810.05291), algorithm 1; as a defense: S. P. Karimireddy, L. He, M. Jaggi, *Learning from History
//! for Byzantine Robust Optimization*, ICML 2021 (arXiv 2012.10333).
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::comm::Local;
//! use briquette_core::reduce::{dense::Dense, AgreedStep, Reducer, Round};
//! use briquette_zoo::wrapper::rank_momentum::{RankMomentum, RankMomentumConfig};
//! let mut comm = Local::world(1).remove(0);
//! let mut reducer = RankMomentum::new(Dense, RankMomentumConfig { momentum: 0.5 })?;
//! let layout = Layout::flat(1);
//! let mut averages = vec![];
//! for input in [4.0, 4.0, -8.0] {
//!     let mut average = [0.0];
//!     reducer.exchange(Round { key: Key::new(0), slots: layout.slots(), agreed_step: &AgreedStep::default(),
//!         input: &[input], average: &mut average, sent: None }, &mut comm)?;
//!     averages.push(average[0]);
//! }
//! assert_eq!(averages, [2.0, 3.0, -2.5]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ops::Range;

use super::clear_absent;
use briquette_core::config::{Described, Exchange, FeedbackRequirement, FeedbackSettings};
use briquette_core::error::{ConfigError, ReduceError};
use briquette_core::layout::absent;
use briquette_core::reduce::{Exchanged, Reducer, Round};
use briquette_core::report::Report;
use briquette_core::state::Staged;
use briquette_core::{Layout, Session, stateful};

/// Settings of [`RankMomentum`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "rank-momentum",
    help = "each rank sends its own momentum (0.9), as Signum does; for SGD without one"
)]
pub struct RankMomentumConfig {
    /// The velocity's decay, in [0, 1).
    #[setting(default = 0.9, range = "[0, 1)", syntax = "DECAY")]
    pub momentum: f32,
}

/// Exchanges each rank's velocity; see the [module](self).
#[derive(Debug)]
pub struct RankMomentum<R> {
    inner: R,
    momentum: f32,
    /// Weight of a gradient: `1 − momentum`.
    fresh: f32,
    velocity: Staged<Vec<f32>>,
}

impl<R: Reducer> RankMomentum<R> {
    /// Creates a wrapper around any reducer.
    ///
    /// # Errors
    /// [`ConfigError`] if `momentum` is outside [0, 1).
    pub fn new(inner: R, settings: RankMomentumConfig) -> Result<Self, ConfigError> {
        settings.check()?;
        Ok(RankMomentum { momentum: settings.momentum, ..RankMomentum::averaging(inner, 1.0 - settings.momentum) })
    }

    /// Creates a wrapper in whose running mean a gradient has the weight `fresh`.
    pub(crate) fn averaging(inner: R, fresh: f32) -> Self {
        RankMomentum { inner, momentum: 1.0 - fresh, fresh, velocity: Staged::default() }
    }
}

stateful! {
    impl<R: Reducer> Stateful for RankMomentum<R> {
        velocity: vector("velocity").rank_local(Spread),
        inner: part("inner"),
    }
}

impl<R: Reducer> Reducer for RankMomentum<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        self.velocity.fit(round.input.len())?;
        let (momentum, fresh, (before, next)) = (self.momentum, self.fresh, self.velocity.both());
        for ((next, before), input) in next.iter_mut().zip(before).zip(round.input) {
            *next = momentum * before + fresh * input;
        }
        let Round { key, slots, agreed_step, average, sent, .. } = round;
        clear_absent(next, slots);
        let exchanged = self.inner.reduce(Round { key, slots, agreed_step, input: next, average, sent }, comm)?;
        self.velocity.stage();
        self.velocity.hold(&absent(slots));
        Ok(exchanged)
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        self.velocity.hold(absent);
        self.inner.hold(absent);
    }

    fn report(&self, report: &mut Report) {
        self.inner.report(report);
    }
}

impl FeedbackSettings for RankMomentumConfig {
    fn wrap(&self, inner: Box<dyn Reducer>, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(RankMomentum::new(inner, *self)?))
    }

    fn requirement(&self) -> FeedbackRequirement {
        FeedbackRequirement::Nothing
    }

    fn has_momentum(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::Key;
    use briquette_core::comm::Local;
    use briquette_core::reduce::{AgreedStep, dense::Dense};

    #[test]
    fn with_an_exact_mean_it_is_the_momentum_of_the_mean() {
        let gradient = |rank: usize, step: u64| [(rank as f32 + 1.0) * (step as f32 - 1.0), rank as f32 - step as f32];
        let ranks = Local::run(2, |mut comm| {
            let mut reducer = RankMomentum::new(Dense, RankMomentumConfig { momentum: 0.75 }).unwrap();
            let (layout, rank) = (Layout::flat(2), comm.rank());
            (0..5)
                .map(|step| {
                    let (mut average, input) = ([9.0; 2], gradient(rank, step));
                    let (key, slots, agreed_step) = (Key::new(0), layout.slots(), &AgreedStep::default());
                    let round = Round { key, slots, agreed_step, input: &input, average: &mut average, sent: None };
                    reducer.exchange(round, &mut comm).map(|_| average)
                })
                .collect::<Result<Vec<_>, _>>()
        });
        let mut velocity = [0.0; 2];
        for (step, average) in ranks[0].as_ref().unwrap().iter().enumerate() {
            let [a, b] = [0, 1].map(|rank| gradient(rank, step as u64));
            for i in 0..2 {
                velocity[i] = 0.75 * velocity[i] + 0.25 * (a[i] + b[i]) / 2.0;
            }
            assert_eq!(average, &velocity, "step {step}");
        }
    }

    #[test]
    fn a_momentum_of_one_is_refused() {
        for momentum in [1.0, -0.1, f32::NAN] {
            let error = RankMomentum::new(Dense, RankMomentumConfig { momentum }).unwrap_err().to_string();
            assert!(error.contains("momentum of rank-momentum must be in [0, 1)"), "{error}");
        }
    }
}
