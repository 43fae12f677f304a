use std::time::Duration;

use crate::comm::{Local, LocalBuilder, run_ranks};
use crate::error::CommError;

fn local(ranks: usize) -> LocalBuilder {
    Local::builder(ranks).deadline(Duration::from_secs(20))
}

#[test]
fn ranks_of_a_group_are_numbered_by_place_and_groups_lie_within_groups() {
    let seen = run_ranks(local(5).build(), |mut comm| {
        if comm.rank() == 2 {
            return Ok(Vec::new());
        }
        // Ranks 4, 3, 1 and 0 are 0 to 3; of those, 3 and 1 are 0 and 1.
        let own = comm.rank();
        let gathered = comm.within(&[4, 3, 1, 0], |outer| {
            let mut seen = vec![outer.rank() as u8, outer.world() as u8];
            if outer.rank() % 2 == 1 {
                outer.within(&[3, 1], |inner| {
                    let mut parts = Vec::new();
                    inner.all_gather(&[own as u8], &mut parts)?;
                    seen.extend([inner.rank() as u8, inner.world() as u8]);
                    seen.extend(parts.concat());
                    Ok::<_, CommError>(())
                })?;
            }
            Ok::<_, CommError>(seen)
        })?;
        assert_eq!((comm.rank(), comm.world()), (own, 5));
        Ok(gathered)
    });
    let seen: Vec<_> = seen.into_iter().collect::<Result<_, CommError>>().unwrap();
    assert_eq!(seen, [vec![3, 4, 0, 2, 3], vec![2, 4], vec![], vec![1, 4, 1, 2, 0], vec![0, 4]]);
}

#[test]
fn errors_in_a_group_name_ranks_by_their_numbers_in_the_world() {
    let errors =
        run_ranks(Local::builder(4).deadline(Duration::from_millis(50)).build(), |mut comm| match comm.rank() {
            3 => comm.within(&[3, 2], |pair| pair.recv(1)).map(drop),
            2 => comm.recv(3).map(drop),
            _ => Ok(()),
        });
    let texts: Vec<_> = errors[2..].iter().map(|error| error.as_ref().unwrap_err().to_string()).collect();
    let other = |text: &str| text.contains("rank 2") && text.contains("rank 3");
    assert!(texts.iter().all(|text| other(text)), "{texts:?}");
    let sizes = run_ranks(local(4).build(), |mut comm| match comm.rank() {
        0 | 1 => Ok(()),
        rank => comm.within(&[2, 3], |pair| pair.all_reduce_sum(&mut vec![1.0; rank])),
    });
    for (rank, result) in sizes.iter().enumerate().skip(2) {
        match result.as_ref().unwrap_err() {
            CommError::Size { rank: who, other, .. } => assert_eq!((*who, *other), (rank, 5 - rank)),
            error => assert!(error.to_string().contains(&format!("from rank {rank}")), "{error}"),
        }
    }
}

#[test]
#[should_panic(expected = "rank 0 is not in the group [1]")]
fn a_rank_outside_of_a_group_panics() {
    Local::world(2)[0].within(&[1], |_| ());
}

#[test]
#[should_panic(expected = "a group has different ranks below 2, not [0, 0]")]
fn a_group_has_a_rank_once() {
    Local::world(2)[0].within(&[0, 0], |_| ());
}
