//! 1-bit Adam: exchanges the momentum in signs once Adam's variance has settled.
//!
//! **Why, and when not.** Adam divides by a running mean of squared gradients, and error feedback does not commute with this division:
//! compressed gradients under Adam drift. After a warm-up the variance hardly changes. From then on it is frozen, ranks exchange the
//! *momentum*, and the rest of Adam is linear in it. Not for short runs, in which the warm-up is most of the run. Use it only with the
//! optimizer `OneBitAdam` (in `briquette::optim`) with the same warm-up and β₁: any other would take a momentum for a gradient.
//!
//! **Method.** The step `t` counts from 0.
//!
//! | paper | here |
//! |---|---|
//! | `t < T_w`: Adam with the exact mean of the gradients | a dense exchange; `m̄ ← β₁m̄ + (1−β₁)·mean`, in addition to the optimizer |
//! | then `mᵢ ← β₁m̄ + (1−β₁)gᵢ` | before the exchange |
//! | ranks send `C(mᵢ + eᵢ)`, `eᵢ` is the residual | [`ErrorFeedback`] around the reducer |
//! | the server sends `C(mean + e)`, `e` is the residual | reducer [`two-way`](crate::reduce::two_way) |
//! | `m̄` is the result; `x ← x − γm̄/(√v_{T_w} + ε)` | the average, and the optimizer |
//!
//! The published system is `feedback = "one-bit-adam:T_w"` with `reducer = "two-way:sign,down=sign"`.
//!
//! **On the wire.** Dense bytes for `T_w` steps, then the reducer's. For `T` steps with signs both ways: `T_w/T + (1 − T_w/T)/32` of dense.
//!
//! **Properties.** Before `T_w` the average is bit-identical to that of a dense exchange. Afterwards both residuals conserve: the input is
//! the sum of the contribution and the residual.
//!
//! **State.** `m̄`, replicated; `eᵢ`; and the inner reducer's state. Both residuals are saved, and a run resumes bit-identically.
//!
//! **Knobs.** `warm_up`, 500 steps; the paper uses 15 to 20 % of a run. `beta` is the optimizer's β₁, 0.9.
//!
//! **Deviations.** The authors' code drops both residuals when it loads a checkpoint; here they are part of it. Scales are the
//! compressor's: `‖·‖₁/d` in [`ScaledSign`](briquette_core::compress::scaled_sign::ScaledSign), which has the smallest error, while the authors' code has
//! `‖·‖₂/√d`.
//!
//! **Reference.** H. Tang, S. Gan, A. A. Awan, S. Rajbhandari, C. Li, X. Lian, J. Liu, C. Zhang, Y. He, *1-bit Adam: Communication Efficient
//! Large-Scale Training with Adam's Convergence Speed*, ICML 2021 (arXiv 2102.02888), algorithm 1.
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::comm::Local;
//! use briquette_core::reduce::{AgreedStep, dense::Dense, Reducer, Round};
//! use briquette_zoo::wrapper::one_bit_adam::{OneBitAdam, OneBitAdamConfig};
//! let mut comm = Local::world(1).remove(0);
//! let mut reducer = OneBitAdam::new(Dense, OneBitAdamConfig { warm_up: 2, beta: 0.5 })?;
//! let layout = Layout::flat(1);
//! let mut averages = vec![];
//! for step in 0..4 {
//!     let (mut average, agreed_step) = ([0.0], AgreedStep { step, ..AgreedStep::default() });
//!     reducer.exchange(Round { key: Key::new(0), slots: layout.slots(), agreed_step: &agreed_step,
//!         input: &[4.0], average: &mut average, sent: None }, &mut comm)?;
//!     averages.push(average[0]);
//! }
//! assert_eq!(averages, [4.0, 4.0, 3.5, 3.75]); // gradients, then the momentum, which was 2 and 3
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ops::Range;

use briquette_core::config::{Described, Exchange, FeedbackRequirement, FeedbackSettings, combine::InnerOptimizer};
use briquette_core::error::{ConfigError, ReduceError};
use briquette_core::layout::absent;
use briquette_core::reduce::{Exchanged, Reducer, Round, check_average, dense::Dense};
use briquette_core::report::Report;
use briquette_core::state::Staged;
use briquette_core::wrapper::{check_finite, error_feedback::ErrorFeedback};
use briquette_core::{Layout, Session, stateful};

/// Settings of [`OneBitAdam`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "one-bit-adam",
    help = "gradients, dense, for WARM_UP steps (500), then momentum with error feedback; for optimizer one-bit-adam",
    representatives("one-bit-adam:2,beta=0.75")
)]
pub struct OneBitAdamConfig {
    /// Steps with exact gradients, after which the momentum is exchanged.
    #[setting(default = 500)]
    pub warm_up: u64,
    /// The momentum's decay, in [0, 1): the optimizer's β₁.
    #[setting(default = 0.9, range = "[0, 1)")]
    pub beta: f32,
}

/// Exchanges gradients first, then the momentum; see the [module](self).
#[derive(Debug)]
pub struct OneBitAdam<R> {
    settings: OneBitAdamConfig,
    dense: Dense,
    compressed: ErrorFeedback<R>,
    /// `m̄`. During an exchange, the next value is the vector that this rank feeds.
    momentum: Staged<Vec<f32>>,
    fed: Vec<f32>,
    warms_up: bool,
}

impl<R: Reducer> OneBitAdam<R> {
    /// Creates a wrapper around a reducer that reports its contribution in `sent`.
    ///
    /// # Errors
    /// [`ConfigError`] if `beta` is outside [0, 1).
    pub fn new(inner: R, settings: OneBitAdamConfig) -> Result<Self, ConfigError> {
        settings.check()?;
        let (compressed, momentum) = (ErrorFeedback::new(inner), Staged::default());
        Ok(OneBitAdam { settings, dense: Dense, compressed, momentum, fed: Vec::new(), warms_up: true })
    }

    /// Returns `m̄`, the same bits on every rank; empty before the first exchange.
    pub fn momentum(&self) -> &[f32] {
        self.momentum.now()
    }
}

stateful! {
    impl<R: Reducer> Stateful for OneBitAdam<R> {
        momentum: vector("momentum"),
        compressed: flatten(),
    }
}

impl<R: Reducer> Reducer for OneBitAdam<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let OneBitAdamConfig { warm_up, beta } = self.settings;
        check_finite(round.input, round.slots, comm.rank())?;
        self.momentum.fit(round.input.len())?;
        self.warms_up = round.agreed_step.step < warm_up;
        let (momentum, next) = self.momentum.both();
        let step = |of: &[f32], out: &mut [f32]| {
            out.iter_mut().zip(momentum).zip(of).for_each(|((out, m), x)| *out = beta * m + (1.0 - beta) * x);
        };
        let Round { key, slots, agreed_step, input, average, sent } = round;
        let exchanged = if self.warms_up {
            let round = Round { key, slots, agreed_step, input, average: &mut *average, sent };
            let exchanged = self.dense.reduce(round, comm)?;
            step(average, next);
            exchanged
        } else {
            self.fed.resize(input.len(), 0.0);
            step(input, &mut self.fed);
            let round = Round { key, slots, agreed_step, input: &self.fed, average: &mut *average, sent };
            let exchanged = self.compressed.reduce(round, comm)?;
            next.copy_from_slice(average);
            exchanged
        };
        check_average(next, slots)?;
        self.momentum.stage();
        self.momentum.hold(&absent(slots));
        Ok(exchanged)
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        self.momentum.hold(absent);
        self.compressed.hold(absent);
    }

    fn report(&self, report: &mut Report) {
        if self.warms_up { self.dense.report(report) } else { self.compressed.report(report) }
    }
}

impl FeedbackSettings for OneBitAdamConfig {
    fn wrap(&self, inner: Box<dyn Reducer>, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(OneBitAdam::new(inner, *self)?))
    }

    fn requirement(&self) -> FeedbackRequirement {
        FeedbackRequirement::Bounded
    }

    fn has_momentum(&self) -> bool {
        true
    }

    fn optimizer(&self) -> Option<InnerOptimizer> {
        Some(InnerOptimizer::OneBitAdam)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::Key;
    use briquette_core::comm::Local;
    use briquette_core::reduce::AgreedStep;
    use briquette_core::state::State;

    fn gradient(rank: usize, step: u64) -> [f32; 6] {
        std::array::from_fn(|i| ((i * 5 + rank * 3) as f32 * 0.83 + step as f32 * 0.4).sin())
    }

    /// Returns by step: rank 0's average and momentum, and the mean of the ranks' contributions.
    fn run(feedback: &str, reducer: &str, steps: u64) -> Vec<[Vec<f32>; 3]> {
        let (feedback, reducer) = (feedback.parse().unwrap(), reducer.parse().unwrap());
        let exchange = Exchange { feedback, reducer, dense_below: Some(0), ..Exchange::default() };
        let layout = Layout::flat(6);
        let ranks = Local::run(2, |mut comm| {
            let mut reducer = exchange.build_reducer(&layout, 2).unwrap();
            (0..steps)
                .map(|step| {
                    let (mut average, mut sent, input) = (vec![9.0; 6], vec![9.0; 6], gradient(comm.rank(), step));
                    let agreed_step = &AgreedStep { step, ..AgreedStep::default() };
                    let (key, slots) = (Key::new(0).step(step), layout.slots());
                    let sent_here = Some(&mut sent[..]);
                    let round =
                        Round { key, slots, agreed_step, input: &input, average: &mut average, sent: sent_here };
                    reducer.exchange(round, &mut comm)?;
                    let mut state = State::default();
                    reducer.save(&mut state);
                    let momentum = state.f32s("momentum", Some(6)).map_or_else(|_| Vec::new(), <[f32]>::to_vec);
                    Ok::<_, ReduceError>([average, momentum, sent])
                })
                .collect::<Result<Vec<_>, _>>()
        });
        let ranks: Vec<Vec<[Vec<f32>; 3]>> = ranks.into_iter().map(Result::unwrap).collect();
        let mean = |step: usize, i: usize| (ranks[0][step][2][i] + ranks[1][step][2][i]) / 2.0;
        let of = |step: usize| {
            let [average, momentum, _] = ranks[0][step].clone();
            [average, momentum, (0..6).map(|i| mean(step, i)).collect()]
        };
        (0..steps as usize).map(of).collect()
    }

    #[test]
    fn before_the_warm_up_ends_it_is_a_dense_exchange_and_afterwards_adams_momentum() {
        crate::install();
        let steps = run("one-bit-adam:3,beta=0.75", "two-way:dense,down=dense", 7);
        let mut momentum = [0.0_f32; 6];
        for (step, [average, kept, _]) in steps.iter().enumerate() {
            let [a, b] = [0, 1].map(|rank| gradient(rank, step as u64));
            let mean: Vec<f32> = a.iter().zip(b).map(|(a, b)| (a + b) / 2.0).collect();
            momentum.iter_mut().zip(&mean).for_each(|(m, g)| *m = 0.75 * *m + 0.25 * g);
            let expected = if step < 3 { &mean[..] } else { &momentum[..] };
            assert!(average.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "step {step}");
            assert!(kept.iter().zip(momentum).all(|(a, b)| (a - b).abs() < 1e-6), "step {step}");
        }
    }

    #[test]
    fn what_comes_back_in_signs_is_the_momentum_that_all_go_on_from() {
        crate::install();
        let steps = run("one-bit-adam:2", "two-way:sign,down=sign", 8);
        let dense = run("none", "dense", 2);
        assert!(steps[..2].iter().zip(&dense).all(|(a, b)| a[0] == b[0]), "to the bit");
        for (step, [average, momentum, _]) in steps.iter().enumerate().skip(2) {
            assert_eq!(average, momentum, "step {step}");
            // Two shares of three values: one magnitude each.
            assert!(average.chunks(3).all(|share| share.iter().all(|v| v.abs() == share[0].abs())), "{average:?}");
        }
    }

    #[test]
    fn a_beta_of_one_is_refused() {
        crate::install();
        let error = "one-bit-adam:5,beta=1".parse::<briquette_core::config::Feedback>().unwrap_err().to_string();
        assert!(error.contains("beta of one-bit-adam must be in [0, 1)"), "{error}");
    }
}
