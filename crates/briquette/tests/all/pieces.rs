//! Models larger than the frame limit: joining, every kind of step, saving, resuming and evaluating.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::Duration;

use briquette::core::comm::{Local, Session, run_ranks};
use briquette::core::config::{Config, representatives};
use briquette::sim::SessionExt;
use briquette::{DistributedOptimizer, Error};

use crate::common::*;

/// Frames of at most 500 bytes, for a model of 1.3 kB.
fn narrow<T: Send>(ranks: usize, body: impl Fn(Session) -> Result<T, Error> + Sync) -> Vec<T> {
    let longest = NonZeroUsize::new(500).expect("not 0");
    let world = Local::builder(ranks).deadline(Duration::from_secs(60)).longest_frame(longest).build();
    run_ranks(world, body).into_iter().map(|rank| rank.unwrap_or_else(|error| panic!("{error}"))).collect()
}

fn train_some(config: &Config, comm: Session) -> Result<Vec<(String, Vec<u32>)>, Error> {
    // Decisions by seconds are the same in every run.
    let comm = comm.stepped(Duration::from_millis(5));
    let (rank, directory) = (comm.rank(), tempfile::tempdir().expect("a directory"));
    let mut optim = DistributedOptimizer::new(sgd(), comm, config.clone(), 1).with_rebroadcast(0);
    let mut model = optim.join(Mlp::wide(rank as u64, 32))?;
    for step in 0..6 {
        (model, _) = train(&mut optim, model, step, rank)?;
    }
    optim.save(&model, directory.path(), &BTreeMap::new())?;
    Ok(bits(&optim.evaluation_copy(&model)?))
}

#[test]
fn a_model_larger_than_a_frame_trains_to_the_bits_of_any_other() {
    briquette::zoo::install();
    let mut compared = 0;
    for config in representatives().into_iter().filter(|config| config.min_ranks() <= 3) {
        // Configurations that require another inner optimizer, or seconds, are not tested here.
        let wide = outcomes(3, |comm| train_some(&config, comm));
        let Ok(wide) = wide.into_iter().collect::<Result<Vec<_>, _>>() else { continue };
        let narrow = narrow(3, |comm| train_some(&config, comm));
        assert!(narrow == wide, "{config:?}");
        compared += 1;
    }
    assert!(compared > 100, "{compared}");
}

#[test]
fn re_broadcasts_go_in_pieces_too() {
    let trained = narrow(3, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1).with_rebroadcast(2);
        let mut model = optim.join(Mlp::wide(rank as u64, 32))?;
        for step in 0..4 {
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        Ok(bits(&model))
    });
    assert!(trained[0] == trained[1] && trained[0] == trained[2]);
}
