//! Outer optimization for local-step strategies: ranks step alone for a period, then an outer step is computed from the
//! mean of their parameter changes.
//!
//! ```text
//! every rank:  x₀ ──► x₀ − γ·g ──► … ──► x_i          period local steps, no exchange (or those of a base)
//! all ranks:   D = mean over ranks of x₀ − x_i        by any reducer, weighted by the samples of the period
//!              x₀, u ← advance(x₀, D, u)              the same on every rank
//! ```
//!
//! An algorithm implements [`OuterRule`]: its settings, and the outer update of one value.
//!
//! ```
//! use briquette_core::config::Described;
//! use briquette_core::sync::{outer::{Outer, OuterRule, OuterStep}, SyncStrategy};
//!
//! /// Half of the way to the mean, every fourth step.
//! #[derive(Debug, serde::Serialize, serde::Deserialize, Described)]
//! #[described(name = "half", help = "half of the way to the mean")]
//! struct Half;
//!
//! impl OuterRule for Half {
//!     const HAS_MOMENTUM: bool = false;
//!     fn period(&self) -> u64 {
//!         4
//!     }
//!     fn advance(&self, anchor: f32, difference: f32, _: f32, _: &OuterStep) -> (f32, f32) {
//!         (anchor - 0.5 * difference, 0.0)
//!     }
//! }
//!
//! let half = Outer::new(Half, briquette_core::reduce::dense::Dense, None)?;
//! assert_eq!((0..9).filter(|step| half.plan(*step).parameters).collect::<Vec<_>>(), [3, 7]);
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use std::ops::Range;

use super::pace::Pace;
use crate::control::both;
use crate::error::{ConfigError, ReduceError, SyncError};
use crate::report::Report;
use crate::seam::{AgreedStep, Agrees, Context, Momenta, Plan, Reducer, Round, SyncStrategy, check_average};
use crate::settings::{Described, Exchange, Feedback, ReducerConfig};
use crate::state::{OnResize, Place, Staged};
use crate::{Session, Slot, stateful};

/// Outer update of one value: an algorithm with its settings.
pub trait OuterRule: Described + std::fmt::Debug + Send {
    /// Set if the rule keeps a slow momentum `u`.
    const HAS_MOMENTUM: bool = true;
    /// Set if the rule reads the learning rate of the step that ends a period. All ranks must then step with the same rate.
    const READS_RATE: bool = false;

    /// Returns the number of local steps between outer steps, at least 1. The longest one, if the period [adapts](Self::adapts).
    fn period(&self) -> u64;

    /// Returns whether the period [follows the link](super::pace). There must be no base strategy then.
    fn adapts(&self) -> bool {
        false
    }

    /// Returns whether the ranks' changes are averaged. If not, each rank takes its own outer step, and only its base
    /// strategy exchanges.
    fn averages(&self) -> bool {
        true
    }

    /// Returns the treatment of the inner optimizer's momenta after the outer step at the end of step `step`.
    fn momenta(&self, _step: u64) -> Momenta {
        Momenta::Keep
    }

    /// Returns whether momenta are averaged after some outer step. The default reads the treatment after step 0.
    fn averages_momenta(&self) -> bool {
        self.momenta(0).is_average()
    }

    /// Updates one value from its anchor `x₀` (the value at the last outer step), `difference`, the mean over ranks of
    /// `x₀ − x_i`, and the slow momentum (0 if there is none). Returns the next anchor and the next momentum.
    fn advance(&self, anchor: f32, difference: f32, momentum: f32, at: &OuterStep) -> (f32, f32);
}

/// Inputs of an outer step that are the same for all values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OuterStep {
    /// Learning rate of the step that ends the period, or 0 if the rule does not read it.
    pub rate: f32,
    /// Number of ranks.
    pub world: usize,
}

/// Returns the exchanges with which the laws test a strategy that exchanges parameter changes: dense, and compressed with
/// error feedback.
pub fn exchanges() -> Vec<Exchange> {
    let reducer = ReducerConfig::gather("topk:8x".parse().expect("a compressor's text"));
    vec![Exchange::default(), Exchange { reducer, feedback: Feedback::error(), ..Exchange::default() }]
}

/// Computes the outer step of `x₀` and `u`. The storage of the next `x₀` holds the mean difference and is overwritten with
/// the result. Neither result is staged.
pub fn advance<S: OuterRule>(
    rule: &S,
    [anchor, momentum]: [&mut Staged<Vec<f32>>; 2],
    slots: &[Slot],
    at: &OuterStep,
) -> Result<(), ReduceError> {
    let (anchor, mean) = anchor.both();
    momentum.fit(if S::HAS_MOMENTUM { mean.len() } else { 0 })?;
    let (momentum, next) = momentum.both();
    if S::HAS_MOMENTUM {
        for (((x, anchor), u), next) in mean.iter_mut().zip(anchor).zip(momentum).zip(next.iter_mut()) {
            (*x, *next) = rule.advance(*anchor, *x, *u, at);
        }
    } else {
        mean.iter_mut().zip(anchor).for_each(|(x, anchor)| *x = rule.advance(*anchor, *x, 0.0, at).0);
    }
    check_average(mean, slots)?;
    check_average(next, slots)
}

/// Strategy of an outer rule and the reducer that exchanges the parameter changes; see the [module](self).
pub struct Outer<S, R> {
    rule: S,
    reducer: R,
    base: Option<Box<dyn SyncStrategy>>,
    /// The current period, if it adapts.
    pace: Option<Pace>,
    /// `x₀`.
    anchor: Staged<Vec<f32>>,
    /// `u`.
    momentum: Staged<Vec<f32>>,
    /// `x₀ − x_i`, during the exchange.
    difference: Vec<f32>,
    report: Report,
    ends: bool,
}

impl<S: std::fmt::Debug, R: std::fmt::Debug> std::fmt::Debug for Outer<S, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outer").field("rule", &self.rule).field("reducer", &self.reducer).finish_non_exhaustive()
    }
}

impl<S: OuterRule, R: Reducer> Outer<S, R> {
    /// Creates the strategy, which exchanges parameter changes through `reducer`. Between outer steps ranks follow the
    /// strategy `base`, or step alone if there is none.
    ///
    /// # Errors
    /// [`ConfigError`] for a setting that is out of range, and for a base under a rule whose period adapts or that does not average.
    pub fn new(rule: S, reducer: R, base: Option<Box<dyn SyncStrategy>>) -> Result<Self, ConfigError> {
        rule.check()?;
        if rule.adapts() && (base.is_some() || !rule.averages()) {
            let (left, why) = (format!("strategy {}", S::NAME), "its period follows its own exchanges");
            return Err(ConfigError::conflict(left, "a base strategy", why, "use a constant period"));
        }
        let pace = rule.adapts().then(|| Pace::new(rule.period()));
        let (anchor, momentum, difference, report) = Default::default();
        Ok(Outer { rule, reducer, base, pace, anchor, momentum, difference, report, ends: false })
    }

    /// Returns the slow momentum `u`, the same on every rank. Empty before the first outer step, and for rules without
    /// momentum.
    pub fn momentum(&self) -> &[f32] {
        self.momentum.now()
    }

    fn place(&self) -> Place {
        if self.rule.averages() { Place::Replicated } else { Place::PerRank(OnResize::Spread) }
    }

    /// Restarts the base strategy from the new anchor, if an outer step that averages has been committed.
    fn pass_on(&mut self) {
        if std::mem::take(&mut self.ends)
            && self.rule.averages()
            && let Some(base) = &mut self.base
        {
            base.begin(self.anchor.now());
        }
    }

    fn ends_period(&self, step: u64) -> bool {
        match &self.pace {
            Some(pace) => pace.ends(step),
            None => (step + 1).is_multiple_of(self.rule.period()),
        }
    }

    fn base_plan(&self, step: u64) -> Plan {
        self.base.as_ref().map_or(Plan::ALONE, |base| base.plan(step))
    }

    /// Ends a period. `difference` holds `x_i`. The mean of `x₀ − x_i` is written to the storage of the next anchor, which
    /// the outer step then overwrites.
    fn end_period(&mut self, cx: &Context<'_>, comm: &mut Session) -> Result<(), ReduceError> {
        let (step, len) = (cx.agreed_step.step, self.difference.len());
        let rate = match cx.agreed_step.learning_rate {
            _ if !S::READS_RATE => 0.0,
            Some(rate) => rate as f32,
            None => return Err(ReduceError::NoLearningRate { step }),
        };
        let outer_step = OuterStep { rate, world: comm.world() };
        // If ranks step with different rates, controllers must not see a rate.
        let learning_rate = cx.agreed_step.learning_rate.filter(|_| self.plan(step).same_rate);
        let agreed_step = AgreedStep { learning_rate, ..*cx.agreed_step };
        let (anchor, mean) = self.anchor.both();
        let weight = if self.rule.averages() { cx.weight } else { 1.0 };
        self.difference.iter_mut().zip(anchor).for_each(|(x, anchor)| *x = weight * (anchor - *x));
        mean.resize(len, 0.0);
        if !self.rule.averages() {
            mean.copy_from_slice(&self.difference);
            return advance(&self.rule, [&mut self.anchor, &mut self.momentum], cx.slots, &outer_step);
        }
        let round = Round {
            key: cx.key.step(step).purpose(S::NAME),
            slots: cx.slots,
            agreed_step: &agreed_step,
            input: &self.difference,
            average: mean,
            sent: None,
        };
        self.reducer.reduce(round, comm)?;
        self.reducer.report(&mut self.report);
        advance(&self.rule, [&mut self.anchor, &mut self.momentum], cx.slots, &outer_step)
    }
}

stateful! {
    impl<S: OuterRule, R: Reducer> Stateful for Outer<S, R> as it {
        anchor: vector("anchor").at(it.place()),
        momentum: vector("momentum").at(it.place()),
        reducer: part("reducer"),
        base: if_some(part("base")),
        pace: if_some(part("pace")),
    }
    after_load: |it| it.ends = false;
    after_commit: Self::pass_on;
    after_discard: |it| it.ends = false;
}

impl<S: OuterRule, R: Reducer> SyncStrategy for Outer<S, R> {
    fn plan(&self, step: u64) -> Plan {
        let base = self.base_plan(step);
        if !self.ends_period(step) || !self.rule.averages() {
            return base;
        }
        Plan {
            agrees: Agrees::World,
            parameters: true,
            replicas_equal: true,
            same_rate: S::READS_RATE || base.same_rate,
            ..base
        }
    }

    fn ends_at(&mut self, last: u64) {
        self.base.iter_mut().for_each(|base| base.ends_at(last));
    }

    fn begin(&mut self, parameters: &[f32]) {
        self.anchor.set(parameters.to_vec());
        self.momentum.set(Vec::new());
        self.base.iter_mut().for_each(|base| base.begin(parameters));
    }

    fn after_backward(
        &mut self,
        gradient: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<(), SyncError> {
        self.base.as_mut().map_or(Ok(()), |base| base.after_backward(gradient, cx, comm))
    }

    fn after_step(
        &mut self,
        parameters: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<Momenta, SyncError> {
        let step = cx.agreed_step.step;
        self.report = Report::default();
        if !self.ends_period(step) {
            let Some(base) = &mut self.base else { return Ok(Momenta::Keep) };
            let momenta = base.after_step(parameters, cx, comm)?;
            base.report(&mut self.report);
            return Ok(momenta);
        }
        let before = comm.traffic();
        let mut momenta = self.rule.momenta(step);
        self.difference.clear();
        self.difference.extend_from_slice(parameters);
        let mixes = self.base_plan(step).parameters;
        if let Some(base) = &mut self.base {
            if mixes {
                let of_base = base.after_step(&mut self.difference, cx, comm)?;
                momenta = if momenta == Momenta::Keep || of_base == Momenta::Reset { of_base } else { momenta };
            }
            if self.rule.averages() {
                base.view(&mut self.difference);
            }
        }
        self.end_period(cx, comm).map_err(|source| SyncError::Reduce { step, source })?;
        self.report.traffic = Some(comm.traffic() - before);
        if let Some(pace) = &mut self.pace
            && let Some((reason, factor)) = pace.advance(cx.agreed_step)
        {
            let others = self.report.reason.take();
            self.report.reason = both(reason, others);
            // The momentum is in changes of a period.
            self.momentum.next_mut().iter_mut().for_each(|u| *u *= factor);
        }
        self.anchor.stage();
        parameters.copy_from_slice(self.anchor.latest());
        self.momentum.stage();
        self.ends = true;
        Ok(momenta)
    }

    fn averages_momenta(&self) -> bool {
        self.rule.averages_momenta() || self.base.as_ref().is_some_and(|base| base.averages_momenta())
    }

    fn hold(&mut self, absent: &[Range<usize>]) -> bool {
        self.base.as_mut().is_some_and(|base| base.hold(absent))
    }

    fn view(&self, parameters: &mut [f32]) {
        self.base.iter().for_each(|base| base.view(parameters));
    }

    /// Returns nothing: an outer step changes the mean.
    fn conserved(&self, _parameters: &[f32]) -> Option<Vec<f32>> {
        None
    }

    fn report(&self, report: &mut Report) {
        report.clone_from(&self.report);
    }
}
