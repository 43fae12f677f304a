//! Step header: metadata that all ranks agree on at the start of every step.
//!
//! Before an exchange, every rank sends its header to every other rank: its step, the first slot with a non-finite gradient (if any), its sample
//! count, loss, learning rate and times, the slots for which it has values, and stop requests. Every rank therefore rejects a NaN before the NaN
//! reaches any state. At some steps a rank also sends a digest of its parameters, which detects diverged replicas.
//!
//! **On the wire.** `105 + 8·n + ⌈slots/8⌉` bytes to each of `W−1` ranks. `n` is the number of measurements that a controller needs, usually 0. The
//! digest and the non-finite slot share one field, because a rank never sends both.

use super::unequal::{Unequal, unequal};
use crate::error::{CommError, ReduceError, SyncError};
use crate::report::{Measured, ResidualEnergy};
use crate::seam::{AgreedStep, Agrees, LastExchange, RankStep};
use crate::{Session, Slot, Traffic};

/// Set of stop requests. Any rank may make one, and all ranks then stop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StopFlags(u8);

impl StopFlags {
    /// No request.
    pub const NONE: StopFlags = StopFlags(0);
    /// The user asked to stop (Ctrl-C, or Burn's interrupter).
    pub const INTERRUPTED: StopFlags = StopFlags(1);
    /// Training ends early.
    pub const EARLY: StopFlags = StopFlags(2);
    /// No stop: a process asks to become a member of an elastic world.
    pub const CANDIDATE: StopFlags = StopFlags(4);

    /// Returns the union of both sets of requests.
    #[must_use]
    pub fn with(self, other: StopFlags) -> StopFlags {
        StopFlags(self.0 | other.0)
    }

    /// Returns the requests that are not in `other`.
    #[must_use]
    pub fn without(self, other: StopFlags) -> StopFlags {
        StopFlags(self.0 & !other.0)
    }

    /// Returns whether all requests in `other` are made.
    pub fn contains(self, other: StopFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether any stop is requested.
    pub fn any(self) -> bool {
        self.0 != 0
    }
}

/// Values that one rank sends in a step header.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Header {
    /// The rank's step.
    pub step: u64,
    /// Number of the rank's session, among [those that share](Session::share) its transport.
    pub session: u8,
    /// The first slot whose values are not all finite.
    pub bad_slot: Option<u32>,
    /// The rank's stop requests.
    pub stop: StopFlags,
    /// Set if the rank gave up an exchange that it had started.
    pub gave_up: bool,
    /// Number of samples from which the gradient was computed; may be 0.
    pub samples: u64,
    /// Set if the training loop recorded the number of samples. It must do so on every rank or on none.
    pub samples_recorded: bool,
    /// Digest of the parameters before this step, at steps at which replicas are compared. It is not sent together with a
    /// non-finite slot.
    pub digest: Option<u64>,
    /// Mean loss over those samples.
    pub loss: Option<f64>,
    /// Validation loss, if one was measured since the last step.
    pub validation_loss: Option<f64>,
    /// Learning rate of the inner optimizer, the same on every rank.
    pub learning_rate: Option<f64>,
    /// Compute seconds of the step; after local steps, of the last one.
    pub compute_seconds: f64,
    /// This rank's statistics of the previous exchange.
    pub previous: Option<LastExchange>,
}

/// Result of a header exchange, known to all ranks.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Agreement {
    /// The agreed values, for strategies and controllers.
    pub agreed_step: AgreedStep,
    /// Each rank's values, in rank order.
    pub ranks: Vec<RankStep>,
    /// Stop requests of any rank.
    pub stop: StopFlags,
    /// Factor for this rank's vector that turns the plain mean into the mean over samples: `n_i · W / Σ n`.
    pub weight: f32,
}

const BYTES: usize = 105;
/// Bit offset of the session's number in the word that holds the step.
const SESSION: u32 = 56;
/// Flags in the last byte, next to the stop requests: there was a previous exchange; this exchange is given up; the second
/// word is a digest; the samples were recorded.
const PREVIOUS: u8 = 0x80;
const GAVE_UP: u8 = 0x40;
const DIGEST: u8 = 0x20;
const RECORDED: u8 = 0x10;
const FLAGS: u8 = PREVIOUS | GAVE_UP | DIGEST | RECORDED;

/// Maximum number of samples for one rank's gradient. Sums over thousands of ranks are then exact in `f64`.
pub const MOST_SAMPLES: u64 = 1 << 40;

impl Header {
    /// Checks that the recorded sample count and learning rate can be used.
    ///
    /// # Errors
    /// [`SyncError::Rate`], [`SyncError::Samples`].
    pub fn check_numbers(&self, rank: usize, step: u64) -> Result<(), SyncError> {
        if let Some(got) = self.learning_rate.filter(|rate| !rate.is_finite()) {
            return Err(SyncError::Rate { step, rank, got });
        }
        match self.samples {
            got if got > MOST_SAMPLES => Err(SyncError::Samples { step, rank, got, most: MOST_SAMPLES }),
            _ => Ok(()),
        }
    }

    /// Returns this rank's own values as an agreement with weight 1, for a step where [no rank agrees](crate::seam::Agrees::NoRank).
    ///
    /// # Errors
    /// [`SyncError::Rate`], [`SyncError::Samples`], [`SyncError::NonFinite`], on **this** rank only. The caller aborts the session, which
    /// stops the other ranks.
    pub fn alone(&self, rank: usize, slots: &[Slot]) -> Result<Agreement, SyncError> {
        self.check_numbers(rank, self.step)?;
        self.check_slot(rank, slots)?;
        let Header { step, samples, loss, validation_loss, learning_rate, compute_seconds, .. } = *self;
        let agreed_step =
            AgreedStep { step, loss, validation_loss, samples, learning_rate, compute_seconds, previous: None };
        Ok(Agreement { agreed_step, ranks: Vec::new(), stop: StopFlags::NONE, weight: 1.0 })
    }

    /// Checks that this rank's values are finite.
    ///
    /// # Errors
    /// [`SyncError::NonFinite`].
    pub(crate) fn check_slot(&self, rank: usize, slots: &[Slot]) -> Result<(), SyncError> {
        let Some(slot) = self.bad_slot else { return Ok(()) };
        let slot = slots.get(slot as usize).map_or_else(|| format!("slot {slot}"), |s| s.path().to_owned());
        Err(SyncError::NonFinite { step: self.step, rank, slot })
    }

    fn to_bytes(self) -> [u8; BYTES] {
        let p = self.previous.unwrap_or_default();
        let words: [u64; 13] = [
            self.step | u64::from(self.session) << SESSION,
            self.bad_slot.map(u64::from).or(self.digest).unwrap_or(u64::MAX),
            self.samples,
            self.loss.unwrap_or(f64::NAN).to_bits(),
            self.compute_seconds.to_bits(),
            p.compress_seconds.to_bits(),
            p.exchange_seconds.to_bits(),
            p.traffic.sent,
            p.traffic.received,
            // A NaN rate must not look like an absent one.
            self.learning_rate.map_or(f64::NAN, |rate| if rate.is_nan() { f64::INFINITY } else { rate }).to_bits(),
            p.residual_energy.entered.to_bits(),
            p.residual_energy.left.to_bits(),
            self.validation_loss.unwrap_or(f64::NAN).to_bits(),
        ];
        let mut bytes = [0; BYTES];
        for (out, word) in bytes.chunks_exact_mut(8).zip(words) {
            out.copy_from_slice(&word.to_le_bytes());
        }
        let flag = |flag: u8, is_set: bool| if is_set { flag } else { 0 };
        bytes[BYTES - 1] = self.stop.0
            | flag(PREVIOUS, self.previous.is_some())
            | flag(GAVE_UP, self.gave_up)
            | flag(DIGEST, self.bad_slot.is_none() && self.digest.is_some())
            | flag(RECORDED, self.samples_recorded);
        bytes
    }

    /// Returns the measurements that a controller needs. They follow the fixed part of the header.
    fn measured(&self) -> Measured {
        self.previous.map_or(Measured::default(), |previous| previous.measured)
    }

    /// Decodes a header with `measured` measurements.
    fn from_bytes(bytes: &[u8], measured: usize) -> Option<Header> {
        let numbers = bytes.get(BYTES..BYTES + 8 * measured)?.as_chunks().0;
        let measured = Measured::new(&numbers.iter().map(|number| f64::from_le_bytes(*number)).collect::<Vec<_>>())?;
        let bytes = bytes.get(..BYTES)?;
        let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|b| bytes[i * 8 + b]));
        let last = bytes[BYTES - 1];
        let float = |i| f64::from_bits(word(i));
        let previous = LastExchange {
            compress_seconds: float(5),
            exchange_seconds: float(6),
            traffic: Traffic { sent: word(7), received: word(8) },
            residual_energy: ResidualEnergy { entered: float(10), left: float(11) },
            measured,
            ..LastExchange::default()
        };
        Some(Header {
            step: word(0) & ((1 << SESSION) - 1),
            session: (word(0) >> SESSION) as u8,
            bad_slot: u32::try_from(word(1)).ok().filter(|_| last & DIGEST == 0),
            stop: StopFlags(last & !FLAGS),
            gave_up: last & GAVE_UP != 0,
            samples: word(2),
            samples_recorded: last & RECORDED != 0,
            digest: (last & DIGEST != 0).then(|| word(1)),
            loss: Some(float(3)).filter(|l| !l.is_nan()),
            validation_loss: Some(float(12)).filter(|l| !l.is_nan()),
            learning_rate: Some(float(9)).filter(|rate| !rate.is_nan()),
            compute_seconds: float(4),
            previous: (last & PREVIOUS != 0).then_some(previous),
        })
    }
}

impl Agrees {
    /// Returns the agreement before a step's exchange: that of [`agree`] among the ranks that share the header, or this rank's [own
    /// values](Header::alone).
    ///
    /// # Errors
    /// Those of both functions. If only the ranks of one machine share the header, an error that a rank can detect in
    /// its own values is returned on that rank alone.
    pub fn agree(
        self,
        mine: &Header,
        before: Option<&AgreedStep>,
        slots: &[Slot],
        present: &mut [bool],
        comm: &mut Session,
    ) -> Result<Agreement, SyncError> {
        match self {
            Agrees::World => agree(mine, before, slots, present, comm),
            Agrees::Machine(group) => {
                // The error ends the whole process group, not only the machine's group, so this rank need not wait for the
                // others.
                mine.alone(comm.rank(), slots)?;
                let places = comm.machine_map_in(group);
                let agreement = comm.within(places.machine(), |machine| agree(mine, None, slots, present, machine))?;
                Ok(Agreement { stop: StopFlags::NONE, ..agreement })
            }
            Agrees::NoRank => mine.alone(comm.rank(), slots),
        }
    }
}

/// Exchanges headers. `before` is the agreement of the previous step; its samples and compute time become part of
/// [`AgreedStep::previous`]. On input, `present` marks the slots for which this rank has values; on output, the slots for
/// which any rank has values.
///
/// # Errors
/// [`SyncError::NonFinite`], [`SyncError::OutOfStep`], [`SyncError::LearningRate`], [`SyncError::Rate`], [`SyncError::Samples`],
/// [`SyncError::SomeRecorded`] and [`SyncError::Replicas`] on **every** rank; [`SyncError::Reduce`] when the transport fails.
pub fn agree(
    mine: &Header,
    before: Option<&AgreedStep>,
    slots: &[Slot],
    present: &mut [bool],
    comm: &mut Session,
) -> Result<Agreement, SyncError> {
    comm.scope().operation = "step header";
    let (rank, world) = (comm.rank(), comm.world());
    let failed = |source: CommError| SyncError::Reduce { step: mine.step, source: ReduceError::Comm(source) };
    let (mut bytes, measured) = (mine.to_bytes().to_vec(), mine.measured());
    bytes.extend(measured.numbers().iter().flat_map(|number| number.to_le_bytes()));
    let bits = bytes.len();
    bytes.extend(present.chunks(8).map(|bits| bits.iter().rev().fold(0, |byte, &bit| byte << 1 | u8::from(bit))));
    let mut frames = Vec::new();
    comm.all_gather(&bytes, &mut frames).map_err(failed)?;
    let mut all = Vec::with_capacity(world);
    for (from, frame) in frames.drain(..).enumerate() {
        if from == rank {
            all.push(*mine);
        } else if let (true, Some(header)) =
            (frame.len() == bytes.len(), Header::from_bytes(&frame, measured.numbers().len()))
        {
            all.push(header);
            for (i, bit) in present.iter_mut().enumerate() {
                *bit |= frame[bits + i / 8] >> (i % 8) & 1 == 1;
            }
        } else if let Some(got) = frame.get(7).copied().filter(|got| *got != mine.session) {
            return Err(SyncError::OtherOptimizer {
                step: mine.step,
                rank: comm.number(from),
                expected: mine.session,
                got,
            });
        } else {
            let during = *comm.scope();
            return Err(failed(CommError::Size { rank, other: from, during, expected: bytes.len(), got: frame.len() }));
        }
        comm.pool().put(frame);
    }
    comm.scope().operation = "";
    check(mine, &all, slots, |rank| comm.number(rank))?;
    Ok(combine(mine, &all, before))
}

/// Checks all headers. Every rank finds the same error, whichever rank caused it. `name` maps a rank to its number in the
/// whole process group.
fn check(mine: &Header, all: &[Header], slots: &[Slot], name: impl Fn(usize) -> usize) -> Result<(), SyncError> {
    let named = || all.iter().enumerate().map(|(rank, header)| (name(rank), header));
    if let Some((rank, other)) = named().find(|(_, header)| header.session != mine.session) {
        let (step, expected, got) = (mine.step, mine.session, other.session);
        return Err(SyncError::OtherOptimizer { step, rank, expected, got });
    }
    if let Some((rank, other)) = named().find(|(_, header)| header.step != mine.step) {
        return Err(SyncError::OutOfStep { rank, expected: mine.step, got: other.step });
    }
    if let Some((rank, _)) = named().find(|(_, header)| header.gave_up) {
        return Err(SyncError::GaveUp { step: mine.step, rank });
    }
    named().try_for_each(|(rank, header)| header.check_numbers(rank, mine.step))?;
    if let Some((rank, other)) = named().find(|(_, header)| header.learning_rate != mine.learning_rate) {
        let (expected, got) = (mine.learning_rate, other.learning_rate);
        return Err(SyncError::LearningRate { step: mine.step, rank, expected, got });
    }
    // The first rank with and the first without a recorded count, so that all ranks name the same two.
    let first = |recorded| named().find(|(_, header)| header.samples_recorded == recorded).map(|(rank, _)| rank);
    if let (Some(rank), Some(other)) = (first(true), first(false)) {
        return Err(SyncError::SomeRecorded { step: mine.step, rank, other });
    }
    named().try_for_each(|(rank, header)| header.check_slot(rank, slots))?;
    match unequal(&all.iter().map(|header| header.digest).collect::<Vec<_>>()) {
        None => Ok(()),
        Some(Unequal { rank, others }) => {
            let others = others.into_iter().map(&name).collect();
            Err(SyncError::Replicas { step: mine.step, slot: None, rank: name(rank), others })
        }
    }
}

fn combine(mine: &Header, all: &[Header], before: Option<&AgreedStep>) -> Agreement {
    let world = all.len() as f64;
    let ranks: Vec<RankStep> = all.iter().map(RankStep::from).collect();
    let RankStep { loss, samples, compute_seconds, .. } = RankStep::together(ranks.iter());
    let validation: Vec<f64> = all.iter().filter_map(|h| h.validation_loss).collect();
    let mean = |f: fn(&LastExchange) -> f64| all.iter().filter_map(|h| h.previous.as_ref().map(f)).sum::<f64>() / world;
    let previous = before.filter(|_| all.iter().all(|h| h.previous.is_some())).map(|before| LastExchange {
        samples: before.samples,
        compute_seconds: before.compute_seconds,
        compress_seconds: mean(|p| p.compress_seconds),
        exchange_seconds: mean(|p| p.exchange_seconds),
        traffic: all.iter().filter_map(|h| h.previous.map(|p| p.traffic)).fold(Traffic::default(), |sum, t| sum + t),
        residual_energy: ResidualEnergy {
            entered: world * mean(|p| p.residual_energy.entered),
            left: world * mean(|p| p.residual_energy.left),
        },
        measured: sum_of_measured(all),
    });
    Agreement {
        ranks,
        agreed_step: AgreedStep {
            step: mine.step,
            loss,
            validation_loss: (!validation.is_empty()).then(|| validation.iter().sum::<f64>() / validation.len() as f64),
            samples,
            learning_rate: mine.learning_rate,
            compute_seconds,
            previous,
        },
        stop: all.iter().fold(StopFlags::NONE, |sum, h| sum.with(h.stop)),
        weight: if samples == 0 { 0.0 } else { (mine.samples as f64 * world / samples as f64) as f32 },
    }
}

/// Sums the measured numbers in rank order.
fn sum_of_measured(all: &[Header]) -> Measured {
    let (first, others) = all.split_first().expect("this rank's own is among them");
    others.iter().fold(first.measured(), |mut sum, header| {
        sum.add(&header.measured());
        sum
    })
}

impl From<&Header> for RankStep {
    fn from(header: &Header) -> Self {
        RankStep {
            loss: header.loss,
            samples: header.samples,
            compute_seconds: header.compute_seconds,
            residual_energy: header.previous.map_or(0.0, |previous| previous.residual_energy.left),
        }
    }
}

#[cfg(test)]
mod tests;
