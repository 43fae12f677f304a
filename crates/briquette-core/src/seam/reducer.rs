//! Reducer: computes the average of the ranks' vectors.

use super::{Arriving, Knob, SentInput};
use std::ops::Range;

use crate::error::ReduceError;
use crate::math::all_finite;
use crate::report::{Measured, Report, ResidualEnergy};
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
    /// Compute seconds of this step on the slowest rank; after local steps, of the last one.
    pub compute_seconds: f64,
    /// Statistics of the previous step's exchange, with times averaged over ranks; `None` at the first step.
    pub previous: Option<LastExchange>,
}

impl AgreedStep {
    /// Returns the learning rate, for state in units of the learning rate. The rate must be 0, or have a finite
    /// inverse.
    pub fn rate(&self) -> Result<f32, ReduceError> {
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
    /// Compute seconds of that step on the slowest rank.
    pub compute_seconds: f64,
    /// Seconds a rank spent probing, encoding and decoding.
    pub compress_seconds: f64,
    /// Seconds a rank spent in communication.
    pub exchange_seconds: f64,
    /// Bytes, summed over all ranks.
    pub traffic: Traffic,
    /// Energies (squared norms) of the vectors added to the residuals and of the residuals, summed over all ranks; zeros
    /// without a residual.
    pub residual_energy: ResidualEnergy,
    /// Measurements of that step's vector that a controller requested, summed over all ranks; see [`Adaptive`](crate::wrapper::adaptive::Adaptive).
    pub measured: Measured,
}

impl LastExchange {
    /// Creates this rank's statistics of an exchange from its report. The seconds exclude the wait for the slowest rank in
    /// the step header, and communication that overlapped with computation.
    pub fn reported(report: &Report, traffic: Traffic) -> Self {
        let seconds = report.seconds.unwrap_or_default();
        LastExchange {
            compress_seconds: (seconds.compress - (seconds.overlapped - seconds.exchange).max(0.0)).max(0.0),
            exchange_seconds: (seconds.exchange - seconds.overlapped).max(0.0),
            traffic,
            residual_energy: report.residual_energy.unwrap_or_default(),
            measured: report.measured,
            ..LastExchange::default()
        }
    }
}

/// Inputs and outputs of one exchange.
#[derive(Debug)]
pub struct Round<'a> {
    /// Key of this step and bucket. Add the rank for rank-local randomness.
    pub key: Key,
    /// The tensors inside `input`. Their ranges cover it in order, without gaps.
    pub slots: &'a [Slot],
    /// Replicated step information.
    pub agreed_step: &'a AgreedStep,
    /// This rank's contribution.
    pub input: &'a [f32],
    /// Output: the average. Bit-identical on every rank unless the settings [declare
    /// otherwise](crate::settings::ReducerSettings::averages_equal).
    pub average: &'a mut [f32],
    /// Output: this rank's effective contribution. Requested only by wrappers that need it.
    pub sent: Option<&'a mut [f32]>,
}

impl<'a> Round<'a> {
    /// Returns the same round with other vectors, for wrappers.
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
    /// Varies between slots: true for each slot in which a sparsifier selected coordinates.
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
/// after its last send and before it returns. The ranks hold the same bits, so all of them return the same error, and wrappers see the
/// error before they change state. A wrapper that adds to the average, as DIANA's does, checks again.
///
/// # Errors
/// [`ReduceError::Overflow`] names the first slot that is not finite.
pub fn check_average(average: &[f32], slots: &[Slot]) -> Result<(), ReduceError> {
    match not_finite(average, slots) {
        Some(slot) => Err(ReduceError::Overflow { slot }),
        None => Ok(()),
    }
}

/// Returns the error of an average whose first value that is not finite is at this place.
pub(crate) fn overflow(place: usize, slots: &[Slot]) -> ReduceError {
    let slot = slots.partition_point(|slot| slot.range().end <= place);
    ReduceError::Overflow { slot: slots[slot].path().to_owned() }
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
    /// exchange: it calls [`commit`](Stateful::commit) once the whole step has succeeded on this rank, and
    /// [`discard`](Stateful::discard) otherwise. [`exchange`](Reducer::exchange) does all of this at once.
    ///
    /// # Errors
    /// [`ReduceError`] if the transport fails or a message cannot be used. The caller must abort the session, so that the other ranks
    /// fail with the same error.
    ///
    /// [`ReduceError::Overflow`] if the ranks' finite vectors have no finite average. All ranks check the same bits and return the same
    /// error where [averages are equal](crate::settings::ReducerSettings::averages_equal). A reducer that computes an average must check it;
    /// wrappers need not.
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError>;

    /// Exchanges a vector that is still being computed. `round.input` is empty, and `input` delivers the values. Result bits, state and
    /// errors are those of [`reduce`](Reducer::reduce). The default waits for the whole vector first. A reducer that works part by part
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

    /// Starts to encode a vector on a device, without waiting, so that the device works during the exchange of another vector. The next
    /// [`reduce_arriving`](Reducer::reduce_arriving) is of this vector, complete, under the same key. Does nothing by default.
    ///
    /// # Errors
    /// As [`reduce`](Reducer::reduce).
    fn start(
        &mut self,
        _vector: (Key, &[Slot]),
        _input: &mut dyn Arriving,
        _comm: &mut Session,
    ) -> Result<(), ReduceError> {
        Ok(())
    }

    /// Runs an exchange that is a complete step: reduces, then commits on success or discards on an error.
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

    /// Returns whether [`subtract_sent`](Reducer::subtract_sent) works after every exchange. The round then need not request `sent`.
    fn can_subtract_sent(&self) -> bool {
        false
    }

    /// Turns the input of the last exchange into the residual: subtracts the contribution that was sent, writes statistics of this
    /// contribution, and masks the [velocity](SentInput::velocity) if there is one. Returns whether the residual is finite. Called at most once
    /// per exchange, before the commit.
    fn subtract_sent(&mut self, _input: &mut SentInput<'_>) -> bool {
        unreachable!("asked of a reducer that cannot")
    }

    /// Returns whether [`subtract_sent`](Reducer::subtract_sent) works, after the last exchange, on a vector that is on a
    /// [device](SentInput::device).
    fn subtracts_on_device(&self) -> bool {
        false
    }

    /// Returns whether the residual of a wrapper around this reducer must be discarded after the last exchange, because a controller
    /// inside this reducer [decided so](crate::seam::Controller::discards_residual).
    fn discards_residual(&self) -> bool {
        false
    }

    /// Reverts the state that the last exchange staged for these ranges, given in order. They are slots for which no rank has a gradient
    /// and whose average is not applied: their state must be the same as before the exchange. Called at most once per exchange, before
    /// the commit. A reducer with per-coordinate state must implement it, and a wrapper must forward it. The default is for reducers
    /// without such state.
    fn hold(&mut self, _absent: &[Range<usize>]) {}

    /// Adds this reducer's statistics of the last exchange to the report. Wrappers add theirs and forward the call.
    fn report(&self, _report: &mut Report) {}

    /// Returns the reducer's knob, if a [controller](crate::seam::Controller) may set its compression ratio.
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
    fn start(
        &mut self,
        vector: (Key, &[Slot]),
        input: &mut dyn Arriving,
        comm: &mut Session,
    ) -> Result<(), ReduceError> {
        (**self).start(vector, input, comm)
    }
    fn can_subtract_sent(&self) -> bool {
        (**self).can_subtract_sent()
    }
    fn subtract_sent(&mut self, input: &mut SentInput<'_>) -> bool {
        (**self).subtract_sent(input)
    }
    fn subtracts_on_device(&self) -> bool {
        (**self).subtracts_on_device()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ExchangeSeconds;

    #[test]
    fn statistics_exclude_seconds_that_overlapped_with_computation() {
        let of = |overlapped| {
            let seconds = ExchangeSeconds { compress: 2.0, encode: 1.5, exchange: 3.0, overlapped };
            let report = Report { seconds: Some(seconds), ..Report::default() };
            let last = LastExchange::reported(&report, Traffic::default());
            (last.compress_seconds, last.exchange_seconds)
        };
        // Communication is overlapped first, then encoding and decoding.
        assert_eq!(
            [of(0.0), of(1.0), of(3.0), of(4.5), of(6.0)],
            [(2.0, 3.0), (2.0, 2.0), (2.0, 0.0), (0.5, 0.0), (0.0, 0.0)]
        );
    }
}
