//! Frames between server and workers, as specified in `docs/wire.md`.

use super::{Contribution, Task};
use crate::error::WireError;
use crate::sync::header::MOST_SAMPLES;
use crate::{Frame, Message};

/// Fields of an assignment, without the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Assignment {
    /// `None` stops the worker.
    pub(super) task: Option<Task>,
    /// Fate of the previous contribution.
    pub(super) fate: Option<Fate>,
    pub(super) version: u64,
}

/// Effect of the last message on the worker's residual.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// The message counted. The residual is its compression error.
    Counted,
    /// The message did not count. The residual is its whole input.
    PutBack,
    /// The message did not count and is discarded. The residual is the one before it.
    Dropped,
}

/// Bytes before an assignment's models, and before a contribution's message.
pub(super) const ASSIGNMENT: usize = 14;
pub(super) const CONTRIBUTION: usize = 29;

impl Assignment {
    /// Writes the assignment, followed by the models.
    pub(super) fn write(self, models: &[&[f32]], out: &mut Frame) {
        let (task, steps) = match self.task {
            Some(Task::Gradient) => (0, 0),
            Some(Task::Steps(steps)) => (1, steps),
            Some(Task::Difference) => (2, 0),
            Some(Task::Full) => (3, 0),
            None => (4, 0),
            Some(Task::Exact) => (5, 0),
        };
        let fate = match self.fate {
            None => 0,
            Some(Fate::Counted) => 1,
            Some(Fate::PutBack) => 2,
            Some(Fate::Dropped) => 3,
        };
        out.extend([task, fate]);
        out.extend(steps.to_le_bytes());
        out.extend(self.version.to_le_bytes());
        models.iter().for_each(|model| out.extend(model.iter().flat_map(|value| value.to_le_bytes())));
    }

    /// Reads the assignment, and returns the bytes of the models.
    pub(super) fn read(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (head, models) = split::<ASSIGNMENT>(bytes, "an assignment")?;
        let [task, fate, a, b, c, d, version @ ..] = *head;
        let steps = u32::from_le_bytes([a, b, c, d]);
        let task = match task {
            0 => Some(Task::Gradient),
            1 => Some(Task::Steps(steps)),
            2 => Some(Task::Difference),
            3 => Some(Task::Full),
            4 => None,
            5 => Some(Task::Exact),
            got => return Err(WireError::Field { what: "task of an assignment", value: u64::from(got) }),
        };
        if matches!(task, Some(Task::Steps(_))) != (steps > 0) {
            return Err(WireError::Field { what: "number of local steps of an assignment", value: u64::from(steps) });
        }
        let fate = match fate {
            0 => None,
            1 => Some(Fate::Counted),
            2 => Some(Fate::PutBack),
            3 => Some(Fate::Dropped),
            got => return Err(WireError::Field { what: "verdict of an assignment", value: u64::from(got) }),
        };
        Ok((Assignment { task, fate, version: u64::from_le_bytes(version) }, models))
    }
}

impl Contribution {
    pub(super) fn write(&self, out: &mut Frame) {
        out.extend(self.version.to_le_bytes());
        out.extend(self.samples.to_le_bytes());
        out.extend(self.loss.to_le_bytes());
        out.extend(self.gradients.to_le_bytes());
        out.push(u8::from(self.stops));
        self.message.encode_into(out);
    }

    /// Reads a contribution whose message has `len` values. Its fields are checked to be in range, so that a mean over
    /// contributions can be computed.
    pub(super) fn read(bytes: &[u8], len: usize) -> Result<Self, WireError> {
        let (head, rest) = split::<CONTRIBUTION>(bytes, "a contribution")?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| head[at + i]));
        let (version, samples, loss) = (word(0), word(8), f64::from_bits(word(16)));
        if !(1..=MOST_SAMPLES).contains(&samples) {
            return Err(WireError::Field { what: "number of samples of a contribution", value: samples });
        }
        if !loss.is_finite() {
            let what = "loss of a contribution is not finite: the bits of it";
            return Err(WireError::Field { what, value: loss.to_bits() });
        }
        let stops = match head[28] {
            0 => false,
            1 => true,
            got => return Err(WireError::Field { what: "stop request of a contribution", value: u64::from(got) }),
        };
        let mut message = Message::default();
        message.decode_from(rest)?;
        if message.len() != len {
            return Err(WireError::Length { expected: len, got: message.len() });
        }
        let gradients = u32::from_le_bytes(std::array::from_fn(|i| head[24 + i]));
        Ok(Contribution { version, samples, loss, gradients, stops, message })
    }
}

fn split<'a, const N: usize>(bytes: &'a [u8], what: &'static str) -> Result<(&'a [u8; N], &'a [u8]), WireError> {
    bytes.split_first_chunk().ok_or(WireError::Truncated { what, needed: N, left: bytes.len() })
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::*;
    use crate::Key;
    use crate::compress::top_k::TopK;
    use crate::seam::Compressor;

    fn contribution() -> Contribution {
        let mut message = Message::default();
        TopK::fraction(0.5).unwrap().compress_into(&[1.0, -3.0], Key::new(0), &mut message);
        Contribution { version: 3, samples: 32, loss: 0.5, gradients: 2, stops: true, message }
    }

    /// Neither frame panics, whatever the bytes. A frame that can be read is written as the same bytes, apart from the message.
    fn check_frames(bytes: &[u8]) {
        if let Ok((assignment, models)) = Assignment::read(bytes) {
            let mut again = Frame::new();
            assignment.write(&[], &mut again);
            assert_eq!((&again[..], models), bytes.split_at(ASSIGNMENT));
        }
        for len in [0, 1, 7] {
            if let Ok(contribution) = Contribution::read(bytes, len) {
                let mut again = Frame::new();
                contribution.write(&mut again);
                assert_eq!(again[..CONTRIBUTION], bytes[..CONTRIBUTION]);
                assert_eq!(Contribution::read(&again, len).as_ref(), Ok(&contribution));
            }
        }
    }

    /// `docs/wire.md`: task 1, verdict 2, 7 steps, version 258, then 1.0.
    #[test]
    fn an_assignment_by_hand() {
        let assignment = Assignment { task: Some(Task::Steps(7)), fate: Some(Fate::PutBack), version: 258 };
        let mut frame = Frame::new();
        assignment.write(&[&[1.0]], &mut frame);
        assert_eq!(frame, [1, 2, 7, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x3f]);
    }

    /// `docs/wire.md`: version 3, 32 samples, loss 0.5, 2 gradients, a stop request, then the message.
    #[test]
    fn a_contribution_by_hand() {
        let mut frame = Frame::new();
        contribution().write(&mut frame);
        let head = [3, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xe0, 0x3f, 2, 0, 0, 0, 1];
        assert_eq!(frame[..CONTRIBUTION], head);
        assert_eq!(&frame[CONTRIBUTION..CONTRIBUTION + 2], b"BQ");
    }

    #[test]
    fn frames_go_back_and_forth_and_damage_is_an_error() {
        let tasks = [Task::Gradient, Task::Steps(7), Task::Difference, Task::Full, Task::Exact];
        for task in tasks.map(Some).into_iter().chain([None]) {
            let assignment = Assignment { task, fate: Some(Fate::Dropped), version: 1 << 40 };
            let mut frame = Frame::new();
            assignment.write(&[&[1.0, 2.0]], &mut frame);
            assert_eq!(frame.len(), ASSIGNMENT + 8);
            assert_eq!(Assignment::read(&frame), Ok((assignment, &frame[ASSIGNMENT..])));
            assert!(Assignment::read(&frame[..13]).is_err());
            for (at, value) in [(0, 9), (1, 4), (5, 1)] {
                let mut damaged = frame.clone();
                damaged[at] = value;
                assert_eq!(Assignment::read(&damaged).is_ok(), at == 5 && matches!(task, Some(Task::Steps(_))));
            }
        }
        let contribution = contribution();
        let mut frame = Frame::new();
        contribution.write(&mut frame);
        assert_eq!(Contribution::read(&frame, 2).unwrap(), contribution);
        assert!(Contribution::read(&frame, 3).is_err(), "of another length");
        for cut in 0..frame.len() {
            assert!(Contribution::read(&frame[..cut], 2).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn claims_out_of_range_are_named() {
        let claims: [(Contribution, &str); 4] = [
            (Contribution { samples: 0, ..contribution() }, "number of samples of a contribution is 0"),
            (Contribution { samples: MOST_SAMPLES + 1, ..contribution() }, "number of samples"),
            (Contribution { loss: f64::NAN, ..contribution() }, "loss of a contribution is not finite"),
            (Contribution { loss: f64::NEG_INFINITY, ..contribution() }, "loss of a contribution is not finite"),
        ];
        for (claim, named) in claims {
            let mut frame = Frame::new();
            claim.write(&mut frame);
            let error = Contribution::read(&frame, 2).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_read_and_never_panic() {
        let mut valid = Frame::new();
        contribution().write(&mut valid);
        for block in 0..2000 {
            let mut rng = Key::new(3).block(block);
            let mut bytes: Vec<u8> = (0..rng.random_range(0..60)).map(|_| rng.random()).collect();
            check_frames(&bytes);
            bytes.clone_from(&valid);
            let at = rng.random_range(0..bytes.len());
            bytes[at] = rng.random();
            check_frames(&bytes);
        }
    }
}
