//! Two optimizers of one world, on one session.

use std::collections::BTreeMap;
use std::path::Path;

use briquette::core::Session;
use briquette::core::config::Config;
use briquette::{DistributedOptimizer, Error, WorldChange};

use crate::common::*;

type Values = Vec<(String, Vec<u32>)>;

const STEPS: u64 = 8;

fn configs() -> Vec<Config> {
    let kinds = [
        r#"{"reducer": "dense"}"#,
        r#"{"reducer": "gather:topk:8x", "feedback": "error"}"#,
        r#"{"reducer": "gather:topk:8x", "feedback": "error", "strategy": "delayed"}"#,
        r#"{"reducer": "gather:topk:8x", "feedback": "error", "bucket_values": 20}"#,
    ];
    [Config::auto()].into_iter().chain(kinds.map(config)).collect()
}

fn critic(comm: Session, config: &Config) -> Result<(DistributedOptimizer, Net), Error> {
    let mut optim = DistributedOptimizer::new(adam(), comm, config.clone(), 1);
    let model = optim.join(Net::new(5))?;
    Ok((optim, model))
}

fn generator(comm: Session, config: &Config) -> Result<(DistributedOptimizer, Mlp), Error> {
    let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, config.clone(), 2);
    let model = optim.join(Mlp::new(7))?;
    Ok((optim, model))
}

/// Three steps of the critic for two of the generator, from a checkpoint of both if there is one, saved after half of the steps.
fn both(config: &Config, resume: Option<&Path>, save: Option<&Path>) -> Vec<(Values, Values)> {
    ranks(2, |mut comm| {
        let rank = comm.rank();
        let other = comm.share();
        let ((mut optim, mut net), (mut second, mut mlp)) = (critic(comm, config)?, generator(other, config)?);
        let mut begin = 0;
        if let Some(directory) = resume {
            (net, ..) = optim.resume(net, &directory.join("critic"), WorldChange::Refuse, |_| Ok(()))?;
            (mlp, ..) = second.resume(mlp, &directory.join("generator"), WorldChange::Refuse, |_| Ok(()))?;
            begin = STEPS / 2;
        }
        for step in begin..STEPS {
            (net, _) = train(&mut optim, net, 3 * step, rank)?;
            (mlp, _) = train(&mut second, mlp, 2 * step, rank)?;
            (net, _) = train(&mut optim, net, 3 * step + 1, rank)?;
            (mlp, _) = train(&mut second, mlp, 2 * step + 1, rank)?;
            (net, _) = train(&mut optim, net, 3 * step + 2, rank)?;
            if let Some(directory) = save.filter(|_| step + 1 == STEPS / 2) {
                optim.save(&net, &directory.join("critic"), &BTreeMap::new())?;
                second.save(&mlp, &directory.join("generator"), &BTreeMap::new())?;
            }
        }
        assert_eq!((optim.synchronizer().step(), second.synchronizer().step()), (3 * STEPS, 2 * STEPS));
        let copies = (optim.evaluation_copy(&net)?, second.evaluation_copy(&mlp)?);
        Ok((bits(&copies.0), bits(&copies.1)))
    })
}

#[test]
fn each_learns_what_it_learns_in_a_world_of_its_own() {
    for config in configs() {
        let together = both(&config, None, None);
        let net = ranks(2, |comm| {
            let (rank, (mut optim, mut net)) = (comm.rank(), critic(comm, &config)?);
            for step in 0..3 * STEPS {
                (net, _) = train(&mut optim, net, step, rank)?;
            }
            Ok(bits(&optim.evaluation_copy(&net)?))
        });
        let mlp = ranks(2, |comm| {
            let (rank, (mut optim, mut mlp)) = (comm.rank(), generator(comm, &config)?);
            for step in 0..2 * STEPS {
                (mlp, _) = train(&mut optim, mlp, step, rank)?;
            }
            Ok(bits(&optim.evaluation_copy(&mlp)?))
        });
        for rank in 0..2 {
            assert!(together[rank].0 == net[rank], "{config:?}, critic");
            assert!(together[rank].1 == mlp[rank], "{config:?}, generator");
        }
    }
}

#[test]
fn a_run_that_is_resumed_with_both_continues_to_the_bit() {
    for config in configs() {
        let directory = tempfile::tempdir().unwrap();
        let whole = both(&config, None, Some(directory.path()));
        assert!(both(&config, Some(directory.path()), None) == whole, "{config:?}");
    }
}

#[test]
fn ranks_that_step_in_another_order_are_told_so() {
    let results = outcomes(2, |mut comm| {
        let rank = comm.rank();
        let other = comm.share();
        // Equal layouts, so that nothing else distinguishes them.
        let config = Config::dense();
        let make = |comm| DistributedOptimizer::new(adam(), comm, config.clone(), 1);
        let (mut first, mut second) = (make(comm), make(other));
        let (a, b) = (first.join(Mlp::new(5))?, second.join(Mlp::new(6))?);
        let (optim, model) = if rank == 0 { (&mut first, a) } else { (&mut second, b) };
        train(optim, model, 0, rank).map(drop)
    });
    for (rank, result) in results.into_iter().enumerate() {
        let (error, other) = (result.expect_err("not the same optimizer").to_string(), 1 - rank);
        let named = format!("rank {other} steps with optimizer {other} of this world, this rank with {rank}");
        assert!(error.contains(&named) && error.contains("same order on every rank"), "{error}");
    }
}

#[test]
fn ranks_that_join_in_another_order_are_told_so() {
    let results = outcomes(2, |mut comm| {
        let rank = comm.rank();
        let other = comm.share();
        let comm = if rank == 0 { comm } else { other };
        DistributedOptimizer::new(adam(), comm, Config::dense(), 1).join(Mlp::new(5)).map(drop)
    });
    for result in results {
        let error = result.expect_err("not the same optimizer").to_string();
        assert!(error.contains("optimizer of the world"), "{error}");
    }
}
