//! Vector in, agreed average out. Reducers leave every rank with the same bits.
//!
//! A [`Reducer`] is given this rank's vector and a session, and writes the average over ranks. How it gets there
//! is its own business: an all-gather of compressed messages ([`Gather`]), a dense ring ([`Dense`]), an all-reduce of
//! `k` shared coordinates ([`SharedRandomK`]) or of low-rank factors ([`PowerSgd`]). Wrappers
//! ([`wrapper`](crate::wrapper)) are reducers around reducers.

pub mod arriving;
pub mod artemis;
pub mod dense;
mod downlink;
pub mod gather;
pub mod hierarchical;
mod incoming;
pub mod knob;
pub mod ladder;
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
mod way;

pub use arriving::{Arriving, Whole};
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
pub use unsent::{Kept, Unsent};

use std::ops::Range;

use crate::error::ReduceError;
use crate::math::all_finite;
use crate::report::{Measured, Report, Waiting};
use crate::state::Stateful;
use crate::{Key, Session, Slot, Traffic};

/// What all ranks know and agree on when an exchange starts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct AgreedStep {
    /// The optimizer step, counted from 0.
    pub step: u64,
    /// The mean loss over ranks, weighted by samples, where the training loop records it.
    pub loss: Option<f64>,
    /// The mean over ranks of the validation losses that they report with this step, where any does.
    pub validation_loss: Option<f64>,
    /// Samples behind this step, all ranks together.
    pub samples: u64,
    /// The inner optimizer's learning rate at this step, where the training loop records it.
    pub learning_rate: Option<f64>,
    /// Seconds from the end of the last exchange to the start of this one, the slowest rank's.
    pub compute_seconds: f64,
    /// The exchange of the step before, its seconds the means over ranks; `None` at the first step.
    pub previous: Option<LastExchange>,
}

impl AgreedStep {
    /// The learning rate, for what is kept in its units: 0, or one whose inverse is a number, too.
    pub(crate) fn rate(&self) -> Result<f32, ReduceError> {
        match self.learning_rate {
            Some(rate) if rate == 0.0 || (1e-30..=1e30).contains(&rate) => Ok(rate as f32),
            Some(rate) => Err(ReduceError::LearningRate { step: self.step, rate }),
            None => Err(ReduceError::NoLearningRate { step: self.step }),
        }
    }

    /// For one of several parts of an exchange: what was measured is of the whole.
    pub(crate) fn of_a_part(&self) -> AgreedStep {
        let previous = self.previous.map(|previous| LastExchange { measured: Measured::default(), ..previous });
        AgreedStep { previous, ..*self }
    }
}

/// What became of the exchange before this one, equal on all ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LastExchange {
    /// Samples behind that step.
    pub samples: u64,
    /// The slowest rank's compute seconds before it.
    pub compute_seconds: f64,
    /// Seconds a rank spent probing, encoding and decoding.
    pub compress_seconds: f64,
    /// Seconds a rank spent in communication.
    pub exchange_seconds: f64,
    /// Bytes, all ranks together.
    pub traffic: Traffic,
    /// What entered the ranks' memories of what was not sent, and what waits in them, all ranks together; zeros without one.
    pub waiting: Waiting,
    /// What a controller needed measured of that step's vector, all ranks together; see [`Adaptive`](crate::wrapper::Adaptive).
    pub measured: Measured,
}

/// One exchange.
#[derive(Debug)]
pub struct Round<'a> {
    /// Seed, step and bucket; fold in the rank for private randomness.
    pub key: Key,
    /// The tensors inside `input`; their ranges tile it.
    pub slots: &'a [Slot],
    /// What all ranks agree on.
    pub agreed_step: &'a AgreedStep,
    /// What this rank wants to contribute.
    pub input: &'a [f32],
    /// Out: the average, bit-identical on every rank unless [declared otherwise](crate::config::ReducerSettings::averages_equal).
    pub average: &'a mut [f32],
    /// Out: what this rank effectively contributed; requested only by wrappers that need it.
    pub sent: Option<&'a mut [f32]>,
}

impl<'a> Round<'a> {
    /// The same round over other vectors, for wrappers.
    pub fn with<'b>(&self, input: &'b [f32], average: &'b mut [f32], sent: Option<&'b mut [f32]>) -> Round<'b>
    where
        'a: 'b,
    {
        Round { key: self.key, slots: self.slots, agreed_step: self.agreed_step, input, average, sent }
    }
}

/// Which coordinates took part in an exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// Every coordinate was exchanged, exactly or quantized.
    All,
    /// A sparsifier chose some; the others were not exchanged.
    Some,
    /// The slots differ: where this is true, a sparsifier chose.
    BySlot(Vec<bool>),
}

impl Selection {
    /// Whether coordinates of this slot were chosen.
    pub fn chose(&self, slot: usize) -> bool {
        match self {
            Selection::All => false,
            Selection::Some => true,
            Selection::BySlot(chosen) => chosen[slot],
        }
    }
}

/// Puts the selections of parts together.
#[derive(Debug)]
pub(crate) struct Selections(Vec<bool>);

impl Selections {
    /// For this many slots.
    pub(crate) fn of(slots: usize) -> Self {
        Selections(vec![false; slots])
    }

    /// What was said of a part that holds these slots.
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

/// What an exchange did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchanged {
    /// Bytes it moved through this rank.
    pub traffic: Traffic,
    /// Whether coordinates were chosen; momentum factor masking depends on it.
    pub selection: Selection,
}

impl Exchanged {
    /// Runs `exchange` and counts the bytes that it moved.
    pub(crate) fn count(
        comm: &mut Session,
        selection: Selection,
        exchange: impl FnOnce(&mut Session) -> Result<(), ReduceError>,
    ) -> Result<Exchanged, ReduceError> {
        let before = comm.traffic();
        exchange(comm)?;
        Ok(Exchanged { traffic: comm.traffic() - before, selection })
    }
}

/// A sum of finite vectors may have become infinite. Every reducer that makes an average looks at it before it returns, and
/// after all that it sends: the ranks hold the same bits and return the same error. So the wrappers around it learn of it before they
/// change a memory; only one that adds to the average ([`Shifted`](crate::wrapper::Shifted)) looks again.
pub(crate) fn check_average(average: &[f32], slots: &[Slot]) -> Result<(), ReduceError> {
    match not_finite(average, slots) {
        Some(slot) => Err(ReduceError::Overflow { slot }),
        None => Ok(()),
    }
}

/// The first slot with a value that is not finite.
pub(crate) fn not_finite(x: &[f32], slots: &[Slot]) -> Option<String> {
    if all_finite(x) {
        return None;
    }
    let slot = slots.iter().find(|slot| !all_finite(&x[slot.range()]));
    Some(slot.map_or_else(String::new, |slot| slot.path().to_owned()))
}

/// Vector in, agreed average out: compute → communicate → commit.
pub trait Reducer: Stateful + Send {
    /// Exchanges one vector, and stages what is to be remembered of it: [`save`](Stateful::save) gives the same before and
    /// after. The caller ends the exchange: with [`commit`](Stateful::commit) after all of the step has succeeded on this rank, else
    /// with [`discard`](Stateful::discard). [`exchange`](Reducer::exchange) does so at once.
    ///
    /// # Errors
    /// [`ReduceError`] when the transport fails or a message cannot be used. The other ranks learn of it when the
    /// caller aborts the session.
    ///
    /// [`ReduceError::Overflow`] when the ranks' finite vectors have no finite average. It comes back the same on every rank,
    /// as all look at the same bits, where [averages are equal](crate::config::ReducerSettings::averages_equal). A reducer that
    /// makes an average looks; wrappers need not.
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError>;

    /// The same while the vector is still being computed: `input` has what `round.input`, which is empty, would have, and bits, state
    /// and errors are those of [`reduce`](Reducer::reduce). By default all of it is waited for first; a reducer that works part by
    /// part begins with the part that is there.
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

    /// An exchange that is a step of its own: reduces, then commits or, on an error, discards.
    ///
    /// # Errors
    /// As [`reduce`](Reducer::reduce); this reducer's state is then as before.
    fn exchange(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let exchanged = self.reduce(round, comm);
        if exchanged.is_ok() {
            self.commit();
        } else {
            self.discard();
        }
        exchanged
    }

    /// Whether [`take_off`](Reducer::take_off) works after every exchange, so that the round need not ask for `sent`.
    fn can_take_off(&self) -> bool {
        false
    }

    /// Takes what the last exchange sent off the vector that it was given, and writes what that was; whether everything that
    /// stays behind is finite. Called at most once an exchange, before it is committed.
    fn take_off(&mut self, _unsent: &mut Unsent<'_>) -> bool {
        unreachable!("asked of a reducer that cannot")
    }

    /// Whether a controller inside [gives up](crate::control::Controller::gives_up_memory), after the last exchange, what a memory around
    /// this reducer keeps of it.
    fn gives_up_memory(&self) -> bool {
        false
    }

    /// Takes back what the last exchange has staged for these places, in order: slots that no rank has a gradient for, whose average is
    /// not applied. What is remembered of them is afterwards what it was before. Called at most once an exchange, before it is
    /// committed. A reducer that remembers something of coordinates must do it, a wrapper must pass it on; by default nothing is
    /// remembered.
    fn hold(&mut self, _absent: &[Range<usize>]) {}

    /// Adds what this reducer knows of the last exchange; wrappers add theirs and pass on.
    fn report(&self, _report: &mut Report) {}

    /// Its knob, where a [controller](crate::control::Controller) may set the compression ratio.
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
    fn can_take_off(&self) -> bool {
        (**self).can_take_off()
    }
    fn take_off(&mut self, unsent: &mut Unsent<'_>) -> bool {
        (**self).take_off(unsent)
    }
    fn gives_up_memory(&self) -> bool {
        (**self).gives_up_memory()
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
