//! Frames between server and workers.

use super::{Contribution, Task, Verdict};
use crate::error::WireError;
use crate::{Frame, Message};

/// What a worker is told beside the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Assignment {
    /// None: stop.
    pub(super) task: Option<Task>,
    /// Of its contribution before.
    pub(super) verdict: Option<Verdict>,
    pub(super) version: u64,
}

/// Bytes in front of an assignment's models and of a contribution's message.
pub(super) const ASSIGNMENT: usize = 14;
pub(super) const CONTRIBUTION: usize = 28;

impl Assignment {
    /// With the models, one after the other.
    pub(super) fn write(self, models: &[&[f32]], out: &mut Frame) {
        let (task, steps) = match self.task {
            Some(Task::Gradient) => (0, 0),
            Some(Task::Steps(steps)) => (1, steps),
            Some(Task::Difference) => (2, 0),
            Some(Task::Full) => (3, 0),
            None => (4, 0),
        };
        let verdict = match self.verdict {
            None => 0,
            Some(Verdict::Accepted) => 1,
            Some(Verdict::Late) => 2,
            Some(Verdict::Far) => 3,
        };
        out.extend([task, verdict]);
        out.extend(steps.to_le_bytes());
        out.extend(self.version.to_le_bytes());
        models.iter().for_each(|model| out.extend(model.iter().flat_map(|value| value.to_le_bytes())));
    }

    /// And how many bytes there are of models.
    pub(super) fn read(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (head, models) = split::<ASSIGNMENT>(bytes, "an assignment")?;
        let [task, verdict, a, b, c, d, version @ ..] = *head;
        let task = match task {
            0 => Some(Task::Gradient),
            1 => Some(Task::Steps(u32::from_le_bytes([a, b, c, d]))),
            2 => Some(Task::Difference),
            3 => Some(Task::Full),
            4 => None,
            got => return Err(WireError::Field { what: "task of an assignment", value: u64::from(got) }),
        };
        let verdict = match verdict {
            0 => None,
            1 => Some(Verdict::Accepted),
            2 => Some(Verdict::Late),
            3 => Some(Verdict::Far),
            got => return Err(WireError::Field { what: "verdict of an assignment", value: u64::from(got) }),
        };
        Ok((Assignment { task, verdict, version: u64::from_le_bytes(version) }, models))
    }
}

impl Contribution {
    pub(super) fn write(&self, out: &mut Frame) {
        out.extend(self.version.to_le_bytes());
        out.extend(self.samples.to_le_bytes());
        out.extend(self.loss.to_le_bytes());
        out.extend(self.gradients.to_le_bytes());
        self.message.encode_into(out);
    }

    /// Whose message is of `len` values.
    pub(super) fn read(bytes: &[u8], len: usize) -> Result<Self, WireError> {
        let (head, rest) = split::<CONTRIBUTION>(bytes, "a contribution")?;
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let mut message = Message::default();
        message.decode_from(rest)?;
        if message.len() != len {
            return Err(WireError::Length { expected: len, got: message.len() });
        }
        let gradients = u32::from_le_bytes(head[24..28].try_into().expect("four bytes"));
        Ok(Contribution { version: word(0), samples: word(8), loss: f64::from_bits(word(16)), gradients, message })
    }
}

fn split<'a, const N: usize>(bytes: &'a [u8], what: &'static str) -> Result<(&'a [u8; N], &'a [u8]), WireError> {
    bytes.split_first_chunk().ok_or(WireError::Truncated { what, needed: N, left: bytes.len() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;
    use crate::compress::{Compressor, TopK};

    #[test]
    fn frames_go_back_and_forth_and_damage_is_an_error() {
        for task in [None, Some(Task::Gradient), Some(Task::Steps(7)), Some(Task::Difference), Some(Task::Full)] {
            let assignment = Assignment { task, verdict: Some(Verdict::Far), version: 1 << 40 };
            let mut frame = Frame::new();
            assignment.write(&[&[1.0, 2.0]], &mut frame);
            assert_eq!(frame.len(), ASSIGNMENT + 8);
            assert_eq!(Assignment::read(&frame), Ok((assignment, &frame[ASSIGNMENT..])));
            assert!(Assignment::read(&frame[..13]).is_err());
            frame[0] = 9;
            assert!(Assignment::read(&frame).is_err());
        }
        let mut message = Message::default();
        TopK::fraction(0.5).unwrap().compress_into(&[1.0, -3.0], Key::new(0), &mut message);
        let contribution = Contribution { version: 3, samples: 32, loss: 0.5, gradients: 2, message };
        let mut frame = Frame::new();
        contribution.write(&mut frame);
        assert_eq!(Contribution::read(&frame, 2).unwrap(), contribution);
        assert!(Contribution::read(&frame, 3).is_err(), "of another length");
        for cut in 0..frame.len() {
            assert!(Contribution::read(&frame[..cut], 2).is_err(), "cut at {cut}");
        }
    }
}
