//! Small problems that a server and its workers train on a simulated network.
//!
//! ```
//! use briquette_core::server::async_sgd::AsyncSgd;
//! use briquette_testkit::server::{Noisy, simulate};
//!
//! let run = simulate(&AsyncSgd, 2, "50ms", &Noisy::default(), 40);
//! assert_eq!((run.served.accepted, run.served.longest_delay), (40, 1));
//! assert!(Noisy::default().loss(&run.model) < Noisy::default().loss(&[3.0; 10]));
//! ```

use briquette_core::comm::run_ranks;
use briquette_core::compress::{Compressor, dense::Dense};
use briquette_core::config::ServerConfig;
use briquette_core::error::ReduceError;
use briquette_core::server::{
    Batch, Computed, Contribution, PolicySettings, Served, Server, Trainer, Uplink, serve, work,
};
use briquette_core::state::State;
use briquette_core::{Key, Message, Session};
use briquette_sim::{Compute, Network, Simulated};
use rand_distr::{Distribution, StandardNormal};

/// A problem whose data are distributed over ranks.
pub trait Problem: Sync {
    /// Returns the model at the start.
    fn start(&self) -> Vec<f32>;
    /// Returns the learning rate.
    fn rate(&self) -> f32;
    /// Returns the number of batches in all of a rank's data.
    fn batches(&self) -> u64;
    /// Computes the gradient of one batch, or over all of a rank's data.
    fn gradient_of(&self, rank: usize, batch: Option<u64>, x: &[f32], out: &mut Vec<f32>);
}

/// Result of a run.
#[derive(Debug)]
pub struct Run {
    /// The final model.
    pub model: Vec<f32>,
    /// Time on the server's clock.
    pub seconds: f64,
    /// Statistics of the server.
    pub served: Served,
    /// Bytes that the server sent and received.
    pub bytes: u64,
}

struct Plain<'a, P>(&'a P, usize);

impl<P: Problem> Trainer for Plain<'_, P> {
    type Error = ReduceError;

    fn gradient(&mut self, x: &[f32], batch: Batch, out: &mut Vec<f32>) -> Result<Computed, ReduceError> {
        let (batch, batches) = match batch {
            Batch::Number(number) => (Some(number), 1),
            Batch::All => (None, self.0.batches() as u32),
        };
        self.0.gradient_of(self.1, batch, x, out);
        Ok(Computed { samples: 1, loss: 0.0, batches })
    }

    fn step(&mut self, x: &mut Vec<f32>, gradient: &[f32], _: u64) -> Result<(), ReduceError> {
        x.iter_mut().zip(gradient).for_each(|(x, g)| *x -= self.0.rate() * g);
        Ok(())
    }
}

/// Trains without compression on a network without delays; rank 0 serves.
///
/// # Panics
/// If a rank fails, or for paces that cannot be read.
pub fn simulate(
    settings: &dyn PolicySettings,
    workers: usize,
    paces: &str,
    problem: &impl Problem,
    updates: u64,
) -> Run {
    let world = simulated(workers, paces);
    train(world, settings, problem, &[Leg { until: updates, resumed: false }], || Uplink::new(Dense, false))
}

/// Creates sessions of a server and this many workers on a network without delays.
///
/// # Panics
/// For paces that cannot be read.
pub fn simulated(workers: usize, paces: &str) -> Vec<Session> {
    Simulated::world(workers + 1, Network::unlimited(), Compute::Paced(paces.parse().unwrap()))
}

/// A part of a run, up to a version. If resumed, every rank starts it from the saved state only.
#[derive(Debug, Clone, Copy)]
pub struct Leg {
    /// Version at its end.
    pub until: u64,
    /// Set if ranks load the state that they saved at the end of the previous part.
    pub resumed: bool,
}

/// Trains on these sessions, part after part; rank 0 serves.
///
/// # Panics
/// If a rank fails, or if a worker ends with another model than the server's.
pub fn train(
    world: Vec<Session>,
    settings: &dyn PolicySettings,
    problem: &impl Problem,
    legs: &[Leg],
    uplink: impl Fn() -> Uplink + Sync,
) -> Run {
    let workers = world.len() - 1;
    let runs = run_ranks(world, |mut comm| {
        let rank = comm.rank();
        let (mut plain, mut x) = (Plain(problem, rank), problem.start());
        if rank > 0 {
            let (mut link, mut batch) = (uplink(), 0);
            for leg in legs {
                if leg.resumed {
                    let mut state = State::default();
                    link.save(&mut state);
                    link = uplink();
                    link.load(&state, x.len()).unwrap();
                }
                work(&mut link, &mut plain, (0, &mut batch), (Key::new(1), &mut x), &mut comm)?;
            }
            return Ok((x, None));
        }
        let begin = |model| Server::new(settings.build(workers).unwrap(), model, workers);
        let mut server = begin(problem.start());
        for leg in legs {
            if leg.resumed {
                let mut state = State::default();
                server.save(&mut state);
                server = begin(server.model().to_vec());
                server.load(&state).unwrap();
            }
            serve(&mut server, &mut plain, leg.until, &mut comm)?;
        }
        let traffic = comm.traffic();
        let run = (comm.now(), *server.served(), traffic.sent + traffic.received);
        Ok::<_, ReduceError>((server.model().to_vec(), Some(run)))
    });
    let mut runs = runs.into_iter().map(Result::unwrap);
    let (model, run) = runs.next().unwrap();
    assert!(runs.all(|(x, _)| x == model), "every worker ends with the model");
    let (seconds, served, bytes) = run.unwrap();
    Run { model, seconds, served, bytes }
}

/// `½ Σ aᵢ·xᵢ²`, with curvatures from 1 down to 1/30 and noise that differs between ranks and batches.
#[derive(Debug, Clone)]
pub struct Noisy {
    /// Learning rate.
    pub rate: f32,
    /// Standard deviation of the noise of a gradient's value.
    pub noise: f32,
}

impl Default for Noisy {
    fn default() -> Self {
        Noisy { rate: 0.1, noise: 0.3 }
    }
}

impl Noisy {
    fn curvature(i: usize) -> f32 {
        30_f32.powf(-(i as f32) / 9.0)
    }

    /// Returns the model at the start.
    pub fn start(&self) -> Vec<f32> {
        vec![3.0; 10]
    }

    /// Computes the gradient of one batch.
    pub fn gradient_of(&self, rank: usize, batch: u64, x: &[f32], out: &mut Vec<f32>) {
        let mut rng = Key::new(11).step(batch).rank(rank).block(0);
        let mut noise = || -> f32 { StandardNormal.sample(&mut rng) };
        out.clear();
        out.extend(x.iter().enumerate().map(|(i, x)| Noisy::curvature(i) * x + self.noise * noise()));
    }

    /// Returns the loss without noise.
    pub fn loss(&self, x: &[f32]) -> f32 {
        x.iter().enumerate().map(|(i, x)| 0.5 * Noisy::curvature(i) * x * x).sum()
    }

    /// Returns the norm of the gradient without noise.
    pub fn norm(&self, x: &[f32]) -> f32 {
        x.iter().enumerate().map(|(i, x)| (Noisy::curvature(i) * x).powi(2)).sum::<f32>().sqrt()
    }
}

impl Problem for Noisy {
    fn start(&self) -> Vec<f32> {
        self.start()
    }

    fn rate(&self) -> f32 {
        self.rate
    }

    fn batches(&self) -> u64 {
        1
    }

    fn gradient_of(&self, rank: usize, batch: Option<u64>, x: &[f32], out: &mut Vec<f32>) {
        self.gradient_of(rank, batch.unwrap_or(0), x, out);
    }
}

/// Least squares over 256 samples per rank, in batches of 8.
#[derive(Debug, Clone)]
pub struct Finite {
    /// Learning rate.
    pub rate: f32,
}

const SAMPLES: u64 = 256;
const BATCH: u64 = 8;

impl Default for Finite {
    fn default() -> Self {
        Finite { rate: 0.05 }
    }
}

impl Finite {
    /// Returns the model at the start.
    pub fn start(&self) -> Vec<f32> {
        vec![2.0; 8]
    }

    /// Returns the number of batches in all of a rank's data.
    pub fn batches(&self) -> u64 {
        SAMPLES / BATCH
    }

    /// Computes the gradient of one batch, drawn from all samples of the rank, or over all of them.
    pub fn gradient_of(&self, rank: usize, batch: Option<u64>, x: &[f32], out: &mut Vec<f32>) {
        let key = Key::new(5).rank(rank);
        let samples: Vec<u64> = match batch {
            Some(batch) => (0..BATCH).map(|i| key.step(batch).word(i as usize) % SAMPLES).collect(),
            None => (0..SAMPLES).collect(),
        };
        out.clear();
        out.resize(x.len(), 0.0);
        for sample in &samples {
            let mut rng = key.purpose("sample").block(*sample as usize);
            let mut draw = || -> f32 { StandardNormal.sample(&mut rng) };
            let a: Vec<f32> = x.iter().map(|_| draw()).collect();
            let off = a.iter().zip(x).map(|(a, x)| a * x).sum::<f32>() - draw();
            out.iter_mut().zip(&a).for_each(|(out, a)| *out += off * a / samples.len() as f32);
        }
    }

    /// Returns the norm of the whole gradient over this many workers' data.
    pub fn norm(&self, x: &[f32], workers: usize) -> f32 {
        let (mut sum, mut out) = (vec![0.0; x.len()], Vec::new());
        for rank in 1..=workers {
            self.gradient_of(rank, None, x, &mut out);
            sum.iter_mut().zip(&out).for_each(|(sum, g)| *sum += g / workers as f32);
        }
        sum.iter().map(|g| g * g).sum::<f32>().sqrt()
    }
}

impl Problem for Finite {
    fn start(&self) -> Vec<f32> {
        self.start()
    }

    fn rate(&self) -> f32 {
        self.rate
    }

    fn batches(&self) -> u64 {
        self.batches()
    }

    fn gradient_of(&self, rank: usize, batch: Option<u64>, x: &[f32], out: &mut Vec<f32>) {
        self.gradient_of(rank, batch, x, out);
    }
}

/// Returns the policies of core and of the zoo that are possible with this many workers.
pub fn all(workers: usize) -> impl Iterator<Item = ServerConfig> {
    briquette_zoo::install();
    ServerConfig::all().into_iter().filter(move |config| config.get().build(workers).is_ok())
}

/// Creates a contribution of one value.
pub fn one(version: u64, value: f32, samples: u64) -> Contribution {
    let mut message = Message::default();
    Dense.compress_into(&[value], Key::new(0), &mut message);
    Contribution { version, samples, loss: f64::from(value), gradients: 1, stops: false, message }
}

/// Records the sum of a worker's gradients, or of the server's steps.
#[derive(Debug)]
pub struct Recording<'a> {
    noisy: &'a Noisy,
    rank: usize,
    /// The sum.
    pub sum: Vec<f32>,
}

impl<'a> Recording<'a> {
    /// Records for one rank.
    pub fn new(noisy: &'a Noisy, rank: usize) -> Self {
        Recording { noisy, rank, sum: vec![0.0; 10] }
    }
}

impl Trainer for Recording<'_> {
    type Error = ReduceError;

    fn gradient(&mut self, x: &[f32], batch: Batch, out: &mut Vec<f32>) -> Result<Computed, ReduceError> {
        let number = if let Batch::Number(number) = batch { number } else { 0 };
        self.noisy.gradient_of(self.rank, number, x, out);
        self.sum.iter_mut().zip(&*out).for_each(|(sum, g)| *sum += g);
        Ok(Computed { samples: 1, loss: 0.0, batches: 1 })
    }

    fn step(&mut self, x: &mut Vec<f32>, gradient: &[f32], _: u64) -> Result<(), ReduceError> {
        self.sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
        x.iter_mut().zip(gradient).for_each(|(x, g)| *x -= self.noisy.rate * g);
        Ok(())
    }
}
