//! Correct and incorrect uses of the API between `forward_model` and `step`.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use briquette::core::comm::run_ranks;
use briquette::core::config::Config;
use briquette::sim::{Compute, Simulated};
use briquette::{Checkpoint, DistributedOptimizer, Error, WorldChange};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use safetensors::SafeTensors;

use crate::common::*;
use crate::overlap::{EXCHANGES, Odd, during, step};

/// Returns the result of `body` within a minute: a hang is a failure, and does not block the test suite.
fn in_time<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(body()));
    told.recv_timeout(Duration::from_secs(60)).expect("a rank waits, or has panicked")
}

fn texts<T: Send>(found: Vec<Result<T, Error>>) -> Vec<String> {
    found.into_iter().map(|found| found.err().map_or_else(|| "went on".to_owned(), |error| error.to_string())).collect()
}

/// One layer's gradient never arrives.
#[test]
fn a_batch_that_is_left_by_all_ranks_leaves_no_trace_where_a_gradient_never_comes() {
    let run = |leaves: bool| {
        in_time(move || {
            ranks(3, |comm| {
                let rank = comm.rank();
                let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, during(EXCHANGES[1]), 1);
                let mut model = optim.join(Odd::new())?;
                for t in 0..4 {
                    if leaves && t > 0 {
                        let forward = optim.forward_model(&model)?;
                        drop(grads(&model, &forward.loss(9, 4)));
                    }
                    model = step(&mut optim, model, (t, rank), true)?;
                }
                Ok(bits(&model))
            })
        })
    };
    assert_eq!(run(true), run(false));
}

/// The other ranks are in the same step, and are notified that it is abandoned.
#[test]
#[cfg(feature = "overlap-backward")]
fn a_batch_that_one_rank_leaves_is_refused_by_all() {
    use briquette::core::error::SyncError;

    let found = in_time(|| {
        outcomes(3, |comm| {
            let rank = comm.rank();
            let mut optim = DistributedOptimizer::new(sgd(), comm, during(EXCHANGES[1]), 1);
            let model = optim.join(Odd::new())?;
            let forward = optim.forward_model(&model)?;
            let gradients = grads(&model, &forward.loss(data(0, rank), 4));
            let model = if rank == 1 {
                optim.forward_model(&model)?;
                model
            } else {
                let error = optim.try_step(0.02, model, gradients).expect_err("refused");
                assert!(matches!(&error.source, Error::Sync(SyncError::GaveUp { rank: 1, .. })), "{error}");
                *error.model
            };
            step(&mut optim, model, (0, rank), true).map(|model| bits(&model))
        })
    });
    let bits: Vec<_> = found.into_iter().map(Result::unwrap).collect();
    assert!(bits.iter().all(|other| *other == bits[0]));
}

#[test]
fn a_module_with_other_tensors_than_at_join_is_refused() {
    for with_tapped in [false, true] {
        let found = in_time(move || {
            outcomes(2, |comm| {
                let rank = comm.rank();
                let mut optim = DistributedOptimizer::new(sgd(), comm, during(EXCHANGES[1]), 1);
                let mut model = optim.join(Mlp::new(5))?;
                model = step(&mut optim, model, (0, rank), true)?;
                if with_tapped && cfg!(feature = "overlap-backward") {
                    let forward = optim.forward_model(&model)?;
                    let gradients = grads(&model, &forward.loss(1, 4));
                    return optim.step(0.02, forward, gradients).map(drop);
                }
                model.first = model.first.no_grad();
                step(&mut optim, model, (1, rank), true).map(drop)
            })
        });
        for text in texts(found) {
            let words =
                "trainable tensors are not those that joined: tensor 0, the first that differs, was `first.weight`";
            assert!(text.contains(words), "{with_tapped}: {text}");
        }
    }
}

/// Every gradient, doubled.
fn doubled<M: Module>(model: &M, gradients: GradientsParams) -> GradientsParams {
    struct Double(GradientsParams);
    impl ModuleVisitor for Double {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.remove::<D>(param.id) {
                self.0.register(param.id, gradient.mul_scalar(2.0));
            }
        }
    }
    let mut walk = Double(gradients);
    model.visit(&mut walk);
    walk.0
}

/// They were sent as soon as they were computed.
#[test]
#[cfg(feature = "overlap-backward")]
fn gradients_that_were_changed_after_the_backward_pass_are_refused() {
    for weight_decay in [0.0, 0.01] {
        for case in ["doubled", "added up", "left out"] {
            let found = in_time(move || {
                outcomes(2, |comm| {
                    let mut optim = DistributedOptimizer::new(sgd(), comm, during(EXCHANGES[0]), 1)
                        .with_local_weight_decay(weight_decay);
                    let model = optim.join(Mlp::new(5))?;
                    let before = optim.forward_model(&model)?;
                    let first = grads(&model, &before.loss(1, 4));
                    let gradients = match case {
                        "doubled" => doubled(&model, first),
                        "left out" => {
                            let mut rest = first;
                            rest.remove::<1>(model.second.bias.as_ref().expect("has one").id).expect("came");
                            rest
                        }
                        _ => {
                            let mut sum = burn::optim::GradientsAccumulator::new();
                            sum.accumulate(&model, first);
                            let forward = optim.forward_model(&model)?;
                            sum.accumulate(&model, grads(&model, &forward.loss(2, 4)));
                            sum.grads()
                        }
                    };
                    optim.step(0.02, model, gradients).map(drop)
                })
            });
            let texts = texts(found);
            let named = |text: &String| text.contains("is not the one that the backward pass computed");
            assert!(texts.iter().all(named), "{case}: {texts:?}");
        }
    }
}

#[test]
#[cfg(feature = "overlap-backward")]
fn a_learning_rate_that_changes_after_the_exchange_began_is_refused() {
    let found = in_time(|| {
        outcomes(2, |comm| {
            let mut optim = DistributedOptimizer::new(sgd(), comm, during(EXCHANGES[0]), 1);
            let model = optim.join(Mlp::new(5))?;
            optim.record_learning_rate(0.1);
            let forward = optim.forward_model(&model)?;
            let gradients = grads(&model, &forward.loss(1, 4));
            optim.step(0.05, model, gradients).map(drop)
        })
    });
    for text in texts(found) {
        assert!(text.contains("the learning rate is 0.05, and 0.1 was recorded before `forward_model`"), "{text}");
    }
}

#[test]
fn a_forward_model_between_the_halves_of_a_step_is_refused() {
    let found = in_time(|| {
        outcomes(2, |comm| {
            let mut optim = DistributedOptimizer::new(sgd(), comm, during(EXCHANGES[0]), 1);
            let model = optim.join(Mlp::new(5))?;
            let gradients = grads(&model, &model.loss(1, 4));
            optim.sync_gradients(&model, gradients)?;
            optim.forward_model(&model).map(drop)
        })
    });
    for text in texts(found) {
        assert!(text.contains("`forward_model` without `sync_parameters` before it"), "{text}");
    }
}

/// Its decisions depend on losses and seconds of previous steps.
#[test]
fn a_run_that_decides_by_itself_resumes_to_the_bit() {
    const STEPS: u64 = 40;
    let run = |cut: Option<u64>| {
        in_time(move || {
            let directory = tempfile::tempdir().unwrap();
            let mut traces = vec![Vec::new(); 2];
            let ends = cut.into_iter().chain([STEPS]);
            let mut begin = 0;
            for end in ends {
                let part = begin..end;
                begin = end;
                let world = Simulated::world(2, "2mbit".parse().unwrap(), Compute::Fixed(Duration::from_millis(50)));
                let config = Config {
                    exchange: briquette::core::config::Exchange { during_backward: true, ..Config::auto().exchange },
                    ..Config::auto()
                };
                let found = run_ranks(world, |comm| {
                    let rank = comm.rank();
                    let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, config.clone(), 1);
                    let mut model = optim.join(Mlp::wide(5, 200))?;
                    if part.start > 0 {
                        model = optim.load(model, &Checkpoint::latest(directory.path())?, WorldChange::Refuse)?;
                    }
                    let mut trace = Vec::new();
                    for t in part.clone() {
                        model = step(&mut optim, model, (t, rank), true)?;
                        let report = optim.report();
                        trace.push(format!(
                            "{:?} {:?} {} {:?}",
                            report.exchange.ratio, report.traffic, report.clock, report.loss
                        ));
                    }
                    optim.save(&model, directory.path(), &BTreeMap::new())?;
                    // Including the state of controllers.
                    let path = Checkpoint::latest(directory.path())?.path().join(format!("rank-{rank}.safetensors"));
                    let bytes = std::fs::read(path).unwrap();
                    let file = SafeTensors::deserialize(&bytes).unwrap();
                    // Burn's records contain random ids.
                    let own = |name: &String| !["model", "optimizer"].contains(&name.as_str());
                    let saved = file
                        .tensors()
                        .into_iter()
                        .filter(|(name, _)| own(name))
                        .map(|(name, tensor)| format!("{name} {:?}", tensor.data()));
                    let mut saved: Vec<_> = saved.collect();
                    saved.sort();
                    trace.extend(saved);
                    trace.push(format!("{:?}", bits(&model)));
                    Ok::<_, Error>(trace)
                });
                for (trace, found) in traces.iter_mut().zip(found) {
                    trace.truncate(part.start as usize);
                    trace.extend(found.unwrap());
                }
            }
            traces
        })
    };
    let whole = run(None);
    for cut in [3, 17] {
        for (whole, resumed) in whole[0].iter().zip(&run(Some(cut))[0]) {
            assert_eq!(whole, resumed, "cut at {cut}");
        }
    }
}
