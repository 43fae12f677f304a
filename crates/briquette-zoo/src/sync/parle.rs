//! Parle: Entropy-SGD replicas coupled to their mean by an elastic term.
//!
//! **Why, and when not.** A wide valley generalizes better than an equally deep narrow one. Entropy-SGD explores the
//! neighborhood of a point before it moves there: it follows the loss averaged over a neighborhood, in which narrow valleys
//! vanish. In Parle every rank does so, and the ranks are coupled more and more strongly until they are one model. They
//! exchange it once in `L` steps. A convex problem has nothing to explore: average instead.
//!
//! **Method.** It minimizes `Σ_a F_γ(x_a) + 1/(2ρ)·‖x_a − x̄‖²`, where `F_γ` is the loss smoothed over a radius of about `√γ`
//! (the *local entropy*) and `x̄` the mean over ranks of their `x_a`. The model that is trained is `y`, by any inner optimizer:
//!
//! ```text
//! every step:          y ← optimizer(y, gradient at y + p·(y − x_a))        z ← α·z + (1−α)·y
//! after every L steps: x_a ← x_a + η·(z − x_a) − η·c·(x_a − x̄)              y, z ← x_a
//! ```
//!
//! `p = 1/γ` and `c = 1/ρ` grow by a factor of `1/s` with each of these *outer steps* (scoping): `p` up to 1, and `c` up to
//! `1/η`, which moves all of the way to the mean. `x̄` is the mean at the previous outer step. All ranks hold it and exchange
//! `x_a − x̄`. Values that a compressor omits remain in the next difference, so error feedback would count them twice and is
//! rejected.
//!
//! | here | the paper | the authors' code, for `n` ranks and `B` batches an epoch |
//! |---|---|---|
//! | `p`, 0.01 and growing up to 1 | `1/γ`, `γ` = 100 and shrinking down to 1 | `gamma`, 0.01 and growing up to 1 |
//! | `η·c`, 0.1 and growing up to 1 | `η/ρ`, `η` = 0.1, `ρ` = 1 and shrinking down to 0.1 | `lr·rho`, `rho` = 0.01·`L`·`n` and growing up to 10 |
//! | `s` | `1 − 1/(2B)` | `1/(1 + 1/(2B))` |
//!
//! | setting | equivalent to |
//! |---|---|
//! | one rank, or `c = 0` | Entropy-SGD |
//! | `L = 1`, `α = 0`, `η = 1` | elastic SGD: a gradient step, then `c` of the way to the previous mean ([`easgd`](crate::sync::easgd): a center) |
//! | the same with one rank | its inner optimizer alone |
//!
//! **On the wire.** The reducer's messages for `d` values, every `L` steps.
//!
//! **Properties.** Replicas differ. With a dense reducer the coupling does not move the mean of the `x_a`, which is the model
//! to evaluate. The inner optimizer's momenta are kept over an outer step, as in the authors' code.
//!
//! **State.** The mean, the same on every rank; `x_a`, `y` and `z`, rank-local.
//!
//! **Knobs.** `period` `L`, steps, by default 25, or less if the run is known to have fewer than 20 periods; `pull`, the first
//! `p`, default 0.01; `coupling`, the first `c`, default 0.1; `scope` `s` in (0, 1], by default 0.999 (500 batches an epoch),
//! or, if the number of steps is known, the value that brings `η·c` to 1 in four fifths of the run if that is less; `alpha` in
//! [0, 1), default 0.75; `rate` `η` in (0, 1], default 1.
//!
//! **Deviations.** The outer step is plain. The paper's has Nesterov momentum 0.9 and rate 0.1, which amount to the rate 1 in
//! the long run. Entropy-SGD adds noise to `y`, which Parle omits. The authors' code also averages the `z`, and its outer step
//! starts at `y`.
//!
//! **Reference.** P. Chaudhari, C. Baldassi, R. Zecchina, S. Soatto, A. Talwalkar, A. Oberman, *Parle: parallelizing stochastic gradient
//! descent*, 2017 (arXiv 1707.00424), and the authors' code. P. Chaudhari et al., *Entropy-SGD: Biasing Gradient Descent Into Wide Valleys*,
//! ICLR 2017 (arXiv 1611.01838), algorithm 1.
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::comm::Local;
//! use briquette_core::reduce::{dense::Dense, AgreedStep};
//! use briquette_core::state::Stateful;
//! use briquette_core::sync::{Context, SyncStrategy};
//! use briquette_zoo::sync::parle::{Parle, ParleConfig};
//! let mut comm = Local::world(1).remove(0);
//! let layout = Layout::flat(1);
//! let mut parle = Parle::new(ParleConfig { period: Some(2), pull: 0.25, alpha: 0.5, ..ParleConfig::default() }, Dense)?;
//! let mut y = vec![0.0];
//! parle.begin(&y);
//! for (step, gradient) in [(0, -8.0), (1, 0.0)] {
//!     let agreed_step = AgreedStep { step, ..AgreedStep::default() };
//!     let cx = Context::new(Key::new(0), layout.slots(), &agreed_step);
//!     let mut gradient = vec![gradient];
//!     parle.after_backward(&mut gradient, &cx, &mut comm)?;
//!     y[0] -= gradient[0];
//!     parle.after_step(&mut y, &cx, &mut comm)?;
//!     parle.commit();
//! }
//! assert_eq!(y, [5.0]); // y went to 8, then back to 6; z to 4, then to 5
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;

pub use config::ParleConfig;

use briquette_core::config::Described;
use briquette_core::error::{ConfigError, ReduceError, SyncError};
use briquette_core::reduce::{Reducer, Round, check_average};
use briquette_core::report::Report;
use briquette_core::state::Staged;
use briquette_core::sync::{Agrees, Context, Momenta, Plan, SyncStrategy, check_own};
use briquette_core::{Session, stateful};

/// Entropy-SGD on every rank with an elastic coupling between ranks; see the [module](self).
pub struct Parle<R> {
    settings: ParleConfig,
    reducer: R,
    /// `x̄` from before the last outer step.
    mean: Staged<Vec<f32>>,
    /// `x_a`.
    anchor: Staged<Vec<f32>>,
    /// `y`, as the next forward pass sees it.
    trained: Staged<Vec<f32>>,
    /// `z`.
    average: Staged<Vec<f32>>,
    /// `x_a` minus the previous mean, during the exchange.
    difference: Vec<f32>,
    report: Report,
    /// Last step of the run, if known. An outer step ends it.
    last: Option<u64>,
}

impl<R: std::fmt::Debug> std::fmt::Debug for Parle<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parle")
            .field("settings", &self.settings)
            .field("reducer", &self.reducer)
            .finish_non_exhaustive()
    }
}

impl<R: Reducer> Parle<R> {
    /// Creates the strategy; differences to the mean are exchanged through `reducer`.
    ///
    /// # Errors
    /// [`ConfigError`] for a setting that is out of range.
    pub fn new(settings: ParleConfig, reducer: R) -> Result<Self, ConfigError> {
        settings.check()?;
        let (mean, anchor, trained, average, difference, report) = Default::default();
        Ok(Parle { settings, reducer, mean, anchor, trained, average, difference, report, last: None })
    }

    fn ends_period(&self, step: u64) -> bool {
        (step + 1).is_multiple_of(self.settings.steps()) || self.last == Some(step)
    }

    /// Takes the outer step, from the next `z`. Its `x_a` is not staged yet.
    fn outer_step(&mut self, cx: &Context<'_>, comm: &mut Session) -> Result<(), ReduceError> {
        let (step, (before, mean)) = (cx.agreed_step.step, self.mean.both());
        mean.resize(before.len(), 0.0);
        let round = Round {
            key: cx.key.step(step).purpose("parle"),
            slots: cx.slots,
            agreed_step: cx.agreed_step,
            input: &self.difference,
            average: mean,
            sent: None,
        };
        self.reducer.reduce(round, comm)?;
        let (rate, [_, coupling]) = (self.settings.rate, self.settings.strengths(step));
        let (anchor, next) = self.anchor.both();
        next.clone_from(self.average.next_mut());
        for (((next, x), difference), mean) in next.iter_mut().zip(anchor).zip(&self.difference).zip(&*mean) {
            // At a rate of 1 the first two terms are `z` itself, and one rank is its own mean.
            *next = *next - (1.0 - rate) * (*next - x) - rate * coupling * (difference - mean);
        }
        mean.iter_mut().zip(before).for_each(|(mean, before)| *mean += before);
        check_average(mean, cx.slots)
    }
}

stateful! {
    impl<R: Reducer> Stateful for Parle<R> {
        mean: vector("mean"),
        anchor: vector("anchor").like("mean").rank_local(Spread),
        average: vector("average").like("mean").rank_local(Spread),
        // If the world size changed, every rank starts at the mean of the anchors.
        trained: vector("trained").like("mean").rank_local(Drop),
        reducer: part("reducer"),
    }
}

impl<R: Reducer> SyncStrategy for Parle<R> {
    fn plan(&self, step: u64) -> Plan {
        let agrees = if self.ends_period(step) { Agrees::World } else { Agrees::NoRank };
        Plan::ALONE.agreeing(agrees).with_gradients(true).with_parameters(true)
    }

    fn ends_at(&mut self, last: u64) {
        self.last = Some(last);
    }

    fn begin(&mut self, parameters: &[f32]) {
        for vector in [&mut self.mean, &mut self.anchor, &mut self.trained, &mut self.average] {
            vector.set(parameters.to_vec());
        }
    }

    fn after_backward(&mut self, gradient: &mut Vec<f32>, cx: &Context<'_>, _: &mut Session) -> Result<(), SyncError> {
        self.report = Report::default();
        let [pull, _] = self.settings.strengths(cx.agreed_step.step);
        let both = self.trained.now().iter().zip(self.anchor.now());
        gradient.iter_mut().zip(both).for_each(|(g, (y, x))| *g += pull * (y - x));
        Ok(())
    }

    fn after_step(
        &mut self,
        parameters: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<Momenta, SyncError> {
        let (step, alpha) = (cx.agreed_step.step, self.settings.alpha);
        let (before, average) = self.average.both();
        average.clear();
        average.extend(before.iter().zip(&*parameters).map(|(z, y)| alpha * z + (1.0 - alpha) * y));
        if self.ends_period(step) {
            let traffic = comm.traffic();
            self.difference.clear();
            self.difference.extend(self.anchor.now().iter().zip(self.mean.now()).map(|(x, mean)| x - mean));
            check_own(&self.difference, cx, comm)?;
            self.outer_step(cx, comm).map_err(|source| SyncError::Reduce { step, source })?;
            check_own(self.anchor.next_mut(), cx, comm)?;
            self.reducer.report(&mut self.report);
            self.report.traffic = Some(comm.traffic() - traffic);
            self.mean.stage();
            self.anchor.stage();
            parameters.copy_from_slice(self.anchor.latest());
            self.average.next_mut().copy_from_slice(parameters);
        }
        self.average.stage();
        self.trained.next_mut().clone_from(parameters);
        self.trained.stage();
        Ok(Momenta::Keep)
    }

    /// Writes `x_a`, whose mean is the model.
    fn view(&self, parameters: &mut [f32]) {
        parameters.copy_from_slice(self.anchor.latest());
    }

    /// Returns nothing: the ranks' local steps move the mean of the `x_a` at an outer step.
    fn conserved(&self, _parameters: &[f32]) -> Option<Vec<f32>> {
        None
    }

    fn report(&self, report: &mut Report) {
        report.clone_from(&self.report);
    }
}

#[cfg(test)]
mod tests;
