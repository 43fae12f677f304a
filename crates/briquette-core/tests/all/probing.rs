//! Agreement on measurements for controllers: with the next step's header, or before the exchange.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use briquette_core::aggregate::mean::Mean;
use briquette_core::compress::top_k::TopK;
use briquette_core::config::Config;
use briquette_core::control::{Agreed, Controller, Decision, Needs};
use briquette_core::laws::{Rank, Setup, Synchronizes, each_rank};
use briquette_core::reduce::{AgreedStep, gather::Gather};
use briquette_core::state::Stateful;
use briquette_core::sync::{SyncStrategy, every_step::EveryStep};
use briquette_core::wrapper::adaptive::{Adaptive, Probing};
use briquette_core::{CompressionRatio, Layout, error::ConfigError};
use briquette_sim::{Compute, Simulated};

/// Gains of every step; equal on all ranks, so any rank may write them last.
type Gains = Arc<Mutex<Vec<Vec<f64>>>>;

/// Always sends 4x, and requests another measurement at each step that is a multiple of `changes`.
#[derive(Debug)]
struct Spy {
    ratios: Vec<CompressionRatio>,
    changes: u64,
    seen: Gains,
}

impl Stateful for Spy {}

impl Controller for Spy {
    fn observe(&mut self, agreed_step: &AgreedStep) {
        self.ratios.truncate(2);
        if agreed_step.step.is_multiple_of(self.changes) {
            self.ratios.push(CompressionRatio::new(16.0).unwrap());
        }
    }
    fn needs(&self) -> Needs<'_> {
        Needs { gains: &self.ratios, ..Needs::default() }
    }
    fn decide(&mut self, agreed: &Agreed<'_>) -> Decision<'_> {
        let mut seen = self.seen.lock().unwrap();
        let step = agreed.agreed_step.step as usize;
        let steps = seen.len().max(step + 1);
        seen.resize(steps, Vec::new());
        seen[step] = agreed.gains.to_vec();
        Decision::all(CompressionRatio::new(4.0).unwrap(), None)
    }
}

#[derive(Debug, Clone)]
struct Spied {
    probing: Probing,
    changes: u64,
    seen: Gains,
}

impl Synchronizes for Spied {
    fn strategy(&self, _: &Layout, _: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        let ratios = [4.0, 8.0].map(|ratio| CompressionRatio::new(ratio).unwrap()).to_vec();
        let spy = Spy { ratios, changes: self.changes, seen: Arc::clone(&self.seen) };
        let gather = Gather::new(TopK::fraction(0.25)?, Mean);
        Ok(Box::new(EveryStep::new(Adaptive::new(gather, spy)?.probing(self.probing))))
    }
}

const STEPS: usize = 8;

/// Returns the gains that were used for decisions, and the bytes of each exchange without its header.
fn run(probing: Probing, changes: u64) -> (Vec<Vec<f64>>, Vec<u64>) {
    let config = Spied { probing, changes, seen: Gains::default() };
    let outcomes = Setup::short(&config, 3).run(STEPS);
    let bytes = outcomes[0].iter().map(|outcome| outcome.counted.sent).collect();
    let seen = config.seen.lock().unwrap().clone();
    (seen, bytes)
}

#[test]
fn late_numbers_are_those_of_the_step_before_and_cost_no_exchange() {
    let (first, first_bytes) = run(Probing::First, u64::MAX);
    let (late, late_bytes) = run(Probing::Late, u64::MAX);
    // The first step has an additional number, and no previous measurement.
    assert_eq!(late[..2], first[..2]);
    assert_eq!(late[2..], first[1..STEPS - 1]);
    assert_ne!(late[2], first[2]);
    assert_eq!(late_bytes[..2], first_bytes[..2]);
    // Two rounds of four numbers of 8 bytes, or of fewer numbers: the size of a small all-reduce of three.
    let saved: Vec<u64> = first_bytes.iter().zip(&late_bytes).skip(2).map(|(first, late)| first - late).collect();
    assert!(saved.iter().all(|saved| *saved == saved_by_three_numbers()), "{saved:?}");
}

/// Returns the bytes that this rank sends in an all-reduce of three f64 among three ranks.
fn saved_by_three_numbers() -> u64 {
    each_rank(briquette_core::comm::Local::world(3), |mut comm, _| {
        comm.all_reduce_sum_f64(&mut [0.0; 3]).unwrap();
        comm.traffic().sent
    })[0]
}

#[test]
fn a_step_that_needs_something_else_than_was_measured_asks_first() {
    let (first, _) = run(Probing::First, 3);
    let (late, _) = run(Probing::Late, 3);
    for step in 0..STEPS {
        // After a step with three ratios two are needed, which were measured after the decision.
        let expected = if step % 3 <= 1 { &first[step] } else { &first[step - 1] };
        assert_eq!(&late[step], expected, "step {step}");
    }
}

fn seconds_per_step(config: &str, latency: &str) -> f64 {
    briquette_zoo::install();
    let config: Config = toml::from_str(config).unwrap();
    let setup = &Setup::short(&config, 4);
    let network = format!("1gbit,{latency}").parse().unwrap();
    let seconds = each_rank(Simulated::world(4, network, Compute::Fixed(Duration::ZERO)), |mut comm, rank| {
        let mut rank = Rank::new(setup, rank);
        (0..3).for_each(|_| drop(rank.step(&mut comm).unwrap()));
        let begin = comm.now();
        (0..5).for_each(|_| drop(rank.step(&mut comm).unwrap()));
        (comm.now() - begin) / 5.0
    });
    seconds[0]
}

#[test]
fn a_probing_controller_waits_no_round_trip_of_its_own() {
    let dq_sgd = "reducer = \"gather:qsgd:4\"\ncontroller = \"dqsgd:4\"\n";
    let alone = seconds_per_step("reducer = \"gather:qsgd:4\"\n", "1ms");
    let late = seconds_per_step(dq_sgd, "1ms");
    let first = seconds_per_step(&format!("{dq_sgd}probing = \"first\"\n"), "1ms");
    // A few extra bytes at 1 Gbit/s.
    assert!((late - alone).abs() < 1e-5, "{late} s a step, {alone} s without a controller");
    assert!(first - late > 0.9e-3, "{first} s a step where numbers are agreed first, {late} s where they are not");
}

/// A value that is needed only at some steps is measured at the steps before them.
#[test]
fn controllers_that_measure_now_and_then_wait_no_round_trip_either() {
    for (reducer, controller) in [
        ("gather:qsgd:4", "adaqs:4,every=3"),
        ("gather:topk:10x", "accordion:10x,high=20x,interval=3,window=1,per_slot=false"),
    ] {
        let seconds = |controller: &str| {
            seconds_per_step(&format!("reducer = \"{reducer}\"\ncontroller = \"{controller}\"\n"), "1ms")
        };
        let (alone, late) = (seconds("none"), seconds(controller));
        assert!((late - alone).abs() < 1e-5, "{controller}: {late} s a step, {alone} s without a controller");
    }
}
