//! Elastic worlds by `run_elastic`: reports of generations, refusals.

use std::collections::BTreeMap;
use std::sync::{Barrier, Mutex};

use briquette::{DistributedOptimizer, Error, run_elastic};

use crate::common::*;

/// Rank 1 of three leaves after two steps. The survivors report it with their first step without it, and its share of the residuals that
/// all had before the second step.
#[test]
fn survivors_report_a_lost_rank_and_its_share_of_the_residuals() {
    let together = Barrier::new(3);
    let (energies, reports) = (Mutex::new(BTreeMap::new()), Mutex::new(Vec::new()));
    let steps = run_elastic(3, 1, |session, membership| {
        let (first_rank, config) = (session.rank(), top_k());
        let mut optim = DistributedOptimizer::new(sgd(), session, config, 7).with_membership(membership);
        let mut model = optim.join(Mlp::new(5))?;
        while optim.synchronizer().step() < 4 {
            let (step, rank) = (optim.synchronizer().step(), optim.rank());
            if step == 2 && optim.world() == 3 {
                // None is in doubt about the step before.
                together.wait();
                if first_rank == 1 {
                    return Ok::<_, Error>(0);
                }
            }
            let gradients = grads(&model, &model.loss(data(step, rank), 4 + rank));
            optim.record_samples(4);
            model = optim.step(0.02, model, gradients)?;
            if optim.synchronizer().step() > step {
                let left = optim.report().exchange.residual_energy.expect("error feedback").left;
                energies.lock().unwrap().insert((step, first_rank), left);
                let begun = optim.report().generations.iter().map(|begun| (step, begun.clone()));
                reports.lock().unwrap().extend(begun);
            }
        }
        optim.leave(&model)?;
        Ok(optim.synchronizer().step())
    });
    assert_eq!(steps.unwrap(), 4);
    let (energies, reports) = (energies.into_inner().unwrap(), reports.into_inner().unwrap());
    let all: f64 = (0..3).map(|rank| energies[&(0, rank)]).sum();
    let share = energies[&(0, 1)] / all;
    assert!(share > 0.0 && share < 1.0, "{share}");
    assert_eq!(reports.len(), 2, "{reports:?}");
    for (step, begun) in reports {
        assert_eq!((step, begun.number, begun.world, begun.new_members), (2, 1, 2, 0));
        assert_eq!(begun.lost, [1]);
        assert!((begun.lost_residual.expect("error feedback") - share).abs() < 1e-12, "{begun:?} and not {share}");
    }
}

#[test]
fn what_cannot_be_computed_again_is_refused_when_it_joins() {
    let averaged = config(r#"{"strategy": {"kind": "local-sgd", "period": 4, "momenta": "average"}}"#);
    for (config, said) in [(averaged, "use momenta=keep"), (ef21(), "rank-local state `reducer/")] {
        let ended = run_elastic(2, 1, |session, membership| {
            let mut optim = DistributedOptimizer::new(adam(), session, config.clone(), 7).with_membership(membership);
            optim.join(Mlp::new(5)).map(drop)
        });
        let text = ended.expect_err("it is refused").to_string();
        assert!(text.contains("an elastic world") && text.contains(said), "{text}");
    }
}
