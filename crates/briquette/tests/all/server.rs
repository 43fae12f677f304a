//! A server and its workers on real modules: consistency, resuming, and refused settings.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use briquette::core::Session;
use briquette::core::comm::run_ranks;
use briquette::core::config::ServerConfig;
use briquette::core::server::Served;
use briquette::sim::{Compute, Network, Simulated};
use briquette::{DistributedOptimizer, Error, ServerTraining, WorldChange};
use burn::optim::ModuleOptimizer;

use crate::common::*;

fn policy(text: &str) -> ServerConfig {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// The state of a server or a worker.
struct Rank {
    server: ServerTraining,
    optim: DistributedOptimizer,
}

impl Rank {
    fn new(optimizer: ModuleOptimizer, comm: Session, server: ServerTraining) -> Rank {
        let optim = DistributedOptimizer::new(optimizer, comm, server.strategy(), 1);
        Rank { server, optim }
    }

    /// Batches are determined by rank and number.
    fn train<M: Model>(&mut self, model: M, until: u64) -> Result<M, Error> {
        let rank = self.optim.rank();
        let batch = |model: &M, batch| (model.loss(data(batch, rank), 4), 4);
        self.server.train(&mut self.optim, model, until, |_| 0.02, batch)
    }
}

fn server(text: &str) -> ServerTraining {
    ServerTraining::new(policy(text)).with_batches(3)
}

#[test]
fn one_worker_of_a_server_is_plain_burn() {
    briquette::zoo::install();
    for optimizer in [sgd_with_momentum, adam] {
        let mut plain = (Mlp::new(5), optimizer());
        for batch in 0..6 {
            let gradients = grads(&plain.0, &plain.0.loss(data(batch, 1), 4));
            plain.0 = plain.1.step(0.02, plain.0, gradients);
        }
        for text in ["async-sgd", "picky:0.5", "backup:1,spare=0"] {
            let models = ranks(2, |comm| {
                let mut rank = Rank::new(optimizer(), comm, server(text));
                let model = rank.optim.join(Mlp::new(5))?;
                rank.train(model, 6)
            });
            models.iter().for_each(|model| assert_eq!(bits(model), bits(&plain.0), "{text}"));
        }
    }
}

/// As in synchronous training, a gradient of zeros is a gradient: momenta continue.
#[test]
fn a_gradient_of_zeros_is_stepped_with() {
    let loss = |model: &Mlp, batch| model.loss(data(batch, 1), 4) * (batch % 2) as f32;
    let mut plain = (Mlp::new(5), sgd_with_momentum());
    for batch in 0..6 {
        let gradients = grads(&plain.0, &loss(&plain.0, batch));
        plain.0 = plain.1.step(0.02, plain.0, gradients);
    }
    let models = ranks(2, |comm| {
        let mut rank = Rank::new(sgd_with_momentum(), comm, server("async-sgd"));
        let model = rank.optim.join(Mlp::new(5))?;
        rank.server.train(&mut rank.optim, model, 6, |_| 0.02, |model, batch| (loss(model, batch), 4))
    });
    models.iter().for_each(|model| assert_eq!(bits(model), bits(&plain.0)));
}

/// The server continues from the module and the step that it is given, independent of stored contributions.
#[test]
fn the_server_goes_on_from_its_module_and_its_step() {
    briquette::zoo::install();
    let models = ranks(3, |comm| {
        let mut rank = Rank::new(sgd(), comm, server("synthesis:4,delay=2"));
        let model = rank.optim.join(Mlp::new(5))?;
        let model = rank.train(model, 6)?;
        // No updates are left: the model is returned unchanged, on the workers as the server's.
        let given = if rank.optim.rank() == 0 { Mlp::new(77) } else { model };
        let model = rank.train(given, 6)?;
        assert_eq!(bits(&model), bits(&Mlp::new(77)));
        let model = rank.optim.join(model)?;
        assert_eq!(rank.optim.synchronizer().step(), 6);
        let model = rank.train(model, 9)?;
        assert_eq!(rank.optim.synchronizer().step(), 9);
        Ok(bits(&model))
    });
    assert!(models.iter().all(|model| *model == models[0] && *model != bits(&Mlp::new(77))));
}

#[test]
fn one_worker_that_steps_itself_is_plain_burn_up_to_rounding() {
    briquette::zoo::install();
    let models = ranks(2, |comm| {
        let mut rank = Rank::new(sgd(), comm, server("async-local-sgd:3"));
        let model = rank.optim.join(Mlp::new(5))?;
        rank.train(model, 2)
    });
    let mut plain = (Mlp::new(5), sgd());
    for batch in 0..6 {
        let gradients = grads(&plain.0, &plain.0.loss(data(batch, 1), 4));
        plain.0 = plain.1.step(0.02, plain.0, gradients);
    }
    assert!(distance(&models[0], &plain.0) < 1e-6);
    assert_eq!(bits(&models[0]), bits(&models[1]));
}

/// Ranks with different compute times, on a network with delays.
fn simulated<T: Send>(world: usize, body: impl Fn(Session) -> Result<T, Error> + Sync) -> Vec<T> {
    let network: Network = "100mbit,1ms".parse().expect("a valid network");
    let paces = "7ms,5ms,3ms,11ms".parse().expect("valid paces");
    let ranks = run_ranks(Simulated::world(world, network, Compute::Paced(paces)), body);
    ranks.into_iter().map(|rank| rank.unwrap_or_else(|e| panic!("{e}"))).collect()
}

/// Parameters and buffers of every rank, and the server's statistics.
type Seen = Vec<(Vec<(String, Vec<u32>)>, Option<Served>)>;

fn two_parts(text: &str, from: Option<&Path>, to: Option<&Path>, compressed: bool) -> Seen {
    simulated(4, |comm| {
        let mut server = server(text);
        if compressed {
            // Differences allow no residual.
            let keeps_state = policy(text).get().allows_residual();
            server = server.with_compressor("topk:4x".parse().expect("a compressor"), keeps_state);
        }
        let mut rank = Rank::new(sgd_with_momentum(), comm, server);
        let mut model = rank.optim.join(Net::new(if from.is_some() { 999 } else { 5 }))?;
        match from {
            Some(directory) => (model, _, _) = rank.optim.resume(model, directory, WorldChange::Refuse, |_| Ok(()))?,
            None => model = rank.train(model, 7)?,
        }
        assert_eq!(rank.optim.synchronizer().step(), 7);
        if let Some(directory) = to {
            rank.optim.save(&model, directory, &BTreeMap::new())?;
        }
        let model = rank.train(model, 15)?;
        Ok((bits(&model), rank.server.served().copied()))
    })
}

#[test]
fn every_policy_resumes_bit_exactly_and_leaves_all_ranks_alike() {
    briquette::zoo::install();
    let local = ["async-local-sgd:2", "async-lsgd:2,pull=0.25"];
    let all_data = ["synthesis:epoch=4,delay=2", "qsvrg:4"];
    for text in ["async-sgd", "backup:2,spare=1", "picky:0.5"].into_iter().chain(local).chain(all_data) {
        for compressed in [false, true] {
            let directory = tempfile::tempdir().expect("a directory");
            let whole = two_parts(text, None, Some(directory.path()), compressed);
            assert!(whole.iter().all(|(model, _)| *model == whole[0].0), "{text}: ranks are alike");
            assert!(whole[0].1.is_some_and(|served| served.accepted >= 15), "{text}: {:?}", whole[0].1);
            assert!(whole[1..].iter().all(|(_, served)| served.is_none()));
            let resumed = two_parts(text, Some(directory.path()), None, compressed);
            assert!(whole == resumed, "{text}, compressed {compressed}: {:?} {:?}", whole[0].1, resumed[0].1);
        }
    }
}

/// The server has processed no data: its initial statistics are in no mean.
#[test]
fn buffers_are_the_workers_mean() {
    let models = ranks(2, |comm| {
        let mut rank = Rank::new(sgd(), comm, server("async-sgd"));
        let model = rank.optim.join(Net::new(5))?;
        rank.train(model, 3)
    });
    let mut plain = (Net::new(5), sgd());
    for batch in 0..3 {
        let gradients = grads(&plain.0, &plain.0.loss(data(batch, 1), 4));
        plain.0 = plain.1.step(0.02, plain.0, gradients);
    }
    assert_eq!(value(&models[0], "norm.running_mean"), value(&models[1], "norm.running_mean"));
    assert!(distance(&models[0], &plain.0) < 1e-6);
}

/// Checks every rank's error at join; `build` makes the server settings of each rank.
fn refused(world: usize, build: impl Fn(usize) -> ServerTraining + Sync, named: &[&str]) {
    let join = |comm: Session| {
        let server = build(comm.rank());
        Rank::new(sgd(), comm, server).optim.join(Mlp::new(5)).map(|_| ())
    };
    for (rank, outcome) in outcomes(world, join).into_iter().enumerate() {
        let text = outcome.expect_err("refused").to_string();
        assert!(named.iter().all(|named| text.contains(named)), "rank {rank}: {text}");
    }
}

#[test]
fn what_cannot_work_is_refused_when_ranks_join() {
    briquette::zoo::install();
    refused(1, |_| server("async-sgd"), &["a world of 1 rank", "use at least 2 ranks"]);
    refused(
        3,
        |_| server("backup:4,spare=1"),
        &["server backup:4,spare=1 does not go with 2 workers", "4 + 1 workers"],
    );
    refused(3, |rank| server(if rank == 1 { "picky:0.5" } else { "async-sgd" }), &["server", "async-sgd", "picky:0.5"]);
    let sign = |rank| server("async-sgd").with_compressor("sign".parse().expect("a compressor"), rank == 1);
    refused(2, sign, &["uplink", "with memory", "without memory"]);
    refused(2, |_| ServerTraining::new(policy("synthesis:4,delay=2")), &["with_batches"]);
    let topk = |_| server("synthesis:4,delay=2").with_compressor("topk:4x".parse().expect("a compressor"), true);
    refused(2, topk, &["server synthesis", "no memory"]);
}

#[test]
fn a_worker_without_data_for_a_full_gradient_is_named() {
    briquette::zoo::install();
    let outcomes = outcomes(3, |comm| {
        let batches = if comm.rank() == 2 { 0 } else { 3 };
        let server = ServerTraining::new(policy("synthesis:4,delay=2")).with_batches(batches);
        let mut rank = Rank::new(sgd(), comm, server);
        let model = rank.optim.join(Mlp::new(5))?;
        rank.train(model, 6).map(|_| ())
    });
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        let text = outcome.expect_err("rank 2 has none").to_string();
        assert!(text.contains("rank 2") && text.contains("without batches"), "rank {rank}: {text}");
    }
}

#[test]
fn another_world_is_refused_by_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    ranks(3, |comm| {
        let mut rank = Rank::new(sgd(), comm, server("async-sgd"));
        let model = rank.optim.join(Mlp::new(5))?;
        let model = rank.train(model, 4)?;
        rank.optim.save(&model, directory, &BTreeMap::new()).map(|_| ())
    });
    let outcomes = outcomes(4, |comm| {
        let mut rank = Rank::new(sgd(), comm, server("async-sgd"));
        let model = rank.optim.join(Mlp::new(5))?;
        rank.optim.resume(model, directory, WorldChange::SpreadResiduals, |_| Ok(())).map(|_| ())
    });
    for outcome in outcomes {
        let text = outcome.expect_err("of another size").to_string();
        assert!(text.contains("`world` is 3") && text.contains("in a world of its own size"), "{text}");
    }
}

/// Requested on a worker, without knowledge of the others.
#[test]
fn a_stop_request_of_a_worker_ends_the_run_on_all_ranks() {
    briquette::zoo::install();
    let steps = ranks(4, |comm| {
        let stop = Arc::new(AtomicBool::new(false));
        let mut rank = Rank::new(sgd(), comm, server("backup:3,spare=0").with_stop(Arc::clone(&stop)));
        let model = rank.optim.join(Mlp::new(5))?;
        let number = rank.optim.rank();
        let loss = |model: &Mlp, batch| {
            stop.store(number == 2 && batch == 3, Ordering::Relaxed);
            (model.loss(data(batch, number), 4), 4)
        };
        let model = rank.server.train(&mut rank.optim, model, 1000, |_| 0.01, loss)?;
        Ok((rank.optim.synchronizer().step(), bits(&model)))
    });
    // Its batch of number 3 is in the fourth update.
    assert!(steps.iter().all(|step| step.0 == 4 && *step == steps[0]), "{:?}", steps[0].0);
}

#[test]
fn a_learning_rate_that_is_not_finite_is_named_everywhere() {
    briquette::zoo::install();
    for text in ["async-sgd", "async-local-sgd:2"] {
        let outcomes = outcomes(3, |comm| {
            let mut rank = Rank::new(sgd(), comm, server(text));
            let model = rank.optim.join(Mlp::new(5))?;
            let number = rank.optim.rank();
            let loss = |model: &Mlp, batch| (model.loss(data(batch, number), 4), 4);
            rank.server.train(&mut rank.optim, model, 10, |_| f64::NAN, loss).map(|_| ())
        });
        for outcome in outcomes {
            let error = outcome.expect_err("no rate").to_string();
            assert!(error.contains("learning rate NaN"), "{text}: {error}");
        }
    }
}

/// Each rank refuses both by itself. The second also stops the world: a rank that has not joined yet gets an error.
#[test]
fn steps_and_other_optimizers_are_refused() {
    briquette::zoo::install();
    let outcomes = outcomes(2, |comm| {
        let mut rank = Rank::new(sgd(), comm, server("async-sgd"));
        let model = rank.optim.join(Mlp::new(5))?;
        let gradients = grads(&model, &model.loss(1, 4));
        let stepped = rank.optim.try_step(0.1, model, gradients).expect_err("refused");
        rank.server = server("picky:0.5");
        let trained = rank.train(*stepped.model, 1).expect_err("refused");
        Ok((stepped.source.to_string(), trained.to_string()))
    });
    assert!(outcomes.iter().any(Result::is_ok));
    for outcome in outcomes {
        let heard = |text: &str| text.contains("give it `server.strategy()`");
        let (stepped, trained) = outcome.unwrap_or_else(|error| (error.to_string(), error.to_string()));
        assert!(heard(&stepped) || stepped.contains("call `ServerTraining::train`"), "{stepped}");
        assert!(heard(&trained), "{trained}");
    }
}

/// Checks every rank's error if rank 2's loss is wrong.
fn wrong(text: &str, wrong: impl Fn(u64) -> f32 + Sync, named: &[&str]) {
    let outcomes = outcomes(3, |comm| {
        let mut rank = Rank::new(sgd(), comm, server(text));
        let model = rank.optim.join(Mlp::new(5))?;
        let number = rank.optim.rank();
        let loss = |model: &Mlp, batch| {
            let factor = if number == 2 { wrong(batch) } else { 1.0 };
            (model.loss(data(batch, number), 4) * factor, 4)
        };
        rank.server.train(&mut rank.optim, model, 1000, |_| 0.001, loss).map(|_| ())
    });
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        let text = outcome.expect_err("nobody can go on").to_string();
        assert!(named.iter().all(|named| text.contains(named)), "rank {rank}: {text}");
    }
}

#[test]
fn a_gradient_that_is_not_finite_is_named_everywhere() {
    wrong("async-sgd", |batch| if batch == 1 { f32::NAN } else { 1.0 }, &["rank 2", "finite", "first.weight"]);
}

#[test]
fn a_worker_that_panics_is_named_everywhere() {
    briquette::zoo::install();
    let panics = |batch| {
        assert!(batch < 2, "the data is gone");
        1.0
    };
    wrong("backup:1,spare=1", panics, &["rank 2 stopped the run"]);
}
