//! Re-broadcasts make drifting replicas equal again.

use briquette::core::config::Config;
use briquette::{DistributedOptimizer, Error};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;

use crate::common::*;

/// Imitates rounding, on a scale large enough to be measured: adds `by` to every trainable value.
fn nudge<M: Module>(module: M, by: f64) -> M {
    struct Nudge(f64);
    impl ModuleMapper for Nudge {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|old| {
                if old.is_require_grad() { old.inner().add_scalar(self.0).autodiff().require_grad() } else { old }
            })
        }
    }
    module.map(&mut Nudge(by))
}

#[test]
fn a_replica_that_drifted_takes_rank_0s_parameters_and_says_how_far_it_was() {
    let told = ranks(3, |mut comm| {
        let rank = comm.rank();
        comm.begin_step(0);
        let mut optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1).with_rebroadcast(2);
        let mut model = optim.join(Mlp::new(5))?;
        let mut drifts = Vec::new();
        for step in 0..4 {
            if step == 1 {
                model = nudge(model, 0.01 * rank as f64);
            }
            let before = optim.synchronizer_mut().session().traffic();
            let (next, report) = train(&mut optim, model, step, 0)?;
            model = next;
            let counted = optim.synchronizer_mut().session().traffic() - before;
            assert_eq!(report.traffic, counted, "step {step}: bytes of the re-broadcast are the step's");
            drifts.push(report.drift);
        }
        Ok((bits(&model), values(&model), drifts))
    });
    let (bits, values, drifts) = &told[0];
    assert!(told.iter().all(|rank| (&rank.0, &rank.2) == (bits, drifts)), "{drifts:?}");
    assert_eq!((drifts[0], drifts[2], drifts[3]), (None, None, Some(0.0)));
    // Rank 2 was off by 0.02 in each of its values, less the correction by the gradients of other weights.
    let all: Vec<f32> = values.iter().flat_map(|(_, v)| v.clone()).collect();
    let norm = all.iter().map(|v| f64::from(v * v)).sum::<f64>().sqrt();
    let expected = 0.02 * (all.len() as f64).sqrt() / norm;
    let drift = drifts[1].expect("step 1 ends with a re-broadcast");
    assert!((drift / expected - 1.0).abs() < 0.1, "{drift} beside {expected}");
}

/// Rounds of two steps: a re-broadcast due after three steps happens at the end of their round, and the next round begins with
/// its result.
#[test]
fn rounds_of_minibatches_take_rank_0s_parameters_at_their_ends() {
    let told = ranks(2, |comm| {
        let rank = comm.rank();
        let rounds = config(r#"{"strategy": "minibatch:2"}"#);
        let mut optim = DistributedOptimizer::new(sgd(), comm, rounds, 1).with_rebroadcast(3);
        let mut model = optim.join(Mlp::new(5))?;
        let mut drifts = Vec::new();
        for step in 0..6 {
            // The effect of a device with other rounding on the step that ends a round.
            let nudged = if step == 3 { nudge(model, 0.01 * rank as f64) } else { model };
            let (next, report) = train(&mut optim, nudged, step, 0)?;
            model = next;
            drifts.push(report.drift.is_some());
        }
        Ok((bits(&model), drifts))
    });
    assert_eq!(told[0].1, [false, false, false, true, false, true]);
    assert_eq!(told[0], told[1]);
}

#[test]
fn a_world_of_one_device_never_rebroadcasts_unless_told() {
    let steps = |told: Option<u64>| {
        ranks(2, |comm| {
            let mut optim = DistributedOptimizer::new(adam(), comm, Config::dense(), 1);
            if let Some(steps) = told {
                optim = optim.with_rebroadcast(steps);
            }
            assert!(matches!(optim.synchronizer().rebroadcast_steps(), Err(Error::NotJoined { .. })));
            let _ = optim.join(Mlp::new(1))?;
            optim.synchronizer().rebroadcast_steps()
        })
    };
    assert_eq!((steps(None), steps(Some(7)), steps(Some(0))), (vec![0, 0], vec![7, 7], vec![0, 0]));
}

#[test]
fn ranks_that_were_told_differently_cannot_join() {
    let errors = outcomes(2, |comm| {
        let steps = 10 + comm.rank() as u64;
        DistributedOptimizer::new(adam(), comm, Config::dense(), 1).with_rebroadcast(steps).join(Mlp::new(1)).map(drop)
    });
    let text = errors[0].as_ref().unwrap_err().to_string();
    assert!(text.contains("its re-broadcast is every 11 steps, rank 0's is every 10 steps"), "{text}");
}

#[test]
fn local_sgd_refuses_what_it_would_ignore() {
    let local = config(r#"{"strategy": "local-sgd:4"}"#);
    let join = |steps| {
        outcomes(2, |comm| {
            let mut optim = DistributedOptimizer::new(adam(), comm, local.clone(), 1).with_rebroadcast(steps);
            optim.join(Mlp::new(1)).map(drop)
        })
    };
    assert!(join(0).iter().all(Result::is_ok));
    for error in join(5) {
        let text = error.unwrap_err().to_string();
        assert!(text.contains("exchanges parameters itself"), "{text}");
    }
}
