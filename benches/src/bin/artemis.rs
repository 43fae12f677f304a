//! Artemis on ten ranks with different quadratics and full gradients: the distance to the optimum, round by round.

use std::path::PathBuf;

use anyhow::Result;
use briquette::core::comm::Local;
use briquette::core::config::Exchange;
use briquette::core::error::ReduceError;
use briquette::core::reduce::{AgreedStep, Reducer, Round};
use briquette::core::{Key, Layout};
use briquette_benches::ranks::write_csv;
use briquette_benches::trainer::machine;
use clap::Parser;
use serde::Serialize;

/// Distances to the optimum of heterogeneous quadratics under Artemis, with and without memories, PP1 and PP2
#[derive(Debug, Parser)]
struct Arguments {
    /// Steps of gradient descent
    #[arg(long, default_value_t = 3000)]
    rounds: u64,
    /// Its learning rate
    #[arg(long, default_value_t = 0.05)]
    lr: f32,
    /// Write the table here as CSV too
    #[arg(long)]
    csv: Option<PathBuf>,
}

const LEN: usize = 20;
const RANKS: usize = 10;
const COMPRESSED: &str = "artemis:qsgd:s1:512:l2,down=qsgd:s1:512:l2";
/// Variants and their additions to the settings above; dense is without any.
const SETTINGS: [(&str, &str); 4] = [
    ("no memory", ",alpha=0"),
    ("memory", ""),
    ("half participation, PP1", ",participation=0.5,variant=pp1"),
    ("half participation, PP2", ",participation=0.5"),
];

#[derive(Debug, Serialize)]
struct Row {
    setting: &'static str,
    reducer: String,
    round: u64,
    squared_distance: f64,
    lr: f32,
    ranks: usize,
    machine: String,
    cores: usize,
}

/// Returns curvatures in [½, 1½] and the minimizer of a rank's own loss.
fn quadratic(rank: usize) -> [Vec<f64>; 2] {
    let wave = |i: usize, by: f64| (((i + 1) * (3 * rank + 2)) as f64 * by).sin();
    [(0..LEN).map(|i| 1.0 + 0.5 * wave(i, 0.7)).collect(), (0..LEN).map(|i| 2.0 * wave(i, 1.3)).collect()]
}

fn squared_distance(x: &[f32]) -> f64 {
    let all: Vec<_> = (0..RANKS).map(quadratic).collect();
    let at = |(i, x): (usize, &f32)| {
        let (sum, weight) = all.iter().fold((0.0, 0.0), |(sum, weight), [a, b]| (sum + a[i] * b[i], weight + a[i]));
        (f64::from(*x) - sum / weight).powi(2)
    };
    x.iter().enumerate().map(at).sum()
}

/// Returns the distances after 0, 100, 200, … rounds.
fn descend(reducer: &str, arguments: &Arguments) -> Result<Vec<(u64, f64)>> {
    let exchange = Exchange { reducer: reducer.parse()?, ..Exchange::default() };
    let layout = Layout::flat(LEN);
    exchange.build_reducer(&layout, RANKS)?;
    let ranks = Local::run(RANKS, |mut comm| {
        let mut reducer = exchange.build_reducer(&layout, RANKS).expect("built before");
        let ([a, b], mut distances) = (quadratic(comm.rank()), Vec::new());
        let (mut x, mut average) = (vec![0.0_f32; LEN], vec![0.0; LEN]);
        for step in 0..=arguments.rounds {
            if step % 100 == 0 {
                distances.push((step, squared_distance(&x)));
            }
            let gradient: Vec<f32> = (0..LEN).map(|i| (a[i] * (f64::from(x[i]) - b[i])) as f32).collect();
            let (key, slots, agreed_step) =
                (Key::new(1).step(step), layout.slots(), AgreedStep { step, ..AgreedStep::default() });
            let round =
                Round { key, slots, agreed_step: &agreed_step, input: &gradient, average: &mut average, sent: None };
            reducer.exchange(round, &mut comm)?;
            x.iter_mut().zip(&average).for_each(|(x, average)| *x -= arguments.lr * average);
        }
        Ok::<_, ReduceError>(distances)
    });
    Ok(ranks.into_iter().next().expect("ten ranks")?)
}

fn main() -> Result<()> {
    briquette::zoo::install();
    let arguments = Arguments::parse();
    let (machine, cores) = machine();
    let mut rows = Vec::new();
    let settings = SETTINGS.map(|(setting, more)| (setting, format!("{COMPRESSED}{more}")));
    for (setting, reducer) in [("dense", "dense".to_owned())].into_iter().chain(settings) {
        for (round, squared_distance) in descend(&reducer, &arguments)? {
            let (reducer, machine) = (reducer.clone(), machine.clone());
            println!("{setting}, round {round}: {squared_distance:.3e}");
            rows.push(Row {
                setting,
                reducer,
                round,
                squared_distance,
                lr: arguments.lr,
                ranks: RANKS,
                machine,
                cores,
            });
        }
    }
    write_csv(arguments.csv.as_deref(), &rows)
}
