//! Comp-AMS: AMSGrad over compressed gradients, logistic regression on texts.

use std::path::Path;

use anyhow::{Context, Result, bail};
use briquette::DistributedOptimizer;
use briquette::core::Key;
use briquette::core::comm::{Local, Session, run_ranks};
use briquette::core::config::Config;
use briquette::optim::CompAmsConfig;
use burn::module::{Module, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData};

use super::texts::{LEN, Texts};
use super::{Claim, Family, Row, mean, slope};

pub(super) const CLAIM: Claim = Claim {
    name: "Comp-AMS",
    says: "Comp-AMS (Li 2022): at rates that grow like √n, n ranks reach a loss in n times fewer steps, with top-k 1 % and block signs as with full \
           gradients",
    run: comp_ams,
    judge: |rows| {
        let slopes = EXCHANGES.map(|(name, _)| slope(rows, name));
        let at = |n: f64| EXCHANGES.map(|(name, _)| mean(rows, name, n));
        let ([full, top_k, sign], one) = (at(16.0), at(1.0));
        let data = rows.first().map_or("", |row| row.quantity);
        let seen = format!(
            "{data}: n^{:.2}, {:.2}, {:.2} (full, top-k, signs), at 16 ranks {full:.0}, {top_k:.0}, {sign:.0}, at one {:.0}",
            slopes[0], slopes[1], slopes[2], one[0]
        );
        let holds = slopes.iter().all(|slope| (-1.15..-0.75).contains(slope));
        (holds && top_k < 1.2 * full && sign < 1.2 * full, seen)
    },
    log: true,
};

/// Names and reducers.
const EXCHANGES: [(&str, &str); 3] =
    [("full gradients", "dense"), ("top-k 1 %", "gather:topk:0.01"), ("block signs", "gather:sign")];

/// Learning rate at one rank; multiplied by √n at n.
const RATE: f64 = 5e-4;
/// Batch size in texts, as in the source.
const BATCH: usize = 32;
/// Target above the optimum's loss.
const TARGET: f64 = 0.2;
/// Maximum number of steps.
const STEPS: u64 = 16_000;

#[derive(Module, Debug)]
struct Weights {
    x: Param<Tensor<1>>,
}

/// Steps to the target for 1, 4 and 16 ranks.
fn comp_ams(seeds: u64, data: Option<&Path>) -> Result<Vec<Row>> {
    let texts = Texts::load(data)?;
    let target = texts.optimum().1 + TARGET;
    let quantity = if data.is_some() { "steps on AG-News" } else { "steps on generated texts" };
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        for (setting, reducer) in EXCHANGES {
            for ranks in [1, 4, 16] {
                let rank = |session| steps(&texts, session, (reducer, ranks), target, seed);
                let ended = run_ranks(Local::world(ranks), rank).into_iter().collect::<Result<Vec<u64>>>()?;
                rows.push(Row {
                    family: Family::Optimizers,
                    claim: CLAIM.name,
                    setting: setting.into(),
                    over: "ranks",
                    x: ranks as f64,
                    seed,
                    quantity,
                    rate: Some(rate(ranks)),
                    value: ended[0] as f64,
                });
            }
        }
    }
    Ok(rows)
}

fn rate(ranks: usize) -> f64 {
    RATE * (ranks as f64).sqrt()
}

/// Returns one rank's steps until the loss of all texts is below the target.
fn steps(texts: &Texts, session: Session, (reducer, ranks): (&str, usize), target: f64, seed: u64) -> Result<u64> {
    let rank = session.rank();
    let mut config = Config::dense();
    config.exchange.reducer = reducer.parse()?;
    config.exchange.feedback = if reducer == "dense" { "none" } else { "error" }.parse()?;
    let mut optim = DistributedOptimizer::new(CompAmsConfig::new().init(), session, config, seed);
    let start = Tensor::<1>::zeros([LEN], &Device::flex().autodiff()).require_grad();
    let mut model = optim.join(Weights { x: Param::from_tensor(start) })?;
    let all: Vec<usize> = (0..texts.labels.len()).collect();
    let every = 16 / ranks as u64;
    let mut g = vec![0.0; LEN];
    for step in 0..STEPS {
        let x: Vec<f32> = model.x.val().inner().into_data().try_into_vec().context("weights")?;
        if step % every == 0 {
            let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            // Replicas are equal: every rank ends here.
            if texts.loss(&all, &x, &mut vec![0.0; LEN]) < target {
                return Ok(step);
            }
        }
        texts.gradient(&all, BATCH, Key::new(seed).step(step).rank(rank), &x, &mut g);
        let mut gradients = GradientsParams::new();
        gradients.register(model.x.id, Tensor::<1>::from_data(TensorData::new(g.clone(), [LEN]), &Device::flex()));
        model = optim.step(rate(ranks), model, gradients)?;
    }
    bail!("{reducer} on {ranks} ranks is not at the target after {STEPS} steps")
}
