//! Decoupled DiLoCo: an outer step on the local steps of a quorum of ranks, and of those that arrive in a grace window.
//!
//! **Why, and when not.** DiLoCo waits for the slowest rank at the end of every period. Here a slow, stalled or distant rank delays no other:
//! the server updates without it, and its change is part of a later update. With ranks of equal speed, the window collects all of them, and the
//! updates are those of DiLoCo.
//!
//! **Method.** A worker takes `H` steps of its own optimizer from `x_v` to `y_i`. The server updates when `q` changes have arrived and the window is
//! over, or when no worker computes. The window ends `median + k·MAD` seconds after the last update; both are taken over the seconds between
//! assignment and arrival of the last 32 changes (MAD: median absolute deviation). With `n_i` the number of samples (or tokens) of a change:
//!
//! ```text
//! D = Σ n_i·(x_{v_i} − y_i) / Σ n_i        b ← μ·b + D        x ← x − ρ·(D + μ·b)
//! ```
//!
//! A change that arrives later is part of the next update, from whatever version it was computed.
//!
//! | setting | equivalent to |
//! |---|---|
//! | `q` all workers | DiLoCo |
//! | `q = 1`, `k` 0, `ρ = 1`, `μ = 0`, one worker | its optimizer alone |
//!
//! **On the wire.** Once per period, `14 + 4d` bytes to a worker, and `29` bytes and a message from it.
//!
//! **State.** The model and `b`, on the server; each worker's optimizer is rank-local. The window starts without arrivals after a pause.
//!
//! **Knobs.** `quorum` `q`, at least 1 and at most the number of workers; by default more than half of them. `period` `H`, steps, default 8, at most
//! 10 000. `mad` `k` at least 0, default 4. `rate` `ρ` above 0, default 0.7; `momentum` `μ` in [0, 1), default 0.9.
//!
//! Without a clock in the session there is no window. Over MPI, a window ends with the next arrival.
//!
//! **Deviations.** The paper divides the model into fragments, which are exchanged at different steps, and its learners continue while their
//! fragment is merged. Here a worker sends the whole model and waits for the update. The paper does not state its window; this one is the
//! project's.
//!
//! **Reference.** Google, *Decoupled DiLoCo*, 2026 (arXiv 2604.21428): minimum quorum, adaptive grace window, merging weighted by tokens.
//!
//! ```
//! use briquette_core::server::{PolicySettings, Task, Update};
//! use briquette_zoo::server::decoupled_diloco::DecoupledDiLoCo;
//! let mut policy = DecoupledDiLoCo::default().build(4)?;
//! assert_eq!((policy.quorum(0), policy.task(0), policy.update()), (3, Task::Steps(8), Update::Subtract(1.0)));
//! [1.0, 1.1, 0.9, 9.0].into_iter().for_each(|seconds| policy.observe(seconds));
//! assert!((policy.grace() - (1.05 + 4.0 * 0.1)).abs() < 1e-12); // the straggler hardly counts
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use std::collections::VecDeque;

use briquette_core::config::Described;
use briquette_core::error::ConfigError;
use briquette_core::server::{Arrival, Policy, PolicySettings, Task, Update, Verdict};

/// Number of arrivals over which the window is estimated.
const ARRIVALS: usize = 32;

/// Settings of Decoupled DiLoCo; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "decoupled-diloco",
    help = "PERIOD steps (8) of a quorum of ranks and of those in time, then Nesterov's on their mean",
    representatives("decoupled-diloco:3", "decoupled-diloco:1,quorum=1,mad=0,rate=1,momentum=0")
)]
pub struct DecoupledDiLoCo {
    /// Steps of a period. The server waits for them, and a worker that is asked to stop finishes them.
    #[setting(default = 8, range = "[1, 10000]")]
    pub period: u32,
    /// Changes of which an update consists, at least. If absent, more than half of the workers.
    #[setting(range = "[1, inf)", syntax = "workers/2+1")]
    pub quorum: Option<usize>,
    /// Median absolute deviations of the grace window.
    #[setting(default = 4.0, range = "[0, inf)")]
    pub mad: f64,
    /// The outer learning rate.
    #[setting(default = 0.7, range = "(0, inf)")]
    pub rate: f32,
    /// The outer momentum.
    #[setting(default = 0.9, range = "[0, 1)")]
    pub momentum: f32,
}

impl PolicySettings for DecoupledDiLoCo {
    fn build(&self, workers: usize) -> Result<Box<dyn Policy>, ConfigError> {
        briquette_core::server::check(self, workers)?;
        let quorum = self.quorum.unwrap_or(workers / 2 + 1);
        if quorum > workers {
            return Err(ConfigError::conflict(
                format!("server decoupled-diloco:quorum={quorum}"),
                format!("{workers} workers"),
                "an update would wait for ranks that do not exist",
                format!("use more ranks, or a quorum of at most {workers}"),
            ));
        }
        Ok(Box::new(Running { settings: *self, quorum, arrivals: VecDeque::new(), momentum: Vec::new() }))
    }

    fn batches_of_an_update(&self, workers: usize) -> u64 {
        u64::from(self.period) * workers as u64
    }
}

#[derive(Debug)]
struct Running {
    settings: DecoupledDiLoCo,
    quorum: usize,
    /// Seconds of the last changes.
    arrivals: VecDeque<f64>,
    /// `b`.
    momentum: Vec<f32>,
}

impl Policy for Running {
    fn task(&self, _: u64) -> Task {
        Task::Steps(self.settings.period)
    }

    fn judge(&self, _: &Arrival<'_>) -> Verdict {
        Verdict::Accepted
    }

    fn quorum(&self, _: u64) -> usize {
        self.quorum
    }

    fn grace(&self) -> f64 {
        let Some(middle) = median(self.arrivals.iter().copied()) else { return 0.0 };
        let deviation = median(self.arrivals.iter().map(|seconds| (seconds - middle).abs())).unwrap_or_default();
        middle + self.settings.mad * deviation
    }

    fn observe(&mut self, seconds: f64) {
        if self.arrivals.len() == ARRIVALS {
            self.arrivals.pop_front();
        }
        self.arrivals.push_back(seconds);
    }

    fn begin(&mut self) {
        self.arrivals.clear();
    }

    fn puts_back(&self) -> bool {
        true
    }

    fn direct(&mut self, mean: &mut [f32], _: u64) {
        let DecoupledDiLoCo { rate, momentum, .. } = self.settings;
        self.momentum.resize(mean.len(), 0.0);
        for (change, b) in mean.iter_mut().zip(&mut self.momentum) {
            *b = momentum * *b + *change;
            *change = rate * (*change + momentum * *b);
        }
    }

    fn update(&self) -> Update {
        Update::Subtract(1.0)
    }

    fn memory(&mut self) -> Option<&mut Vec<f32>> {
        Some(&mut self.momentum)
    }
}

/// Returns the median: the mean of the two middle values, if their number is even.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    let upper = *values.get(half)?;
    Some(if values.len() % 2 == 1 { upper } else { (values[half - 1] + upper) / 2.0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::error::WireError;
    use briquette_core::server::Server;
    use briquette_core::state::State;
    use briquette_testkit::server::{Noisy, Run, one, simulate};

    const WORKERS: usize = 4;

    fn run(text: &str, workers: usize, paces: &str, updates: u64) -> Run {
        let settings: DecoupledDiLoCo = serde_json::from_value(serde_json::from_str(text).unwrap()).unwrap();
        simulate(&settings, workers, paces, &Noisy { rate: 0.05, ..Noisy::default() }, updates)
    }

    /// By hand: three workers, a quorum of one, a window of `median + 1·MAD`.
    #[test]
    fn the_window_collects_changes_and_late_ones_are_part_of_the_next_update() {
        let none = |_: &mut Vec<f32>, _: &[f32], _| Ok::<_, WireError>(());
        let settings = DecoupledDiLoCo { quorum: Some(1), mad: 1.0, rate: 1.0, momentum: 0.0, ..Default::default() };
        let mut server = Server::new(settings.build(3).unwrap(), vec![10.0], 3);
        let due = |server: &Server, expected: f64| assert!((server.due().unwrap() - expected).abs() < 1e-3);
        // Ends the window, and returns the number of replies and the model.
        let close = |server: &mut Server| {
            server.set_now(server.due().unwrap());
            (server.close(none).unwrap().len(), server.model()[0])
        };
        assert_eq!((server.begin(100).len(), server.due()), (3, None), "there is no quorum");
        // The first change at 2 s is the median of one: the window ends with it.
        server.set_now(2.0);
        assert_eq!(server.arrived(0, one(0, 1.0, 1), none).unwrap().len(), 0, "others may arrive at the same time");
        assert_eq!(close(&mut server), (1, 9.0));
        // Worker 1 at 3 s: the median of 2 and 3 is 2.5, the deviation 0.5, and the update was at 2 s.
        server.set_now(3.0);
        assert_eq!(server.arrived(1, one(0, 2.0, 1), none).unwrap().len(), 0);
        due(&server, 2.0 + 2.5 + 0.5);
        // Worker 0, three times as many samples, 2 s after its assignment: the deviation of 2, 3 and 2 is 0.
        server.set_now(4.0);
        assert_eq!(server.arrived(0, one(1, 4.0, 3), none).unwrap().len(), 0);
        due(&server, 2.0 + 2.0);
        assert_eq!(close(&mut server), (2, 9.0 - 3.5), "(2 + 3·4) / 4");
        // Worker 2 is late, and part of the next update. The median of 2, 3, 2 and 5 is 2.5, and that of 0.5, 0.5, 0.5 and 2.5 is 0.5.
        server.set_now(5.0);
        assert_eq!(server.arrived(2, one(0, 0.5, 1), none).unwrap().len(), 0);
        due(&server, 4.0 + 3.0);
        server.set_now(6.9);
        assert_eq!(server.close(none).unwrap().len(), 0);
        assert_eq!(close(&mut server), (1, 5.0));
        assert_eq!((server.served().late, server.served().longest_delay), (0, 2));
    }

    /// With all workers as the quorum, updates are those of DiLoCo; in f64.
    #[test]
    fn all_workers_are_diloco() {
        let noisy = Noisy { rate: 0.05, ..Noisy::default() };
        let all = run(r#"{"period": 4, "quorum": 4}"#, WORKERS, "50ms;lognormal=0.5", 20);
        let (mut x, mut b) = (noisy.start(), vec![0.0_f64; noisy.start().len()]);
        let mut out = Vec::new();
        for update in 0..20 {
            let mut mean = vec![0.0_f64; x.len()];
            for rank in 1..=WORKERS {
                let mut y = x.clone();
                for batch in 4 * update..4 * (update + 1) {
                    noisy.gradient_of(rank, batch, &y, &mut out);
                    y.iter_mut().zip(&out).for_each(|(y, g)| *y -= noisy.rate * g);
                }
                mean.iter_mut().zip(x.iter().zip(&y)).for_each(|(mean, (x, y))| *mean += f64::from(x - y) / 4.0);
            }
            for ((x, b), d) in x.iter_mut().zip(&mut b).zip(&mean) {
                *b = 0.9 * *b + d;
                *x -= (0.7 * (d + 0.9 * *b)) as f32;
            }
        }
        assert!(all.model.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-4), "{:?} {x:?}", all.model);
        assert_eq!((all.served.accepted, all.served.longest_delay), (80, 0));
    }

    /// Claim: a rank that is ten times slower delays no other. An update takes what the others need, nearly all of their changes are in time, and the
    /// loss is that of waiting for all.
    #[test]
    fn a_slow_rank_delays_no_other_one() {
        // The first rank is the server.
        let paces = "0ms,50ms,50ms,50ms,500ms;lognormal=0.1";
        let noisy = Noisy { rate: 0.05, ..Noisy::default() };
        let waits = run(r#"{"period": 4, "quorum": 4}"#, WORKERS, paces, 60);
        let decoupled = run(r#"{"period": 4, "quorum": 2}"#, WORKERS, paces, 60);
        let seconds = [&waits, &decoupled].map(|run| run.seconds / 60.0);
        assert!(seconds[0] > 1.9 && seconds[1] < 0.27, "{seconds:?}");
        // Three in nearly every update, and the slow one in some: its delays are about nine versions.
        let per_update = decoupled.served.accepted as f64 / 60.0;
        assert!(per_update > 2.7 && per_update < 3.2, "{per_update}");
        assert!((6..=12).contains(&decoupled.served.longest_delay), "{}", decoupled.served.longest_delay);
        let losses = [&waits, &decoupled].map(|run| noisy.loss(&run.model));
        assert!(losses[1] < 1.3 * losses[0] + 0.02, "{losses:?}");
    }

    /// With the defaults and equal speeds, every update has all changes, also those that arrive as the window ends.
    #[test]
    fn ranks_of_equal_speed_are_all_in_time() {
        for (workers, pace) in [(4, "50ms"), (8, "37.5ms"), (5, "13ms")] {
            let run = run(r#"{"period": 8}"#, workers, pace, 20);
            let counts = (run.served.accepted, run.served.longest_delay);
            assert_eq!(counts, (20 * workers as u64, 0), "{workers} workers, {pace}");
        }
    }

    /// Its momentum is saved.
    #[test]
    fn it_resumes_with_its_momentum() {
        let none = |_: &mut Vec<f32>, _: &[f32], _| Ok::<_, WireError>(());
        let mut server = Server::new(DecoupledDiLoCo::default().build(1).unwrap(), vec![10.0], 1);
        server.begin(1);
        server.arrived(0, one(0, 1.0, 1), none).unwrap();
        let mut state = State::default();
        server.save(&mut state);
        let mut resumed = Server::new(DecoupledDiLoCo::default().build(1).unwrap(), server.model().to_vec(), 1);
        resumed.load(&state).unwrap();
        for server in [&mut server, &mut resumed] {
            server.begin(2);
            server.arrived(0, one(1, 1.0, 1), none).unwrap();
        }
        assert_eq!(server.model(), resumed.model());
        // b = 1, then 1.9: 0.7·(1 + 0.9) and 0.7·(1 + 1.71).
        assert!((server.model()[0] - (10.0 - 1.33 - 1.897)).abs() < 1e-5, "{:?}", server.model());
    }

    #[test]
    fn settings_that_cannot_be_are_named() {
        let error = DecoupledDiLoCo { quorum: Some(5), ..Default::default() }.build(4).unwrap_err().to_string();
        assert!(error.contains("quorum=5") && error.contains("4 workers") && error.contains("at most 4"), "{error}");
        let error = DecoupledDiLoCo { momentum: 1.0, ..Default::default() }.build(4).unwrap_err().to_string();
        assert!(error.contains("momentum of decoupled-diloco must be"), "{error}");
    }
}
