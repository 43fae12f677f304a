//! Asynchronous LSGD: workers train their own models at their own pace, each pulled towards the best worker when it
//! contributes.
//!
//! **Why, and when not.** As for [LSGD](crate::sync::lsgd): a leader is a point that a rank has reached, while an average of
//! good points may be a bad one. Here no rank waits for another: a slow rank is pulled less often, and delays no other rank. On
//! a convex loss with noise, average: [`async_local_sgd`](crate::server::async_local_sgd).
//!
//! **Method.** A worker takes `τ` steps of its own optimizer, to `x`, and sends its change with the mean loss over those steps.
//! The server keeps each worker's latest parameters and loss; the leader `x̃` is the worker with the lowest loss. The server
//! answers with the parameters from which the worker continues:
//!
//! ```text
//! x ← x + λ·(x̃ − x)
//! ```
//!
//! Among equal losses the lowest worker leads. The leader is not pulled. The server's model is the leader's.
//!
//! | setting | equivalent to |
//! |---|---|
//! | one worker | its optimizer alone |
//! | `pull` = 1 | every worker continues from the leader's parameters |
//! | `pull` = 0 | workers train alone, and the best one is the model |
//!
//! **On the wire.** As for [`async_local_sgd`](crate::server::async_local_sgd): the model from which a worker continues, and a message
//! with its change.
//!
//! **Properties.** If all workers are at one point, nothing is pulled. Without gradients a worker's distance to the leader
//! shrinks by a factor of `1 − λ` with each of its contributions.
//!
//! **State.** On the server, for every worker: its latest parameters, its loss, and the parameters from which it continues.
//! As under every policy, a pause discards this state, and workers restart from the leader's model. Checkpoint and evaluate
//! rarely, therefore; a resumed run equals a run that paused there.
//!
//! **Knobs.** `period` `τ`, steps, default 16, at most 10 000; `pull` `λ` in [0, 1], default 0.1, as in the synchronous form.
//!
//! **Deviations.** The paper counts the steps of all workers together and then pulls all of them. Here a worker is pulled after
//! `τ` of its own steps, when it sends its contribution, because a message at another time would interrupt it. There is one
//! group, whose leader is the world's. A leader's loss is the mean over its last period; the paper uses the expected loss. The
//! authors' code also pulls between two choices, towards the leader that a worker knows; here workers step alone.
//!
//! **Reference.** Y. Teng, W. Gao, F. Chalus, A. Choromanska, D. Goldfarb, A. Weller, *Leader Stochastic Gradient Descent for Distributed Training
//! of Deep Learning Models*, NeurIPS 2019 (arXiv 1905.10395), algorithm 1, the asynchronous form.
//!
//! ```
//! use briquette_zoo::server::async_lsgd::AsyncLsgd;
//! use briquette_core::server::PolicySettings;
//! let mut policy = AsyncLsgd { period: 4, pull: 0.25 }.build(2)?;
//! let mut follow = |worker, mut own: Vec<f32>, loss| (policy.follow(worker, &mut own, loss)[0], own[0]);
//! assert_eq!(follow(0, vec![8.0], 0.5), (8.0, 8.0)); // the first leads
//! assert_eq!(follow(1, vec![4.0], 0.9), (8.0, 5.0)); // a quarter of the way from 4 to 8
//! assert_eq!(follow(0, vec![9.0], 1.5), (4.0, 7.75)); // now the second is better
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use std::sync::Arc;

use crate::sync::lsgd::leader;
use briquette_core::config::Described;
use briquette_core::error::ConfigError;
use briquette_core::server::{Arrival, Policy, PolicySettings, Task, Update, Verdict};

/// Settings of asynchronous LSGD; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "async-lsgd",
    help = "PERIOD steps (16) of each rank's own model, then pulled towards the rank of the lowest loss",
    representatives("async-lsgd:3", "async-lsgd:1,pull=1")
)]
pub struct AsyncLsgd {
    /// Steps between pulls of a worker. The server waits for them, and a worker that is asked to stop finishes them.
    #[setting(default = 16, range = "[1, 10000]")]
    pub period: u32,
    /// Fraction of its distance to the leader by which a worker is pulled, in [0, 1].
    #[setting(default = 0.1, range = "[0, 1]")]
    pub pull: f32,
}

impl PolicySettings for AsyncLsgd {
    fn build(&self, workers: usize) -> Result<Box<dyn Policy>, ConfigError> {
        briquette_core::server::check(self, workers)?;
        Ok(Box::new(Running { settings: *self, ends: vec![None; workers] }))
    }

    fn batches_of_an_update(&self, _: usize) -> u64 {
        u64::from(self.period)
    }
}

#[derive(Debug)]
struct Running {
    settings: AsyncLsgd,
    /// By worker: its last loss, and its parameters at that loss.
    ends: Vec<Option<(f64, Arc<Vec<f32>>)>>,
}

impl Policy for Running {
    fn task(&self, _: u64) -> Task {
        Task::Steps(self.settings.period)
    }

    fn judge(&self, _: &Arrival<'_>) -> Verdict {
        Verdict::Accepted
    }

    fn update(&self) -> Update {
        Update::Follow
    }

    fn puts_back(&self) -> bool {
        true
    }

    fn begin(&mut self) {
        self.ends.fill(None);
    }

    fn follow(&mut self, worker: usize, own: &mut Vec<f32>, loss: f64) -> Arc<Vec<f32>> {
        let here = Arc::new(own.clone());
        self.ends[worker] = Some((loss, Arc::clone(&here)));
        let losses: Vec<f64> = self.ends.iter().map(|end| end.as_ref().map_or(f64::INFINITY, |end| end.0)).collect();
        let ahead = leader(&losses).and_then(|leader| Some((leader, self.ends[leader].as_ref()?)));
        let Some((leader, (_, place))) = ahead else { return here };
        if leader != worker {
            own.iter_mut().zip(&**place).for_each(|(x, place)| *x += self.settings.pull * (place - *x));
        }
        Arc::clone(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::comm::run_ranks;
    use briquette_core::compress::dense::Dense;
    use briquette_core::error::{ReduceError, WireError};
    use briquette_core::server::{Batch, Computed, Server, Trainer, Uplink, serve, work};
    use briquette_core::{Key, Session};
    use briquette_testkit::server::{Noisy, one, simulate, simulated};

    #[test]
    fn one_worker_is_its_optimizer_alone() {
        let noisy = Noisy { rate: 0.05, ..Noisy::default() };
        let run = simulate(&AsyncLsgd { period: 4, pull: 0.5 }, 1, "50ms", &noisy, 10);
        let (mut x, mut out) = (noisy.start(), Vec::new());
        for batch in 0..40 {
            noisy.gradient_of(1, batch, &x, &mut out);
            x.iter_mut().zip(&out).for_each(|(x, g)| *x -= noisy.rate * g);
        }
        assert!(run.model.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-5));
        assert_eq!(run.served.gradients, 40);
    }

    /// From 10 with a pull of ½; each loss is given with its value. 0 reaches 9 and leads. 1 reaches 6, does not lead and
    /// continues from 7.5. 0 reaches 2 with a loss of 7, so 1 leads from 6, and 0 continues from 4. 1 reaches 7, with 0.5.
    #[test]
    fn a_server_by_hand() {
        let policy = AsyncLsgd { period: 2, pull: 0.5 }.build(2).unwrap();
        let mut server = Server::new(policy, vec![10.0], 2);
        server.begin(100);
        let step = |_: &mut Vec<f32>, _: &[f32], _: u64| Ok::<_, WireError>(());
        let mut says = |worker, version, moved| {
            let replies = server.arrived(worker, one(version, moved, 1), step).unwrap();
            assert_eq!(replies.len(), 1);
            (server.model()[0], server.model_of(worker)[0])
        };
        assert_eq!(says(0, 0, 1.0), (9.0, 9.0));
        assert_eq!(says(1, 0, 4.0), (9.0, 7.5));
        assert_eq!(says(0, 1, 7.0), (6.0, 4.0));
        assert_eq!(says(1, 2, 0.5), (7.0, 7.0));
    }

    /// `(x² − 1)²/4 + x/4`: a good well near −1.1, and one near .84 that is .5 worse. Each worker starts on its own side and
    /// has its own speed.
    struct Wells;

    fn slope(x: f32) -> f32 {
        x * (x * x - 1.0) + 0.25
    }

    impl Trainer for Wells {
        type Error = ReduceError;

        fn gradient(&mut self, x: &[f32], _: Batch, out: &mut Vec<f32>) -> Result<Computed, ReduceError> {
            let x = x[0];
            out.clear();
            out.push(slope(x));
            let loss = f64::from((x * x - 1.0).powi(2) / 4.0 + x / 4.0);
            Ok(Computed { samples: 1, loss, batches: 1 })
        }

        fn step(&mut self, x: &mut Vec<f32>, gradient: &[f32], _: u64) -> Result<(), ReduceError> {
            x[0] -= 0.1 * gradient[0];
            Ok(())
        }
    }

    /// Runs four workers, of which the first is pushed into the good well by its first step. Returns the final model, and each
    /// worker's final parameters.
    fn wells(pull: f32) -> (f32, Vec<f32>) {
        struct Begun(Wells, usize, f32);
        impl Trainer for Begun {
            type Error = ReduceError;

            fn gradient(&mut self, x: &[f32], batch: Batch, out: &mut Vec<f32>) -> Result<Computed, ReduceError> {
                let computed = self.0.gradient(x, batch, out)?;
                if batch == Batch::Number(0) {
                    // To −1 and to +1, at the learning rate.
                    out[0] = if self.1 == 2 { 10.0 } else { -10.0 };
                }
                Ok(computed)
            }

            fn step(&mut self, x: &mut Vec<f32>, gradient: &[f32], version: u64) -> Result<(), ReduceError> {
                self.0.step(x, gradient, version)?;
                self.2 = x[0];
                Ok(())
            }
        }
        let rank = |mut comm: Session| {
            let (mut trainer, mut x) = (Begun(Wells, comm.rank(), 0.0), vec![0.0]);
            if comm.rank() == 0 {
                let policy = AsyncLsgd { period: 4, pull }.build(4).unwrap();
                let mut server = Server::new(policy, x, 4);
                serve(&mut server, &mut trainer, 400, &mut comm)?;
                return Ok(server.model()[0]);
            }
            let mut uplink = Uplink::new(Dense, false);
            work(&mut uplink, &mut trainer, (0, &mut 0), (Key::new(1), &mut x), &mut comm)?;
            Ok::<_, ReduceError>(trainer.2)
        };
        let mut ends = run_ranks(simulated(4, "0ms,10ms,20ms,30ms,90ms"), rank).into_iter().map(Result::unwrap);
        (ends.next().unwrap(), ends.collect())
    }

    /// Claim: the leader, which is in the better well, pulls the others over the ridge, the slowest included; without a pull
    /// they stay.
    #[test]
    fn a_leader_draws_all_workers_into_the_better_well() {
        let (model, workers) = wells(0.3);
        assert!((model + 1.1).abs() < 0.05 && workers.iter().all(|x| (x + 1.1).abs() < 0.05), "{model}, {workers:?}");
        let (model, workers) = wells(0.0);
        assert!((model + 1.1).abs() < 0.05, "{model}: the best is the model");
        assert_eq!(workers.iter().filter(|x| **x > 0.8).count(), 3, "{workers:?}");
    }

    /// Claim: no rank waits for a slow one. With three workers of 10 ms a step and one of 200 ms, the updates take the time of
    /// the fast ones.
    #[test]
    fn a_slow_worker_holds_nobody_up() {
        let noisy = Noisy { rate: 0.05, ..Noisy::default() };
        let settings = AsyncLsgd { period: 4, ..AsyncLsgd::default() };
        let seconds = |paces| simulate(&settings, 4, paces, &noisy, 300).seconds;
        let (even, slow) = (seconds("0ms,10ms,10ms,10ms,10ms"), seconds("0ms,10ms,10ms,10ms,200ms"));
        // Three of four workers make the updates; the run still waits for the last contribution of the slow one.
        assert!(slow < 4.0 / 3.0 * even + 0.81, "{even} s, {slow} s");
    }

    #[test]
    fn settings_out_of_range_are_named() {
        for (config, what) in [
            (AsyncLsgd { period: 0, pull: 0.1 }, "period of async-lsgd must be 1 to 10000"),
            (AsyncLsgd { period: 1, pull: 1.5 }, "pull of async-lsgd must be in [0, 1]"),
        ] {
            let error = config.build(2).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
