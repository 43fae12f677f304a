//! Absurd sizes: every setting of every family accepts them and runs, or rejects them when it is built.
//!
//! The settings are those in the families' lists, so that a new one is tested too: each of its fields, and each number in the
//! texts of its representatives. A built object takes three steps with few ranks, without a panic and in time.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use briquette_core::Key;
use briquette_core::comm::{Local, run_ranks};
use briquette_core::compress::dense::Dense;
use briquette_core::config::{Config, Exchange, ServerConfig, representatives};
use briquette_core::error::{CommError, ReduceError};
use briquette_core::laws::{Rank, Setup, short};
use briquette_core::server::{Batch, Computed, Server, Trainer, Uplink, serve, work};

const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "255",
    "1000000",
    "4294967295",
    "9223372036854775807",
    "18446744073709551615",
    "-1",
    "1e-300",
    "1e30",
    "1e308",
    "inf",
    "NaN",
    "1e308x",
];

/// Many times the duration of the slowest one; an unbounded size takes minutes to years.
const PATIENCE: Duration = Duration::from_secs(120);

/// Maximum number of ranks. A setting that needs more is rejected.
const MOST_RANKS: usize = 8;

/// Returns the names that an error lists after `expected`.
fn fields(error: &str) -> Vec<String> {
    let names = error.split_once("expected").map_or("", |(_, names)| names);
    names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns copies of `text`, in each of which one of its numbers is replaced by one of `NUMBERS`.
fn replaced(text: &str) -> Vec<String> {
    let mut texts = Vec::new();
    let mut from = 0;
    while let Some(start) = text[from..].find(|c: char| c.is_ascii_digit()).map(|at| from + at) {
        let end = text[start..].find(|c: char| !c.is_ascii_digit() && c != '.').map_or(text.len(), |at| start + at);
        texts.extend(NUMBERS.map(|number| format!("{}{number}{}", &text[..start], &text[end..])));
        from = end;
    }
    texts
}

/// Returns all settings that can be parsed and differ from these in one number.
fn variants<F: FromStr + Display>(like: &F) -> Vec<F>
where
    F::Err: Display,
{
    let text = like.to_string();
    let name = text.split(':').next().unwrap();
    let Err(error) = format!("{name}:no-such-field=1").parse::<F>() else { panic!("{name} takes any field") };
    let mut texts = replaced(&text);
    for field in fields(&error.to_string()) {
        for number in NUMBERS {
            texts.push(format!("{name}:{field}={number}"));
            let separator = if text.contains(':') { "," } else { ":" };
            texts.push(format!("{text}{separator}{field}={number}"));
        }
    }
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

/// Returns every variant of a part of a representative, once.
fn configs() -> Vec<Config> {
    briquette_zoo::install();
    let (mut seen, mut configs) = (BTreeSet::new(), Vec::new());
    let mut put = |what: String, config: Config| {
        if seen.insert(what) {
            configs.push(config);
        }
    };
    for config in representatives() {
        for strategy in variants(&config.strategy) {
            put(format!("strategy {strategy}"), Config { strategy, ..config.clone() });
        }
        let exchange = &config.exchange;
        let with = |edit: &mut dyn FnMut(&mut Exchange)| {
            let mut config = config.clone();
            edit(&mut config.exchange);
            config
        };
        for reducer in variants(&exchange.reducer) {
            put(format!("reducer {reducer}"), with(&mut |exchange| exchange.reducer = reducer.clone()));
        }
        for aggregator in variants(&exchange.aggregator) {
            put(format!("aggregator {aggregator}"), with(&mut |exchange| exchange.aggregator = aggregator.clone()));
        }
        for feedback in variants(&exchange.feedback) {
            put(format!("feedback {feedback}"), with(&mut |exchange| exchange.feedback = feedback.clone()));
        }
        for controller in variants(&exchange.controller) {
            put(format!("controller {controller}"), with(&mut |exchange| exchange.controller = controller.clone()));
        }
        for number in [1, 1 << 20, u32::MAX as usize, usize::MAX] {
            let (bucket, dense, threads) = (Some(number), Some(number), Some(number));
            put(format!("bucket {number}"), with(&mut |exchange| exchange.bucket_values = bucket));
            put(format!("dense {number}"), with(&mut |exchange| exchange.dense_below = dense));
            put(format!("threads {number}"), with(&mut |exchange| exchange.threads = threads));
        }
    }
    configs
}

/// Fails if `run` panics or does not end in time.
fn in_time(what: &str, run: impl FnOnce() + Send + 'static) {
    // A failed allocation ends the process: with `--nocapture` this is then the last line.
    println!("{what}");
    let (ended, wait) = channel();
    let running = thread::spawn(move || {
        run();
        let _ = ended.send(());
    });
    match wait.recv_timeout(PATIENCE) {
        Ok(()) => running.join().unwrap(),
        Err(RecvTimeoutError::Disconnected) => panic!("{what} panicked"),
        Err(RecvTimeoutError::Timeout) => panic!("{what} has no end"),
    }
}

fn steps(config: Config) {
    let world = config.min_ranks().clamp(3, MOST_RANKS);
    if config.build(&short(), world).is_err() {
        return;
    }
    let setup = Setup { config, layout: short(), world };
    let world = Local::builder(setup.world).machines_of(const { NonZeroUsize::new(2).unwrap() });
    let world = world.deadline(PATIENCE).build();
    run_ranks(world, |mut comm| {
        let mut state = Rank::new(&setup, comm.rank());
        // The effect of a number on a step may be an error with a name.
        let _ = (0..3).try_for_each(|_| state.step(&mut comm).map(drop));
        Ok::<_, CommError>(())
    })
    .into_iter()
    .for_each(|rank| rank.unwrap());
}

#[test]
fn sizes_that_nobody_means_are_refused_or_run() {
    let configs = configs();
    assert!(configs.len() > 500, "{}", configs.len());
    for config in configs {
        let what = toml::to_string(&config).unwrap_or_else(|_| format!("{config:?}"));
        in_time(&what, move || steps(config));
    }
}

/// `½‖x‖²`.
struct Quadratic;

impl Trainer for Quadratic {
    type Error = ReduceError;

    fn gradient(&mut self, x: &[f32], batch: Batch, out: &mut Vec<f32>) -> Result<Computed, ReduceError> {
        out.clear();
        out.extend_from_slice(x);
        let batches = if batch == Batch::All { 4 } else { 1 };
        Ok(Computed { samples: 1, loss: 0.0, batches })
    }

    fn step(&mut self, x: &mut Vec<f32>, gradient: &[f32], _: u64) -> Result<(), ReduceError> {
        x.iter_mut().zip(gradient).for_each(|(x, g)| *x -= 0.1 * g);
        Ok(())
    }
}

#[test]
fn so_are_those_of_servers() {
    briquette_zoo::install();
    let all = ServerConfig::all();
    let mut seen = BTreeSet::new();
    for config in all.iter().flat_map(variants).filter(|config| seen.insert(config.to_string())) {
        in_time(&format!("server {config}"), move || {
            if config.get().build(2).is_err() {
                return;
            }
            let ranks = run_ranks(Local::builder(3).deadline(PATIENCE).build(), |mut comm| {
                let start = vec![1.0; 10];
                let _ = match comm.rank() {
                    0 => {
                        let mut server = Server::new(config.get().build(2).unwrap(), start, 2);
                        serve(&mut server, &mut Quadratic, 3, &mut comm)
                    }
                    _ => {
                        let (mut x, mut uplink) = (start, Uplink::new(Dense, false));
                        work(&mut uplink, &mut Quadratic, (0, &mut 0), (Key::new(1), &mut x), &mut comm).map(drop)
                    }
                };
                Ok::<_, CommError>(())
            });
            ranks.into_iter().for_each(|rank| rank.unwrap());
        });
    }
}
