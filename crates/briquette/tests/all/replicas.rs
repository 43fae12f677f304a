//! Replicas stay equal, bit for bit, with every kind of exchange.

use briquette::core::config::{Config, representatives};
use briquette::core::sync::Agrees;
use briquette::core::wrapper::inner_momentum::InnerMomentumConfig;
use briquette::optim::OneBitAdamConfig;
use briquette::zoo::wrapper::one_bit_adam;
use briquette::{DistributedOptimizer, Error};
use burn::optim::ModuleOptimizer;

use crate::common::*;

/// The optimizer that the configuration is made for.
fn suited(config: &Config) -> ModuleOptimizer {
    let feedback = &config.exchange.feedback;
    match feedback.downcast_ref::<one_bit_adam::OneBitAdamConfig>() {
        Some(its) => OneBitAdamConfig::new(its.warm_up).with_beta_1(its.beta).init(),
        None if feedback.is::<InnerMomentumConfig>() => sgd_with_momentum(),
        None => sgd(),
    }
}

fn fifty_steps_of_every_representative(world: usize) {
    briquette::zoo::install();
    for config in representatives() {
        let replicas = ranks(world.max(config.min_ranks()), |comm| {
            let rank = comm.rank();
            let mut optim = DistributedOptimizer::new(suited(&config), comm, config.clone(), 3);
            let mut model = optim.join(Net::new(rank as u64))?;
            let (mut seen, mut losses) = (Vec::new(), Vec::new());
            let mut declared = 0;
            for step in 0..50 {
                let plan = optim.synchronizer().plan()?;
                let report;
                (model, report) = train(&mut optim, model, step, rank)?;
                // Without an agreed header, a loss is rank-local.
                losses.extend(report.loss.filter(|_| plan.agrees == Agrees::World));
                if plan.replicas_equal && step >= 10 * declared {
                    // Buffers depend on each rank's own data.
                    let mut values = bits(&model);
                    values.retain(|(path, _)| !path.contains("running"));
                    seen.push(values);
                    declared += 1;
                }
            }
            // The model to evaluate is the same, even if replicas differ.
            seen.push(bits(&optim.evaluation_copy(&model)?));
            Ok::<_, Error>((seen, losses, declared))
        });
        let (first, losses, declared) = &replicas[0];
        assert!(*declared == 0 || first.first() != first.last(), "{config:?}: nothing was trained");
        assert!(
            (*declared == 0 || losses.len() >= 10) && losses.iter().all(|loss| loss.is_finite() && *loss < 100.0),
            "{config:?}: {losses:?}"
        );
        for (rank, (seen, theirs, _)) in replicas.iter().enumerate() {
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
