//! Facts about groups: collectives over a subset of the ranks.

use briquette_core::Session;
use briquette_core::error::CommError;

use super::{Launch, all_ok};

/// Returns the ranks of this rank's parity, even or odd.
fn half(comm: &Session) -> Vec<usize> {
    (comm.rank() % 2..comm.world()).step_by(2).collect()
}

/// Two groups communicate at the same time without mixing their data.
pub fn groups_exchange_beside_each_other<L: Launch>(launch: &L) {
    all_ok(launch, |comm| {
        let (own, ranks) = (comm.rank(), half(comm));
        for round in 0..5u8 {
            let mut parts = Vec::new();
            comm.within(&ranks, |group| {
                group.all_gather(&[own as u8, round], &mut parts)?;
                group.barrier()
            })?;
            let expect = |from: &usize| if *from == own { vec![] } else { vec![*from as u8, round] };
            assert_eq!(parts, ranks.iter().map(expect).collect::<Vec<_>>());
        }
        comm.barrier()
    });
}

/// Sums inside groups, then between the first ranks of both, then broadcast inside, equal the sum over all ranks.
pub fn a_hierarchical_all_reduce_is_the_flat_one<L: Launch>(launch: &L) {
    all_ok(launch, |comm| {
        let (own, ranks, world) = (comm.rank(), half(comm), comm.world());
        // Sums of these are exact in any order.
        let mut x: Vec<f32> = (0..3000).map(|i| (i % 50 * (own + 1)) as f32).collect();
        let mut flat = x.clone();
        comm.all_reduce_sum(&mut flat)?;
        comm.within(&ranks, |group| group.all_reduce_sum(&mut x))?;
        if own < 2 {
            let leaders: Vec<usize> = (0..world.min(2)).collect();
            comm.within(&leaders, |leaders| leaders.all_reduce_sum(&mut x))?;
        }
        let mut bytes: Vec<u8> = x.iter().flat_map(|value| value.to_le_bytes()).collect();
        comm.within(&ranks, |group| group.broadcast(0, &mut bytes))?;
        assert_eq!(bytes, flat.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>());
        Ok::<_, CommError>(())
    });
}
