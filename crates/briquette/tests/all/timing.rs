//! Fields of a step's report, and the order of a step's halves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use briquette::core::Frame;
use briquette::core::comm::{Call, Clock, Local, Scope, Transport, run_ranks};
use briquette::core::config::Config;
use briquette::core::error::CommError;
use briquette::sim::{Compute, Simulated};
use briquette::{Checkpoint, DistributedOptimizer, Error};
use burn::optim::GradientsParams;

use crate::common::*;

/// A world of threads whose clocks advance by a second with every received frame, and by nothing else.
struct Ticking {
    inner: Local,
    ticks: Arc<Ticks>,
}

#[derive(Default)]
struct Ticks(AtomicU64);

impl Clock for Ticks {
    fn seconds(&self) -> f64 {
        self.0.load(Ordering::Relaxed) as f64
    }
}

impl Transport for Ticking {
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn world(&self) -> usize {
        self.inner.world()
    }
    fn send(&mut self, to: usize, frame: Frame, call: &mut Call) -> Result<(), CommError> {
        self.inner.send(to, frame, call)
    }
    fn recv_any(&mut self, from: &[usize], call: &mut Call) -> Result<(usize, Frame), CommError> {
        self.ticks.0.fetch_add(1, Ordering::Relaxed);
        self.inner.recv_any(from, call)
    }
    fn abort(&mut self, during: Scope, reason: &str) {
        self.inner.abort(during, reason);
    }
    fn clock(&self) -> Option<Arc<dyn Clock + Sync>> {
        Some(Arc::clone(&self.ticks) as _)
    }
}

#[test]
fn waiting_for_the_header_is_exchange_to_people_and_nothing_to_controllers() {
    let directory = tempfile::tempdir().unwrap();
    let ticking = Local::builder(2).endpoints().into_iter().map(|inner| Ticking { inner, ticks: Arc::default() });
    let results = run_ranks(ticking.collect(), |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, top_k(), 1);
        let model = optim.join(Mlp::new(5))?;
        let (model, report) = train(&mut optim, model, 0, rank)?;
        optim.save(&model, directory.path(), &BTreeMap::new())?;
        Ok::<_, Error>((report.compress_seconds, report.exchange_seconds, report.wait_seconds))
    });
    // One frame for the header, one for the messages.
    assert!(results.into_iter().all(|seconds| seconds.unwrap() == (0.0, 2.0, 1.0)));
    let file = Checkpoint::latest(directory.path()).unwrap().path().join("rank-0.safetensors");
    let bytes = std::fs::read(file).unwrap();
    let saved = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let seconds = saved.tensor("state/previous/seconds").unwrap().data().to_vec();
    // Compression and exchange, as the next step's header repeats them.
    assert_eq!(seconds, [0.0_f64, 1.0].map(f64::to_le_bytes).concat());
}

#[test]
fn the_seconds_of_a_step_are_the_ranks_own_and_count_the_wait_for_the_slowest_rank_once() {
    // Rank 0 computes for 50 ms and waits, rank 1 for 150 ms; frames and compressing take no time.
    let world = Simulated::world(2, "unlimited".parse().unwrap(), Compute::Paced("50ms,150ms".parse().unwrap()));
    let results = run_ranks(world, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, top_k(), 1);
        let mut model = optim.join(Mlp::new(5))?;
        let mut seen = Vec::new();
        for step in 0..3 {
            let report;
            (model, report) = train(&mut optim, model, step, rank)?;
            seen.push([report.own_compute_seconds, report.compute_seconds, report.wait_seconds, report.seconds()]);
        }
        Ok::<_, Error>(seen)
    });
    let near = |seen: &[f64; 4], expected: [f64; 4]| seen.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9);
    for (result, expected) in results.into_iter().zip([[0.05, 0.15, 0.1, 0.15], [0.15, 0.15, 0.0, 0.15]]) {
        let seen = result.unwrap();
        assert!(seen.iter().all(|step| near(step, expected)), "{seen:?}, expected {expected:?}");
    }
}

#[test]
fn steps_without_an_exchange_take_their_simulated_time_and_count_dense_bytes() {
    let network = "100mbit,1ms".parse().unwrap();
    let world = Simulated::world(2, network, Compute::Fixed(Duration::from_millis(50)));
    let results = run_ranks(world, |comm| {
        let rank = comm.rank();
        let periodic = config(r#"{"strategy": "local-sgd:3"}"#);
        let mut optim = DistributedOptimizer::new(sgd(), comm, periodic, 1);
        let mut model = optim.join(Mlp::new(5))?;
        let joined = optim.synchronizer_mut().session().now();
        let mut reports = Vec::new();
        for step in 0..6 {
            let report;
            (model, report) = train(&mut optim, model, step, rank)?;
            reports.push(report);
        }
        Ok::<_, Error>((joined, reports))
    });
    for result in results {
        let (joined, reports) = result.unwrap();
        assert!(reports.iter().all(|r| (r.compute_seconds - 0.05).abs() < 1e-9), "{reports:?}");
        assert!((reports[0].seconds() - 0.05).abs() < 1e-9, "{reports:?}");
        assert!((reports[1].clock - joined - 0.10).abs() < 1e-9, "{reports:?}");
        assert!(reports[5].clock - joined > 0.30, "{reports:?}");
        let dense = reports[2].dense_traffic;
        assert!(dense.sent > 0 && reports.iter().all(|r| r.dense_traffic == dense), "{reports:?}");
    }
}

#[test]
fn the_halves_of_a_step_come_in_turn() {
    for config in [Config::dense(), config(r#"{"strategy": "local-sgd:2"}"#)] {
        ranks(2, |comm| {
            let mut optim = DistributedOptimizer::new(sgd(), comm, config.clone(), 1);
            let model = optim.join(Mlp::new(5))?;
            let error = optim.sync_parameters(model.clone()).expect_err("nothing to end");
            let text = error.to_string();
            assert!(text.contains("step 0: `sync_parameters` without `sync_gradients`"), "{text}");
            let mut model = model;
            for step in 0..3 {
                optim.sync_gradients(&model, GradientsParams::new())?;
                let again = optim.sync_gradients(&model, GradientsParams::new()).expect_err("not ended");
                let text = again.to_string();
                assert!(matches!(again, Error::Order { .. }), "{text}");
                assert!(text.contains(&format!("step {step}: `sync_gradients` without `sync_parameters`")), "{text}");
                model = optim.sync_parameters(model)?;
            }
            Ok(())
        });
    }
}

/// A world of threads has no clock. A strategy that reads seconds gets one.
#[test]
fn an_adaptive_period_has_a_clock() {
    for (strategy, has_clock) in
        [("local-sgd:8", false), ("local-sgd:8,adapt=true", true), ("diloco:8,adapt=true", true)]
    {
        let seconds = run_ranks(Local::world(2), |comm| {
            let rank = comm.rank();
            let config = config(&format!(r#"{{"strategy": "{strategy}", "reducer": "dense"}}"#));
            let mut optim = DistributedOptimizer::new(sgd(), comm, config, 1);
            let model = optim.join(Mlp::new(5))?;
            Ok::<_, Error>(train(&mut optim, model, 0, rank)?.1.compute_seconds)
        });
        let seconds: Vec<f64> = seconds.into_iter().map(Result::unwrap).collect();
        assert!(seconds.iter().all(|seconds| (*seconds > 0.0) == has_clock), "{strategy}: {seconds:?}");
    }
}

/// Steps of 10 ms. An exchange of the model takes 20 ms or more on the slow link, 1 ms on the second one (its header another one), and no time on the last.
#[test]
fn an_adaptive_period_follows_the_simulated_seconds() {
    for (network, expected) in [
        ("100kbit,5ms", vec![3, 7, 15, 23]),
        ("unlimited,1ms", [3].into_iter().chain((7..24).step_by(2)).collect()),
        ("unlimited", [3, 7].into_iter().chain(8..24).collect()),
    ] {
        let world = Simulated::world(2, network.parse().unwrap(), Compute::Fixed(Duration::from_millis(10)));
        let results = run_ranks(world, |comm| {
            let rank = comm.rank();
            let config = config(r#"{"strategy": "local-sgd:8,adapt=true", "reducer": "dense"}"#);
            let mut optim = DistributedOptimizer::new(sgd(), comm, config, 1);
            let mut model = optim.join(Mlp::new(5))?;
            let mut exchanges = Vec::new();
            for step in 0..24 {
                let (next, report) = train(&mut optim, model, step, rank)?;
                let before = optim.synchronizer_mut().session().traffic();
                model = optim.average_parameters(next)?;
                let averages = optim.synchronizer_mut().session().traffic() != before;
                assert_eq!(averages, report.traffic.sent == 0, "replicas are equal after an exchange, and only there");
                if report.traffic.sent > 0 {
                    exchanges.push(step);
                }
            }
            Ok::<_, Error>(exchanges)
        });
        assert!(results.into_iter().all(|exchanges| exchanges.unwrap() == expected), "{network}");
    }
}
