//! Rank failures: the death of a rank does not make the others hang.

use briquette::DistributedOptimizer;

use crate::common::*;

#[test]
fn a_rank_that_panics_stops_the_others_with_its_number_long_before_the_deadline() {
    let results = outcomes(3, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, top_k(), 1);
        let mut model = optim.join(Mlp::new(5))?;
        for step in 0..10 {
            assert!(!(rank == 1 && step == 4), "the data is gone");
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        Ok(())
    });
    for (rank, result) in results.into_iter().enumerate() {
        let error = result.expect_err("nobody can go on").to_string();
        let start = "rank 1 stopped the run during compute at step 4: panicked";
        assert!(error.contains(start), "rank {rank}: {error}");
        assert_eq!(error.contains("the data is gone"), rank == 1, "rank {rank}: {error}");
    }
}

#[test]
fn the_model_comes_back_with_the_error_when_another_rank_is_gone() {
    let results = outcomes(2, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(adam(), comm, top_k(), 1);
        let model = optim.join(Mlp::new(5))?;
        let (model, _) = train(&mut optim, model, 0, rank)?;
        if rank == 1 {
            return Ok(());
        }
        let before = bits(&model);
        let gradients = grads(&model, &model.loss(1, 4));
        let error = optim.try_step(0.02, model, gradients).expect_err("rank 1 has left");
        assert_eq!(bits(&*error.model), before);
        let text = error.to_string();
        assert!(text.contains("rank 1") && text.contains("it left the run"), "{text}");
        Err(error.into())
    });
    assert!(results[0].is_err() && results[1].is_ok());
}
