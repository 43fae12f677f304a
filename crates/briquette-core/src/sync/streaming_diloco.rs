//! Streaming DiLoCo: DiLoCo in fragments, one after another, whose exchanges travel while ranks go on.
//!
//! **Why, and when not.** DiLoCo sends a whole model at once, and all ranks wait for it. Here a link is used all the time, a fragment at a time:
//! the peak is `P` times lower at as many bytes, and with an overlap nobody waits. A fragment's average comes late, which costs a little
//! progress: where exchanges are short beside a period, DiLoCo is simpler.
//!
//! **Method.** Tensor `i` is in fragment `i mod P`. Each fragment has DiLoCo's period of `H` steps, that of fragment `p` begun `p·H/P` steps later.
//! At its end, at step `t`, ranks exchange the fragment's outer gradient; `τ` steps later they step with Nesterov's momentum, and go a part of the way:
//!
//! ```text
//! D = mean over ranks of x₀ − x_i(t)        b ← μ·b + D        x₀ ← x₀ − ρ·(D + μ·b)        x_i ← α·x_i(t+τ) + (1 − α)·x₀
//! ```
//!
//! | setting | is then |
//! |---|---|
//! | `P = 1`, `τ = 0` | [DiLoCo](super::diloco) |
//! | `τ = 0` | DiLoCo of each fragment |
//!
//! **On the wire.** What the reducer sends of a fragment's values, `P` times in `H` steps: as many bytes as DiLoCo, `P` times fewer at once. Low-bit outer
//! gradients (the paper: four bits) are a compressor with error feedback, whose memory is the fragment's.
//!
//! **Properties.** Replicas differ at every step, but for one fragment without an overlap: what is evaluated is their mean. With an overlap ranks
//! agree on a header at every hundredth step only, and rates may differ.
//!
//! **State.** Each fragment's `x₀` and `b`, the same on every rank; outer gradients on their way, which a resumed run sends again.
//!
//! **Knobs.** `period` `H`, steps, default 100; `fragments` `P`, default 4, at most the tensors and the period; `overlap` `τ`, steps below the period,
//! default 0; `mixing` `α` in [0, 1), default 0, and 0.5 with an overlap; `rate` `ρ` and `momentum` `μ` as DiLoCo's.
//!
//! **Deviations.** The paper's fragments are transformer blocks, strided; here tensors are, whatever their size. It rounds outer gradients to four-bit
//! floats; any reducer is taken here.
//!
//! **Reference.** A. Douillard et al., *Streaming DiLoCo with overlapping communication: Towards a Distributed Free Lunch*, 2025 (arXiv 2501.18512),
//! algorithm 2, by its description: the constants were checked against it, the text was not at hand.
//!
//! ```
//! use briquette_core::sync::StreamingDiLoCoConfig;
//! let streaming = StreamingDiLoCoConfig { period: 8, fragments: 4, ..StreamingDiLoCoConfig::default() };
//! // The steps, from 0, after which each fragment is exchanged.
//! let steps = |fragment| (0..16).filter(|step| streaming.is_due(fragment, *step)).collect::<Vec<u64>>();
//! assert_eq!((steps(0), steps(1), steps(3)), (vec![7, 15], vec![1, 9], vec![5, 13]));
//! ```

mod config;
mod fragment;

pub use self::config::StreamingDiLoCoConfig;
use self::fragment::Fragment;
use super::in_background::CHANNEL;
use super::{Agrees, Context, HEADER_STEPS, Momenta, Plan, SyncStrategy, check_own, outer};
use crate::config::{Exchange, StrategySettings};
use crate::error::{ConfigError, StateError, SyncError};
use crate::reduce::Reducer;
use crate::report::Report;
use crate::state::{State, Stateful};
use crate::{Layout, Session};

/// Fragments in turns; see the [module](self).
#[derive(Debug)]
pub struct StreamingDiLoCo {
    settings: StreamingDiLoCoConfig,
    fragments: Vec<Fragment>,
    /// Parameters of a step that has not succeeded yet.
    next: Vec<f32>,
    report: Report,
}

impl StreamingDiLoCo {
    /// Each fragment of a model travels through a reducer of its own, which `reducer` makes.
    ///
    /// # Errors
    /// [`ConfigError`] for a setting that is out of range, or `reducer`'s own.
    pub fn new(
        settings: StreamingDiLoCoConfig,
        layout: &Layout,
        reducer: impl Fn(&Layout) -> Result<Box<dyn Reducer>, ConfigError>,
    ) -> Result<Self, ConfigError> {
        settings.check_for(layout)?;
        let fragments = (0..settings.fragments).map(|number| Fragment::new(number, &settings, layout, &reducer));
        let (fragments, next, report) = (fragments.collect::<Result<_, _>>()?, Vec::new(), Report::default());
        Ok(StreamingDiLoCo { settings, fragments, next, report })
    }

    fn lands(&self, fragment: usize, step: u64) -> bool {
        let late = self.settings.overlap;
        late > 0 && step.checked_sub(late).is_some_and(|step| self.settings.is_due(fragment, step))
    }

    /// Whether anything is exchanged or lands.
    fn acts(&self, step: u64) -> bool {
        (0..self.fragments.len()).any(|fragment| self.settings.is_due(fragment, step) || self.lands(fragment, step))
    }
}

impl Stateful for StreamingDiLoCo {
    fn save(&self, state: &mut State) {
        for (number, fragment) in self.fragments.iter().enumerate() {
            state.put_part(&format!("fragment_{number}"), fragment);
        }
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        let mut parts = self.fragments.iter_mut().enumerate();
        parts.try_for_each(|(number, fragment)| state.load_part(&format!("fragment_{number}"), fragment))
    }

    fn commit(&mut self) {
        self.fragments.iter_mut().for_each(Stateful::commit);
    }

    fn discard(&mut self) {
        self.fragments.iter_mut().for_each(Stateful::discard);
    }
}

impl SyncStrategy for StreamingDiLoCo {
    fn plan(&self, step: u64) -> Plan {
        let StreamingDiLoCoConfig { period, fragments, overlap, .. } = self.settings;
        let acts = self.acts(step);
        if overlap == 0 {
            let equal = acts && fragments == 1 && self.settings.mixing() == 0.0;
            let agrees = if acts { Agrees::World } else { Agrees::NoRank };
            return Plan { agrees, parameters: acts, replicas_equal: equal, ..Plan::ALONE };
        }
        let periods = HEADER_STEPS.div_ceil(period);
        let agrees = (step + 1).is_multiple_of(periods.saturating_mul(period));
        let agrees = if agrees { Agrees::World } else { Agrees::NoRank };
        Plan { agrees, parameters: acts, ..Plan::ALONE }
    }

    fn begin(&mut self, parameters: &[f32]) {
        self.fragments.iter_mut().for_each(|fragment| fragment.begin(parameters));
    }

    fn after_step(
        &mut self,
        parameters: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<Momenta, SyncError> {
        let step = cx.agreed_step.step;
        let failed = |source| SyncError::Reduce { step, source };
        self.report = Report::default();
        self.next.clone_from(parameters);
        for number in 0..self.fragments.len() {
            let (due, lands) = (self.settings.is_due(number, step), self.lands(number, step));
            let fragment = &mut self.fragments[number];
            if due {
                check_own(parameters, cx, comm)?;
                fragment.set_out(parameters, cx, comm).map_err(failed)?;
            }
            if lands || due && self.settings.overlap == 0 {
                let began = step - self.settings.overlap;
                fragment.land(&self.settings, &mut self.next, (began, cx), comm).map_err(failed)?;
                fragment.report(&mut self.report);
            }
        }
        std::mem::swap(parameters, &mut self.next);
        Ok(Momenta::Keep)
    }

    fn after_commit(&mut self, cx: &Context<'_>, comm: &mut Session) {
        let due = |number: &usize| self.settings.is_due(*number, cx.agreed_step.step);
        for number in (0..self.fragments.len()).filter(due).collect::<Vec<_>>() {
            self.fragments[number].start(cx, comm);
        }
    }

    fn settle(&mut self, comm: &mut Session) -> Result<(), SyncError> {
        let step = comm.scope().step;
        let settled = self.fragments.iter_mut().try_for_each(|fragment| fragment.settle(comm));
        settled.map_err(|source| SyncError::Reduce { step, source })
    }

    /// An outer step moves the mean.
    fn conserved(&self, _parameters: &[f32]) -> Option<Vec<f32>> {
        None
    }

    fn report(&self, report: &mut Report) {
        report.clone_from(&self.report);
    }
}

impl StrategySettings for StreamingDiLoCoConfig {
    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        let used = ["reducer", "aggregator", "feedback", "controller", "bucket_values", "dense_below", "threads"];
        exchange.refuse_all_but(&used, "strategy streaming-diloco exchanges fragments")?;
        let reducer = |fragment: &Layout| outer::build_reducer::<Self>(exchange, fragment, world);
        Ok(Box::new(StreamingDiLoCo::new(*self, layout, reducer)?))
    }

    fn fewest_ranks(&self, exchange: &Exchange) -> usize {
        exchange.fewest_ranks()
    }

    fn channels(&self) -> usize {
        if self.overlap > 0 { CHANNEL } else { 0 }
    }

    fn exchanges(&self) -> Vec<Exchange> {
        outer::exchanges()
    }
}

#[cfg(test)]
mod tests;
