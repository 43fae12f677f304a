//! Facts about frames between two ranks.

use super::{Launch, all_ok};

/// Frames sent before any is received. A transport's queue must hold this many without the receiver's help, with some to spare.
const QUEUED: usize = 12;

/// Frames from one rank to another arrive in the order in which they were sent; the only rank of a world sends to itself.
pub fn frames_of_a_pair_stay_in_order<L: Launch>(launch: &L) {
    all_ok(launch, |comm| {
        let (rank, world) = (comm.rank(), comm.world());
        for i in 0..10 {
            comm.send((rank + 1) % world, vec![rank as u8, i])?;
        }
        let from = (rank + world - 1) % world;
        for i in 0..10 {
            assert_eq!(comm.recv(from)?, [from as u8, i]);
        }
        Ok(())
    });
}

/// Ranks that send each other megabytes before they receive anything do not deadlock.
pub fn many_large_frames_may_be_sent_before_any_is_received<L: Launch>(launch: &L) {
    all_ok(launch, |comm| {
        let (rank, world) = (comm.rank(), comm.world());
        for i in 0..QUEUED {
            comm.send((rank + 1) % world, pattern(rank + i, 300_000))?;
        }
        let from = (rank + world - 1) % world;
        for i in 0..QUEUED {
            assert!(comm.recv(from)? == pattern(from + i, 300_000), "frame {i} from rank {from} arrived changed");
        }
        Ok(())
    });
}

/// A frame larger than any buffer in transit arrives unchanged, and so do the small ones around it.
pub fn a_frame_of_five_megabytes_arrives_whole<L: Launch>(launch: &L) {
    all_ok(launch, |comm| {
        let (rank, world) = (comm.rank(), comm.world());
        let lengths = [3, 5_000_000, 0, 1];
        for len in lengths {
            comm.send((rank + 1) % world, pattern(rank, len))?;
        }
        let from = (rank + world - 1) % world;
        for len in lengths {
            assert!(comm.recv(from)? == pattern(from, len), "{len} bytes from rank {from} arrived changed");
        }
        Ok(())
    });
}

/// Bytes in which a lost, duplicated or moved byte is detectable.
fn pattern(salt: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i.wrapping_mul(2_654_435_761) >> 11) + salt * 31) as u8).collect()
}
