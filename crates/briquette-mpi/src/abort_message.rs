//! Wire format of an abort: the reason why the world stopped.

use briquette_core::comm::Scope;
use briquette_core::error::CommError;

/// Maximum bytes of the reason, so that MPI sends it without waiting for the other side.
const LONGEST: usize = 2048;

/// Encodes step, bucket (all ones for none), length of the operation's name, name and reason. The author is the sender.
pub(crate) fn write(during: &Scope, reason: &str) -> Vec<u8> {
    let bucket = during.bucket.map_or(u64::MAX, |bucket| bucket as u64);
    let operation = shortened(during.operation, usize::from(u8::MAX));
    let mut bytes = during.step.to_le_bytes().to_vec();
    bytes.extend(bucket.to_le_bytes());
    bytes.push(operation.len() as u8);
    bytes.extend(operation.as_bytes());
    bytes.extend(shortened(reason, LONGEST).as_bytes());
    bytes
}

/// Decodes the message of rank `by`. Malformed bytes give an abort without a message.
pub(crate) fn read(by: usize, bytes: &[u8]) -> CommError {
    let (during, reason) = parse(bytes).unwrap_or_default();
    CommError::Aborted { by, during, reason }
}

fn parse(bytes: &[u8]) -> Option<(Scope, String)> {
    let (step, bytes) = bytes.split_first_chunk::<8>()?;
    let (bucket, bytes) = bytes.split_first_chunk::<8>()?;
    let (length, bytes) = bytes.split_first()?;
    let (operation, reason) = bytes.split_at_checked(usize::from(*length))?;
    let operation = String::from_utf8_lossy(operation).into_owned();
    let bucket = u64::from_le_bytes(*bucket);
    let scope = Scope {
        // Leaks a few bytes, once in the life of a world: scopes name operations of the program itself.
        operation: String::leak(operation),
        step: u64::from_le_bytes(*step),
        bucket: (bucket != u64::MAX).then_some(bucket as usize),
    };
    Some((scope, String::from_utf8_lossy(reason).into_owned()))
}

fn shortened(text: &str, longest: usize) -> &str {
    &text[..text.floor_char_boundary(longest)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abort_reads_as_it_was_written() {
        for bucket in [None, Some(0), Some(7)] {
            let during = Scope { operation: "all_reduce", step: u64::MAX, bucket };
            let reason = "had enough — really".to_owned();
            let expected = CommError::Aborted { by: 3, during, reason: reason.clone() };
            assert_eq!(read(3, &write(&during, &reason)), expected);
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let CommError::Aborted { reason, .. } = read(0, &write(&Scope::default(), &"€".repeat(1000))) else {
            panic!("not an abort")
        };
        assert_eq!(reason, "€".repeat(2048 / 3));
    }

    #[test]
    fn bytes_that_nobody_writes_are_an_abort_without_words() {
        for bytes in [&[][..], &[1; 16], &[9; 20]] {
            let expected = CommError::Aborted { by: 1, during: Scope::default(), reason: String::new() };
            assert_eq!(read(1, bytes), expected);
        }
    }
}
