use super::*;
use crate::Layout;
use crate::comm::{Local, run_ranks};

fn exchange(headers: [Header; 2]) -> [Result<Agreement, SyncError>; 2] {
    let layout = Layout::new([("conv.weight", vec![2]), ("fc.bias", vec![1])]);
    let mut world = Local::world(2);
    std::thread::scope(|scope| {
        let handles: Vec<_> = world
            .iter_mut()
            .zip(headers)
            .map(|(comm, header)| {
                let layout = &layout;
                scope.spawn(move || {
                    let mut present = [header.samples > 0, false];
                    let agreed = agree(&header, None, layout.slots(), &mut present, comm)?;
                    assert_eq!(present, [agreed.agreed_step.samples > 0, false]);
                    Ok(agreed)
                })
            })
            .collect();
        handles.into_iter().map(|h| h.join().unwrap()).collect::<Vec<_>>().try_into().unwrap()
    })
}

#[test]
fn weights_make_the_plain_mean_a_mean_over_samples() {
    let header = |samples, loss| Header { samples, loss, ..Header::default() };
    let [a, b] = exchange([header(3, Some(1.0)), header(1, Some(5.0))]).map(Result::unwrap);
    // (3·1.5 + 1·0.5)/… : weights 3·2/4 and 1·2/4; loss (3·1 + 1·5)/4 = 2.
    assert_eq!((a.weight, b.weight), (1.5, 0.5));
    assert_eq!((a.agreed_step, a.agreed_step.loss, a.agreed_step.samples), (b.agreed_step, Some(2.0), 4));
    let [a, b] = exchange([header(0, None), header(2, Some(7.0))]).map(Result::unwrap);
    assert_eq!((a.weight, b.weight, a.agreed_step.loss), (0.0, 2.0, Some(7.0)));
}

/// Threat R3.
#[test]
fn a_bad_slot_is_refused_on_every_rank_by_name() {
    let bad = Header { bad_slot: Some(1), ..Header::default() };
    for result in exchange([Header::default(), bad]) {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("rank 1") && text.contains("`fc.bias`"), "{text}");
    }
}

#[test]
fn one_rank_stops_all_and_another_step_is_an_error() {
    let stop = Header { stop: StopFlags::INTERRUPTED, ..Header::default() };
    for result in exchange([stop, Header::default()]) {
        assert!(result.unwrap().stop.contains(StopFlags::INTERRUPTED));
    }
    let late = Header { step: 3, ..Header::default() };
    let [a, b] = exchange([Header::default(), late]).map(|r| r.unwrap_err().to_string());
    assert!(a.contains("rank 1 is at step 3, this rank at step 0"), "{a}");
    assert!(b.contains("rank 0 is at step 0"), "{b}");
}

#[test]
fn ranks_with_different_learning_rates_are_told_so() {
    let header = |learning_rate| Header { learning_rate, ..Header::default() };
    let [a, b] = exchange([header(Some(0.1)), header(Some(0.2))]).map(|r| r.unwrap_err().to_string());
    assert!(a.contains("rank 1 steps with learning rate 0.2, this rank with 0.1"), "{a}");
    assert!(b.contains("rank 0 steps with learning rate 0.1"), "{b}");
    let [a, _] = exchange([header(None), header(Some(0.2))]).map(|r| r.unwrap_err().to_string());
    assert!(a.contains("this rank with none stated"), "{a}");
    let [a, b] = exchange([header(Some(0.2)), header(Some(0.2))]).map(Result::unwrap);
    assert_eq!((a.agreed_step.learning_rate, b.agreed_step.learning_rate), (Some(0.2), Some(0.2)));
}

/// Threat R3.
#[test]
fn numbers_that_cannot_be_weighed_or_stepped_with_are_refused_on_every_rank() {
    let good = Header { samples: 4, learning_rate: Some(0.1), ..Header::default() };
    for rate in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let bad = Header { learning_rate: Some(rate), ..good };
        for result in exchange([good, bad]).into_iter().chain(exchange([bad, bad])) {
            let error = result.unwrap_err();
            assert!(matches!(error, SyncError::Rate { step: 0, .. }) && error.is_on_all_ranks(), "{error}");
        }
    }
    for samples in [u64::MAX, MOST_SAMPLES + 1] {
        for result in exchange([good, Header { samples, ..good }]) {
            let error = result.unwrap_err();
            assert_eq!(error, SyncError::Samples { step: 0, rank: 1, got: samples, most: MOST_SAMPLES });
        }
    }
    assert!(exchange([good, Header { samples: MOST_SAMPLES, ..good }]).iter().all(Result::is_ok));
}

#[test]
fn samples_that_some_ranks_record_are_refused_on_every_rank() {
    let header = |samples, samples_recorded| Header { samples, samples_recorded, ..Header::default() };
    for [a, b, rank, other] in [[3, 1, 0, 1], [1, 9, 1, 0]] {
        for result in exchange([header(a, rank == 0), header(b, rank == 1)]) {
            let error = result.unwrap_err();
            assert!(error.is_on_all_ranks());
            let (rank, other) = (rank as usize, other as usize);
            assert_eq!(error, SyncError::SomeRecorded { step: 0, rank, other });
        }
    }
    assert!(exchange([header(3, true), header(0, true)]).iter().all(Result::is_ok));
}

#[test]
fn digests_that_differ_are_refused_on_every_rank_after_values_that_are_not_finite() {
    let header = |digest, bad_slot| Header { digest: Some(digest), bad_slot, ..Header::default() };
    assert!(exchange([header(u64::MAX, None), header(u64::MAX, None)]).iter().all(Result::is_ok));
    for result in exchange([header(5, None), header(6, None)]) {
        let error = result.unwrap_err();
        assert!(error.is_on_all_ranks());
        assert_eq!(error, SyncError::Replicas { step: 0, slot: None, rank: 0, others: vec![1] });
        let text = error.to_string();
        assert!(text.contains("the parameters of rank 1 are not those of rank 0"), "{text}");
    }
    for result in exchange([header(5, None), header(6, Some(0))]) {
        assert!(matches!(result.unwrap_err(), SyncError::NonFinite { rank: 1, .. }));
    }
}

#[test]
fn headers_survive_the_wire() {
    let header = Header {
        gave_up: true,
        step: 9,
        session: 3,
        bad_slot: Some(4),
        stop: StopFlags::EARLY,
        samples: 7,
        samples_recorded: true,
        digest: None,
        loss: Some(0.5),
        validation_loss: Some(0.75),
        learning_rate: Some(0.1),
        compute_seconds: 1.5,
        previous: Some(LastExchange {
            compress_seconds: 0.25,
            exchange_seconds: 2.0,
            traffic: Traffic { sent: 1, received: 2 },
            residual_energy: ResidualEnergy { entered: 3.0, left: 0.5 },
            ..LastExchange::default()
        }),
    };
    assert_eq!(Header::from_bytes(&header.to_bytes(), 0), Some(header));
    // A digest may have any value, including that of a slot number.
    for digest in [0, 4, u64::MAX] {
        let with_digest = Header { bad_slot: None, digest: Some(digest), samples_recorded: false, ..header };
        assert_eq!(Header::from_bytes(&with_digest.to_bytes(), 0), Some(with_digest));
        let both = Header { digest: Some(digest), ..header };
        assert_eq!(Header::from_bytes(&both.to_bytes(), 0), Some(header), "the slot comes first");
    }
    assert_eq!(Header::from_bytes(&[0; BYTES - 1], 0), None);
}

#[test]
fn measured_numbers_are_summed_in_rank_order_to_the_bit() {
    let header = |numbers: &[f64]| {
        let measured = Measured::new(numbers).unwrap();
        Header { previous: Some(LastExchange { measured, ..LastExchange::default() }), ..Header::default() }
    };
    let layout = Layout::new([("conv.weight", vec![2]), ("fc.bias", vec![1])]);
    let before = AgreedStep::default();
    let numbers = [[0.1, 1e300, -0.0], [0.2, f64::INFINITY, 3.0], [0.3, 1.0, f64::NAN]];
    let agreed = run_ranks(Local::world(3), |mut comm| {
        let rank = comm.rank();
        let mut present = [rank == 1, rank == 2];
        let mine = header(&numbers[rank]);
        let agreed = agree(&mine, Some(&before), layout.slots(), &mut present, &mut comm).unwrap();
        assert_eq!(present, [true, true]);
        Ok::<_, CommError>(agreed.agreed_step.previous.unwrap().measured)
    });
    for measured in agreed {
        let measured = measured.unwrap();
        let [sum, infinite, nan] = measured.numbers().try_into().unwrap();
        assert_eq!((sum, infinite), (0.1 + 0.2 + 0.3, f64::INFINITY));
        assert!(nan.is_nan());
    }
    assert_eq!(Measured::new(&[0.0; Measured::MOST + 1]), None);
}

#[test]
fn ranks_that_measured_different_things_are_an_error() {
    let layout = Layout::new([("fc.bias", vec![1])]);
    let errors = run_ranks(Local::world(2), |mut comm| {
        let rank = comm.rank();
        let measured = Measured::new(&vec![1.0; rank]).unwrap();
        let previous = Some(LastExchange { measured, ..LastExchange::default() });
        let mine = Header { previous, ..Header::default() };
        Ok::<_, CommError>(agree(&mine, None, layout.slots(), &mut [true], &mut comm).unwrap_err().to_string())
    });
    let errors: Vec<_> = errors.into_iter().map(|error| error.unwrap()).collect();
    assert!(errors.iter().all(|error| error.contains("106") && error.contains("114")), "{errors:?}");
}
