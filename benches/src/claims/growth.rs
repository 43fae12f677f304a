//! Bytes and simulated time of a step as the world grows: run up to 64 ranks, counted beyond.

use anyhow::{Result, ensure};
use briquette::core::comm::{Network, all_reduce_traffic};

use super::world::Descent;
use super::{Claim, Family, Row, mean};

pub(super) const CLAIMS: &[Claim] = &[
    Claim {
        name: "bytes",
        says: "SGP sends half of a ring's bytes and DiLoCo a period of times fewer, in any world",
        run: |_| rows("bytes"),
        judge: |rows| {
            let at = |setting: &str| mean(rows, setting, 1024.0) / mean(rows, "every-step", 1024.0);
            let [gossip, diloco] = [SGP, DILOCO].map(at);
            (gossip < 0.6 && diloco < 0.02, format!("of the ring's at 1024 ranks: SGP {gossip:.2}, DiLoCo {diloco:.3}"))
        },
        log: true,
    },
    Claim {
        name: "time",
        says: "Over 1 Gbit/s and 1 ms a ring's step grows with the world, SGP's does not; hierarchical, fewer take turns",
        run: |_| rows("time"),
        judge: |rows| {
            let ring = mean(rows, "every-step", 64.0) / mean(rows, "every-step", 4.0);
            let gossip = mean(rows, SGP, 64.0) / mean(rows, SGP, 4.0);
            let ends = [SGP, DILOCO, LEVELS].map(|setting| mean(rows, setting, 64.0) / mean(rows, "every-step", 64.0));
            let holds = gossip < 1.1 && ring > 4.0 && ends.iter().all(|end| *end < 0.5);
            let seen = format!(
                "4 → 64 ranks: ring {ring:.1} times, SGP {gossip:.2}; of the ring's at 64: SGP {:.2}, DiLoCo {:.2}, hierarchical {:.2}",
                ends[0], ends[1], ends[2]
            );
            (holds, seen)
        },
        log: true,
    },
];

const SGP: &str = "sgp";
const DILOCO: &str = "diloco:100";
const LEVELS: &str = "hierarchical, 4 ranks a machine";
const SETTINGS: [(&str, &str, &str); 4] = [
    ("every-step", "every-step", "dense"),
    (SGP, "sgp", "dense"),
    (DILOCO, "diloco:100", "dense"),
    (LEVELS, "every-step", "hierarchical:dense,group=4"),
];

/// Values of the model, and steps of a run: a period of DiLoCo's.
const LEN: usize = 20_000;
const STEPS: u64 = 100;
/// An agreed header of one slot, to each other rank.
const HEADER: u64 = 106;

/// What the rank that sends most sends in all steps, headers left out: they are small, and go to every rank.
fn counted(setting: &str, world: usize) -> u64 {
    let busiest = |ranks: usize| (0..ranks).map(|rank| all_reduce_traffic(LEN, ranks, rank).sent).max().unwrap_or(0);
    match setting {
        SGP => STEPS * (4 * LEN as u64 + 4),
        DILOCO => busiest(world),
        LEVELS => STEPS * (busiest(4) + busiest(world / 4) + 3 * (4 * LEN as u64)),
        _ => STEPS * busiest(world),
    }
}

/// Steps at which a header is agreed on.
fn headers(setting: &str) -> u64 {
    if matches!(setting, SGP | DILOCO) { 1 } else { STEPS }
}

fn rows(claim: &'static str) -> Result<Vec<Row>> {
    let (mut rows, mut add) = (Vec::new(), Vec::new());
    for (setting, strategy, reducer) in SETTINGS {
        for world in [4, 8, 16, 32, 64, 128, 256, 512, 1024] {
            let all = counted(setting, world);
            if world <= 64 {
                let ranks_per_link = if setting == LEVELS { 4 } else { 1 };
                let network: Network = format!("1gbit,1ms,{ranks_per_link}").parse()?;
                let descent = Descent {
                    strategy,
                    reducer,
                    ranks: world,
                    steps: STEPS,
                    on: Some((network, "10ms")),
                    ..Descent::default()
                };
                let still = |_: usize, _: u64, _: &[f32], g: &mut [f32]| g.fill(0.0);
                let ended = descent.run(&|_| vec![0.0; LEN], &still, &|_| 0.0)?;
                let own = headers(setting) * HEADER * (world as u64 - 1);
                ensure!(
                    ended.sent == all + own,
                    "{setting}, {world} ranks: {} bytes, counted {all} and {own}",
                    ended.sent
                );
                add.push((setting, world, "time", 1e3 * ended.seconds / STEPS as f64));
            }
            add.push((setting, world, "bytes", all as f64 / STEPS as f64));
        }
    }
    for (setting, world, quantity, value) in add {
        if quantity == claim {
            let quantity = if quantity == "time" { "simulated ms a step" } else { "bytes a step, of the busiest rank" };
            rows.push(Row {
                family: Family::Growth,
                claim,
                setting: setting.into(),
                over: "ranks",
                x: world as f64,
                seed: 0,
                quantity,
                value,
            });
        }
    }
    Ok(rows)
}
