//! Message label: the sender's operation, step and bucket, at the end of every message. It detects ranks in different calls.
//!
//! | bytes | field |
//! |---|---|
//! | n | operation, UTF-8, at most 255 bytes |
//! | 8 | step, little endian |
//! | 8 | bucket, little endian; all ones for none |
//! | 1 | n |
//!
//! The label follows a frame, or the reason of an abort.

use briquette_core::Frame;
use briquette_core::comm::Scope;
use std::fmt;

/// Maximum bytes of a label.
pub(crate) const LONGEST: usize = u8::MAX as usize + 17;
/// Maximum bytes of the reason of an abort, so that MPI sends it without waiting for the other side.
const LONGEST_REASON: usize = 2048;

/// The operation of another rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label<'a> {
    operation: &'a [u8],
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

/// Removes the label from a frame. If it is not that of `scope`, returns the operation of the sender.
pub(crate) fn remove(frame: &mut Frame, scope: &Scope) -> Result<(), String> {
    let len = match split(frame) {
        Some((rest, label)) if label.is(scope) => rest.len(),
        Some((_, label)) => return Err(label.to_string()),
        None => return Err("an unknown call".into()),
    };
    frame.truncate(len);
    Ok(())
}

/// Splits a message into what was sent and the label; nothing if it has none, which no rank sends.
pub(crate) fn split(message: &[u8]) -> Option<(&[u8], Label<'_>)> {
    let (rest, length) = message.split_last().map(|(length, rest)| (rest, usize::from(*length)))?;
    let (rest, bucket) = rest.split_last_chunk::<8>()?;
    let (rest, step) = rest.split_last_chunk::<8>()?;
    let (rest, operation) = rest.split_at_checked(rest.len().checked_sub(length)?)?;
    let bucket = u64::from_le_bytes(*bucket);
    let bucket = (bucket != u64::MAX).then_some(bucket as usize);
    Some((rest, Label { operation, step: u64::from_le_bytes(*step), bucket }))
}

/// Encodes an abort: the reason with the label.
pub(crate) fn abort(during: &Scope, reason: &str) -> Frame {
    let mut bytes = reason.as_bytes()[..reason.floor_char_boundary(LONGEST_REASON)].to_vec();
    append(&mut bytes, during);
    bytes
}

impl Label<'_> {
    fn is(&self, scope: &Scope) -> bool {
        self.step == scope.step && self.bucket == scope.bucket && self.operation == name(scope).as_bytes()
    }

    /// Returns it as a scope. Leaks a few bytes, for use once in the life of a world.
    pub(crate) fn leak(self) -> Scope {
        Scope {
            operation: String::from_utf8_lossy(self.operation).into_owned().leak(),
            step: self.step,
            bucket: self.bucket,
        }
    }
}

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Scope::show(f, &String::from_utf8_lossy(self.operation), self.step, self.bucket)
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
                    let label = split(&frame).unwrap().1;
                    assert!(label.is(&scope) && label.to_string() == scope.to_string(), "{label}");
                    assert_eq!(remove(&mut frame, &Scope { step: 1, ..scope }), Err(scope.to_string()));
                    assert_eq!((remove(&mut frame, &scope), frame.as_slice()), (Ok(()), payload));
                }
            }
        }
    }

    #[test]
    fn long_names_and_reasons_are_cut_between_characters() {
        let scope = Scope { operation: String::leak("€".repeat(100)), ..Scope::default() };
        let mut bytes = abort(&scope, &"€".repeat(1000));
        assert_eq!(remove(&mut bytes, &scope), Ok(()));
        assert_eq!(bytes, "€".repeat(2048 / 3).as_bytes());
    }

    #[test]
    fn bytes_that_no_rank_sends_have_no_label() {
        for bytes in [&[][..], &[0; 16], &[9; 20]] {
            assert_eq!(split(bytes), None);
        }
    }
}
