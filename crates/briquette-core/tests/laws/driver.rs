//! Drives strategies and reducers over threads, the way the Burn glue does.

use briquette_core::comm::{Communicator, Local};
use briquette_core::config::{Config, Exchange};
use briquette_core::error::SyncError;
use briquette_core::reduce::{Facts, Previous, Reducer, Round};
use briquette_core::report::Report;
use briquette_core::state::State;
use briquette_core::sync::{Context, Header, SyncStrategy, agree};
use briquette_core::{Key, Layout, Traffic};
use rand::Rng;
use rand_distr::{Distribution, StandardNormal};

/// Matrices, vectors and a lone number; 131 values.
pub(crate) fn layout() -> Layout {
    Layout::new([
        ("conv.weight", vec![6, 3, 3, 1]),
        ("conv.bias", vec![17]),
        ("fc.weight", vec![8, 7]),
        ("scale", vec![4]),
    ])
}

/// This rank's gradient of a step: heavy-tailed, with zeros.
pub(crate) fn gradient(rank: usize, step: u64) -> Vec<f32> {
    let mut rng = Key::new(77).step(step).rank(rank).block(0);
    let mut value = || -> f32 {
        let x: f32 = StandardNormal.sample(&mut rng);
        if rng.random::<f32>() < 0.1 { 0.0 } else { x * x * x }
    };
    (0..layout().len()).map(|_| value()).collect()
}

/// Vectors that compressors find hard.
pub(crate) fn vectors() -> Vec<(&'static str, Vec<f32>)> {
    let mut hot = vec![0.0; 100];
    hot[37] = -3.0;
    let mut outlier = gradient(0, 0);
    outlier[5] = 1e6;
    vec![
        ("gradient", gradient(0, 1)),
        ("all equal", vec![0.7; 100]),
        ("zeros", vec![0.0; 64]),
        ("one-hot", hot),
        ("outlier", outlier),
        ("one value", vec![-2.5]),
    ]
}

/// What one rank saw of one step.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    pub(crate) average: Vec<f32>,
    pub(crate) sent: Vec<f32>,
    pub(crate) state: State,
    pub(crate) factor: Option<f64>,
    pub(crate) reported: Traffic,
    pub(crate) counted: Traffic,
}

/// One rank: a strategy, a step counter, and the books of the last exchange.
pub(crate) struct Rank {
    rank: usize,
    strategy: Box<dyn SyncStrategy>,
    step: u64,
    books: Option<(Facts, Previous)>,
    /// Overwrites one value of the next gradient.
    pub(crate) poison: Option<(usize, f32)>,
}

impl Rank {
    pub(crate) fn new(config: &Config, rank: usize, world: usize) -> Rank {
        let strategy = config.build(&layout(), world).unwrap();
        Rank { rank, strategy, step: 0, books: None, poison: None }
    }

    pub(crate) fn save(&self) -> State {
        let mut state = State::default();
        self.strategy.save(&mut state);
        state
    }

    /// A fresh rank that loaded what this one saved.
    pub(crate) fn clone_saved(&self, config: &Config, world: usize) -> Rank {
        let mut other = Rank::new(config, self.rank, world);
        other.strategy.load(&self.save()).unwrap();
        (other.step, other.books) = (self.step, self.books);
        other
    }

    pub(crate) fn step(&mut self, comm: &mut dyn Communicator) -> Result<Outcome, SyncError> {
        let layout = layout();
        let mut vector = gradient(self.rank, self.step);
        if let Some((index, value)) = self.poison {
            vector[index] = value;
        }
        let bad = |i: usize| layout.slots().iter().position(|s| s.range().contains(&i)).map(|s| s as u32);
        let header = Header {
            step: self.step,
            bad_slot: vector.iter().position(|v| !v.is_finite()).and_then(bad),
            samples: 1,
            // Deterministic times that differ between ranks: decisions must not.
            compute_seconds: 0.01 * (self.rank + 1) as f64,
            previous: self.books.map(|(_, previous)| previous),
            ..Header::default()
        };
        let mut present = vec![true; layout.slots().len()];
        let before = self.books.map(|(facts, _)| facts);
        let facts = agree(&header, before.as_ref(), layout.slots(), &mut present, comm)?.facts;
        let start = comm.traffic();
        let cx = Context { key: Key::new(5), slots: layout.slots(), facts: &facts };
        let reported = self.strategy.sync(&mut vector, &cx, comm)?;
        let counted = comm.traffic() - start;
        let seconds = 1e-3 + 1e-6 * (counted.sent as f64 + self.rank as f64);
        let previous = Previous { exchange_seconds: seconds, traffic: counted, ..Previous::default() };
        self.books = Some((facts, previous));
        self.step += 1;
        let mut report = Report::default();
        self.strategy.report(&mut report);
        let factor = report.factor.map(|f| f.get());
        Ok(Outcome { average: vector, sent: Vec::new(), state: self.save(), factor, reported, counted })
    }
}

/// Runs `body` on a thread a rank.
pub(crate) fn each_rank<C: Communicator, T: Send>(world: Vec<C>, body: impl Fn(C, usize) -> T + Sync) -> Vec<T> {
    let nothing = world.iter().map(|_| ()).collect();
    each_pair(world, nothing, |comm, (), rank| body(comm, rank))
}

/// The same with something of its own for each rank.
pub(crate) fn each_pair<C: Communicator, S: Send, T: Send>(
    world: Vec<C>,
    own: Vec<S>,
    body: impl Fn(C, S, usize) -> T + Sync,
) -> Vec<T> {
    let body = &body;
    std::thread::scope(|scope| {
        let pairs = world.into_iter().zip(own).enumerate();
        let handles: Vec<_> = pairs.map(|(rank, (comm, own))| scope.spawn(move || body(comm, own, rank))).collect();
        handles.into_iter().map(|h| h.join().expect("a rank panicked")).collect()
    })
}

/// Some steps of a strategy in a world.
pub(crate) fn run_world(config: &Config, world: usize, steps: usize) -> Vec<Vec<Outcome>> {
    each_rank(Local::world(world), |mut comm, rank| {
        let mut state = Rank::new(config, rank, world);
        (0..steps).map(|_| state.step(&mut comm).unwrap()).collect()
    })
}

/// Some steps of the reducer alone, which tells what it sent.
pub(crate) fn steps_of(exchange: &Exchange, world: usize, steps: usize) -> Vec<Vec<Outcome>> {
    each_rank(Local::world(world), |mut comm, rank| {
        let mut reducer = exchange.build_reducer(&layout(), world).unwrap();
        (0..steps as u64).map(|step| reduce(&mut *reducer, rank, step, &mut comm)).collect()
    })
}

fn reduce(reducer: &mut dyn Reducer, rank: usize, step: u64, comm: &mut dyn Communicator) -> Outcome {
    let layout = layout();
    let input = gradient(rank, step);
    let mut outcome = Outcome { average: vec![0.0; input.len()], sent: vec![0.0; input.len()], ..Outcome::default() };
    let start = comm.traffic();
    let round = Round {
        key: Key::new(5).step(step),
        slots: layout.slots(),
        facts: &Facts { step, ..Facts::default() },
        input: &input,
        average: &mut outcome.average,
        sent: Some(&mut outcome.sent),
    };
    outcome.reported = reducer.reduce(round, comm).unwrap().traffic;
    outcome.counted = comm.traffic() - start;
    reducer.save(&mut outcome.state);
    outcome
}
