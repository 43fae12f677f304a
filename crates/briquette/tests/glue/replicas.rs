//! Replicas stay equal to the bit, whatever travels.

use briquette::core::config::representatives;
use briquette::{DistributedOptimizer, Error};

use crate::common::*;

fn fifty_steps_of_every_representative(world: usize) {
    for config in representatives() {
        let replicas = ranks(world.max(config.fewest_ranks()), |comm| {
            let rank = comm.rank();
            let mut optim = DistributedOptimizer::new(sgd(), comm, config.clone(), 3);
            let mut model = optim.join(Net::new(rank as u64))?;
            let (mut seen, mut losses) = (Vec::new(), Vec::new());
            for step in 0..50 {
                let report;
                (model, report) = train(&mut optim, model, step, rank)?;
                // Local SGD agrees on a loss only where it averages.
                losses.extend(report.loss);
                if step % 10 == 9 {
                    // Buffers follow each rank's own data.
                    let mut values = bits(&model);
                    values.retain(|(path, _)| !path.contains("running"));
                    seen.push(values);
                }
            }
            Ok::<_, Error>((seen, losses))
        });
        let (first, losses) = &replicas[0];
        assert!(first.first() != first.last(), "{config:?}: nothing was trained");
        assert!(
            losses.len() >= 10 && losses.iter().all(|loss| loss.is_finite() && *loss < 100.0),
            "{config:?}: {losses:?}"
        );
        for (rank, (seen, theirs)) in replicas.iter().enumerate() {
            assert!(seen == first && theirs == losses, "{config:?}: rank {rank} differs from rank 0");
        }
    }
}

#[test]
fn two_replicas_stay_bit_identical_for_fifty_steps_of_every_representative() {
    fifty_steps_of_every_representative(2);
}

#[test]
fn three_replicas_stay_bit_identical_for_fifty_steps_of_every_representative() {
    fifty_steps_of_every_representative(3);
}
