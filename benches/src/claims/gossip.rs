//! Gossip between neighbors: stochastic gradient push.

use anyhow::Result;

use super::world::Descent;
use super::{Claim, Family, Row, mean};

pub(super) const CLAIMS: &[Claim] = &[
    Claim {
        name: "mean",
        says: "SGP (Assran 2019): without gradients every rank reaches the mean of all, on any connected graph; on the exponential \
               graph after log₂ W steps",
        run: |seeds, _| reaches_the_mean(seeds),
        judge: |rows| {
            let exact = mean(rows, "sgp, 8 ranks", 3.0);
            let [irregular, late] = [IRREGULAR, LATE].map(|setting| mean(rows, setting, 120.0));
            let seen =
                format!("off by {exact:.0e} after 3 steps, {irregular:.0e} and, two steps late, {late:.0e} after 120");
            (exact < 1e-6 && irregular < 1e-5 && late < 1e-4, seen)
        },
        log: true,
    },
    Claim {
        name: "stragglers",
        says: "SGP (Assran 2019): where ranks are slow now and then, a step waits for a neighbour and not for the slowest of all",
        run: |seeds, _| stragglers(seeds),
        judge: |rows| {
            let [ring, gossip, late] = ["every-step", "sgp", OVERLAP].map(|setting| mean(rows, setting, 0.03));
            let seen = format!(
                "3 % of steps ten times as long: {ring:.0} ms a step, {gossip:.0} by gossip, {late:.0} with messages two steps late"
            );
            (gossip < 0.75 * ring && late < gossip, seen)
        },
        log: false,
    },
];

const OVERLAP: &str = "sgp:exponential,staleness=2";
const LATE: &str = "sgp, 8 ranks, two steps late";
const IRREGULAR: &str = "sgp:0>1;0>2;1>2;2>0, 3 ranks";

/// Distance of the farthest rank from the mean of the starting points.
fn reaches_the_mean(_: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let settings = [
        ("sgp, 8 ranks", "sgp", 8),
        ("sgp, 6 ranks", "sgp", 6),
        (IRREGULAR, "sgp:0>1;0>2;1>2;2>0", 3),
        (LATE, "sgp:exponential,staleness=2", 8),
    ];
    for (setting, strategy, ranks) in settings {
        for steps in [1, 2, 3, 5, 10, 20, 30, 60, 120] {
            let descent = Descent { strategy, ranks, steps, ..Descent::default() };
            let still = |_: usize, _: u64, _: &[f32], g: &mut [f32]| g.fill(0.0);
            let ended = descent.run(&|rank| vec![rank as f32], &still, &|_| 0.0)?;
            let centre = (ranks - 1) as f64 / 2.0;
            let off = ended.ranks.iter().map(|x| (f64::from(x[0]) - centre).abs()).fold(0.0, f64::max);
            rows.push(Row {
                family: Family::Gossip,
                claim: "mean",
                setting: setting.into(),
                over: "steps",
                x: steps as f64,
                seed: 0,
                quantity: "farthest rank's distance to the mean",
                rate: None,
                value: off.max(1e-9),
            });
        }
    }
    Ok(rows)
}

/// Sixteen ranks, steps of 50 ms of which some are ten times as long, 20 000 values over 100 Mbit/s and 1 ms.
fn stragglers(seeds: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        for strategy in ["every-step", "local-sgd:8", "sgp", OVERLAP] {
            for share in [0.0, 0.01, 0.03, 0.1] {
                let paces = format!("50ms;slow={share}x10;seed={seed}");
                let on = Some(("100mbit,1ms".parse()?, &paces[..]));
                let descent = Descent { strategy, ranks: 16, steps: 96, rate: 0.01, on, ..Descent::default() };
                let still = |_: usize, _: u64, _: &[f32], g: &mut [f32]| g.fill(0.0);
                let ended = descent.run(&|_| vec![0.0; 20_000], &still, &|_| 0.0)?;
                rows.push(Row {
                    family: Family::Gossip,
                    claim: "stragglers",
                    setting: strategy.into(),
                    over: "share of slow steps",
                    x: share,
                    seed,
                    quantity: "simulated ms a step",
                    rate: None,
                    value: 1e3 * ended.seconds / 96.0,
                });
            }
        }
    }
    Ok(rows)
}
