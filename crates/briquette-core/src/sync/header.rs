//! The small agreed header at the start of every step.
//!
//! Before anything is exchanged, every rank sends every other: its step, whether its gradient is finite and where not,
//! its sample count, loss, learning rate and times, which slots it has values for, and whether it wants to stop. So no rank leaves the
//! others waiting, and a NaN is refused everywhere before it reaches anyone's state.
//!
//! **On the wire.** `105 + ⌈slots/8⌉` bytes to each of `W−1` ranks.

use crate::error::{CommError, ReduceError, SyncError};
use crate::reduce::{AgreedStep, LastExchange};
use crate::report::Waiting;
use crate::{Session, Slot, Traffic};

/// Requests to stop, which any rank may make and all ranks then follow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StopFlags(u8);

impl StopFlags {
    /// No rank requests a stop.
    pub const NONE: StopFlags = StopFlags(0);
    /// The user asked to stop (Ctrl-C, or Burn's interrupter).
    pub const INTERRUPTED: StopFlags = StopFlags(1);
    /// Training is done early.
    pub const EARLY: StopFlags = StopFlags(2);

    /// Both requests.
    #[must_use]
    pub fn with(self, other: StopFlags) -> StopFlags {
        StopFlags(self.0 | other.0)
    }

    /// Whether all of `other` is requested.
    pub fn contains(self, other: StopFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any rank requests a stop, for whatever reason.
    pub fn any(self) -> bool {
        self.0 != 0
    }
}

/// What one rank sends.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Header {
    /// Its step.
    pub step: u64,
    /// The first slot whose values are not all finite.
    pub bad_slot: Option<u32>,
    /// Its requests to stop.
    pub stop: StopFlags,
    /// Samples behind its gradient; 0 is allowed.
    pub samples: u64,
    /// The mean loss over those samples.
    pub loss: Option<f64>,
    /// A validation loss, where one was measured since the last step.
    pub validation_loss: Option<f64>,
    /// The inner optimizer's learning rate: the same on every rank.
    pub learning_rate: Option<f64>,
    /// Seconds of computing since its last exchange.
    pub compute_seconds: f64,
    /// Its part of the exchange before this one.
    pub previous: Option<LastExchange>,
}

/// What one rank brings to a step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RankStep {
    /// The mean loss over its samples, where it was recorded.
    pub loss: Option<f64>,
    /// Samples behind its gradient.
    pub samples: u64,
    /// Seconds of computing since its last exchange.
    pub compute_seconds: f64,
}

impl From<&Header> for RankStep {
    fn from(header: &Header) -> Self {
        RankStep { loss: header.loss, samples: header.samples, compute_seconds: header.compute_seconds }
    }
}

/// What all ranks then know.
#[derive(Debug, Clone, PartialEq)]
pub struct Agreement {
    /// For strategies and controllers.
    pub agreed_step: AgreedStep,
    /// What each rank brings, in rank order.
    pub ranks: Vec<RankStep>,
    /// Any rank's requests to stop.
    pub stop: StopFlags,
    /// By what this rank scales its vector so that the plain mean becomes the mean over samples: `n_i · W / Σ n`.
    pub weight: f32,
}

const BYTES: usize = 105;
/// Beside the requests in the last byte: there was an exchange before.
const PREVIOUS: u8 = 0x80;

/// Samples a rank may have behind one gradient: sums over thousands of ranks are then exact in `f64`.
pub const MOST_SAMPLES: u64 = 1 << 40;

impl Header {
    /// That what a rank recorded can be weighed and stepped with.
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

    /// What this rank knows by itself, where [no rank agrees](super::Agrees::NoRank): its own numbers, and weight 1.
    ///
    /// # Errors
    /// [`SyncError::Rate`], [`SyncError::Samples`], [`SyncError::NonFinite`], on **this** rank: the others learn of it when the
    /// session is aborted.
    pub fn alone(&self, rank: usize, slots: &[Slot]) -> Result<Agreement, SyncError> {
        self.check_numbers(rank, self.step)?;
        self.check_slot(rank, slots)?;
        let Header { step, samples, loss, validation_loss, learning_rate, compute_seconds, .. } = *self;
        let agreed_step =
            AgreedStep { step, loss, validation_loss, samples, learning_rate, compute_seconds, previous: None };
        Ok(Agreement { agreed_step, ranks: Vec::new(), stop: StopFlags::NONE, weight: 1.0 })
    }

    /// That this rank's values are finite.
    ///
    /// # Errors
    /// [`SyncError::NonFinite`].
    pub fn check_slot(&self, rank: usize, slots: &[Slot]) -> Result<(), SyncError> {
        let Some(slot) = self.bad_slot else { return Ok(()) };
        let slot = slots.get(slot as usize).map_or_else(|| format!("slot {slot}"), |s| s.path().to_owned());
        Err(SyncError::NonFinite { step: self.step, rank, slot })
    }

    fn to_bytes(self) -> [u8; BYTES] {
        let p = self.previous.unwrap_or_default();
        let words: [u64; 13] = [
            self.step,
            self.bad_slot.map_or(u64::MAX, u64::from),
            self.samples,
            self.loss.unwrap_or(f64::NAN).to_bits(),
            self.compute_seconds.to_bits(),
            p.compress_seconds.to_bits(),
            p.exchange_seconds.to_bits(),
            p.traffic.sent,
            p.traffic.received,
            // What is no number must not look like none.
            self.learning_rate.map_or(f64::NAN, |rate| if rate.is_nan() { f64::INFINITY } else { rate }).to_bits(),
            p.waiting.entered.to_bits(),
            p.waiting.left.to_bits(),
            self.validation_loss.unwrap_or(f64::NAN).to_bits(),
        ];
        let mut bytes = [0; BYTES];
        for (out, word) in bytes.chunks_exact_mut(8).zip(words) {
            out.copy_from_slice(&word.to_le_bytes());
        }
        bytes[BYTES - 1] = self.stop.0 | if self.previous.is_some() { PREVIOUS } else { 0 };
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Header> {
        let bytes = bytes.get(..BYTES)?;
        let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|b| bytes[i * 8 + b]));
        let last = bytes[BYTES - 1];
        let float = |i| f64::from_bits(word(i));
        let previous = LastExchange {
            compress_seconds: float(5),
            exchange_seconds: float(6),
            traffic: Traffic { sent: word(7), received: word(8) },
            waiting: Waiting { entered: float(10), left: float(11) },
            ..LastExchange::default()
        };
        Some(Header {
            step: word(0),
            bad_slot: u32::try_from(word(1)).ok(),
            stop: StopFlags(last & !PREVIOUS),
            samples: word(2),
            loss: Some(float(3)).filter(|l| !l.is_nan()),
            validation_loss: Some(float(12)).filter(|l| !l.is_nan()),
            learning_rate: Some(float(9)).filter(|rate| !rate.is_nan()),
            compute_seconds: float(4),
            previous: (last & PREVIOUS != 0).then_some(previous),
        })
    }
}

/// Exchanges headers. `before` is the agreement of the step before, whose samples and compute time belong to
/// [`AgreedStep::previous`]. `present` says which slots this rank has values for, and afterwards which slots any rank has.
///
/// # Errors
/// [`SyncError::NonFinite`], [`SyncError::OutOfStep`], [`SyncError::LearningRate`], [`SyncError::Rate`] and
/// [`SyncError::Samples`] on **every** rank; [`SyncError::Reduce`] when the transport fails.
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
    let mut bytes = mine.to_bytes().to_vec();
    bytes.extend(present.chunks(8).map(|bits| bits.iter().rev().fold(0, |byte, &bit| byte << 1 | u8::from(bit))));
    let mut frames = Vec::new();
    comm.all_gather(&bytes, &mut frames).map_err(failed)?;
    let mut all = Vec::with_capacity(world);
    for (from, frame) in frames.drain(..).enumerate() {
        if from == rank {
            all.push(*mine);
        } else if let (true, Some(header)) = (frame.len() == bytes.len(), Header::from_bytes(&frame)) {
            all.push(header);
            for (i, bit) in present.iter_mut().enumerate() {
                *bit |= frame[BYTES + i / 8] >> (i % 8) & 1 == 1;
            }
        } else {
            let during = *comm.scope();
            return Err(failed(CommError::Size { rank, other: from, during, expected: bytes.len(), got: frame.len() }));
        }
        comm.pool().put(frame);
    }
    comm.scope().operation = "";
    check(mine, &all, slots)?;
    Ok(combine(mine, &all, before))
}

/// Every rank finds the same fault, whichever rank has it.
fn check(mine: &Header, all: &[Header], slots: &[Slot]) -> Result<(), SyncError> {
    if let Some((rank, other)) = all.iter().enumerate().find(|(_, h)| h.step != mine.step) {
        return Err(SyncError::OutOfStep { rank, expected: mine.step, got: other.step });
    }
    for (rank, header) in all.iter().enumerate() {
        header.check_numbers(rank, mine.step)?;
    }
    if let Some((rank, other)) = all.iter().enumerate().find(|(_, h)| h.learning_rate != mine.learning_rate) {
        let (expected, got) = (mine.learning_rate, other.learning_rate);
        return Err(SyncError::LearningRate { step: mine.step, rank, expected, got });
    }
    all.iter().enumerate().try_for_each(|(rank, header)| header.check_slot(rank, slots))
}

fn combine(mine: &Header, all: &[Header], before: Option<&AgreedStep>) -> Agreement {
    let world = all.len() as f64;
    // Numbers from elsewhere: they must not overflow.
    let add = |sum: u64, samples: u64| sum.saturating_add(samples);
    let samples = all.iter().map(|h| h.samples).fold(0, add);
    let heard = |h: &&Header| h.samples > 0 && h.loss.is_some();
    let loss_samples = all.iter().filter(heard).map(|h| h.samples).fold(0, add);
    let loss_sum: f64 = all.iter().filter(heard).map(|h| h.loss.unwrap_or(0.0) * h.samples as f64).sum();
    let validation: Vec<f64> = all.iter().filter_map(|h| h.validation_loss).collect();
    let mean = |f: fn(&LastExchange) -> f64| all.iter().filter_map(|h| h.previous.as_ref().map(f)).sum::<f64>() / world;
    let previous = before.filter(|_| all.iter().all(|h| h.previous.is_some())).map(|before| LastExchange {
        samples: before.samples,
        compute_seconds: before.compute_seconds,
        compress_seconds: mean(|p| p.compress_seconds),
        exchange_seconds: mean(|p| p.exchange_seconds),
        traffic: all.iter().filter_map(|h| h.previous.map(|p| p.traffic)).fold(Traffic::default(), |sum, t| sum + t),
        waiting: Waiting { entered: world * mean(|p| p.waiting.entered), left: world * mean(|p| p.waiting.left) },
    });
    Agreement {
        ranks: all.iter().map(RankStep::from).collect(),
        agreed_step: AgreedStep {
            step: mine.step,
            loss: (loss_samples > 0).then(|| loss_sum / loss_samples as f64),
            validation_loss: (!validation.is_empty()).then(|| validation.iter().sum::<f64>() / validation.len() as f64),
            samples,
            learning_rate: mine.learning_rate,
            compute_seconds: all.iter().map(|h| h.compute_seconds).fold(0.0, f64::max),
            previous,
        },
        stop: all.iter().fold(StopFlags::NONE, |sum, h| sum.with(h.stop)),
        weight: if samples == 0 { 0.0 } else { (mine.samples as f64 * world / samples as f64) as f32 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;
    use crate::comm::Local;

    fn exchange(headers: [Header; 2]) -> [Result<Agreement, SyncError>; 2] {
        let layout = Layout::new([("conv.weight", vec![2]), ("fc.bias", vec![1])]);
        let mut world = Local::world(2);
        std::thread::scope(|scope| {
            let handles: Vec<_> = world
                .iter_mut()
                .zip(headers)
                .map(|(comm, header)| {
                    let layout = &layout;
                    scope.spawn(move || {
                        let mut present = [header.samples > 0, false];
                        let agreed = agree(&header, None, layout.slots(), &mut present, comm)?;
                        assert_eq!(present, [agreed.agreed_step.samples > 0, false]);
                        Ok(agreed)
                    })
                })
                .collect();
            handles.into_iter().map(|h| h.join().unwrap()).collect::<Vec<_>>().try_into().unwrap()
        })
    }

    #[test]
    fn weights_make_the_plain_mean_a_mean_over_samples() {
        let header = |samples, loss| Header { samples, loss, ..Header::default() };
        let [a, b] = exchange([header(3, Some(1.0)), header(1, Some(5.0))]).map(Result::unwrap);
        // (3·1.5 + 1·0.5)/… : weights 3·2/4 and 1·2/4; loss (3·1 + 1·5)/4 = 2.
        assert_eq!((a.weight, b.weight), (1.5, 0.5));
        assert_eq!((a.agreed_step, a.agreed_step.loss, a.agreed_step.samples), (b.agreed_step, Some(2.0), 4));
        let [a, b] = exchange([header(0, None), header(2, Some(7.0))]).map(Result::unwrap);
        assert_eq!((a.weight, b.weight, a.agreed_step.loss), (0.0, 2.0, Some(7.0)));
    }

    /// Threat R3.
    #[test]
    fn a_bad_slot_is_refused_on_every_rank_by_name() {
        let bad = Header { bad_slot: Some(1), ..Header::default() };
        for result in exchange([Header::default(), bad]) {
            let text = result.unwrap_err().to_string();
            assert!(text.contains("rank 1") && text.contains("`fc.bias`"), "{text}");
        }
    }

    #[test]
    fn one_rank_stops_all_and_another_step_is_an_error() {
        let stop = Header { stop: StopFlags::INTERRUPTED, ..Header::default() };
        for result in exchange([stop, Header::default()]) {
            assert!(result.unwrap().stop.contains(StopFlags::INTERRUPTED));
        }
        let late = Header { step: 3, ..Header::default() };
        let [a, b] = exchange([Header::default(), late]).map(|r| r.unwrap_err().to_string());
        assert!(a.contains("rank 1 is at step 3, this rank at step 0"), "{a}");
        assert!(b.contains("rank 0 is at step 0"), "{b}");
    }

    #[test]
    fn ranks_with_different_learning_rates_are_told_so() {
        let header = |learning_rate| Header { learning_rate, ..Header::default() };
        let [a, b] = exchange([header(Some(0.1)), header(Some(0.2))]).map(|r| r.unwrap_err().to_string());
        assert!(a.contains("rank 1 steps with learning rate 0.2, this rank with 0.1"), "{a}");
        assert!(b.contains("rank 0 steps with learning rate 0.1"), "{b}");
        let [a, _] = exchange([header(None), header(Some(0.2))]).map(|r| r.unwrap_err().to_string());
        assert!(a.contains("this rank with none told"), "{a}");
        let [a, b] = exchange([header(Some(0.2)), header(Some(0.2))]).map(Result::unwrap);
        assert_eq!((a.agreed_step.learning_rate, b.agreed_step.learning_rate), (Some(0.2), Some(0.2)));
    }

    /// Threat R3.
    #[test]
    fn numbers_that_cannot_be_weighed_or_stepped_with_are_refused_on_every_rank() {
        let good = Header { samples: 4, learning_rate: Some(0.1), ..Header::default() };
        for rate in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let bad = Header { learning_rate: Some(rate), ..good };
            for result in exchange([good, bad]).into_iter().chain(exchange([bad, bad])) {
                let error = result.unwrap_err();
                assert!(matches!(error, SyncError::Rate { step: 0, .. }) && error.is_everyones(), "{error}");
            }
        }
        for samples in [u64::MAX, MOST_SAMPLES + 1] {
            for result in exchange([good, Header { samples, ..good }]) {
                let error = result.unwrap_err();
                assert_eq!(error, SyncError::Samples { step: 0, rank: 1, got: samples, most: MOST_SAMPLES });
            }
        }
        assert!(exchange([good, Header { samples: MOST_SAMPLES, ..good }]).iter().all(Result::is_ok));
    }

    #[test]
    fn headers_survive_the_wire() {
        let header = Header {
            step: 9,
            bad_slot: Some(4),
            stop: StopFlags::EARLY,
            samples: 7,
            loss: Some(0.5),
            validation_loss: Some(0.75),
            learning_rate: Some(0.1),
            compute_seconds: 1.5,
            previous: Some(LastExchange {
                compress_seconds: 0.25,
                exchange_seconds: 2.0,
                traffic: Traffic { sent: 1, received: 2 },
                waiting: Waiting { entered: 3.0, left: 0.5 },
                ..LastExchange::default()
            }),
        };
        assert_eq!(Header::from_bytes(&header.to_bytes()), Some(header));
        assert_eq!(Header::from_bytes(&[0; BYTES - 1]), None);
    }
}
