//! Bytes and simulated time of a step as the world grows: measured up to 64 ranks, and computed beyond that by formulas
//! that are checked against the measurements.

use anyhow::{Result, ensure};
use briquette::core::comm::all_reduce_traffic;
use briquette::sim::Network;

use super::world::{Descent, Ended, noise};
use super::{Claim, Family, Row, mean};

pub(super) const CLAIMS: &[Claim] = &[
    Claim {
        name: "bytes",
        says: "SGP sends half of a ring's bytes and DiLoCo a period of times fewer, in any world",
        run: |_, _| rows("bytes", "bytes a step, of the busiest rank", &ALONE),
        judge: |rows| {
            let at = |setting: &str| mean(rows, setting, 1024.0) / mean(rows, RING, 1024.0);
            let [gossip, diloco] = [SGP, DILOCO].map(at);
            (gossip < 0.6 && diloco < 0.02, format!("of the ring's at 1024 ranks: SGP {gossip:.2}, DiLoCo {diloco:.3}"))
        },
        log: true,
    },
    Claim {
        name: "time",
        says: "Over 1 Gbit/s and 1 ms a ring's step grows with the world, SGP's and DiLoCo's hardly",
        run: |_, _| rows("time", "simulated ms a step", &ALONE),
        judge: |rows| {
            let grows = |setting: &str, to: f64| mean(rows, setting, to) / mean(rows, setting, 4.0);
            let of_ring = |setting: &str| mean(rows, setting, 64.0) / mean(rows, RING, 64.0);
            let [ring, gossip] = [RING, SGP].map(|setting| grows(setting, 64.0));
            let [sgp, diloco] = [SGP, DILOCO].map(of_ring);
            let seen = format!(
                "4 → 64 ranks: ring {ring:.1} times, SGP {gossip:.2}; of the ring's at 64: SGP {sgp:.2}, DiLoCo {diloco:.2}; \
                 computed for 1024: ring {:.0} times, SGP {:.2}",
                grows(RING, 1024.0),
                grows(SGP, 1024.0)
            );
            (gossip < 1.1 && ring > 4.0 && sgp < 0.5 && diloco < 0.5, seen)
        },
        log: true,
    },
    Claim {
        name: "bytes on a machine's link",
        says: "Hierarchical all-reduce (Goyal 2017): one rank of each machine of n exchanges for all. Compressed gathers send n² times fewer bytes over a \
               machine's link, a ring as many; local steps between machines a period of times fewer",
        run: |_, _| rows("bytes on a machine's link", "bytes a step, out of a machine of four", &SHARED),
        judge: |rows| {
            let fewer = |flat, two| mean(rows, flat, 64.0) / mean(rows, two, 64.0);
            let (ring, top_k, local) = (fewer(RING, RING_TWO), fewer(TOP_K, TOP_K_TWO), fewer(RING_TWO, LOCAL_TWO));
            let fits =
                (top_k / 16.0 - 1.0).abs() < 0.02 && (ring - 1.0).abs() < 0.1 && (local / 10.0 - 1.0).abs() < 0.01;
            let seen = format!(
                "64 ranks, four a machine: {top_k:.1} times fewer of top-k's, {ring:.2} times of a ring's; every 10 steps {local:.1} times fewer of the ring's"
            );
            (fits, seen)
        },
        log: true,
    },
    Claim {
        name: "time of a hierarchical all-reduce",
        says: "So compressed gathers are faster in a hierarchical all-reduce, by more the larger the world; a dense ring is not",
        run: |_, _| rows("time of a hierarchical all-reduce", "simulated ms a step", &SHARED),
        judge: |rows| {
            let [ring, two, top_k, top_k_two, local] =
                [RING, RING_TWO, TOP_K, TOP_K_TWO, LOCAL_TWO].map(|setting| mean(rows, setting, 64.0));
            let seen = format!(
                "64 ranks, four a machine, 10 ms of computing: ring {ring:.1} ms, hierarchical {two:.1}, every 10 steps {local:.1}; top-k \
                 {top_k:.1}, hierarchical {top_k_two:.1}"
            );
            (ring < 1.05 * two && top_k_two < 0.7 * top_k && local < 0.5 * two, seen)
        },
        log: true,
    },
];

/// A configuration, on links that some ranks share.
struct Setting {
    name: &'static str,
    strategy: &'static str,
    reducer: &'static str,
    /// Ranks per machine.
    ranks: usize,
}

const RING: &str = "every-step";
const SGP: &str = "sgp";
const DILOCO: &str = "diloco:100";
const RING_TWO: &str = "hierarchical:dense";
const TOP_K: &str = "gather:topk:100x";
const TOP_K_TWO: &str = "hierarchical:(gather:topk:100x)";
const LOCAL_TWO: &str = "two-level:(local-sgd:10)";

const ALONE: [Setting; 3] = [
    Setting { name: RING, strategy: "every-step", reducer: "dense", ranks: 1 },
    Setting { name: SGP, strategy: "sgp", reducer: "dense", ranks: 1 },
    Setting { name: DILOCO, strategy: "diloco:100", reducer: "dense", ranks: 1 },
];
const SHARED: [Setting; 5] = [
    Setting { name: RING, strategy: "every-step", reducer: "dense", ranks: 4 },
    Setting { name: RING_TWO, strategy: "every-step", reducer: RING_TWO, ranks: 4 },
    Setting { name: TOP_K, strategy: "every-step", reducer: TOP_K, ranks: 4 },
    Setting { name: TOP_K_TWO, strategy: "every-step", reducer: TOP_K_TWO, ranks: 4 },
    Setting { name: LOCAL_TWO, strategy: LOCAL_TWO, reducer: "dense", ranks: 4 },
];

const COMPUTE_MS: f64 = 10.0;
const LATENCY_MS: f64 = 1.0;
/// Bytes of the step header of one slot, to each other rank.
const HEADER: u64 = 106;
/// Maximum deviation of a run from the computed value.
const TOLERANCE: f64 = 0.03;

impl Setting {
    /// Returns the number of values of the model: enough that compressed ones take time on shared links.
    fn len(&self) -> usize {
        if self.ranks == 1 { 20_000 } else { 200_000 }
    }

    /// Returns the steps of a period of DiLoCo.
    fn steps(&self) -> u64 {
        if self.ranks == 1 { 100 } else { 10 }
    }

    /// Returns the number of steps with a header, which each rank sends to each other.
    fn headers(&self) -> u64 {
        if matches!(self.name, SGP | DILOCO | LOCAL_TWO) { 1 } else { self.steps() }
    }

    fn run(&self, ranks: usize) -> Result<Ended> {
        let network: Network = format!("1gbit,{LATENCY_MS}ms,{}", self.ranks).parse()?;
        let (strategy, reducer, steps) = (self.strategy, self.reducer, self.steps());
        let on = Some((network, &*format!("{COMPUTE_MS}ms")));
        let descent = Descent { strategy, reducer, ranks, steps, on, ..Descent::default() };
        // Top-k does not send values that are zero.
        let gradient = |rank: usize, step: u64, _: &[f32], g: &mut [f32]| {
            let mut noise = noise(1, rank, step);
            g.iter_mut().for_each(|g| *g = noise());
        };
        descent.run(&|_| vec![0.0; self.len()], &gradient, &|_| 0.0)
    }

    /// Returns the bytes of all steps without headers, which are small and go to every rank: the bytes of the busiest
    /// rank if each has a separate link, else those that leave the busiest machine. A gather's messages have `message`
    /// bytes.
    fn bytes(&self, world: usize, message: f64) -> f64 {
        let ring = |ranks: usize| (0..ranks).map(|rank| all_reduce_traffic(self.len(), ranks, rank).sent).max();
        let ring = |ranks: usize| ring(ranks).unwrap_or_default() as f64;
        let machines = world / self.ranks;
        match self.name {
            SGP => (self.steps() * (4 * self.len() as u64 + 4)) as f64,
            DILOCO => ring(world),
            LOCAL_TWO => ring(machines),
            RING_TWO => self.steps() as f64 * ring(machines),
            TOP_K => self.steps() as f64 * (self.ranks * (world - self.ranks)) as f64 * message,
            TOP_K_TWO => self.steps() as f64 * (machines - 1) as f64 * message,
            _ => self.steps() as f64 * ring(world),
        }
    }

    /// Returns the bytes of a run, counted as by [`bytes`](Self::bytes).
    fn moved(&self, ended: &Ended, world: usize) -> f64 {
        let headers = self.headers() * HEADER * (self.ranks * (world - self.ranks)) as u64;
        (if self.ranks == 1 { ended.sent } else { ended.link }).saturating_sub(headers) as f64
    }

    /// Returns the simulated milliseconds of a step; `None` if there is no formula.
    fn milliseconds(&self, world: usize, message: f64) -> Option<f64> {
        // A rank has its share of a link.
        let transfer = |bytes: f64| 8.0 * bytes * self.ranks as f64 / 1e6;
        let ring =
            |ranks: usize| 2.0 * (ranks - 1) as f64 * (LATENCY_MS + transfer(4.0 * self.len() as f64 / ranks as f64));
        // Ranks send to the next first: to the last rank of a machine, after the others of it, but for those of its own.
        let (frames, machines) = (world - 1, world / self.ranks);
        let gather = |frames: usize, bytes: f64| LATENCY_MS + frames as f64 * transfer(bytes);
        let header = gather(frames, HEADER as f64);
        let exchange = match (self.name, self.ranks) {
            (SGP, _) => header / 100.0 + LATENCY_MS + transfer((4 * self.len() + 4) as f64),
            (DILOCO, _) => (header + ring(world)) / 100.0,
            (RING_TWO, _) => header + ring(machines),
            (LOCAL_TWO, _) => (header + ring(machines)) / self.steps() as f64,
            (TOP_K, _) => header + gather(frames, message),
            (TOP_K_TWO, _) => header + gather(machines - 1, message),
            (_, 1) => header + ring(world),
            // Hops inside machines take no time, and those between them overlap.
            _ => return None,
        };
        Some(COMPUTE_MS + exchange)
    }
}

fn rows(claim: &'static str, quantity: &'static str, settings: &[Setting]) -> Result<Vec<Row>> {
    let (mut rows, is_time) = (Vec::new(), quantity.contains("ms"));
    for setting in settings {
        let mut message = 0.0;
        for world in [4, 8, 16, 32, 64, 128, 256, 512, 1024].into_iter().filter(|world| *world > setting.ranks) {
            let steps = setting.steps() as f64;
            let value = if world <= 64 {
                let ended = setting.run(world)?;
                let (ms, bytes) = (1e3 * ended.seconds / steps, setting.moved(&ended, world));
                if message == 0.0 {
                    message = bytes / setting.bytes(world, 1.0);
                }
                let name = setting.name;
                let near = |got: f64, computed: f64| (got / computed - 1.0).abs() < TOLERANCE;
                let counted = setting.bytes(world, message);
                ensure!(near(bytes, counted), "{name}, {world} ranks: {bytes} bytes, counted {counted}");
                let computed = setting.milliseconds(world, message).unwrap_or(ms);
                ensure!(near(ms, computed), "{name}, {world} ranks: {ms} ms a step, computed {computed}");
                Some(if is_time { ms } else { bytes / steps })
            } else if is_time {
                setting.milliseconds(world, message)
            } else {
                Some(setting.bytes(world, message) / steps)
            };
            rows.extend(value.map(|value| Row {
                family: Family::Growth,
                claim,
                setting: setting.name.into(),
                over: "ranks",
                x: world as f64,
                seed: 0,
                quantity,
                rate: None,
                value,
            }));
        }
    }
    Ok(rows)
}
