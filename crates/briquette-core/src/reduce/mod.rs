//! Reducers: combine one vector per rank into an average with the same bits on every rank.
//!
//! A [`Reducer`] takes this rank's vector and a session, and writes the average over ranks. Each reducer chooses its own method: an
//! all-gather of compressed messages ([`Gather`]), a dense ring ([`Dense`]), an all-reduce of `k` shared coordinates ([`SharedRandomK`]) or
//! of low-rank factors ([`PowerSgd`]). Wrappers ([`wrapper`](crate::wrapper)) are reducers that contain another reducer.

mod arriving;
pub mod artemis;
pub mod dense;
mod downlink;
pub mod gather;
pub mod hierarchical;
mod incoming;
mod knob;
pub mod ladder;
mod link;
pub mod mcm;
pub mod multi_step;
pub mod power_sgd;
pub mod ring;
pub mod shared_random_k;
pub mod sketched_sgd;
pub mod smooth;
pub mod sparse_all_reduce;
pub mod ternary_all_reduce;
pub mod two_way;
mod unsent;

pub use arriving::{Arriving, CompleteVector};
pub use artemis::{Artemis, ArtemisConfig, Variant};
pub use dense::Dense;
pub use gather::{Gather, GatherConfig, Grain};
pub use hierarchical::{Hierarchical, HierarchicalConfig};
pub use knob::{Energies, Knob, Levels, Probe, gain};
pub use ladder::{Ladder, LadderConfig};
pub use mcm::McmConfig;
pub use multi_step::{MultiStep, MultiStepConfig};
pub use power_sgd::{PowerSgd, PowerSgdConfig};
pub use ring::{Ring, RingConfig, Wire};
pub use shared_random_k::{SharedRandomK, SharedRandomKConfig};
pub use sketched_sgd::{Sketch, SketchedSgd};
pub use smooth::{SmoothConfig, SmoothnessAware};
pub use sparse_all_reduce::{SparseAllReduce, SparseAllReduceConfig};
pub use ternary_all_reduce::{TernaryAllReduce, TernaryAllReduceConfig};
pub use two_way::{TwoWay, TwoWayConfig};
pub use unsent::{SentStatistics, Unsent};

use std::ops::Range;

use crate::error::ReduceError;
use crate::math::all_finite;
use crate::report::{Measured, Report, Waiting};
use crate::state::Stateful;
use crate::{Key, Session, Slot, Traffic};

/// Replicated information about a step, agreed on by all ranks before the exchange starts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct AgreedStep {
    /// The optimizer step, counted from 0.
    pub step: u64,
    /// The mean loss over ranks, weighted by samples, if the training loop records it.
    pub loss: Option<f64>,
    /// The mean of the validation losses that ranks report with this step, if any rank reports one.
    pub validation_loss: Option<f64>,
    /// Samples in this step, summed over all ranks.
    pub samples: u64,
    /// The inner optimizer's learning rate at this step, if the training loop records it.
    pub learning_rate: Option<f64>,
    /// Seconds from the end of the last exchange to the start of this one, on the slowest rank.
    pub compute_seconds: f64,
    /// Statistics of the previous step's exchange, with times averaged over ranks; `None` at the first step.
    pub previous: Option<LastExchange>,
}

impl AgreedStep {
    /// Returns the learning rate, for state kept in its units. The rate must be 0, or have a finite inverse.
    pub(crate) fn rate(&self) -> Result<f32, ReduceError> {
        match self.learning_rate {
            Some(rate) if rate == 0.0 || (1e-30..=1e30).contains(&rate) => Ok(rate as f32),
            Some(rate) => Err(ReduceError::LearningRate { step: self.step, rate }),
            None => Err(ReduceError::NoLearningRate { step: self.step }),
        }
    }

    /// Returns the agreed step for one of several parts of an exchange: without the measurements, which belong to the whole vector.
    pub(crate) fn of_a_part(&self) -> AgreedStep {
        let previous = self.previous.map(|previous| LastExchange { measured: Measured::default(), ..previous });
        AgreedStep { previous, ..*self }
    }
}

/// Statistics of the previous exchange, equal on all ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LastExchange {
    /// Samples in that step.
    pub samples: u64,
    /// Compute time before it on the slowest rank, in seconds.
    pub compute_seconds: f64,
    /// Seconds a rank spent probing, encoding and decoding.
    pub compress_seconds: f64,
    /// Seconds a rank spent in communication.
    pub exchange_seconds: f64,
    /// Bytes, summed over all ranks.
    pub traffic: Traffic,
    /// Energies that entered the ranks' residuals and that the residuals hold, summed over all ranks; zeros without a residual.
    pub waiting: Waiting,
    /// Measurements of that step's vector that a controller requested, summed over all ranks; see [`Adaptive`](crate::wrapper::Adaptive).
    pub measured: Measured,
}

impl LastExchange {
    /// Creates this rank's part of an exchange from its report. The seconds are the reducer's, without the header's wait for
    /// the slowest rank and without communication that computing hid.
    pub fn reported(report: &Report, traffic: Traffic) -> Self {
        let seconds = report.seconds.unwrap_or_default();
        LastExchange {
            compress_seconds: (seconds.compress - (seconds.hidden - seconds.exchange).max(0.0)).max(0.0),
            exchange_seconds: (seconds.exchange - seconds.hidden).max(0.0),
            traffic,
            waiting: report.waiting.unwrap_or_default(),
            measured: report.measured,
            ..LastExchange::default()
        }
    }
}

/// One exchange.
#[derive(Debug)]
pub struct Round<'a> {
    /// Seed, step and bucket; fold in the rank for private randomness.
    pub key: Key,
    /// The tensors inside `input`; their ranges tile it.
    pub slots: &'a [Slot],
    /// Replicated step information.
    pub agreed_step: &'a AgreedStep,
    /// This rank's contribution.
    pub input: &'a [f32],
    /// Output: the average, bit-identical on every rank unless [declared otherwise](crate::config::ReducerSettings::averages_equal).
    pub average: &'a mut [f32],
    /// Output: this rank's effective contribution. Requested only by wrappers that need it.
    pub sent: Option<&'a mut [f32]>,
}

impl<'a> Round<'a> {
    /// Returns the same round over other vectors, for wrappers.
    pub fn with<'b>(&self, input: &'b [f32], average: &'b mut [f32], sent: Option<&'b mut [f32]>) -> Round<'b>
    where
        'a: 'b,
    {
        Round { key: self.key, slots: self.slots, agreed_step: self.agreed_step, input, average, sent }
    }
}

/// Coordinates that took part in an exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Selection {
    /// Every coordinate was exchanged, exactly or quantized.
    All,
    /// A sparsifier selected some coordinates; the others were not exchanged.
    Some,
    /// Differs between slots: true for each slot in which a sparsifier selected coordinates.
    BySlot(Vec<bool>),
}

impl Selection {
    /// Returns whether a sparsifier selected coordinates of this slot.
    pub fn chose(&self, slot: usize) -> bool {
        match self {
            Selection::All => false,
            Selection::Some => true,
            Selection::BySlot(chosen) => chosen[slot],
        }
    }
}

/// Merges the selections of the parts of a vector.
#[derive(Debug)]
pub(crate) struct Selections(Vec<bool>);

impl Selections {
    /// Returns an empty selection for this many slots.
    pub(crate) fn of(slots: usize) -> Self {
        Selections(vec![false; slots])
    }

    /// Records the selection of a part that holds these slots.
    pub(crate) fn put(&mut self, slots: impl Iterator<Item = usize>, selection: &Selection) {
        slots.enumerate().for_each(|(inside, slot)| self.0[slot] = selection.chose(inside));
    }

    pub(crate) fn finish(self) -> Selection {
        match self.0.iter().filter(|chosen| **chosen).count() {
            0 => Selection::All,
            count if count == self.0.len() => Selection::Some,
            _ => Selection::BySlot(self.0),
        }
    }
}

/// Outcome of an exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchanged {
    /// Bytes moved through this rank.
    pub traffic: Traffic,
    /// Coordinates that a sparsifier selected; momentum factor masking depends on it.
    pub selection: Selection,
}

impl Exchanged {
    /// Runs `exchange` and counts the bytes that it moved.
    ///
    /// # Errors
    /// Those of `exchange`.
    pub fn count(
        comm: &mut Session,
        selection: Selection,
        exchange: impl FnOnce(&mut Session) -> Result<(), ReduceError>,
    ) -> Result<Exchanged, ReduceError> {
        let before = comm.traffic();
        exchange(comm)?;
        Ok(Exchanged { traffic: comm.traffic() - before, selection })
    }
}

/// Checks that the average is finite: a sum of finite vectors may overflow to infinity. Every reducer that computes an average calls this
/// after its last send and before it returns, so the ranks, which hold the same bits, return the same error. Wrappers around it therefore
/// see the error before they change state. Only a wrapper that adds to the average ([`Shifted`](crate::wrapper::Shifted)) checks again.
///
/// # Errors
/// [`ReduceError::Overflow`] names the first slot that is not finite.
pub fn check_average(average: &[f32], slots: &[Slot]) -> Result<(), ReduceError> {
    match not_finite(average, slots) {
        Some(slot) => Err(ReduceError::Overflow { slot }),
        None => Ok(()),
    }
}

/// Returns the path of the first slot with a value that is not finite.
pub(crate) fn not_finite(x: &[f32], slots: &[Slot]) -> Option<String> {
    if all_finite(x) {
        return None;
    }
    let slot = slots.iter().find(|slot| !all_finite(&x[slot.range()]));
    Some(slot.map_or_else(String::new, |slot| slot.path().to_owned()))
}

/// Combines one vector per rank into an agreed average: compute → communicate → commit.
pub trait Reducer: Stateful + Send {
    /// Exchanges one vector and stages the new state: [`save`](Stateful::save) returns the same before and after. The caller ends the
    /// exchange: with [`commit`](Stateful::commit) once the whole step has succeeded on this rank, otherwise with
    /// [`discard`](Stateful::discard). [`exchange`](Reducer::exchange) does all of this at once.
    ///
    /// # Errors
    /// [`ReduceError`] if the transport fails or a message cannot be used. The other ranks receive the error when the caller aborts the
    /// session.
    ///
    /// [`ReduceError::Overflow`] if the ranks' finite vectors have no finite average. All ranks check the same bits and return the same
    /// error where [averages are equal](crate::config::ReducerSettings::averages_equal). A reducer that computes an average must check it;
    /// wrappers need not.
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError>;

    /// Exchanges a vector that is still being computed. `round.input` is empty and `input` delivers its values. Result bits, state and
    /// errors are those of [`reduce`](Reducer::reduce). By default this waits for the whole vector first; a reducer that works part by part
    /// starts with the parts that have arrived.
    ///
    /// # Errors
    /// As [`reduce`](Reducer::reduce).
    fn reduce_arriving(
        &mut self,
        round: Round<'_>,
        input: &mut dyn Arriving,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        let all = 0..round.average.len();
        let input = input.wait(all, comm);
        self.reduce(Round { input, ..round }, comm)
    }

    /// Runs an exchange that is a complete step: reduces, then commits, or discards on an error.
    ///
    /// # Errors
    /// As [`reduce`](Reducer::reduce); this reducer's state is then unchanged.
    fn exchange(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let exchanged = self.reduce(round, comm);
        if exchanged.is_ok() {
            self.commit();
        } else {
            self.discard();
        }
        exchanged
    }

    /// Returns whether [`subtract_sent`](Reducer::subtract_sent) works after every exchange, so that the round need not request `sent`.
    fn can_subtract_sent(&self) -> bool {
        false
    }

    /// Subtracts the contribution sent in the last exchange from that exchange's input, and writes statistics of the contribution. Returns
    /// whether the remaining residual is finite. Called at most once per exchange, before the commit.
    fn subtract_sent(&mut self, _unsent: &mut Unsent<'_>) -> bool {
        unreachable!("asked of a reducer that cannot")
    }

    /// Returns whether a controller inside [discards](crate::control::Controller::discards_residual), after the last exchange, the residual
    /// that a wrapper around this reducer keeps.
    fn discards_residual(&self) -> bool {
        false
    }

    /// Reverts the state that the last exchange staged for these ranges, given in order. They are slots for which no rank has a
    /// gradient and whose average is not applied; their state afterwards is what it was before the exchange. Called at most once per
    /// exchange, before the commit. A reducer with per-coordinate state must implement it and a wrapper must forward it. By default there
    /// is no such state.
    fn hold(&mut self, _absent: &[Range<usize>]) {}

    /// Adds this reducer's statistics of the last exchange. Wrappers add theirs and forward the call.
    fn report(&self, _report: &mut Report) {}

    /// Returns the reducer's knob, if a [controller](crate::control::Controller) may set its compression ratio.
    fn knob(&mut self) -> Option<&mut dyn Knob> {
        None
    }
}

impl<R: Reducer + ?Sized> Reducer for Box<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        (**self).reduce(round, comm)
    }
    fn reduce_arriving(
        &mut self,
        round: Round<'_>,
        input: &mut dyn Arriving,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        (**self).reduce_arriving(round, input, comm)
    }
    fn can_subtract_sent(&self) -> bool {
        (**self).can_subtract_sent()
    }
    fn subtract_sent(&mut self, unsent: &mut Unsent<'_>) -> bool {
        (**self).subtract_sent(unsent)
    }
    fn discards_residual(&self) -> bool {
        (**self).discards_residual()
    }
    fn hold(&mut self, absent: &[Range<usize>]) {
        (**self).hold(absent);
    }
    fn report(&self, report: &mut Report) {
        (**self).report(report);
    }
    fn knob(&mut self) -> Option<&mut dyn Knob> {
        (**self).knob()
    }
}
