//! Plain or momentum SGD on the ranks of a world, through a strategy in command-line syntax; and a server with its workers.

use std::time::Duration;

use anyhow::{Result, anyhow};
use briquette::core::comm::{Local, Session, run_ranks};
use briquette::core::compress::dense::Dense;
use briquette::core::config::{Config, ServerConfig};
use briquette::core::error::{CommError, ReduceError, SyncError};
use briquette::core::server::{Batch, Computed, Server, Trainer, Uplink, serve, work};
use briquette::core::step::Driver;
use briquette::core::sync::{Header, Momenta};
use briquette::core::{Key, Layout};
use briquette::sim::{Compute, Event, Network, Paces, SessionExt, Simulated};
use rand_distr::{Distribution, StandardNormal};

/// Gradient of a rank at a step: rank, step, point, and output.
pub(super) type Gradient<'a> = &'a (dyn Fn(usize, u64, &[f32], &mut [f32]) + Sync);

/// Value that a rank records at a point.
pub(super) type Loss<'a> = &'a (dyn Fn(&[f32]) -> f64 + Sync);

/// Settings of a run.
#[derive(Debug, Clone)]
pub(super) struct Descent<'a> {
    /// In command-line syntax.
    pub strategy: &'a str,
    /// In command-line syntax.
    pub reducer: &'a str,
    /// In command-line syntax.
    pub feedback: &'a str,
    /// In command-line syntax.
    pub aggregator: &'a str,
    pub ranks: usize,
    pub steps: u64,
    pub rate: f64,
    /// Number of tensors of the model, all of one length.
    pub tensors: usize,
    /// Simulated network, and the compute time of the ranks.
    pub on: Option<(Network, &'a str)>,
}

impl Default for Descent<'_> {
    fn default() -> Self {
        let (strategy, reducer, feedback, aggregator) = ("every-step", "dense", "none", "mean");
        Descent { strategy, reducer, feedback, aggregator, ranks: 1, steps: 0, rate: 0.0, tensors: 1, on: None }
    }
}

/// Results of a run.
#[derive(Debug)]
pub(super) struct Ended {
    /// Model to evaluate: the mean of the ranks' views.
    pub model: Vec<f64>,
    /// Parameters of each rank.
    pub ranks: Vec<Vec<f32>>,
    /// Time on the slowest rank's clock.
    pub seconds: f64,
    /// Bytes of the rank that sends most.
    pub sent: u64,
    /// Bytes of any rank at its busiest step.
    pub peak: u64,
    /// Bytes from the busiest machine to others, without background communication.
    pub link: u64,
}

impl Descent<'_> {
    pub(super) fn config(&self) -> Result<Config> {
        let mut config = Config { strategy: self.strategy.parse()?, ..Config::dense() };
        config.exchange.reducer = self.reducer.parse()?;
        config.exchange.feedback = self.feedback.parse()?;
        config.exchange.aggregator = self.aggregator.parse()?;
        Ok(config)
    }

    fn world(&self) -> Result<Vec<Session>> {
        Ok(match &self.on {
            None => Local::world(self.ranks),
            Some((network, paces)) => simulated(self.ranks, network.clone(), paces)?,
        })
    }

    /// Runs from `start(rank)`; `loss` is the value that a rank records. Strategies receive one start, the same on
    /// every rank: the mean.
    pub(super) fn run(
        &self,
        start: &(dyn Fn(usize) -> Vec<f32> + Sync),
        gradient: Gradient<'_>,
        loss: Loss<'_>,
    ) -> Result<Ended> {
        let config = self.config()?;
        let starts: Vec<Vec<f32>> = (0..self.ranks).map(start).collect();
        // Of equal ones these are the same bits.
        let begin: Vec<f32> = mean_over(&starts).into_iter().map(|x| x as f32).collect();
        let from = |rank: usize| (starts[rank].clone(), &begin[..]);
        let ranks = run_ranks(self.world()?, |mut comm| self.rank(&config, &mut comm, from, (gradient, loss)));
        let ranks = ranks.into_iter().collect::<Result<Vec<_>, Failed>>()?;
        let machines = ranks.iter().map(|rank| rank.machine);
        let left = |machine: usize| ranks.iter().filter(|rank| rank.machine == machine).map(|rank| rank.left).sum();
        Ok(Ended {
            model: mean_over(&ranks.iter().map(|rank| &rank.view).collect::<Vec<_>>()),
            seconds: ranks.iter().map(|rank| rank.seconds).fold(0.0, f64::max),
            sent: ranks.iter().map(|rank| rank.sent.iter().sum()).max().unwrap_or_default(),
            peak: ranks.iter().flat_map(|rank| &rank.sent).copied().max().unwrap_or_default(),
            link: machines.map(left).max().unwrap_or_default(),
            ranks: ranks.into_iter().map(|rank| rank.x).collect(),
        })
    }

    fn rank<'b>(
        &self,
        config: &Config,
        comm: &mut Session,
        from: impl Fn(usize) -> (Vec<f32>, &'b [f32]),
        (gradient, loss): (Gradient<'_>, Loss<'_>),
    ) -> Result<RankEnded, Failed> {
        let (mut x, begin) = from(comm.rank());
        let layout = Layout::new((0..self.tensors).map(|i| (format!("{i}"), vec![x.len() / self.tensors])));
        let failed = |error: briquette::core::error::ConfigError| panic!("{}: {error}", self.strategy);
        let mut strategy = config.build(&layout, comm.world()).unwrap_or_else(failed);
        (1..=config.channels()).try_for_each(|channel| comm.open(channel))?;
        strategy.begin(begin);
        comm.record();
        let mut driver = Driver::new(Key::new(5));
        driver.drive(strategy, layout);
        let (mut g, mut sent) = (vec![0.0; x.len()], Vec::new());
        for step in 0..self.steps {
            let bytes = comm.traffic().sent;
            gradient(comm.rank(), step, &x, &mut g);
            let mine = Header { samples: 1, loss: Some(loss(&x)), learning_rate: Some(self.rate), ..Header::default() };
            let optimize = |x: &mut [f32], g: &[f32]| {
                x.iter_mut().zip(g).for_each(|(x, g)| *x -= self.rate as f32 * g);
            };
            // Plain SGD has no momenta.
            let _: Momenta = driver.take_step(mine, (&mut g, &mut x), optimize, comm)?;
            sent.push(comm.traffic().sent - bytes);
        }
        let seconds = comm.now();
        driver.strategy_mut().settle(comm)?;
        let mut view = x.clone();
        driver.strategy().view(&mut view);
        let places = comm.machine_map();
        let left = |event: &Event| match event {
            Event::Sent(to, bytes) if !places.machine().contains(to) => *bytes as u64,
            _ => 0,
        };
        let left = comm.take_recording().iter().map(left).sum();
        Ok(RankEnded { x, view, seconds, sent, left, machine: places.machine()[0] })
    }
}

struct RankEnded {
    /// Parameters.
    x: Vec<f32>,
    view: Vec<f32>,
    seconds: f64,
    /// Bytes at each step, and total bytes to other machines.
    sent: Vec<u64>,
    left: u64,
    /// First rank of its machine.
    machine: usize,
}

fn mean_over(ranks: &[impl AsRef<[f32]>]) -> Vec<f64> {
    let at = |i: usize| ranks.iter().map(|rank| f64::from(rank.as_ref()[i])).sum::<f64>() / ranks.len() as f64;
    (0..ranks.first().map_or(0, |rank| rank.as_ref().len())).map(at).collect()
}

/// Failure of a rank: in memory, by non-finite values, or caused by another rank.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error(transparent)]
    Sync(#[from] SyncError),
    #[error(transparent)]
    Comm(#[from] CommError),
}

pub(super) fn simulated(ranks: usize, network: Network, paces: &str) -> Result<Vec<Session>> {
    let local = Local::builder(ranks).deadline(Duration::from_secs(600));
    Ok(Simulated::over(local, network, Compute::Paced(paces.parse::<Paces>()?)))
}

/// A problem of which every worker has a part.
pub(super) trait Problem: Sync {
    fn start(&self) -> Vec<f32>;
    /// Writes the gradient of a batch of a rank, or of all its data; ranks of workers start at 1.
    fn gradient(&self, rank: usize, batch: Option<u64>, x: &[f32], out: &mut [f32]);
    /// Returns the number of batches in a rank's data.
    fn batches(&self) -> u64 {
        1
    }
}

/// A server and its workers, on a network without delay.
#[derive(Debug, Clone, Copy)]
pub(super) struct Service<'a> {
    /// In command-line syntax.
    pub policy: &'a str,
    pub workers: usize,
    pub paces: &'a str,
    pub rate: f32,
}

/// State at a pause of a service: the server's seconds, the model, and bytes sent and received by the server.
#[derive(Debug, Clone)]
pub(super) struct Pause {
    pub seconds: f64,
    pub model: Vec<f32>,
    pub bytes: u64,
}

struct Plain<'a>(&'a dyn Problem, usize, f32);

impl Trainer for Plain<'_> {
    type Error = ReduceError;

    fn gradient(&mut self, x: &[f32], batch: Batch, out: &mut Vec<f32>) -> Result<Computed, ReduceError> {
        let (batch, batches) = match batch {
            Batch::Number(number) => (Some(number), 1),
            Batch::All => (None, self.0.batches() as u32),
        };
        out.resize(x.len(), 0.0);
        self.0.gradient(self.1, batch, x, out);
        Ok(Computed { samples: 1, loss: 0.0, batches })
    }

    fn step(&mut self, x: &mut Vec<f32>, gradient: &[f32], _: u64) -> Result<(), ReduceError> {
        x.iter_mut().zip(gradient).for_each(|(x, g)| *x -= self.2 * g);
        Ok(())
    }
}

impl Service<'_> {
    /// Returns the state at each of the given numbers of updates, at which all workers are idle. A model that is not
    /// finite ends the run with `None`.
    pub(super) fn run(&self, problem: &dyn Problem, pauses: &[u64]) -> Result<Vec<Pause>> {
        let policy: ServerConfig = self.policy.parse()?;
        policy.get().build(self.workers)?;
        let world = simulated(self.workers + 1, Network::unlimited(), self.paces)?;
        let ranks = run_ranks(world, |mut comm| {
            let rank = comm.rank();
            let (mut plain, mut x) = (Plain(problem, rank, self.rate), problem.start());
            if rank > 0 {
                let (mut uplink, mut batch) = (Uplink::new(Dense, false), 0);
                for _ in pauses {
                    work(&mut uplink, &mut plain, (0, &mut batch), (Key::new(1), &mut x), &mut comm)?;
                }
                return Ok(Vec::new());
            }
            let policy = policy.get().build(self.workers).expect("built before");
            let mut server = Server::new(policy, x, self.workers);
            let mut seen = Vec::new();
            for until in pauses {
                serve(&mut server, &mut plain, *until, &mut comm)?;
                let (seconds, traffic) = (comm.now(), comm.traffic());
                let model = server.model().to_vec();
                seen.push(Pause { seconds, model, bytes: traffic.sent + traffic.received });
            }
            Ok::<_, ReduceError>(seen)
        });
        match ranks.into_iter().next().ok_or_else(|| anyhow!("no rank"))? {
            Err(ReduceError::NonFinite { .. }) => Ok(Vec::new()),
            other => Ok(other?),
        }
    }
}

/// Returns noise specific to a seed, a step and a rank.
pub(super) fn noise(seed: u64, rank: usize, step: u64) -> impl FnMut() -> f32 {
    let mut rng = Key::new(seed).step(step).rank(rank).block(0);
    move || StandardNormal.sample(&mut rng)
}
