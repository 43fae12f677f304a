//! Errors of one rank within a step, which stop the others.

use briquette_core::comm::{Local, run_ranks};
use briquette_core::config::Config;
use briquette_core::error::CommError;
use briquette_core::step::Driver;
use briquette_core::sync::Header;
use briquette_core::{Key, Layout};

#[test]
fn a_rank_whose_parameters_are_not_finite_after_the_optimizer_stops_the_others() {
    briquette_zoo::install();
    let config: Config = "strategy=parle:1".parse().unwrap();
    let gradient = |rank: usize| (0..56).map(|i| (i * (rank + 1)) as f32 - 15.0).collect::<Vec<_>>();
    let ranks = run_ranks(Local::world(2), |mut comm| {
        let (rank, layout) = (comm.rank(), Layout::new([("a", vec![40]), ("b", vec![7]), ("c", vec![9])]));
        let mut driver = Driver::new(Key::new(3));
        driver.drive(config.build(&layout, 2).unwrap(), layout);
        driver.set_weights_by_samples(config.weights_by_samples());
        driver.set_keeps_state(config.keeps_state());
        let plan = driver.plan();
        assert!(plan.gradients && plan.parameters);
        let mut values = gradient(rank);
        driver.strategy_mut().begin(&gradient(0));
        let header =
            Header { samples: 1 + 2 * rank as u64, samples_recorded: true, loss: Some(1.0), ..Header::default() };
        let exchanged = driver.exchange_gradient(header, &mut values, &mut [true; 3], &mut comm);
        let bad = Header { bad_slot: (rank == 1).then_some(2), ..header };
        // The other rank may be at either exchange when it learns of the error.
        let error = exchanged.and_then(|_| driver.exchange_parameters(bad, &mut values, &mut comm));
        Ok::<_, CommError>(error.unwrap_err().to_string())
    });
    let errors: Vec<String> = ranks.into_iter().map(Result::unwrap).collect();
    assert!(errors.iter().all(|error| error.contains("rank 1")), "{errors:?}");
    assert!(errors[1].contains('c'), "{errors:?}");
}
