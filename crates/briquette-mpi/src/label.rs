//! Label at the end of every message: the operation of the sender, by which ranks in different calls are recognized.
//!
//! | bytes | field |
//! |---|---|
//! | n | operation, UTF-8, at most 255 bytes |
//! | 8 | step, little endian |
//! | 8 | bucket, little endian; all ones for none |
//! | 1 | n |
//!
//! In front of it is a frame, or the reason of an abort.

use briquette_core::Frame;
use briquette_core::comm::Scope;
use std::fmt;

/// Maximum bytes of a label.
pub(crate) const LONGEST: usize = u8::MAX as usize + 17;
/// Maximum bytes of the reason of an abort, so that MPI sends it without waiting for the other side.
const LONGEST_REASON: usize = 2048;

/// The operation of another rank.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Label {
    operation: String,
    step: u64,
    bucket: Option<usize>,
}

/// Appends the label of `scope` to a frame.
pub(crate) fn append(frame: &mut Frame, scope: &Scope) {
    let operation = name(scope);
    frame.reserve(operation.len() + 17);
    frame.extend(operation.as_bytes());
    frame.extend(scope.step.to_le_bytes());
    frame.extend(scope.bucket.map_or(u64::MAX, |bucket| bucket as u64).to_le_bytes());
    frame.push(operation.len() as u8);
}

/// Removes the label from a frame and returns it; nothing if the frame has none, which no rank sends.
pub(crate) fn remove(frame: &mut Frame) -> Option<Label> {
    let (rest, length) = frame.split_last().map(|(length, rest)| (rest, usize::from(*length)))?;
    let (rest, bucket) = rest.split_last_chunk::<8>()?;
    let (rest, step) = rest.split_last_chunk::<8>()?;
    let (rest, operation) = rest.split_at_checked(rest.len().checked_sub(length)?)?;
    let bucket = u64::from_le_bytes(*bucket);
    let label = Label {
        operation: String::from_utf8_lossy(operation).into_owned(),
        step: u64::from_le_bytes(*step),
        bucket: (bucket != u64::MAX).then_some(bucket as usize),
    };
    frame.truncate(rest.len());
    Some(label)
}

/// Encodes an abort: the reason with the label.
pub(crate) fn abort(during: &Scope, reason: &str) -> Frame {
    let mut bytes = reason.as_bytes()[..reason.floor_char_boundary(LONGEST_REASON)].to_vec();
    append(&mut bytes, during);
    bytes
}

impl Label {
    pub(crate) fn is(&self, scope: &Scope) -> bool {
        self.step == scope.step && self.bucket == scope.bucket && self.operation == name(scope)
    }

    /// Returns it as a scope. Leaks a few bytes, for use once in the life of a world.
    pub(crate) fn leak(self) -> Scope {
        Scope { operation: self.operation.leak(), step: self.step, bucket: self.bucket }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Scope::show(f, &self.operation, self.step, self.bucket)
    }
}

fn name(scope: &Scope) -> &'static str {
    &scope.operation[..scope.operation.floor_char_boundary(usize::from(u8::MAX))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_with_the_label_that_it_was_given() {
        for bucket in [None, Some(0), Some(7)] {
            for operation in ["", "all_reduce", "mean of résumés"] {
                let scope = Scope { operation, step: u64::MAX, bucket };
                for payload in [&b""[..], b"values"] {
                    let mut frame = payload.to_vec();
                    append(&mut frame, &scope);
                    let label = remove(&mut frame).unwrap();
                    assert!(label.is(&scope) && !label.is(&Scope { step: 1, ..scope }), "{label}");
                    assert_eq!((frame.as_slice(), label.to_string()), (payload, scope.to_string()));
                }
            }
        }
    }

    #[test]
    fn long_names_and_reasons_are_cut_between_characters() {
        let scope = Scope { operation: String::leak("€".repeat(100)), ..Scope::default() };
        let mut bytes = abort(&scope, &"€".repeat(1000));
        assert!(remove(&mut bytes).unwrap().is(&scope));
        assert_eq!(bytes, "€".repeat(2048 / 3).as_bytes());
    }

    #[test]
    fn bytes_that_no_rank_sends_have_no_label() {
        for bytes in [&[][..], &[0; 16], &[9; 20]] {
            assert_eq!(remove(&mut bytes.to_vec()), None);
        }
    }
}
