//! World names, which separate the ranks of different jobs, and the ports derived from them.
//!
//! Launchers give every job an id, which all its ranks know and no other job has. Both sides of every connection
//! compare a digest of the id before anything else, so two jobs on one machine cannot exchange ranks. If a launcher
//! sets no port for rank 0, or uses the port itself, the id also determines which ports are tried and in which order.

use std::ops::RangeInclusive;

use sha2::{Digest, Sha256};

/// Bytes of a world's digest.
pub(crate) const TAG: usize = 32;

/// Ports that are derived from a name if no range is given: below Linux's ephemeral ports (32768 and above), and away
/// from torchrun's defaults (29400, 29500).
pub(crate) const DERIVED: RangeInclusive<u16> = 15_000..=27_999;

/// Number of ports derived from one name, and number of ports of a given range that a rank tries in every pass.
pub(crate) const CANDIDATES: usize = 8;

/// Returns the digest of a world's name that both sides of a connection compare; zeros for a world without a name.
pub(crate) fn tag(name: Option<&str>) -> [u8; TAG] {
    name.map_or([0; TAG], |name| digest("world", name))
}

/// Returns the ports on which rank 0 of a world of this name may listen, in the order in which they are tried: all of a
/// given range, or [`CANDIDATES`] of the [derived ones](DERIVED).
pub(crate) fn ports(name: &str, given: Option<&RangeInclusive<u16>>) -> Vec<u16> {
    let range = given.unwrap_or(&DERIVED);
    let (first, last) = (u64::from(*range.start()), u64::from(*range.end()));
    let width = (last + 1).saturating_sub(first).max(1);
    let drawn = digest("port", name);
    let [start, stride] =
        [&drawn[..8], &drawn[8..16]].map(|half| u64::from_le_bytes(half.try_into().unwrap_or_default()));
    // A stride without a common divisor with the width reaches every port once.
    let stride = (stride % width..).find(|stride| gcd(*stride, width) == 1).unwrap_or(1);
    let port = |i: u64| u16::try_from(first + (start % width + i * stride) % width).unwrap_or(*range.start());
    let count = if given.is_some() { width } else { width.min(CANDIDATES as u64) };
    (0..count).map(port).collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns the entries to try in a pass: the first [`CANDIDATES`] in every pass, the others in turn.
pub(crate) fn of_pass<T>(all: &[T], pass: usize) -> impl Iterator<Item = &T> {
    let (first, rest) = all.split_at(all.len().min(CANDIDATES));
    let turns = rest.len().div_ceil(CANDIDATES).max(1);
    first.iter().chain(rest.chunks(CANDIDATES).nth(pass % turns).into_iter().flatten())
}

fn digest(use_of: &str, name: &str) -> [u8; TAG] {
    let mut hash = Sha256::new();
    hash.update(b"briquette ");
    hash.update(use_of.as_bytes());
    hash.update(0u64.to_le_bytes());
    hash.update(name.as_bytes());
    hash.finalize().into()
}

/// Reads a range of ports, `29600-29699`, or one port.
pub(crate) fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port != 0);
    let (first, last) = (number(first)?, number(last)?);
    (first <= last).then_some(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_follow_from_the_name_alone_and_differ_between_names() {
        let of = |name: &str| ports(name, None);
        assert_eq!(of("openmpi/17"), of("openmpi/17"));
        assert_ne!(of("openmpi/17"), of("openmpi/18"));
        for name in 0..200 {
            let mut ports = of(&name.to_string());
            assert!(ports.iter().all(|port| DERIVED.contains(port)), "{ports:?}");
            ports.sort_unstable();
            ports.dedup();
            assert_eq!(ports.len(), CANDIDATES);
        }
    }

    #[test]
    fn a_given_range_gives_every_port_that_it_has_once() {
        for range in [4000..=4000, 4000..=4001, 4000..=4002, 29_600..=29_699, 1..=65_535] {
            for name in ["a job", "another", "a third"] {
                let mut all = ports(name, Some(&range));
                all.sort_unstable();
                assert!(all.into_iter().eq(range.clone()), "{range:?} of {name}");
            }
        }
    }

    #[test]
    fn every_entry_has_its_pass() {
        for len in [0, 1, 8, 9, 16, 17, 100] {
            let all: Vec<usize> = (0..len).collect();
            let mut seen = vec![0; len];
            for pass in 0..13 {
                let tried: Vec<usize> = of_pass(&all, pass).copied().collect();
                assert!(tried.len() <= 2 * CANDIDATES && tried.starts_with(&all[..len.min(CANDIDATES)]), "{tried:?}");
                tried.into_iter().for_each(|entry| seen[entry] += 1);
            }
            assert!(seen.iter().all(|count| *count > 0), "{len}: {seen:?}");
        }
    }

    /// Computed by `printf 'briquette world\0\0\0\0\0\0\0\0a' | sha256sum`.
    #[test]
    fn a_tag_is_the_digest_of_its_name() {
        let expected = "794a259bfcc7d1b10d2b80ef1d7ece7c75f26e4a54a346cd30e2e3b43e3d88d3";
        assert_eq!(hex::encode(tag(Some("a"))), expected);
        assert_eq!(tag(None), [0; TAG]);
        assert_ne!(tag(Some("")), tag(None));
    }

    #[test]
    fn ranges_of_ports_are_read() {
        assert_eq!(range("29600-29699"), Some(29_600..=29_699));
        assert_eq!(range(" 7 - 9 "), Some(7..=9));
        assert_eq!(range("29600"), Some(29_600..=29_600));
        for wrong in ["", "0-9", "9-7", "a-b", "1-70000", "-5"] {
            assert_eq!(range(wrong), None, "{wrong}");
        }
    }
}
