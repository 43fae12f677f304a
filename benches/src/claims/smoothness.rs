//! Smoothness-aware sampling compared with uniform sampling, on a quadratic that is steep in few coordinates.

use anyhow::Result;
use briquette::core::comm::{Local, Session};
use briquette::core::config::{CompressorConfig, Exchange};
use briquette::core::error::ReduceError;
use briquette::core::reduce::{AgreedStep, Reducer, Round};
use briquette::core::{CompressionRatio, Key, Layout, Message};
use briquette::zoo::reduce::smooth::Smooth;

use super::world::noise;
use super::{Claim, Family, Row, mean};

pub(super) const CLAIM: Claim = Claim {
    name: "smoothness",
    says: "DCGD+, DIANA+ (Wang 2022, Safaryan 2021): sampled by smoothness, as many values a step reach a loss in fewer steps than sampled uniformly; \
           DCGD+ by (1 + ω/n)/(1 + ρ/n)",
    run: |seeds, _| smoothness(seeds),
    judge: |rows| {
        let at = |setting: &str| mean(rows, setting, RANKS as f64);
        let [dcgd, dcgd_plus, diana, diana_plus] = [DCGD, DCGD_PLUS, DIANA, DIANA_PLUS].map(at);
        let (fewer, with_memory, predicted) = (dcgd / dcgd_plus, diana / diana_plus, predicted());
        let seen = format!(
            "steps {dcgd:.0} (DCGD), {dcgd_plus:.0} (DCGD+), {diana:.0} (DIANA), {diana_plus:.0} (DIANA+): {fewer:.1} and {with_memory:.1} times \
             fewer, predicted {predicted:.1} without a memory"
        );
        ((0.67..1.5).contains(&(fewer / predicted)) && with_memory > 1.3, seen)
    },
    log: false,
};

const DCGD: &str = "DCGD, uniform";
const DCGD_PLUS: &str = "DCGD+, by smoothness";
const DIANA: &str = "DIANA, uniform";
const DIANA_PLUS: &str = "DIANA+, by smoothness";
const LEN: usize = 100;
const RANKS: usize = 4;
/// One in this many values is sent.
const RATIO: f64 = 20.0;
/// Target relative to the loss at the start.
const TARGET: f64 = 1e-4;
/// Maximum steps of a run.
const STEPS: u64 = 20_000;

/// Returns curvatures from 1 down to 1/100.
fn curvature(i: usize) -> f64 {
    0.01_f64.powf(i as f64 / (LEN - 1) as f64)
}

/// Returns the ratio of the sources' bounds on the learning rate, with `ρ` such that `Σ Lⱼ/(Lⱼ + ρ)` values are sent.
fn predicted() -> f64 {
    let sent = |rho: f64| (0..LEN).map(|i| curvature(i) / (curvature(i) + rho)).sum::<f64>();
    let (mut low, mut high) = (0.0, 100.0);
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if sent(middle) > LEN as f64 / RATIO { low = middle } else { high = middle }
    }
    (1.0 + (RATIO - 1.0) / RANKS as f64) / (1.0 + high / RANKS as f64)
}

/// Steps to the target at the best of rates that differ by a factor of √2; full gradients, the same loss on every rank.
fn smoothness(seeds: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        for setting in [DCGD, DCGD_PLUS, DIANA, DIANA_PLUS] {
            let mut best: Option<(u64, f64)> = None;
            for half in 0..12 {
                let rate = 0.05 * 2_f64.powf(f64::from(half) / 2.0);
                let limit = best.map_or(STEPS, |(steps, _)| steps);
                best = steps(setting, rate, limit, seed)?.map(|steps| (steps, rate)).or(best);
            }
            let (steps, rate) = best.ok_or_else(|| anyhow::anyhow!("{setting} reaches the loss at no rate"))?;
            rows.push(Row {
                family: Family::TwoWay,
                claim: CLAIM.name,
                setting: setting.into(),
                over: "ranks",
                x: RANKS as f64,
                seed,
                quantity: "steps to 1e-4 of the first loss",
                rate: Some(rate),
                value: steps as f64,
            });
        }
    }
    Ok(rows)
}

pub(super) const BLOCKS: Claim = Claim {
    name: "blocks",
    says: "Block quantization (Wang 2022): DCGD+ with as many blocks as ranks, each with a norm of its own, needs fewer bits than with one block, by O(n)",
    run: |seeds, _| blocks(seeds),
    judge: |rows| {
        let least = |what: &str, ranks: usize| {
            let of = |levels: &u32| mean(rows, &block_setting(what, ranks), f64::from(*levels));
            LEVELS.iter().map(of).fold(f64::INFINITY, f64::min)
        };
        let fewer = BLOCK_RANKS.map(|ranks| least("one block", ranks) / least("as many blocks", ranks));
        let first = BLOCK_RANKS.map(|ranks| {
            let [one, many] = ["one block", "as many blocks"].map(|what| mean(rows, &block_setting(what, ranks), 1.0));
            one / many
        });
        let seen = format!(
            "bits to the loss, one block over {} and {} blocks of as many ranks: {:.2} and {:.2} times at one level, {:.2} and {:.2} times each at its best \
             number of levels",
            BLOCK_RANKS[0], BLOCK_RANKS[1], first[0], first[1], fewer[0], fewer[1]
        );
        let holds = BLOCK_RANKS.iter().zip(fewer).all(|(ranks, fewer)| fewer > 0.5 * *ranks as f64);
        (holds, seen)
    },
    log: true,
};

const BLOCK_RANKS: [usize; 2] = [4, 16];
const LEVELS: [u32; 4] = [1, 2, 4, 8];
const BLOCK_LEN: usize = 1024;

fn block_setting(what: &str, ranks: usize) -> String {
    format!("{what}, {ranks} ranks")
}

/// Bits per value that a rank sends until the loss is 1e-4 of the first, at the best of rates that differ by √2. The
/// same quadratic on every rank, in coordinates in which its smoothness is 1, as DCGD+ compresses there. Elias codes;
/// without the framing of a message.
fn blocks(seeds: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for seed in 1..=seeds.min(2) {
        for ranks in BLOCK_RANKS {
            for (what, blocks) in [("one block", 1), ("as many blocks", ranks)] {
                for levels in LEVELS {
                    let compressor = format!("qsgd:s{levels}:{}:l2:elias", BLOCK_LEN / blocks);
                    let mut best: Option<(u64, f64, f64)> = None;
                    for half in 0..10 {
                        let rate = 0.05 * 2_f64.powf(f64::from(half) / 2.0);
                        let limit = best.map_or(4000, |(steps, ..)| steps);
                        let ended = block_steps(&compressor, ranks, (rate, limit), seed)?;
                        best = ended.map(|(steps, bits)| (steps, bits, rate)).or(best);
                    }
                    let (_, bits, rate) = best.ok_or_else(|| anyhow::anyhow!("{compressor}: no rate gets there"))?;
                    rows.push(Row {
                        family: Family::TwoWay,
                        claim: BLOCKS.name,
                        setting: block_setting(what, ranks),
                        over: "levels",
                        x: f64::from(levels),
                        seed,
                        quantity: "bits a value to 1e-4 of the first loss",
                        rate: Some(rate),
                        value: bits,
                    });
                }
            }
        }
    }
    Ok(rows)
}

/// Returns the steps to the target and the bits per value; `None` if it is not reached before a limit.
fn block_steps(compressor: &str, ranks: usize, (rate, limit): (f64, u64), seed: u64) -> Result<Option<(u64, f64)>> {
    /// Bytes of a frame other than scales and codes.
    const FRAME: usize = 17;
    let mut compressor = compressor.parse::<CompressorConfig>()?.build();
    let mut draw = noise(seed, 99, 1);
    let mut x: Vec<f64> = (0..BLOCK_LEN).map(|_| f64::from(draw())).collect();
    let loss = |x: &[f64]| x.iter().map(|x| 0.5 * x * x).sum::<f64>();
    let (first, mut bits, mut message) = (loss(&x), 0, Message::default());
    for step in 0..limit {
        let now = loss(&x);
        if now < TARGET * first {
            return Ok(Some((step, bits as f64 / (ranks * BLOCK_LEN) as f64)));
        }
        if now.partial_cmp(&(100.0 * first)) != Some(std::cmp::Ordering::Less) {
            return Ok(None);
        }
        let (input, mut mean) = (x.iter().map(|x| *x as f32).collect::<Vec<f32>>(), vec![0.0_f32; BLOCK_LEN]);
        for rank in 0..ranks {
            compressor.compress_into(&input, Key::new(seed).step(step).rank(rank), &mut message);
            message.add_to(1.0 / ranks as f32, &mut mean)?;
            bits += 8 * (message.encoded_len() - FRAME);
        }
        x.iter_mut().zip(&mean).for_each(|(x, g)| *x -= rate * f64::from(*g));
    }
    Ok(None)
}

fn build(setting: &str) -> Result<Box<dyn Reducer>> {
    let exchange = |feedback: &str| -> Result<Box<dyn Reducer>> {
        let reducer = format!("gather:randk:{RATIO}x:scaled").parse()?;
        let exchange = Exchange { reducer, feedback: feedback.parse()?, ..Exchange::default() };
        Ok(exchange.build_reducer(&Layout::flat(LEN), RANKS)?)
    };
    let smooth = |alpha: Option<f32>| -> Result<Box<dyn Reducer>> {
        let importance = Some(CompressionRatio::new(RATIO)?);
        let diagonal = (0..LEN).map(|i| curvature(i) as f32).collect();
        Ok(Box::new(Smooth { importance, alpha, ..Smooth::default() }.given(&[diagonal])?))
    };
    match setting {
        DCGD => exchange("none"),
        DIANA => exchange("diana"),
        DCGD_PLUS => smooth(Some(0.0)),
        _ => smooth(None),
    }
}

/// Returns the steps to the target; `None` if it is not reached before a limit.
fn steps(setting: &str, rate: f64, limit: u64, seed: u64) -> Result<Option<u64>> {
    let start: Vec<f64> = {
        let mut draw = noise(seed, 99, 0);
        (0..LEN).map(|_| f64::from(draw())).collect()
    };
    let loss = |x: &[f64]| x.iter().enumerate().map(|(i, x)| 0.5 * curvature(i) * x * x).sum::<f64>();
    let first = loss(&start);
    let rank = |mut comm: Session| -> Result<Option<u64>, ReduceError> {
        let (mut reducer, layout) = (build(setting).expect("valid settings"), Layout::flat(LEN));
        let (mut x, mut average) = (start.clone(), vec![0.0_f32; LEN]);
        for step in 0..limit {
            let now = loss(&x);
            if now < TARGET * first {
                return Ok(Some(step));
            }
            // Replicas are equal: all ranks end here.
            if now.partial_cmp(&(100.0 * first)) != Some(std::cmp::Ordering::Less) {
                return Ok(None);
            }
            let input: Vec<f32> = x.iter().enumerate().map(|(i, x)| (curvature(i) * x) as f32).collect();
            let (agreed_step, key) = (&AgreedStep { step, ..AgreedStep::default() }, Key::new(seed).step(step));
            let round =
                Round { key, slots: layout.slots(), agreed_step, input: &input, average: &mut average, sent: None };
            reducer.exchange(round, &mut comm)?;
            x.iter_mut().zip(&average).for_each(|(x, g)| *x -= rate * f64::from(*g));
        }
        Ok(None)
    };
    Ok(Local::run(RANKS, rank).remove(0)?)
}
