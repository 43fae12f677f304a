//! World names, which separate the ranks of different jobs, and the ports derived from them.
//!
//! Launchers give every job an id. All ranks of a job know it, and no other job has it, so two jobs on one machine cannot
//! exchange ranks: both sides of every connection compare a digest of it before anything else. Where a launcher gives no port
//! for rank 0, or keeps the given one for itself, the id also decides which ports are tried and in which order.

use std::ops::RangeInclusive;

use sha2::{Digest, Sha256};

/// Bytes of a world's digest.
pub(crate) const TAG: usize = 32;

/// Ports that are derived from a name if no range is given: below those that Linux hands out by itself (32768 and above), and
/// away from torchrun's defaults (29400, 29500).
pub(crate) const DERIVED: RangeInclusive<u16> = 15_000..=27_999;

/// Ports of one name: if rank 0 finds all of them taken, it says so.
pub(crate) const CANDIDATES: usize = 8;

/// The digest of a world's name that both sides of a connection compare; zeros for a world without one.
pub(crate) fn tag(name: Option<&str>) -> [u8; TAG] {
    name.map_or([0; TAG], |name| digest("world", name, 0))
}

/// The ports of this range on which rank 0 of a world of this name may listen, in the order in which they are tried.
pub(crate) fn ports(name: &str, range: &RangeInclusive<u16>) -> Vec<u16> {
    let (first, last) = (u64::from(*range.start()), u64::from(*range.end()));
    let width = (last + 1).saturating_sub(first);
    let wanted = CANDIDATES.min(usize::try_from(width).unwrap_or(CANDIDATES));
    let mut found: Vec<u16> = Vec::with_capacity(wanted);
    for round in 0u64.. {
        if found.len() == wanted {
            break;
        }
        let drawn = digest("port", name, round);
        let drawn = u64::from_le_bytes(drawn[..8].try_into().unwrap_or_default());
        let port = u16::try_from(first + drawn % width).unwrap_or(*range.start());
        if !found.contains(&port) {
            found.push(port);
        }
    }
    found
}

fn digest(use_of: &str, name: &str, round: u64) -> [u8; TAG] {
    let mut hash = Sha256::new();
    hash.update(b"briquette ");
    hash.update(use_of.as_bytes());
    hash.update(round.to_le_bytes());
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
        let of = |name: &str| ports(name, &DERIVED);
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
    fn a_narrow_range_gives_every_port_that_it_has() {
        let mut all = ports("a job", &(4000..=4002));
        all.sort_unstable();
        assert_eq!(all, [4000, 4001, 4002]);
        assert_eq!(ports("a job", &(4000..=4000)), [4000]);
    }

    /// By `printf 'briquette world\0\0\0\0\0\0\0\0a' | sha256sum`.
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
