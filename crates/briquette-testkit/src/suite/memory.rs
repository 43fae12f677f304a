//! Facts about the reuse of frames.

use briquette_core::Session;
use briquette_core::error::CommError;

use super::{Launch, all_ok};

/// A run that repeats its steps soon allocates no more frames, and the number it holds stays constant.
///
/// A transport may have some of them in transit when it is asked, so a few per rank more or less are allowed; one more
/// in every round is not.
pub fn the_pool_stays_as_it_is_after_warm_up<L: Launch>(launch: &L) {
    all_ok(launch, |comm| {
        let few = 2 * comm.world();
        rounds(comm, 100)?;
        let (frames, allocations) = (comm.pool().frames(), comm.pool().allocations());
        rounds(comm, 200)?;
        let pool = comm.pool();
        assert!(pool.frames() <= frames + few, "{} frames held, {frames} before", pool.frames());
        let more = pool.allocations() - allocations;
        assert!(more <= few as u64, "{more} frames allocated in 200 rounds");
        Ok(())
    });
}

fn rounds(comm: &mut Session, count: usize) -> Result<(), CommError> {
    let mut parts = Vec::new();
    let mut long = vec![1.0f32; 5003];
    for _ in 0..count {
        comm.all_reduce_sum_f64(&mut [1.0, 2.0])?;
        comm.all_gather(&vec![0; 100 * comm.rank()], &mut parts)?;
        comm.all_reduce_sum(&mut long)?;
        comm.all_reduce_sum(&mut [0.5; 30])?;
        comm.barrier()?;
    }
    // Given back, so that they are not counted as gone.
    parts.into_iter().for_each(|part| comm.pool().put(part));
    Ok(())
}
