use super::*;
use briquette_core::comm::Local;
use briquette_core::reduce::AgreedStep;
use briquette_core::{Key, Layout};

fn layout() -> Layout {
    Layout::new([("w", vec![5]), ("b", vec![2])])
}

/// Returns the average and `sent` of every rank, and the bytes that each sent.
fn reduce(inputs: &[Vec<f32>], layout: &Layout, key: Key) -> Vec<(Vec<f32>, Vec<f32>, u64)> {
    std::thread::scope(|scope| {
        let ranks = Local::world(inputs.len()).into_iter().zip(inputs);
        let handles: Vec<_> = ranks
            .map(|(mut comm, input)| {
                scope.spawn(move || {
                    let (mut average, mut sent) = (vec![0.0; input.len()], vec![0.0; input.len()]);
                    let (slots, agreed_step) = (layout.slots(), AgreedStep::default());
                    let round = Round {
                        key,
                        slots,
                        agreed_step: &agreed_step,
                        input,
                        average: &mut average,
                        sent: Some(&mut sent),
                    };
                    let mut reducer = TernaryAllReduce::new(TernGrad::unclipped());
                    let exchanged = reducer.reduce(round, &mut comm).unwrap();
                    (average, sent, exchanged.traffic.sent)
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    })
}

#[test]
fn by_hand_where_nothing_is_random() {
    // Scales: 4 of rank 0 in `w`, 2 of rank 1 in `b`. Every value is a whole multiple of its scale.
    let inputs = [vec![4.0, 0.0, -4.0, 0.0, 4.0, 0.0, 2.0], vec![4.0, -4.0, 4.0, 0.0, 0.0, -2.0, 2.0]];
    for (rank, (average, sent, bytes)) in reduce(&inputs, &layout(), Key::new(1)).into_iter().enumerate() {
        assert_eq!(average, [4.0, -2.0, 0.0, 0.0, 2.0, -1.0, 2.0]);
        assert_eq!(sent, inputs[rank]);
        // Two scales; 3 and 4 codes of 2 bits to the other rank; 3 and 4 sums of 3 bits.
        assert_eq!(bytes, 8 + 1 + 2);
    }
}

#[test]
fn the_mean_over_draws_is_the_mean_over_ranks_with_the_exact_variance() {
    let layout = layout();
    let inputs = [vec![0.5, -0.25, 0.125, 0.9, 0.0, 3.0, -1.0], vec![-1.0, 0.3, 0.6, 0.2, 0.1, 0.5, 2.0]];
    let draws = 4000;
    let (mut sum, mut squares) = ([0.0; 7], 0.0);
    let mean: Vec<f64> = (0..7).map(|i| inputs.iter().map(|x| f64::from(x[i])).sum::<f64>() / 2.0).collect();
    for draw in 0..draws {
        let (average, ..) = reduce(&inputs, &layout, Key::new(9).step(draw)).remove(0);
        for i in 0..7 {
            sum[i] += f64::from(average[i]);
            squares += (f64::from(average[i]) - mean[i]).powi(2);
        }
    }
    // s‖x‖₁ − ‖x‖² of each rank and slot, over W²; the scales are 1 and 3.
    let scale = [1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 3.0];
    let of = |x: &Vec<f32>| (0..7).map(|i| f64::from(x[i].abs()) * (scale[i] - f64::from(x[i].abs()))).sum::<f64>();
    let variance = inputs.iter().map(of).sum::<f64>() / 4.0;
    // Seven independent values: within 5 standard errors, and the variance within 5 %.
    for i in 0..7 {
        let error = (sum[i] / f64::from(draws as u32) - mean[i]).abs();
        assert!(error < 5.0 * (scale[i] * scale[i] / 8.0 / f64::from(draws as u32)).sqrt(), "value {i}: {error}");
    }
    assert!((squares / f64::from(draws as u32) / variance - 1.0).abs() < 0.05, "{squares} {variance}");
}

#[test]
fn clipped_by_itself_each_rank_sends_at_most_the_shared_scale() {
    let (layout, mut outlier) = (Layout::flat(25), vec![1.0; 25]);
    outlier[3] = -10.0;
    let mut comm = Local::world(1).remove(0);
    let (mut average, agreed_step) = (vec![0.0; 25], AgreedStep::default());
    let round = Round {
        key: Key::new(2),
        slots: layout.slots(),
        agreed_step: &agreed_step,
        input: &outlier,
        average: &mut average,
        sent: None,
    };
    TernaryAllReduce::new(TernGrad::new()).reduce(round, &mut comm).unwrap();
    // 2.5·√(124/25), as in TernGrad's test.
    let limit = (2.5 * (124.0_f64 / 25.0).sqrt()) as f32;
    assert_eq!(average[3], -limit);
    assert!(average.iter().all(|v| [-limit, 0.0, limit].contains(v)));
}

#[test]
fn sums_take_as_many_bits_as_they_need() {
    assert_eq!([1, 2, 3, 4, 7, 8, 63, 127, 128, 1000].map(bits_of_sum), [2, 3, 3, 4, 4, 5, 7, 8, 16, 16]);
    // Ranges tile the vector.
    for (world, len) in [(1, 5), (3, 7), (5, 3), (4, 0)] {
        let ends: Vec<_> = (0..world).map(|rank| owned(rank, world, len)).collect();
        assert!(ends.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!((ends[0].start, ends[world - 1].end), (0, len));
    }
}

#[test]
fn a_large_world_sums_in_sixteen_bits() {
    let inputs: Vec<Vec<f32>> = (0..130).map(|rank| vec![if rank < 3 { -1.0 } else { 1.0 }, 1.0]).collect();
    let (average, ..) = reduce(&inputs, &Layout::flat(2), Key::new(4)).remove(129);
    assert_eq!(average, [124.0 / 130.0, 1.0]);
}

#[test]
fn frames_that_do_not_fit_are_errors_that_name_the_rank() {
    for (scales, says) in
        [(vec![0_u8; 3], "bytes of ternary codes"), (f32::NAN.to_le_bytes().to_vec(), "scale of a slot")]
    {
        let mut world = Local::world(2);
        let mut other = world.pop().unwrap();
        let error = std::thread::scope(|scope| {
            scope.spawn(move || {
                let _ = other.all_gather(&scales, &mut Vec::new());
                other
            });
            let (layout, agreed_step, mut average) = (Layout::flat(2), AgreedStep::default(), [0.0; 2]);
            let (slots, input) = (layout.slots(), [1.0, 2.0]);
            let round = Round {
                key: Key::new(0),
                slots,
                agreed_step: &agreed_step,
                input: &input,
                average: &mut average,
                sent: None,
            };
            let mut reducer = TernaryAllReduce::new(TernGrad::unclipped());
            reducer.reduce(round, &mut world[0]).unwrap_err().to_string()
        });
        assert!(error.contains("rank 1") && error.contains(says), "{error}");
    }
}
