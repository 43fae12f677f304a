use super::*;
use crate::Key;
use crate::comm::{Local, run_ranks};
use crate::math::norm2;
use crate::seam::AgreedStep;
use crate::wrapper::error_feedback::ErrorFeedback;

fn ladder(rungs: Rungs) -> Ladder<Box<dyn Reducer>> {
    let exchange = Exchange::default();
    Ladder::new(LadderConfig::default().sparse().build(&exchange, &Layout::flat(1)).unwrap(), rungs)
}

fn all(ratio: f64) -> Ratios<'static> {
    Ratios::All(CompressionRatio::new(ratio).unwrap())
}

fn input(rank: usize) -> Vec<f32> {
    (0..3000).map(|i| ((i * 37 + rank * 11) % 101) as f32 - 50.3).collect()
}

/// Bytes that a rank of four sends at each ratio, and the ratio that it reports. For 3000 values on the ring: 2·3/4·2·3000 = 9000 in 16
/// bits; in 8 bits 6 frames of 750 values in 3 blocks; in 4 bits 2 blocks of 140 bytes and one of 238 values, with 4 + 8 + 119.
#[test]
fn golden_a_ratio_chooses_what_travels() {
    let mut seen = Vec::new();
    let usual = [2.0, 4.0, 7.0].map(|ratio| (ratio, Rungs::Usual));
    let with_int4 = [2.9, 5.0, 7.0, 10.0].map(|ratio| (ratio, Rungs::Int4));
    for (ratio, rungs) in usual.into_iter().chain(with_int4) {
        let ranks = run_ranks(Local::world(4), |mut comm| {
            let (mut ladder, layout, mut average) = (ladder(rungs), Layout::flat(3000), vec![0.0; 3000]);
            ladder.knob().unwrap().set(all(ratio));
            let (input, agreed_step) = (input(comm.rank()), AgreedStep::default());
            let round = Round {
                key: Key::new(1),
                slots: layout.slots(),
                agreed_step: &agreed_step,
                input: &input,
                average: &mut average,
                sent: None,
            };
            let exchanged = ladder.exchange(round, &mut comm)?;
            let mut report = Report::default();
            ladder.report(&mut report);
            Ok::<_, ReduceError>((exchanged.traffic.sent, report.ratio.unwrap().get()))
        });
        seen.push(ranks[0].clone().unwrap());
    }
    assert_eq!(seen[0], (9000, 2.0));
    assert_eq!(seen[1], (6 * (750 + 3 * 4), 4.0));
    assert!(seen[2].0 < 2600 && seen[2].1 == 7.0, "{seen:?}");
    assert_eq!(seen[3..5], seen[..2]);
    assert_eq!(seen[5], (6 * (2 * 140 + 4 + 8 + 119), 8.0));
    assert!(seen[6].0 < 1800 && seen[6].1 == 10.0, "{seen:?}");
}

/// Under error feedback a step's input plus the previous residual equals the contribution plus the next residual, at any rung.
#[test]
fn a_residual_goes_through_all_rungs() {
    run_ranks(Local::world(4), |mut comm| {
        let (layout, mut average) = (Layout::flat(3000), vec![0.0; 3000]);
        let (input, agreed_step) = (input(comm.rank()), AgreedStep::default());
        let mut feedback = ErrorFeedback::new(ladder(Rungs::Int4));
        let (mut totals, mut sum) = ([0.0_f64; 3000], [0.0_f64; 3000]);
        for (step, ratio) in [20.0, 2.0, 4.0, 10.0, 7.0, 2.0].into_iter().enumerate() {
            feedback.inner().knob().unwrap().set(all(ratio));
            let (slots, key) = (layout.slots(), Key::new(1).step(step as u64));
            let round =
                Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None };
            feedback.exchange(round, &mut comm)?;
            let left: Vec<f64> = feedback.residual().iter().map(|v| f64::from(*v)).collect();
            let mut sums: Vec<f64> = left;
            comm.all_reduce_sum_f64(&mut sums)?;
            let mut fed: Vec<f64> = input.iter().map(|v| f64::from(*v)).collect();
            comm.all_reduce_sum_f64(&mut fed)?;
            for i in 0..3000 {
                totals[i] += f64::from(average[i]) * 4.0;
                sum[i] += fed[i];
                assert!((totals[i] + sums[i] - sum[i]).abs() < 1e-3 * (1.0 + sum[i].abs()), "{ratio}x, value {i}");
            }
        }
        Ok::<_, ReduceError>(())
    })
    .into_iter()
    .for_each(Result::unwrap);
}

#[test]
fn rings_gains_are_one_and_messages_their_own() {
    let (mut ladder, layout, input) = (ladder(Rungs::Usual), Layout::flat(3000), input(0));
    let ratios = [2.0, 4.0, 10.0, 100.0].map(|ratio| CompressionRatio::new(ratio).unwrap());
    let mut energies = Energies::new();
    let probe = Probe { slots: layout.slots(), key: Key::new(0), rank: 0, ratios: &ratios, per_slot: false };
    ladder.knob().unwrap().probe(&probe, ProbeInput::Host(&input), &mut energies).unwrap();
    let (total, kept) = (energies.norm2(0), energies.kept(0));
    assert!((total - norm2(&input)).abs() < 1e-6 * total);
    assert_eq!(kept[..2], [total; 2]);
    assert!(kept[2] < 0.5 * total && kept[3] < kept[2] && kept[3] > 0.0, "{kept:?} of {total}");
}

/// A rung starts at its bound.
#[test]
fn a_ratio_at_a_bound_is_of_the_next_rung() {
    let of = |rungs, ratio: f64| ladder(rungs).ring(CompressionRatio::new(ratio).unwrap());
    let usual = [1.0, 2.99, 3.0, 5.99, 6.0].map(|ratio| of(Rungs::Usual, ratio));
    assert_eq!(usual, [Some(0), Some(0), Some(1), Some(1), None]);
    assert_eq!([5.99, 6.0, 8.99, 9.0].map(|ratio| of(Rungs::Int4, ratio)), [Some(1), Some(2), Some(2), None]);
    assert_eq!([1.2, 1000.0].map(|ratio| of(Rungs::Lossless, ratio)), [Some(0); 2]);
}

#[test]
fn ratios_of_a_controller() {
    let ratios = |rungs: Rungs, max| -> Vec<f64> {
        rungs.ratios(CompressionRatio::new(max).unwrap()).into_iter().map(CompressionRatio::get).collect()
    };
    assert_eq!(ratios(Rungs::Usual, 15.0), [1.0, 2.0, 4.0, 10.0, 15.0]);
    assert_eq!(ratios(Rungs::Int4, 15.0), [1.0, 2.0, 4.0, 7.0, 10.0, 15.0]);
    assert_eq!(ratios(Rungs::Lossless, 50.0), [1.0, 1.2]);
}
