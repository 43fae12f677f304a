//! Bidirectional compression: majority vote, DoubleSqueeze, NEOLITHIC, MCM.

use anyhow::Result;
use briquette::core::comm::Local;
use briquette::core::config::Exchange;
use briquette::core::error::ReduceError;
use briquette::core::reduce::{AgreedStep, Reducer, Round};
use briquette::core::{Key, Layout};

use super::world::{Descent, noise};
use super::{Claim, Family, Row, mean, smoothness};

pub(super) const CLAIMS: &[Claim] = &[
    Claim {
        name: "votes",
        says: "majority vote (Bernstein 2019): learns while fewer than half of the ranks invert their signs",
        run: |seeds, _| votes(seeds),
        judge: |rows| {
            let [none, most, half] =
                [0.0, 12.0, 14.0].map(|inverted| mean(rows, "two-way:plain-sign, 27 ranks", inverted));
            let seen = format!("loss {none:.1} with none inverted, {most:.1} with 12 of 27, {half:.0} with 14");
            (none < 3.0 && most < 20.0 && half > 1000.0, seen)
        },
        log: false,
    },
    Claim {
        name: "two memories",
        says: "DoubleSqueeze (Tang 2019): with memories at ranks and servers, signs both ways end where exact means do; without the servers' \
               they end above",
        run: |seeds, _| two_memories(seeds),
        judge: |rows| {
            let [dense, both, ranks] = [DENSE, BOTH, RANKS_ONLY].map(|setting| mean(rows, setting, 2400.0));
            let seen =
                format!("excess {dense:.4} exact, {both:.4} with both memories, {ranks:.4} without the servers'");
            (both < 1.05 * dense && ranks > 1.1 * dense, seen)
        },
        log: true,
    },
    Claim {
        name: "rounds",
        says: "NEOLITHIC (Huang 2022): at equal bytes, R messages of R times the batch end nearer to the optimum than one",
        run: |seeds, _| rounds(seeds),
        judge: |rows| {
            let [one, four, ten] = [1.0, 4.0, 10.0].map(|rounds| mean(rows, "two-way:topk:20x", rounds));
            (four < 0.5 * one && ten < four, format!("excess {one:.2} in one round, {four:.3} in 4, {ten:.3} in 10"))
        },
        log: true,
    },
    Claim {
        name: "preserved model",
        says: "MCM (Philippenko 2021): the plateau of the servers' model is that of exact means downwards, whatever ω is there; Artemis' \
               grows with ω. Rand-MCM's is nearer still at large rates",
        run: |seeds, _| preserved_model(seeds),
        judge: |rows| {
            let times = |setting: &str, levels| mean(rows, setting, levels) / mean(rows, "exact downwards", 0.0);
            let [mcm, artemis] =
                ["mcm", "artemis"].map(|setting| LEVELS.map(|levels| times(setting, f64::from(levels))));
            let at_large = |setting: &str| {
                let of = |setting: &str| mean(rows, &format!("{setting}, rate {LARGE_RATE}"), 1.0);
                of(setting) / of("exact downwards")
            };
            let (fast, random) = (at_large("mcm"), at_large("rand-mcm"));
            let list = |times: &[f64]| times.iter().map(|t| format!("{t:.2}")).collect::<Vec<_>>().join(", ");
            let seen = format!(
                "at 4, 2 and 1 levels {} times with MCM, {} with Artemis; at ten times the rate and 1 level {fast:.2} with MCM, {random:.2} \
                 with Rand-MCM",
                list(&mcm),
                list(&artemis)
            );
            let grows = artemis.windows(2).all(|pair| pair[1] > 1.3 * pair[0]);
            (mcm.iter().all(|times| *times < 1.3) && grows && artemis[2] > 2.5 && random < fast, seen)
        },
        log: true,
    },
    Claim {
        name: "absent ranks",
        says: "MCM, Rand-MCM (Philippenko 2021) with half of the ranks at a step: the plateau of the servers' model is that of exact means \
               downwards of as many ranks, also where absent ranks receive nothing; Artemis' grows with ω",
        run: |seeds, _| absent_ranks(seeds),
        judge: |rows| {
            let exact = mean(rows, "exact downwards", 0.0);
            let times = |setting| mean(rows, setting, 1.0) / exact;
            let [mcm, random, artemis] = ["mcm", "rand-mcm", "artemis"].map(times);
            let seen =
                format!("at one level {mcm:.2} times with MCM, {random:.2} with Rand-MCM, {artemis:.2} with Artemis");
            (mcm < 1.3 && random < 1.3 && artemis > 2.0, seen)
        },
        log: true,
    },
    smoothness::CLAIM,
    smoothness::BLOCKS,
];

const DENSE: &str = "dense";
const BOTH: &str = "two-way:sign, two memories";
const RANKS_ONLY: &str = "two-way:sign, ranks' memories";
const RATE: f32 = 0.005;
const LARGE_RATE: f32 = 0.05;
/// Levels of the downlink quantizer, from the smallest ω to the largest.
const LEVELS: [u32; 3] = [4, 2, 1];

fn row(claim: &'static str, setting: &str, (over, x): (&'static str, f64), seed: u64, value: f64) -> Row {
    let quantity = if claim == "preserved model" { "squared distance to the optimum" } else { "loss above the least" };
    Row { family: Family::TwoWay, claim, setting: setting.into(), over, x, seed, quantity, rate: None, value }
}

/// `½‖x‖²` in 1000 dimensions with noise of variance 1, 600 steps of 0.01.
fn votes(seeds: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for seed in 1..=seeds.min(2) {
        for inverted in [0, 3, 6, 9, 12, 13, 14] {
            let (reducer, ranks) = ("two-way:plain-sign,down=plain-sign", 27);
            let descent = Descent { reducer, ranks, steps: 600, rate: 0.01, ..Descent::default() };
            let gradient = |rank: usize, step: u64, x: &[f32], g: &mut [f32]| {
                let (mut noise, sign) = (noise(seed, rank, step), if rank < inverted { -1.0 } else { 1.0 });
                g.iter_mut().zip(x).for_each(|(g, x)| *g = sign * (x + noise()));
            };
            let start = |_: usize| {
                let mut draw = noise(seed, 99, 0);
                (0..1000).map(|_| draw()).collect()
            };
            let ended = descent.run(&start, &gradient, &|_| 0.0)?;
            let loss = ended.model.iter().map(|x| 0.5 * x * x).sum();
            rows.push(row("votes", "two-way:plain-sign, 27 ranks", ("inverted ranks", inverted as f64), seed, loss));
        }
    }
    Ok(rows)
}

/// Eight ranks with different optima, curvatures from 0.1 to 1 in 100 dimensions, gradients with noise of variance 1
/// over `batch`: the excess over the minimum loss, averaged over the last quarter of the steps.
fn excess(descent: &Descent<'_>, batch: usize, seed: u64) -> Result<f64> {
    const LEN: usize = 100;
    let curvature = |i: usize| 10_f64.powf(i as f64 / (LEN - 1) as f64 - 1.0) as f32;
    let own = |rank: usize| {
        let mut draw = noise(seed, 99 + rank, 0);
        (0..LEN).map(|_| draw()).collect::<Vec<f32>>()
    };
    let optima: Vec<Vec<f32>> = (0..descent.ranks).map(own).collect();
    let best = |i: usize| optima.iter().map(|own| own[i]).sum::<f32>() / optima.len() as f32;
    let best: Vec<f32> = (0..LEN).map(best).collect();
    let spread = 1.0 / (batch as f32).sqrt();
    let gradient = |rank: usize, step: u64, x: &[f32], g: &mut [f32]| {
        let mut noise = noise(seed, rank, step);
        for (i, (g, x)) in g.iter_mut().zip(x).enumerate() {
            *g = curvature(i) * (x - optima[rank][i]) + spread * noise();
        }
    };
    let tail = std::sync::Mutex::new((0.0, 0.0));
    let from = descent.steps - descent.steps / 4;
    let seen = |rank: usize, step: u64, x: &[f32], g: &mut [f32]| {
        if rank == 0 && step >= from {
            let loss = x.iter().zip(&best).enumerate().map(|(i, (x, best))| 0.5 * curvature(i) * (x - best).powi(2));
            let mut tail = tail.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            *tail = (tail.0 + f64::from(loss.sum::<f32>()), tail.1 + 1.0);
        }
        gradient(rank, step, x, g);
    };
    descent.run(&|_| vec![0.0; LEN], &seen, &|_| 0.0)?;
    let (sum, count) = tail.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(sum / count)
}

fn two_memories(seeds: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        for (setting, reducer, feedback) in [
            (DENSE, "dense", "none"),
            (BOTH, "two-way:sign,down=sign,server=0", "error"),
            (RANKS_ONLY, "two-way:sign,down=sign,server=0,server_memory=false", "error"),
        ] {
            for steps in [600, 2400] {
                let descent = Descent { reducer, feedback, ranks: 8, steps, rate: 0.02, ..Descent::default() };
                rows.push(row("two memories", setting, ("steps", steps as f64), seed, excess(&descent, 1, seed)?));
            }
        }
    }
    Ok(rows)
}

/// The same number of messages each way: 2400 of 5 values of 100.
fn rounds(seeds: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        for rounds in [1, 2, 4, 10] {
            let reducer = &format!("two-way:topk:20x,down=topk:20x,rounds={rounds},server=0")[..];
            let steps = 2400 / rounds as u64;
            let descent = Descent { reducer, feedback: "error", ranks: 8, steps, rate: 0.1, ..Descent::default() };
            let value = excess(&descent, rounds, seed)?;
            rows.push(row("rounds", "two-way:topk:20x", ("messages a vector", rounds as f64), seed, value));
        }
    }
    Ok(rows)
}

/// Ten ranks, curvatures in [1, 2], gradients with noise of variance 1: the mean of the squared distance after the first third of 4000 steps.
fn preserved_model(seeds: u64) -> Result<Vec<Row>> {
    let coarse = "qsgd:s1:512:l2";
    let mut rows = Vec::new();
    let mut add = |setting: &str, reducer: String, (rate, levels): (f32, u32), seed: u64| -> Result<()> {
        let of_servers = !reducer.starts_with("artemis");
        let exchange = Exchange { reducer: format!("{reducer},server=0,alpha=0").parse()?, ..Exchange::default() };
        let value = plateau(&exchange, rate, of_servers, seed)?;
        let name = if rate == RATE { setting.to_owned() } else { format!("{setting}, rate {rate}") };
        let row = row("preserved model", &name, ("levels downwards", f64::from(levels)), seed, value);
        rows.push(Row { rate: Some(f64::from(rate)), ..row });
        Ok(())
    };
    for seed in 1..=seeds.min(2) {
        add("exact downwards", format!("mcm:{coarse},down=dense"), (RATE, 0), seed)?;
        for levels in LEVELS {
            let down = format!("down=qsgd:s{levels}:512:l2");
            add("mcm", format!("mcm:{coarse},{down}"), (RATE, levels), seed)?;
            add("artemis", format!("artemis:{coarse},{down}"), (RATE, levels), seed)?;
        }
        for (setting, down) in [
            ("exact downwards", "down=dense"),
            ("mcm", "down=qsgd:s1:512:l2"),
            ("rand-mcm", "down=qsgd:s1:512:l2,per_rank=true"),
        ] {
            add(setting, format!("mcm:{coarse},{down}"), (LARGE_RATE, 1), seed)?;
        }
    }
    Ok(rows)
}

/// The same at the small rate, half of the ranks taking part at a step.
fn absent_ranks(seeds: u64) -> Result<Vec<Row>> {
    let (coarse, down) = ("qsgd:s1:512:l2", "down=qsgd:s1:512:l2");
    let mut rows = Vec::new();
    for seed in 1..=seeds.min(2) {
        for (setting, levels, reducer) in [
            ("exact downwards", 0.0, format!("mcm:{coarse},down=dense")),
            ("mcm", 1.0, format!("mcm:{coarse},{down}")),
            ("rand-mcm", 1.0, format!("mcm:{coarse},{down},per_rank=true")),
            ("artemis", 1.0, format!("artemis:{coarse},{down}")),
        ] {
            let reducer = format!("{reducer},server=0,alpha=0,participation=0.5");
            let exchange = Exchange { reducer: reducer.parse()?, ..Exchange::default() };
            let value = plateau(&exchange, RATE, setting != "artemis", seed)?;
            let quantity = "squared distance to the optimum";
            let row = row("absent ranks", setting, ("levels downwards", levels), seed, value);
            rows.push(Row { quantity, rate: Some(f64::from(RATE)), ..row });
        }
    }
    Ok(rows)
}

/// Returns the plateau of the ranks' models, or with `of_servers` the plateau of the server's model, which follows from
/// the means of the sent vectors.
fn plateau(exchange: &Exchange, rate: f32, of_servers: bool, seed: u64) -> Result<f64> {
    const LEN: usize = 20;
    const RANKS: usize = 10;
    const STEPS: u64 = 4000;
    let layout = Layout::flat(LEN);
    let ranks = Local::run(RANKS, |mut comm| {
        let mut reducer = exchange.build_reducer(&layout, RANKS).expect("valid settings");
        let rank = comm.rank();
        let (mut x, mut part, mut models) = (vec![0.0_f32; LEN], vec![0.0_f32; LEN], Vec::new());
        let (mut average, mut sent) = (vec![0.0; LEN], vec![0.0; LEN]);
        for step in 0..STEPS {
            let mut noise = noise(seed, rank, step);
            let curvature = |i: usize| 1.5 + 0.5 * (((i + 1) * (3 * rank + 2)) as f32 * 0.7).sin();
            let input: Vec<f32> = (0..LEN).map(|i| curvature(i) * x[i] + noise()).collect();
            let agreed_step = &AgreedStep { step, learning_rate: Some(f64::from(rate)), ..AgreedStep::default() };
            let (key, slots) = (Key::new(seed).step(step), layout.slots());
            let (average_here, sent_here) = (&mut average[..], Some(&mut sent[..]));
            let round = Round { key, slots, agreed_step, input: &input, average: average_here, sent: sent_here };
            reducer.exchange(round, &mut comm)?;
            x.iter_mut().zip(&average).for_each(|(x, average)| *x -= rate * average);
            part.iter_mut().zip(&sent).for_each(|(part, sent)| *part -= rate / RANKS as f32 * sent);
            if step >= STEPS / 3 {
                models.push(if of_servers { part.clone() } else { x.iter().map(|x| x / RANKS as f32).collect() });
            }
        }
        Ok::<_, ReduceError>(models)
    });
    let ranks = ranks.into_iter().collect::<Result<Vec<Vec<Vec<f32>>>, _>>()?;
    let energy = |at: usize| {
        let model = |i: usize| ranks.iter().map(|models| f64::from(models[at][i])).sum::<f64>();
        (0..LEN).map(|i| model(i).powi(2)).sum::<f64>()
    };
    Ok((0..ranks[0].len()).map(energy).sum::<f64>() / ranks[0].len() as f64)
}
