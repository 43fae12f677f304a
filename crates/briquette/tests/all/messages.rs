//! Error messages as a user sees them: `?` in `main` prints errors by `Debug`.

use briquette::core::config::Config;
use briquette::core::error::{ConfigError, SyncError};
use briquette::{DistributedOptimizer, Error, StepError};
use burn::nn::LinearConfig;

use crate::common::*;

/// Rank 0's error in a world in which rank 1 differs.
fn mismatch(join: impl Fn(&mut DistributedOptimizer, usize) -> Result<(), Error> + Sync, seeds: [u64; 2]) -> String {
    let found = outcomes(2, |comm| {
        let rank = comm.rank();
        let config = if rank == 0 { Config::top_k(0.1) } else { Config::top_k(0.01) };
        let config = if seeds[0] == 99 { config? } else { Config::dense() };
        let mut optim = DistributedOptimizer::new(sgd(), comm, config, seeds[rank]);
        join(&mut optim, rank)
    });
    format!("{:?}", found.into_iter().next().expect("two ranks").expect_err("they differ"))
}

#[test]
fn a_mismatch_names_the_tensor_or_the_key_and_both_values() {
    let same = |optim: &mut DistributedOptimizer, _| optim.join(Mlp::new(1)).map(drop);
    let wider = |optim: &mut DistributedOptimizer, rank| optim.join(Mlp::wide(1, 8 + rank)).map(drop);
    let longer = |optim: &mut DistributedOptimizer, rank: usize| {
        let layers: Vec<_> = (0..2 + rank).map(|_| LinearConfig::new(2, 2).init(&device())).collect();
        optim.join(layers).map(drop)
    };
    assert_eq!(mismatch(same, [1, 2]), "rank 1 cannot join: its seed is 2, rank 0's is 1");
    assert_eq!(
        mismatch(same, [99, 99]),
        "rank 1 cannot join: its configuration.reducer is gather:topk:100x, rank 0's is gather:topk:10x"
    );
    assert_eq!(
        mismatch(wider, [1, 1]),
        "rank 1 cannot join: its trainable tensor 0, the first that differs, is `first.weight` of shape [6, 9], rank 0's is \
         `first.weight` of shape [6, 8]"
    );
    assert_eq!(
        mismatch(longer, [1, 1]),
        "rank 1 cannot join: its trainable tensor 4, the first that differs, is `2.weight` of shape [2, 2], rank 0's is absent"
    );
}

/// `?` requires no trait of the model, and the message does not contain it.
#[test]
fn an_error_of_a_step_says_what_happened_and_not_what_the_model_is() {
    fn step(model: &str) -> Result<&str, StepError<&str>> {
        let slot = "second.bias".to_owned();
        Err(StepError { model: Box::new(model), source: SyncError::NonFinite { step: 2, rank: 1, slot }.into() })
    }
    fn outer(model: &str) -> Result<(), Error> {
        step(model)?;
        Ok(())
    }
    let expected = "step 2: rank 1 has a non-finite value in `second.bias`; no rank exchanged anything. Lower the learning \
                    rate, or skip the step on every rank";
    assert_eq!(format!("{:?}", step("six layers").unwrap_err()), expected);
    assert_eq!(format!("{:?}", outer("six layers").unwrap_err()), expected);
}

#[test]
fn debug_of_public_errors_is_what_they_display() {
    let wrong = |error: &dyn std::error::Error| assert_eq!(format!("{error:?}"), error.to_string());
    wrong(&ConfigError::conflict("one thing", "another", "they differ", "use one"));
    wrong(&Error::NotJoined { rank: 3 });
    wrong(&briquette::RunError::NoRanks);
    wrong(&"cdua".parse::<briquette::Backend>().unwrap_err());
    wrong(&briquette::tcp::Environment::read(|name| (name == "RANK").then(|| "0".into())).unwrap_err());
    wrong(&"gather:topk:2".parse::<briquette::core::config::ReducerConfig>().unwrap_err());
}
