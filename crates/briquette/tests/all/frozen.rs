//! Frozen layers are equal on all ranks after joining: they are not sent, and no bit changes.

use std::collections::BTreeMap;

use briquette::DistributedOptimizer;
use briquette::core::config::Config;
use burn::module::Module;

use crate::common::*;

/// The body of a net with BatchNorm is frozen, its head is trained.
fn frozen(seed: u64) -> Net {
    let Net { conv, norm, top } = Net::new(seed);
    Net { conv: conv.no_grad(), norm: norm.no_grad(), top }
}

const FROZEN: [&str; 4] = ["conv.weight", "conv.bias", "norm.gamma", "norm.beta"];

#[test]
fn nothing_frozen_is_sent_after_joining_and_not_a_bit_of_it_changes() {
    let seen = ranks(3, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(adam(), comm, Config::dense(), 1);
        let mut model = optim.join(frozen(5 + rank as u64))?;
        let joined = FROZEN.map(|path| value(&model, path));
        assert_eq!(joined, FROZEN.map(|path| value(&frozen(5), path)), "they are rank 0's");
        for step in 0..5 {
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        // Four running means and four variances in a ring of three, with padding.
        let before = optim.synchronizer_mut().session().traffic();
        let shown = optim.evaluation_copy(&model)?;
        let sent = (optim.synchronizer_mut().session().traffic() - before).sent;
        assert!(sent <= 2 * 8 * 4, "{sent} bytes for 8 running statistics");
        model = optim.synchronizer_mut().average_buffers(model)?;
        for module in [&shown, &model] {
            assert_eq!(FROZEN.map(|path| value(module, path)), joined);
        }
        assert_ne!(value(&model, "top.weight"), value(&frozen(5), "top.weight"));
        let slots: Vec<_> = optim.synchronizer().layout()?.slots().iter().map(|slot| slot.path().to_owned()).collect();
        assert_eq!(slots, ["top.weight", "top.bias"]);
        Ok(bits(&model))
    });
    assert!(seen.iter().all(|bits| *bits == seen[0]));
}

#[test]
fn a_layer_is_trained_from_the_second_join_on() {
    let seen = ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, top_k(), 1);
        let mut model = optim.join(frozen(5))?;
        for step in 0..3 {
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        let Net { conv, norm, top } = model;
        let unfrozen = Net { conv: conv.set_require_grad(true), norm, top };
        let before = value(&unfrozen, "conv.weight");
        model = optim.join(unfrozen)?;
        assert_eq!(optim.synchronizer().step(), 3);
        for step in 3..6 {
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        assert_ne!(value(&model, "conv.weight"), before);
        assert_eq!(value(&model, "norm.gamma"), value(&frozen(5), "norm.gamma"));
        Ok(bits(&model))
    });
    assert_eq!(
        seen[0].iter().filter(|(path, _)| !path.contains("running")).collect::<Vec<_>>(),
        seen[1].iter().filter(|(path, _)| !path.contains("running")).collect::<Vec<_>>()
    );
}

#[test]
fn a_run_with_frozen_layers_resumes_to_the_bit() {
    let directory = tempfile::tempdir().unwrap();
    let run = |from: u64, to: u64| {
        ranks(2, |comm| {
            let rank = comm.rank();
            let mut optim = DistributedOptimizer::new(adam(), comm, top_k(), 1);
            let mut model = optim.join(frozen(5))?;
            if from > 0 {
                (model, ..) = optim.resume(model, directory.path(), briquette::WorldChange::Refuse, |_| Ok(()))?;
            }
            for step in from..to {
                (model, _) = train(&mut optim, model, step, rank)?;
                if step == 2 && from == 0 {
                    optim.save(&model, directory.path(), &BTreeMap::new())?;
                }
            }
            Ok(bits(&model))
        })
    };
    let whole = run(0, 6);
    assert_eq!(whole, run(3, 6));
}
