use super::count::{HEADER, count_with};
use super::*;
use briquette_core::comm::{Local, Session};
use briquette_core::reduce::AgreedStep;
use briquette_core::wrapper::error_feedback::ErrorFeedback;
use briquette_core::{Layout, Traffic};
use rand::Rng;

fn ratio(value: f64) -> CompressionRatio {
    CompressionRatio::new(value).unwrap()
}

/// Returns the average, `sent` and traffic of the last of several exchanges of the same input, per rank.
fn exchange<R: Reducer>(
    world: usize,
    steps: u64,
    make: impl Fn() -> R + Sync,
    input: impl Fn(usize) -> Vec<f32> + Sync,
) -> Vec<(Vec<f32>, Vec<f32>, Traffic)> {
    let body = |mut comm: Session| {
        let input = input(comm.rank());
        let (mut reducer, layout) = (make(), Layout::flat(input.len()));
        let (mut average, mut sent) = (vec![0.0; input.len()], vec![0.0; input.len()]);
        let mut traffic = Traffic::default();
        for step in 0..steps {
            let (agreed_step, key) = (AgreedStep { step, ..AgreedStep::default() }, Key::new(3).step(step));
            let (slots, out) = (layout.slots(), Some(&mut sent[..]));
            let round =
                Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: out };
            traffic = reducer.reduce(round, &mut comm)?.traffic;
        }
        Ok::<_, ReduceError>((average, sent, traffic))
    };
    Local::run(world, body).into_iter().collect::<Result<_, _>>().unwrap()
}

/// Returns multiples of 1/64, larger at the front: sums are exact, and equal splits would be unbalanced.
fn skewed(rank: usize, len: usize) -> Vec<f32> {
    let mut rng = Key::new(8).rank(rank).block(0);
    let value = |i: usize, v: i16| f32::from(v) / 64.0 * if i < len / 8 { 8.0 } else { 1.0 };
    (0..len).map(|i| value(i, rng.random_range(-1000_i16..1000))).collect()
}

#[test]
fn an_exchange_by_hand() {
    let inputs = [vec![4.0, 1.0, 0.0, 3.0], vec![0.0, 2.0, 5.0, 1.0]];
    // k = 2, so one quantile per rank: position 2·¼ = 0 of {0, 3} and 2·¾ = 1 of {1, 2}, that is 0 and 2; the second half of them begins at
    // 2. Range 0..2 has 4/2 and 2/2, range 2..4 has 5/2 and 3/2; one of each is kept.
    let ranks = exchange(2, 1, || SparseAllReduce::new(ratio(2.0)), |rank| inputs[rank].clone());
    assert_eq!((&ranks[0].0, &ranks[1].0), (&vec![2.0, 0.0, 2.5, 0.0], &vec![2.0, 0.0, 2.5, 0.0]));
    assert_eq!((&ranks[0].1, &ranks[1].1), (&vec![4.0, 0.0, 0.0, 0.0], &vec![0.0, 0.0, 5.0, 0.0]));
    // A quantile of 4 bytes; twice a message of one value: 17, a byte of index, 4 of value.
    assert_eq!(ranks[0].2, Traffic { sent: 4 + 2 * 22, received: 4 + 2 * 22 });
}

/// Returns the `k` largest by sorting; never zeros.
fn largest(x: &[f32], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..x.len()).filter(|&i| x[i] != 0.0).collect();
    order.sort_by(|&a, &b| x[b].abs().total_cmp(&x[a].abs()).then(a.cmp(&b)));
    order.truncate(k);
    order.sort_unstable();
    order
}

/// Implements the module's method with sorts and dense vectors: the average, and every rank's `sent`.
fn naive(inputs: &[Vec<f32>], k: usize) -> (Vec<f32>, Vec<Vec<f32>>) {
    let (world, len) = (inputs.len(), inputs[0].len());
    let picked: Vec<Vec<usize>> = inputs.iter().map(|x| largest(x, k)).collect();
    let quantiles = 4096.min(k.div_ceil(8)).div_ceil(world);
    let mut pool = Vec::new();
    for (rank, picked) in picked.iter().enumerate() {
        let count = (quantiles * picked.len()).div_ceil(k);
        for j in 0..count {
            let place = picked.len() as f64 * (j as f64 + (rank as f64 + 0.5) / world as f64) / count as f64;
            pool.push(picked[(place + 1e-9) as usize]);
        }
    }
    pool.sort_unstable();
    let bound = |c: usize| {
        if c == 0 {
            0
        } else if c == world {
            len
        } else {
            pool[c * pool.len() / world]
        }
    };
    let mut mean = vec![0.0_f32; len];
    for (x, picked) in inputs.iter().zip(&picked) {
        picked.iter().for_each(|&i| mean[i] += 1.0 / world as f32 * x[i]);
    }
    let mut average = vec![0.0; len];
    for range in (0..world).map(|c| bound(c)..bound(c + 1)) {
        for i in largest(&mean[range.clone()], k.div_ceil(world)) {
            average[range.start + i] = mean[range.start + i];
        }
    }
    let sent = |(x, picked): (&Vec<f32>, &Vec<usize>)| {
        let kept = |i: usize| if picked.contains(&i) && average[i] != 0.0 { x[i] } else { 0.0 };
        (0..len).map(kept).collect()
    };
    let sent = inputs.iter().zip(&picked).map(sent).collect();
    (average, sent)
}

#[test]
fn exchanges_equal_the_naive_twin_to_the_bit() {
    for world in [1, 2, 3, 5, 8, 16] {
        for (len, k) in [(400, 40), (400, 3), (90, 45), (7, 2)] {
            let inputs: Vec<Vec<f32>> = (0..world).map(|rank| skewed(rank, len)).collect();
            let (average, sent) = naive(&inputs, k);
            let make = || SparseAllReduce::new(ratio(len as f64 / k as f64));
            for (rank, got) in exchange(world, 1, make, |rank| inputs[rank].clone()).iter().enumerate() {
                assert_eq!(got.0, average, "world {world}, {k} of {len}");
                assert_eq!(got.1, sent[rank], "world {world}, {k} of {len}");
            }
        }
    }
}

#[test]
fn ranks_without_anything_to_send_do_not_matter() {
    let zeros = |rank: usize| if rank == 1 { skewed(1, 60) } else { vec![0.0; 60] };
    let ranks = exchange(3, 1, || SparseAllReduce::new(ratio(6.0)), zeros);
    assert!(ranks[0].0.iter().filter(|v| **v != 0.0).count() >= 8);
    let nothing = exchange(3, 1, || SparseAllReduce::new(ratio(6.0)), |_| vec![0.0; 60]);
    assert!(nothing.iter().all(|(average, _, _)| average.iter().all(|v| *v == 0.0)));
    assert!(exchange(3, 1, || SparseAllReduce::new(ratio(6.0)), |_| Vec::new())[0].0.is_empty());
}

#[test]
fn fed_back_no_coordinate_waits_for_ever() {
    // Constant gradients: the sum of the averages is t times the mean, except for the residual.
    let (world, len, steps) = (5, 40, 1600);
    let inputs: Vec<Vec<f32>> = (0..world).map(|rank| skewed(rank, len)).collect();
    let body = |mut comm: Session| {
        let mut reducer = ErrorFeedback::new(SparseAllReduce::new(ratio(10.0)));
        let (layout, agreed_step) = (Layout::flat(len), AgreedStep::default());
        let (mut sum, mut average) = (vec![0.0_f64; len], vec![0.0; len]);
        for step in 0..steps {
            let (key, slots, input) = (Key::new(0).step(step), layout.slots(), &inputs[comm.rank()][..]);
            let round = Round { key, slots, agreed_step: &agreed_step, input, average: &mut average, sent: None };
            reducer.exchange(round, &mut comm)?;
            sum.iter_mut().zip(&average).for_each(|(sum, v)| *sum += f64::from(*v));
        }
        Ok::<_, ReduceError>((sum, reducer.residual().iter().fold(0.0_f64, |m, v| m.max(f64::from(v.abs())))))
    };
    let mean = |i: usize| inputs.iter().map(|x| f64::from(x[i])).sum::<f64>() / world as f64;
    let all: f64 = (0..len).map(|i| mean(i).abs()).sum();
    for (rank, result) in Local::run(world, body).into_iter().enumerate() {
        let (sum, waiting) = result.unwrap();
        // If one coordinate were sent per step, each as often as its magnitude requires, no residual would exceed one step's total over all
        // coordinates. Five are sent, but selections must agree. So the bound holds for the mean, and for a rank's residual within a ratio
        // of two.
        let own: f64 = inputs[rank].iter().map(|v| f64::from(v.abs())).sum();
        assert!(waiting < 2.0 * own, "rank {rank}: {waiting} of {own}");
        for (i, sum) in sum.iter().enumerate() {
            let late = (sum - steps as f64 * mean(i)).abs();
            assert!(late < all, "coordinate {i}: {late} of {all}");
        }
    }
}

/// Returns `k` of `len` indices: half of them from a set shared by all ranks, most in hot regions, as layers have. Random values.
fn selection(rank: usize, len: usize, k: usize) -> Message {
    let mut taken = vec![false; len];
    let mut draw = |key: Key, until: usize, count: &mut usize| {
        let mut rng = key.block(0);
        while *count < until {
            let u: f64 = rng.random();
            let index = (u * u * u * len as f64) as usize;
            *count += usize::from(!std::mem::replace(&mut taken[index], true));
        }
    };
    let mut count = 0;
    draw(Key::new(1), k / 2, &mut count);
    draw(Key::new(2).rank(rank), k, &mut count);
    let mut rng = Key::new(3).rank(rank).block(0);
    let mut message = Message::default();
    let (indices, values) = message.start_sparse_f32(len);
    indices.extend((0..len as u32).filter(|&i| taken[i as usize]));
    values.extend(indices.iter().map(|_| rng.random::<f32>() - 0.5));
    message
}

/// Returns the largest and the mean over ranks.
fn over(ranks: &[RankBytes], what: impl Fn(&RankBytes) -> usize) -> (usize, usize) {
    (ranks.iter().map(&what).max().unwrap(), ranks.iter().map(&what).sum::<usize>() / ranks.len())
}

#[test]
fn payload_per_rank_does_not_grow_with_the_world() {
    let (len, k) = (1 << 19, 1 << 13);
    let mut first = None;
    for world in [2, 3, 4, 8, 16, 64, 256, 1024] {
        let selections: Vec<Message> = (0..world).map(|rank| selection(rank, len, k)).collect();
        let ranks = count(&selections, ratio(len as f64 / k as f64)).unwrap();
        let gather = (world - 1) * (selections[0].encoded_len() - HEADER);
        let ((_, sent), (most, received)) = (over(&ranks, RankBytes::payload), over(&ranks, |b| b.received));
        let (points, headers) = (over(&ranks, |b| b.quantiles).1, ranks[0].headers);
        println!(
            "{world:5} ranks: payload sent {sent} (quantiles {points}), scatter received {received} (most {most}), \
             headers {headers}; gather {gather}"
        );
        // One to four quantiles a range in large worlds: their noise shows.
        let limit = if world <= 64 { 2 } else { 6 };
        assert!(most <= limit * received, "world {world}: {most} of {received}");
        if world >= 16 {
            let first = *first.get_or_insert(sent);
            assert!(sent <= first + first / 5, "world {world}: {sent}, {first} at 16");
        }
        if world >= 3 {
            assert!(sent + ranks[0].headers < gather, "world {world}");
        }
    }
}

#[test]
fn equal_ranges_would_burden_one_owner() {
    let (len, k, world) = (1 << 17, 1 << 12, 16);
    let selections: Vec<Message> = (0..world).map(|rank| selection(rank, len, k)).collect();
    let ratio = ratio(len as f64 / k as f64);
    let fair = count(&selections, ratio).unwrap();
    let equal = count_with(&selections, ratio, |_, len, bounds| split(&mut [], len, world, bounds)).unwrap();
    let most = |ranks: &[RankBytes]| over(ranks, |b| b.received).0;
    println!("most received: {} with quantiles, {} with equal ranges", most(&fair), most(&equal));
    assert!(3 * most(&fair) < most(&equal));
}

#[test]
fn counted_bytes_are_those_on_the_wire() {
    for world in [2, 3, 8, 16] {
        let (len, k) = (4096, 256);
        let selections: Vec<Message> = (0..world).map(|rank| selection(rank, len, k)).collect();
        let counted = count(&selections, ratio(len as f64 / k as f64)).unwrap();
        let dense = |rank: usize| {
            let mut x = vec![0.0; len];
            selections[rank].decode_into(&mut x).unwrap();
            x
        };
        let real = exchange(world, 1, || SparseAllReduce::new(ratio(len as f64 / k as f64)), dense);
        for (rank, (counted, real)) in counted.iter().zip(&real).enumerate() {
            assert_eq!(real.2.sent as usize, counted.payload() + counted.headers, "rank {rank} of {world}");
        }
    }
}

#[test]
fn damaged_quantiles_are_refused() {
    let mut out = Vec::new();
    assert!(read_points(&[1, 0, 0, 0], 1, 2, &mut out).is_ok());
    for (frame, most) in [(&[2, 0, 0, 0][..], 1), (&[1, 0, 0], 1), (&[0; 8], 1)] {
        assert!(read_points(frame, most, 2, &mut out).is_err(), "{frame:?}");
    }
}
