use super::*;
use crate::Key;
use crate::comm::{Faulty, Local, run_ranks};
use crate::error::CommError;
use crate::reduce::dense::Dense;
use crate::seam::AgreedStep;

/// Five buckets of two values.
fn layout() -> Layout {
    Layout::new(["a", "b", "c", "d", "e"].map(|name| (name, vec![2])))
}

fn reduce(input: &[f32], comm: &mut Session) -> Result<Vec<f32>, ReduceError> {
    let (layout, agreed_step, mut average) = (layout(), AgreedStep::default(), vec![0.0; input.len()]);
    let (key, slots) = (Key::new(1), layout.slots());
    let round = Round { key, slots, agreed_step: &agreed_step, input, average: &mut average, sent: None };
    Bucketed::new(&layout, 1, |_| Dense).exchange(round, comm)?;
    Ok(average)
}

#[test]
fn the_first_error_in_the_order_of_buckets_comes_back_and_the_world_goes_on() {
    for bad in [vec![0], vec![1], vec![4], vec![1, 2], vec![3, 1]] {
        let first = *bad.iter().min().unwrap();
        let run = run_ranks(Local::world(3), |mut comm| {
            let mut input = [1.0; 10];
            bad.iter().for_each(|bucket| input[2 * bucket] = f32::MAX);
            let error = reduce(&input, &mut comm).unwrap_err();
            assert_eq!(comm.scope().bucket, Some(first));
            // All ranks have made the same calls, so the next exchange finds no leftover messages.
            let average = reduce(&[2.0; 10], &mut comm)?;
            assert_eq!(comm.scope().bucket, None);
            Ok::<_, ReduceError>((error, average))
        });
        let slot = layout().slots()[first].path().to_owned();
        for outcome in run {
            assert_eq!(outcome, Ok((ReduceError::Overflow { slot: slot.clone() }, vec![2.0; 10])), "{bad:?}");
        }
    }
}

#[test]
fn a_failed_call_names_its_bucket_on_every_rank() {
    let run = |mut comm: Session| {
        let result = reduce(&[1.0; 10], &mut comm).map(drop);
        // A rank may finish before another one fails; its next call then reports the failure.
        result.and_then(|()| Ok(comm.barrier()?)).map(|()| comm.calls())
    };
    let calls = run_ranks(Local::world(3), run);
    assert!(calls.iter().all(|outcome| *outcome == Ok(24)), "{calls:?}");
    for (rank, call) in (0..3).flat_map(|rank| (0..20).map(move |call| (rank, call))) {
        for outcome in run_ranks(Faulty::world(Local::builder(3).endpoints(), rank, call), run) {
            let Err(ReduceError::Comm(CommError::Aborted { by, during, .. })) = outcome else { panic!("{outcome:?}") };
            assert_eq!((by, during.bucket), (rank, Some(call as usize / 4)));
        }
    }
}
