//! Momenta of the inner optimizer after an exchange of parameters.

use briquette::DistributedOptimizer;
use briquette::core::comm::Session;
use burn::optim::ModuleOptimizer;

use crate::common::*;
use crate::strategies::{run, strategy};

/// If momenta are reset, a period of one step is plain SGD.
#[test]
fn momenta_are_reset_at_the_end_of_a_period() {
    briquette::zoo::install();
    let reset = run("slowmo:period=1,beta=0", sgd_with_momentum, 2, 5);
    let plain = run("slowmo:period=1,beta=0", sgd, 2, 5);
    assert!(distance(&reset[0], &plain[0]) < 1e-6);
    let kept = run("slowmo:period=1,beta=0,reset=false", sgd_with_momentum, 2, 5);
    assert!(distance(&kept[0], &plain[0]) > 1e-4);
}

/// Returns whether the ranks' optimizers have equal states after some steps: ranks with the same data then make the same step.
fn states_are_equal(text: &str, inner: fn() -> ModuleOptimizer, steps: u64) -> bool {
    let models = ranks(2, |comm: Session| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(inner(), comm, strategy(text), 1);
        let mut model = optim.join(Mlp::new(5))?;
        for step in 0..steps {
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        Ok(train(&mut optim, model, steps, 0)?.0)
    });
    bits(&models[0]) == bits(&models[1])
}

#[test]
fn averaged_momenta_are_the_same_on_every_rank() {
    for (momenta, equal) in [("average", true), ("reset", true), ("keep", false)] {
        for inner in [sgd_with_momentum as fn() -> ModuleOptimizer, adam] {
            let text = format!("local-sgd:3,momenta={momenta}");
            assert_eq!(states_are_equal(&text, inner, 3), equal, "{momenta}");
        }
    }
}

/// Adam has two moments, SGD has the first only.
#[test]
fn each_moment_is_averaged_with_its_period() {
    briquette::zoo::install();
    for (text, steps, of_adam, of_sgd) in [
        ("des-loc:3,first=1,second=1", 3, true, true),
        ("des-loc:3,first=1,second=2", 3, false, true),
        ("des-loc:3,first=2,second=1", 3, false, false),
        ("des-loc:3,first=2,second=1", 6, true, true),
        ("des-loc:3,first=2,second=2", 3, false, false),
    ] {
        let equal = [adam, sgd_with_momentum].map(|inner| states_are_equal(text, inner, steps));
        assert_eq!(equal, [of_adam, of_sgd], "{text} after {steps} steps");
    }
}

/// Rank 1 has no gradient of the second layer. Its optimizer has no state for it, and its state must not be averaged with another
/// layer's.
#[test]
fn momenta_of_other_parameters_are_not_averaged() {
    let results = outcomes(2, |comm: Session| {
        let rank = comm.rank();
        let mut optim =
            DistributedOptimizer::new(sgd_with_momentum(), comm, strategy("local-sgd:1,momenta=average"), 1);
        let model = optim.join(Mlp::new(5))?;
        let loss = match rank {
            0 => model.loss(3, 4),
            _ => model.first.weight.val().sum(),
        };
        let gradients = grads(&model, &loss);
        optim.step(0.1, model, gradients)
    });
    for result in results {
        let text = result.expect_err("refused").to_string();
        assert!(text.contains("rank 1") && text.contains("other parameters than rank 0's"), "{text}");
    }
}

/// The cost of averaging is in the step's report, and is not part of the next step's compute time.
#[test]
fn averaged_momenta_are_counted() {
    let bytes = |text: &str| {
        ranks(2, |comm: Session| {
            let rank = comm.rank();
            let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, strategy(text), 1);
            let model = optim.join(Mlp::new(5))?;
            let before = optim.synchronizer_mut().session().traffic();
            let (_, _) = train(&mut optim, model, 0, rank)?;
            let sent = (optim.synchronizer_mut().session().traffic() - before).sent;
            Ok((sent, optim.report().traffic.sent))
        })
    };
    let (average, keep) = (bytes("local-sgd:1,momenta=average"), bytes("local-sgd:1"));
    assert!(average.iter().all(|(counted, reported)| counted == reported), "{average:?}");
    assert!(average[0].0 > keep[0].0);
}

/// Velocities are linear in gradients: averaged at every step, they are those of averaged gradients.
#[test]
fn momenta_averaged_at_every_step_are_those_of_averaged_gradients() {
    let averaged = run("local-sgd:1,momenta=average", sgd_with_momentum, 3, 6);
    let minibatch = run("every-step", sgd_with_momentum, 3, 6);
    assert!(distance(&averaged[0], &minibatch[0]) < 1e-6);
    let reset = run("local-sgd:1,momenta=reset", sgd_with_momentum, 3, 6);
    assert!(distance(&reset[0], &minibatch[0]) > 1e-4);
}
