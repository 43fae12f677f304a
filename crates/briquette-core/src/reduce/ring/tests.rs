use super::*;
use crate::comm::{Local, RING_FRAME, all_reduce_traffic};
use crate::laws::compress::noise;
use crate::reduce::dense::Dense;
use crate::seam::AgreedStep;
use crate::wrapper::error_feedback::ErrorFeedback;

const FORMATS: [Wire; 4] = [Wire::Bf16, Wire::F16, Wire::Int8, Wire::Int4];

/// Average, contribution and traffic of each rank in one round, or the error.
type Reduced = Result<(Vec<f32>, Vec<f32>, crate::Traffic), ReduceError>;

fn reduce<R: Reducer>(make: impl Fn() -> R + Sync, inputs: &[Vec<f32>]) -> Vec<Reduced> {
    Local::run(inputs.len(), |mut comm| {
        let input = &inputs[comm.rank()];
        let layout = Layout::new([("first", vec![input.len() / 2]), ("second", vec![input.len() - input.len() / 2])]);
        let (mut average, mut sent) = (vec![f32::NAN; input.len()], vec![f32::NAN; input.len()]);
        let (key, slots, agreed_step) = (Key::new(3), layout.slots(), &AgreedStep::default());
        let round = Round { key, slots, agreed_step, input, average: &mut average, sent: Some(&mut sent) };
        let traffic = make().reduce(round, &mut comm)?.traffic;
        Ok((average, sent, traffic))
    })
}

fn inputs(world: usize, len: usize) -> Vec<Vec<f32>> {
    let value = |rank: usize, i: usize| ((i * 7 + rank * 131) as f32 * 0.37).sin() * (1.0 + (i % 13) as f32);
    (0..world).map(|rank| (0..len).map(|i| value(rank, i)).collect()).collect()
}

fn rounded(wire: Wire, values: &[f32]) -> Vec<f32> {
    let scaled = values.chunks(SCALED).any(|values| wire.needs_scale(values));
    let size = |values| if scaled { wire.scaled_bytes(values) } else { wire.bytes(values) };
    let (mut bytes, mut out) = (vec![0; size(values.len())], vec![0.0; values.len()]);
    for (values, bytes) in values.chunks(BLOCK).zip(bytes.chunks_mut(size(BLOCK))) {
        wire.encode(values, None, bytes);
    }
    wire.decode(&bytes, &mut out);
    out
}

/// Returns part `c` of `parts` that tile `range`.
fn cut(range: Range<usize>, c: usize, parts: usize) -> Range<usize> {
    range.start + c * range.len() / parts..range.start + (c + 1) * range.len() / parts
}

/// Returns all frames of a vector, each with the rank at which it starts.
fn frames(len: usize, world: usize) -> Vec<(usize, Range<usize>)> {
    let parts = len.div_ceil(world).div_ceil(RING_FRAME).max(1);
    let of = |c: usize| (0..parts).map(move |f| (c, cut(cut(0..len, c, world), f, parts)));
    (0..world).flat_map(of).collect()
}

/// Computes the average and each rank's contribution, one frame at a time, without a network.
fn naive(wire: Wire, inputs: &[Vec<f32>]) -> (Vec<f32>, Vec<Vec<f32>>) {
    let (world, len) = (inputs.len(), inputs[0].len());
    let (mut average, mut sent) = (vec![0.0; len], vec![vec![0.0; len]; world]);
    if len <= SMALL_ALL_REDUCE || world == 1 {
        for (input, sent) in inputs.iter().zip(&mut sent) {
            *sent = rounded(wire, input);
            average.iter_mut().zip(&*sent).for_each(|(sum, v)| *sum += v);
        }
    } else {
        for (first, place) in frames(len, world) {
            let mut sum = vec![0.0; place.len()];
            for rank in (first..first + world).map(|rank| rank % world) {
                let exact: Vec<f32> = sum.iter().zip(&inputs[rank][place.clone()]).map(|(a, b)| a + b).collect();
                let after = rounded(wire, &exact);
                (0..sum.len()).for_each(|i| sent[rank][place.start + i] = after[i] - sum[i]);
                sum = after;
            }
            average[place].copy_from_slice(&sum);
        }
    }
    let weight = 1.0 / world as f32;
    average.iter_mut().for_each(|v| *v *= weight);
    (average, sent)
}

#[test]
fn by_hand_two_ranks_each_lose_what_they_round() {
    // Above 1 024 values, in chunks of 600. Steps of bfloat16 from 256 to 512 are 2: 255 + 2 = 257 ties to 256.
    let (len, world) = (1200, 2);
    let inputs = [vec![255.0; len], vec![2.0; len]];
    let results = reduce(|| Ring::new(Wire::Bf16), &inputs);
    for (rank, result) in results.into_iter().enumerate() {
        let (average, sent, traffic) = result.unwrap();
        assert_eq!(average, vec![128.0; len]);
        // Chunk 0 starts at rank 0, whose 255 is exact; rank 1 rounds 257 to 256, so its contribution is 1. Chunk 1 is the other way round.
        let expected = [[255.0, 254.0], [1.0, 2.0]][rank];
        assert_eq!([sent[0], sent[600]], expected);
        // Each chunk is sent once to be summed and once to be delivered, 2 bytes a value.
        assert_eq!(traffic.sent, 2 * 600 * 2);
        assert_eq!(world as f32 * average[0], 255.0 + 1.0);
    }
}

#[test]
fn all_ranks_have_the_bits_of_the_naive_twin() {
    for wire in FORMATS {
        for (world, len) in
            [(1, 3), (1, 3000), (2, 1), (3, 1025), (5, 3), (5, 1024), (5, 4999), (2, 3 * RING_FRAME + 77)]
        {
            // Values of usual magnitude, small values, and large values with blocks of all magnitudes.
            for scale in [1.0, 1e-9, 3e4] {
                let mut inputs = inputs(world, len);
                let shrink = |i: usize, v: f32| v * scale / if scale > 1.0 && i / 300 % 3 == 1 { 1e8 } else { 1.0 };
                inputs.iter_mut().for_each(|x| x.iter_mut().enumerate().for_each(|(i, v)| *v = shrink(i, *v)));
                let (average, sent) = naive(wire, &inputs);
                for (rank, result) in reduce(|| Ring::new(wire), &inputs).into_iter().enumerate() {
                    let (ours, our_sent, _) = result.unwrap();
                    assert!(ours == average, "{wire:?}, rank {rank} of {world}, {len} values");
                    assert!(our_sent == sent[rank], "{wire:?}, rank {rank} of {world}, {len} values: sent");
                }
            }
        }
    }
}

#[test]
fn bytes_are_half_of_the_dense_ring_and_a_quarter_with_scales() {
    for (world, len) in [(2, 5000), (3, 1025), (5, 7), (5, 5003), (2, 3 * RING_FRAME + 77), (8, 9000)] {
        let inputs = inputs(world, len);
        let dense: Vec<_> = reduce(|| Dense, &inputs).into_iter().map(|r| r.unwrap().2).collect();
        for wire in FORMATS {
            for (rank, result) in reduce(|| Ring::new(wire), &inputs).into_iter().enumerate() {
                let traffic = result.unwrap().2;
                assert_eq!(dense[rank], all_reduce_traffic(len, world, rank));
                if matches!(wire, Wire::Bf16 | Wire::F16) {
                    assert_eq!((2 * traffic.sent, 2 * traffic.received), (dense[rank].sent, dense[rank].received));
                    continue;
                }
                // A rank sends all frames except those of the next rank's chunk, then all except those of the chunk after it.
                let skips =
                    |rank: usize, c: usize| usize::from(c != (rank + 1) % world) + usize::from(c != (rank + 2) % world);
                let bytes = |rank: usize| match len <= SMALL_ALL_REDUCE {
                    true => (world - 1) * wire.bytes(len),
                    false => frames(len, world).iter().map(|(c, f)| skips(rank, *c) * wire.bytes(f.len())).sum(),
                };
                let previous = (rank + world - 1) % world;
                assert_eq!(
                    (traffic.sent as usize, traffic.received as usize),
                    (bytes(rank), bytes(previous)),
                    "{world} {len}"
                );
            }
        }
    }
}

#[test]
fn sums_beyond_the_range_of_f16_arrive_in_every_format() {
    for (len, largest) in
        [(8, 30_000.0), (3000, 30_000.0), (3000, 1e30), (8, 1e30), (3000, 1e-8), (8, 1e-8), (3000, 1e-37)]
    {
        let mut inputs = inputs(3, len);
        // Only the last block is beyond the range, or far below it.
        inputs.iter_mut().for_each(|x| x[len - 8..].fill(largest));
        if largest < 1.0 {
            inputs.iter_mut().for_each(|x| x[..].fill(largest));
        }
        for wire in [Wire::Bf16, Wire::F16] {
            let error = if wire == Wire::F16 { 2_f32.powi(-11) } else { 2_f32.powi(-8) };
            for result in reduce(|| Ring::new(wire), &inputs) {
                let (average, sent, _) = result.unwrap();
                assert!(
                    (average[len - 1] - largest).abs() <= 3.0 * error * largest,
                    "{wire:?}: {} {largest}",
                    average[len - 1]
                );
                assert!(
                    (sent[len - 1] - largest).abs() <= 3.0 * error * largest,
                    "{wire:?}: {} {largest}",
                    sent[len - 1]
                );
            }
        }
    }
}

#[test]
fn a_sum_beyond_f32_is_the_same_error_on_every_rank() {
    for len in [8, 3000] {
        let mut inputs = inputs(3, len);
        inputs.iter_mut().for_each(|x| x[len - 1] = f32::MAX / 2.0);
        for wire in FORMATS {
            for result in reduce(|| Ring::new(wire), &inputs) {
                assert_eq!(result.unwrap_err(), ReduceError::Overflow { slot: "second".into() }, "{wire:?}");
            }
        }
    }
}

#[test]
fn under_feedback_nothing_is_lost_over_the_steps() {
    let (world, len, steps) = (3, 2000, 200);
    let inputs = inputs(world, len);
    let mean: Vec<f64> = (0..len).map(|i| inputs.iter().map(|x| f64::from(x[i])).sum::<f64>() / 3.0).collect();
    let off = |fed: bool| -> f64 {
        let averages = Local::run(world, |mut comm| {
            let input = &inputs[comm.rank()];
            let ring = Ring::new(Wire::Int8);
            let mut reducer: Box<dyn Reducer> = if fed { Box::new(ErrorFeedback::new(ring)) } else { Box::new(ring) };
            let (layout, mut average, mut total) = (Layout::flat(len), vec![0.0; len], vec![0.0; len]);
            for step in 0..steps {
                let (key, slots, agreed_step) = (Key::new(3).step(step), layout.slots(), &AgreedStep::default());
                reducer
                    .exchange(Round { key, slots, agreed_step, input, average: &mut average, sent: None }, &mut comm)?;
                total.iter_mut().zip(&average).for_each(|(total, v)| *total += f64::from(*v));
            }
            Ok::<_, ReduceError>(total)
        });
        let total = averages.into_iter().next().unwrap().unwrap();
        total.iter().zip(&mean).map(|(total, mean)| (total / steps as f64 - mean).abs()).fold(0.0, f64::max)
    };
    // A step of 8 bits is 13·3/127 at most. The residual is at most that, once in 200 steps.
    let (fed, lost) = (off(true), off(false));
    assert!(fed < 0.3 / 200.0 && lost > 20.0 * fed, "{fed} {lost}");
}

#[test]
fn a_frame_of_another_size_is_an_error_that_names_the_rank() {
    for len in [10, 4100] {
        let results = Local::run(2, |mut comm| {
            // Rank 1 has half as many values.
            let (len, layout) = (len / (1 + comm.rank()), Layout::flat(len / (1 + comm.rank())));
            let (input, mut average) = (vec![1.0; len], vec![0.0; len]);
            let (key, slots, agreed_step) = (Key::new(0), layout.slots(), &AgreedStep::default());
            let round = Round { key, slots, agreed_step, input: &input, average: &mut average, sent: None };
            Ring::new(Wire::Bf16).reduce(round, &mut comm)
        });
        assert!(
            results.iter().any(|r| r
                .as_ref()
                .is_err_and(|e| e.to_string().contains("bytes") && e.to_string().contains("rank 1"))),
            "{results:?}"
        );
    }
}

#[test]
fn rounding_at_random_is_refused_in_sixteen_bits() {
    for format in FORMATS.into_iter().chain([Wire::Lossless]) {
        assert_eq!(RingConfig { format, stochastic: true }.check().is_ok(), format.bits() < 16);
    }
    let draws = |key| {
        let mut comm = Local::world(1).remove(0);
        let (layout, input, mut average) = (Layout::flat(100), vec![0.3; 100], vec![0.0; 100]);
        let input: Vec<f32> = input.iter().enumerate().map(|(i, v)| v + i as f32).collect();
        let round = Round {
            key,
            slots: layout.slots(),
            agreed_step: &AgreedStep::default(),
            input: &input,
            average: &mut average,
            sent: None,
        };
        Ring::stochastic().reduce(round, &mut comm).unwrap();
        average
    };
    assert_eq!(draws(Key::new(1)), draws(Key::new(1)));
    assert_ne!(draws(Key::new(1)), draws(Key::new(2)));
}

/// Error of the average of normal values, relative to its norm, in the formats of 8 and 4 bits: it grows with the number of hops.
#[test]
fn the_error_grows_with_the_world_and_stays_small() {
    let error = |wire: Wire, world: usize| -> f64 {
        let inputs: Vec<Vec<f32>> = (0..world).map(|rank| noise("gauss", 2048, rank as u64)).collect();
        let (average, _) = naive(wire, &inputs);
        let exact = |i: usize| inputs.iter().map(|x| f64::from(x[i])).sum::<f64>() / world as f64;
        let off: f64 = (0..2048).map(|i| (f64::from(average[i]) - exact(i)).powi(2)).sum();
        (off / (0..2048).map(|i| exact(i).powi(2)).sum::<f64>()).sqrt()
    };
    for (wire, largest) in [(Wire::Int8, 0.08), (Wire::Int4, 0.8)] {
        let errors = [2, 8, 64].map(|world| error(wire, world));
        assert!(errors.is_sorted() && errors[0] < errors[2] / 2.0 && errors[2] < largest, "{wire:?}: {errors:?}");
    }
}

/// Gradients of few exponents, zeros of both signs, and values of bfloat16.
fn gradients(world: usize, len: usize) -> Vec<Vec<f32>> {
    let value = |rank: usize, (i, v): (usize, &f32)| match (i / 100 % 7, i % 3) {
        (0, 0) => {
            if rank.is_multiple_of(2) {
                0.0
            } else {
                -0.0
            }
        }
        (1, _) => f32::from_bits(v.to_bits() & 0xffff_0000),
        _ => 1e-3 * v,
    };
    let of = |rank: usize| noise("gauss", len, rank as u64).iter().enumerate().map(|iv| value(rank, iv)).collect();
    (0..world).map(of).collect()
}

#[test]
fn lossless_has_the_bits_of_dense_in_fewer_bytes() {
    let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    for world in [1, 2, 3, 5] {
        for len in [1, 7, SMALL_ALL_REDUCE, SMALL_ALL_REDUCE + 1, 20_000, 5 * RING_FRAME + 11] {
            let inputs = gradients(world, len);
            let dense = reduce(|| Dense, &inputs);
            for (rank, (a, b)) in reduce(|| Ring::new(Wire::Lossless), &inputs).into_iter().zip(dense).enumerate() {
                let ((average, sent, traffic), (exact, all, plain)) = (a.unwrap(), b.unwrap());
                assert!(bits(&average) == bits(&exact) && bits(&sent) == bits(&all), "{world} {len} {rank}");
                assert!(
                    len < 20_000 || world == 1 || 1.12 * (traffic.sent as f64) < plain.sent as f64,
                    "{traffic:?} {plain:?}"
                );
            }
        }
    }
}

/// Sends the same frame instead of sums.
struct Damaged(Frame);

impl Hops for Damaged {
    fn bytes(&self, _: usize) -> usize {
        self.0.len()
    }
    fn fits(&self, _: usize, _: usize) -> bool {
        true
    }
    fn send(&mut self, _: Range<usize>, _: Hop, frame: &mut Frame) {
        frame.clone_from(&self.0);
    }
    fn collect(&mut self, _: Range<usize>, _: &[u8]) {}
    fn deliver(&mut self, _: Range<usize>, _: &[u8]) {}
}

#[test]
fn a_frame_that_is_no_lossless_code_is_an_error_that_names_the_rank() {
    for len in [100, 20_000] {
        let errors = Local::run(2, |mut comm| {
            let (layout, input) = (Layout::flat(len), vec![1.5; len]);
            let (mut average, key, agreed_step) = (vec![0.0; len], Key::new(3), &AgreedStep::default());
            if comm.rank() == 1 {
                // Flags that no block has.
                let wrong = vec![0xff; crate::lossless::least_bytes(len) + 40];
                return match len <= SMALL_ALL_REDUCE {
                    true => comm.all_gather(&wrong, &mut Vec::new()).map_err(ReduceError::from),
                    false => comm.all_reduce_by(len, &mut Damaged(wrong)).map_err(ReduceError::from),
                };
            }
            let round =
                Round { key, slots: layout.slots(), agreed_step, input: &input, average: &mut average, sent: None };
            Ring::new(Wire::Lossless).reduce(round, &mut comm).map(drop)
        });
        let error = errors[0].as_ref().unwrap_err().to_string();
        assert!(error.contains("rank 1: ") && error.contains("flags of a block"), "{error}");
    }
}
