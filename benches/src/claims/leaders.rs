//! Separate replicas pulled to a center or a leader: EASGD, LSGD, Parle.

use anyhow::Result;

use super::world::{Descent, noise};
use super::{Claim, Family, Row, mean};

pub(super) const CLAIMS: &[Claim] = &[
    Claim {
        name: "better well",
        says: "LSGD (Teng 2019): a leader pulls all ranks to the better of two minima; an average may stay between them",
        run: |seeds, _| two_wells_by_pull("better well", 10 * seeds),
        judge: |rows| {
            let [weak, strong] = [0.025, 0.1].map(|pull| ["lsgd", "easgd"].map(|setting| mean(rows, setting, pull)));
            let seen = format!(
                "within .3 of the better minimum, pulled by .025 a step: {:.2} of LSGD's runs, {:.2} of EASGD's; by .1: {:.2} and {:.2}",
                weak[0], weak[1], strong[0], strong[1]
            );
            (weak[0] > 0.9 && weak[1] < 0.1 && strong[0] > 0.9, seen)
        },
        log: false,
    },
    Claim {
        name: "stationary points",
        says: "LSGD (Teng 2019): stationary points are those of the loss; elastic averaging has others, where springs hold ranks off their minima",
        run: |_, _| two_wells_by_pull("stationary points", 1),
        judge: |rows| {
            let [led, elastic] = ["lsgd", "easgd"].map(|setting| mean(rows, setting, 0.025));
            let seen = format!(
                "largest slope at a rank's own end, without noise, pulled by .025: LSGD {led:.0e}, EASGD {elastic:.2}"
            );
            (led < 1e-4 && elastic > 0.1, seen)
        },
        log: false,
    },
    Claim {
        name: "wide well",
        says: "Parle, Entropy-SGD (Chaudhari 2017): of a deep narrow and a wide well they end in the wide one more often than SGD",
        run: |seeds, _| wide_well(seeds),
        judge: |rows| {
            let [parle, entropy] = [4.0, 1.0].map(|ranks| mean(rows, "parle", ranks));
            let sgd = [4.0, 1.0].map(|ranks| mean(rows, "every-step", ranks)).into_iter().fold(0.0, f64::max);
            let holds = parle > sgd + 0.05 && entropy > sgd + 0.05;
            (holds, format!("in the wide well: Parle {parle:.2}, Entropy-SGD {entropy:.2}, SGD {sgd:.2} of starts"))
        },
        log: false,
    },
];

/// `(x² − 1)²/4 + 0.1·x`: the minimum near −1 is the better one.
pub(super) fn two_wells(x: f32) -> (f64, f32) {
    let x = f64::from(x);
    (0.25 * (x * x - 1.0).powi(2) + 0.1 * x, (x * x * x - x + 0.1) as f32)
}

/// Four ranks from starts in [−1.5, 1.5], two on either side, pulled by a given share of the distance at each step. A
/// run counts if the evaluated point is near the better minimum; without noise, the result is the largest slope at a
/// rank's final position.
fn two_wells_by_pull(claim: &'static str, seeds: u64) -> Result<Vec<Row>> {
    let with_noise = claim == "better well";
    let (amount, quantity) = if with_noise { (0.1, "share of runs") } else { (0.0, "largest slope where a rank ends") };
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        let start = |rank: usize| {
            let side = if rank.is_multiple_of(2) { 1.0 } else { -1.0 };
            let draw = noise(seed, rank, 0)().abs().min(1.0);
            vec![side * (0.5 + draw)]
        };
        let gradient = |rank: usize, step: u64, x: &[f32], g: &mut [f32]| {
            g[0] = two_wells(x[0]).1 + amount * noise(seed, rank, step + 1)();
        };
        for pull in [0.0125, 0.025, 0.05, 0.1, 0.2] {
            // Of four ranks EASGD's is a quarter of beta.
            let (lsgd, easgd) =
                (format!("lsgd:1,local=1,group=4,pull={pull},global-pull=0"), format!("easgd:1,beta={}", 4.0 * pull));
            for (setting, strategy) in [("lsgd", &*lsgd), ("easgd", &easgd), ("every-step", "every-step")] {
                // Replicas that are declared equal start equal.
                let alike = |_: usize| start(seed as usize % 4);
                let starts: &(dyn Fn(usize) -> Vec<f32> + Sync) = if setting == "every-step" { &alike } else { &start };
                let descent = Descent { strategy, ranks: 4, steps: 400, rate: 0.1, ..Descent::default() };
                let ended = descent.run(starts, &gradient, &|x| two_wells(x[0]).0)?;
                let steepest = ended.ranks.iter().map(|x| f64::from(two_wells(x[0]).1.abs())).fold(0.0, f64::max);
                let is_near = f64::from(u8::from((ended.model[0] + 1.05).abs() < 0.3));
                rows.push(Row {
                    family: Family::Leaders,
                    claim,
                    setting: setting.into(),
                    over: "pull",
                    x: pull,
                    seed,
                    quantity,
                    rate: None,
                    value: if with_noise { is_near } else { steepest },
                });
            }
        }
    }
    Ok(rows)
}

/// A deep narrow well at 0 and a wide one at 2, strong noise, 400 starts.
fn wide_well(seeds: u64) -> Result<Vec<Row>> {
    let well = |x: f32, depth: f32, width: f32| depth * x / width.powi(2) * (-0.5 * (x / width).powi(2)).exp();
    let slope = |x: f32| well(x, 1.0, 0.25) + well(x - 2.0, 0.8, 0.8) + 0.2 * (x - 1.0);
    let mut rows = Vec::new();
    for seed in 1..=seeds {
        let gradient = |rank: usize, step: u64, x: &[f32], g: &mut [f32]| {
            let mut noise = noise(seed, rank, step);
            g.iter_mut().zip(x).for_each(|(g, x)| *g = slope(*x) + 3.5 * noise());
        };
        let settings = [
            ("parle", "parle:25,pull=1,scope=1,alpha=0.95"),
            ("local-sgd:25", "local-sgd:25"),
            ("every-step", "every-step"),
        ];
        for (setting, strategy) in settings {
            for ranks in [1, 2, 4] {
                let descent = Descent { strategy, ranks, steps: 1500, rate: 0.1, ..Descent::default() };
                let start = |_: usize| (0..400).map(|i| i as f32 / 100.0 - 2.0).collect();
                let model = descent.run(&start, &gradient, &|_| 0.0)?.model;
                rows.push(Row {
                    family: Family::Leaders,
                    claim: "wide well",
                    setting: setting.into(),
                    over: "ranks",
                    x: ranks as f64,
                    seed,
                    quantity: "share of starts that end in it",
                    rate: None,
                    value: model.iter().filter(|x| (0.6..3.5).contains(*x)).count() as f64 / 400.0,
                });
            }
        }
    }
    Ok(rows)
}
