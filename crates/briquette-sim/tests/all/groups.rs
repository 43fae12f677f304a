//! Groups of ranks and placement on machines, on a simulated network.

use std::time::Duration;

use briquette_core::comm::{Local, LocalBuilder, Session, run_ranks};
use briquette_core::error::CommError;
use briquette_sim::{Compute, Simulated};

fn local(ranks: usize) -> LocalBuilder {
    Local::builder(ranks).deadline(Duration::from_secs(20))
}

fn simulated(ranks: usize, network: &str) -> Vec<Session> {
    Simulated::over(local(ranks), network.parse().unwrap(), Compute::Fixed(Duration::ZERO))
}

/// Sums inside every machine, then between the first ranks of all machines, then inside again.
fn hierarchical(comm: &mut Session, x: &mut [f32], per_machine: usize) -> Result<(), CommError> {
    let (rank, world) = (comm.rank(), comm.world());
    let first = rank / per_machine * per_machine;
    let machine: Vec<usize> = (first..(first + per_machine).min(world)).collect();
    let leaders: Vec<usize> = (0..world).step_by(per_machine).collect();
    comm.within(&machine, |machine| machine.all_reduce_sum(x))?;
    if rank == first {
        comm.within(&leaders, |leaders| leaders.all_reduce_sum(x))?;
    }
    let mut bytes: Vec<u8> = x.iter().flat_map(|value| value.to_le_bytes()).collect();
    comm.within(&machine, |machine| machine.broadcast(0, &mut bytes))?;
    x.iter_mut().zip(bytes.as_chunks().0).for_each(|(value, bytes)| *value = f32::from_le_bytes(*bytes));
    Ok(())
}

#[test]
fn a_hierarchical_all_reduce_is_the_flat_one() {
    for (ranks, per_machine) in [(4, 2), (6, 3), (5, 2), (3, 1), (2, 4)] {
        for world in [local(ranks).build(), simulated(ranks, "1gbit,50us,2")] {
            let sums = run_ranks(world, |mut comm| {
                // Sums of these are exact in any order.
                let own: Vec<f32> = (0..5000).map(|i| (i % 100 + comm.rank()) as f32).collect();
                let (mut flat, mut steps) = (own.clone(), own);
                comm.all_reduce_sum(&mut flat)?;
                hierarchical(&mut comm, &mut steps, per_machine)?;
                Ok::<_, CommError>((flat, steps))
            });
            for rank in sums {
                let (flat, steps) = rank.unwrap();
                assert_eq!(flat, steps, "{ranks} ranks, {per_machine} a machine");
            }
        }
    }
}

#[test]
fn machines_exchange_off_the_slow_link() {
    // Four ranks, two per machine: the flat ring of 4 · 10 000 bytes crosses the link in every round.
    let seconds = |flat: bool| {
        let run = run_ranks(simulated(4, "1mbit,1ms,2"), |mut comm| {
            let mut x = vec![1.0; 10_000];
            if flat {
                comm.all_reduce_sum(&mut x)?
            } else {
                hierarchical(&mut comm, &mut x, 2)?
            }
            Ok::<_, CommError>(comm.now())
        });
        run.into_iter().map(Result::unwrap).fold(0.0, f64::max)
    };
    assert!(seconds(false) < seconds(true), "{} and {} simulated seconds", seconds(false), seconds(true));
}

#[test]
fn ranks_of_a_link_share_a_machine() {
    let machines = |world: &[Session]| world[0].machine_map().machines().to_vec();
    assert_eq!(machines(&simulated(5, "1gbit,0s,2")), [vec![0, 1], vec![2, 3], vec![4]]);
    assert_eq!(machines(&simulated(2, "1gbit")), [[0], [1]]);
    let mut world = simulated(6, "1gbit,0s,2");
    let leads: Vec<_> = world.iter().map(|comm| comm.machine_map().leads()).collect();
    assert_eq!(leads, [true, false, true, false, true, false]);
    // Ranks 5, 1, 4 and 0 are ranks 0 to 3 of the group.
    let places = world[4].within(&[5, 1, 4, 0], |group| group.machine_map());
    assert_eq!(places.machines(), [[0, 2], [1, 3]]);
}
