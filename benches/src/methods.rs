//! Three algorithms for summing short vectors over all ranks, to be compared by measurement.

use briquette::core::error::CommError;
use briquette::core::{Frame, Session};

/// Algorithm for summing a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// All-gather of the vectors: one latency, `W-1` times the vector sent.
    Gather,
    /// Recursive doubling: pairs of ranks 1, 2, 4, … apart exchange their sums, in `log₂ W` latencies and vectors. `W`
    /// must be a power of two.
    Doubling,
    /// Reduce-scatter and all-gather round a ring: `2(W-1)` latencies, `2(W-1)/W` vectors.
    Ring,
}

impl Method {
    /// All algorithms, with their names.
    pub const ALL: [(&'static str, Method); 3] =
        [("gather", Method::Gather), ("recursive doubling", Method::Doubling), ("ring", Method::Ring)];

    /// Returns whether it works in a world of this size.
    pub fn works(self, world: usize) -> bool {
        self != Method::Doubling || world.is_power_of_two()
    }

    /// Sums a vector over ranks.
    ///
    /// # Errors
    /// Those of the session.
    pub fn sum(self, comm: &mut Session, x: &mut [f32], parts: &mut Vec<Frame>) -> Result<(), CommError> {
        match self {
            Method::Gather => {
                let own = encoded(comm, x);
                comm.all_gather(&own, parts)?;
                comm.pool().put(own);
                parts.iter().for_each(|part| add(part, x));
                Ok(())
            }
            Method::Doubling => {
                let mut apart = 1;
                while apart < comm.world() {
                    let other = comm.rank() ^ apart;
                    let own = encoded(comm, x);
                    comm.send(other, own)?;
                    let theirs = comm.recv(other)?;
                    add(&theirs, x);
                    comm.pool().put(theirs);
                    apart *= 2;
                }
                comm.flush()
            }
            Method::Ring => {
                let (rank, world) = (comm.rank(), comm.world());
                let place = |c: usize| c * x.len() / world..(c + 1) * x.len() / world;
                let places: Vec<_> = (0..world).map(place).collect();
                for turn in 0..2 * (world - 1) {
                    let own = encoded(comm, &x[places[(rank + 2 * world - turn) % world].clone()]);
                    comm.send((rank + 1) % world, own)?;
                    let theirs = comm.recv((rank + world - 1) % world)?;
                    let values = &mut x[places[(rank + 2 * world - turn - 1) % world].clone()];
                    if turn + 1 >= world {
                        values.fill(0.0);
                    }
                    add(&theirs, values);
                    comm.pool().put(theirs);
                }
                comm.flush()
            }
        }
    }
}

fn encoded(comm: &mut Session, x: &[f32]) -> Frame {
    let mut frame = comm.pool().take_for(4 * x.len());
    frame.resize(4 * x.len(), 0);
    frame.as_chunks_mut().0.iter_mut().zip(x).for_each(|(bytes, value)| *bytes = value.to_le_bytes());
    frame
}

fn add(frame: &[u8], x: &mut [f32]) {
    x.iter_mut().zip(frame.as_chunks().0).for_each(|(sum, bytes)| *sum += f32::from_le_bytes(*bytes));
}

#[cfg(test)]
mod tests {
    use briquette::core::comm::Local;

    use super::*;

    #[test]
    fn every_method_sums() {
        for world in [1, 2, 3, 4, 8] {
            for (name, method) in Method::ALL.into_iter().filter(|(_, method)| method.works(world)) {
                let sums = Local::run(world, |mut comm| {
                    let mut x: Vec<f32> = (0..10).map(|i| (i * (comm.rank() + 1)) as f32).collect();
                    method.sum(&mut comm, &mut x, &mut Vec::new())?;
                    Ok::<_, CommError>(x)
                });
                let expected: Vec<f32> = (0..10).map(|i| (i * world * (world + 1) / 2) as f32).collect();
                assert!(sums.into_iter().all(|sum| sum.as_ref() == Ok(&expected)), "{name} of {world}");
            }
        }
    }
}
