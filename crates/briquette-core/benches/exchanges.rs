//! Exchanges of one vector over threads, beside a copy of it in the same run: `cargo bench -p briquette-core --bench exchanges`.
//!
//! Prints medians as CSV: seconds of an exchange over seconds of the dense ring, and over a copy of the vector. The turns of all
//! alternate, so that a machine that is busy is busy for all.

use std::hint::black_box;
use std::time::Instant;

use briquette_core::comm::Local;
use briquette_core::config::{Exchange, ReducerConfig};
use briquette_core::error::{ConfigError, ReduceError};
use briquette_core::reduce::{AgreedStep, Reducer, Round};
use briquette_core::{Key, Layout, Session};

const REDUCERS: [&str; 9] = [
    "dense",
    "ring:bf16",
    "ring:f16",
    "ring:int8",
    "ring:int8,stochastic=true",
    "gather:bf16",
    "gather:minmax",
    "power-sgd:2",
    "power-sgd:4",
];
const WORLDS: [usize; 2] = [2, 4];
const TURNS: u64 = 15;

fn main() {
    briquette_zoo::install();
    // An embedding, LSTM matrices, and what is no matrix: a text classifier of 1.5 million values.
    let layout = Layout::new([
        ("embedding", vec![20_002, 64]),
        ("forward", vec![160, 384]),
        ("reverse", vec![160, 384]),
        ("bias", vec![768]),
    ]);
    println!("world,reducer,sent_bytes,over_dense,over_copy");
    for world in WORLDS {
        let medians = Local::run(world, |mut comm| run(&layout, &mut comm)).swap_remove(0).expect("threads exchange");
        let (copy, dense) = (medians[0].0, medians[1].0);
        for (name, (seconds, sent)) in REDUCERS.iter().zip(&medians[1..]) {
            println!("{world},\"{name}\",{sent},{:.3},{:.3}", seconds / dense, seconds / copy);
        }
    }
}

/// Median seconds and bytes sent: of a copy, and of every reducer. All ranks do the same; one is shown.
fn run(layout: &Layout, comm: &mut Session) -> Result<Vec<(f64, u64)>, ReduceError> {
    let input: Vec<f32> = (0..layout.len()).map(|i| ((i * 7 + comm.rank()) as f32 * 0.37).sin()).collect();
    let mut average = vec![0.0; input.len()];
    let mut reducers: Vec<Box<dyn Reducer>> =
        REDUCERS.iter().map(|text| build(text, layout).expect("it builds")).collect();
    let mut seen = vec![(Vec::new(), 0); 1 + reducers.len()];
    for turn in 0..TURNS {
        comm.barrier()?;
        let start = Instant::now();
        average.copy_from_slice(black_box(&input));
        black_box(&mut average);
        seen[0].0.push(start.elapsed().as_secs_f64());
        for (reducer, seen) in reducers.iter_mut().zip(&mut seen[1..]) {
            comm.barrier()?;
            let (start, agreed_step) = (Instant::now(), AgreedStep { step: turn, ..AgreedStep::default() });
            let (key, slots, average) = (Key::new(7).step(turn), layout.slots(), &mut average);
            let round = Round { key, slots, agreed_step: &agreed_step, input: &input, average, sent: None };
            seen.1 = reducer.exchange(round, comm)?.traffic.sent;
            comm.barrier()?;
            seen.0.push(start.elapsed().as_secs_f64());
        }
    }
    Ok(seen.into_iter().map(|(seconds, sent)| (median(seconds), sent)).collect())
}

fn build(text: &str, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
    let reducer: ReducerConfig = text.parse()?;
    Exchange { reducer, dense_below: Some(0), ..Exchange::default() }.build_reducer(layout, WORLDS[0])
}

/// The middle one, without the first, which finds storage.
fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.remove(0);
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}
