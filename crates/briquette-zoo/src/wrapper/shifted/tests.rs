use super::*;
use briquette_core::aggregate::mean::Mean;
use briquette_core::comm::{Local, Session};
use briquette_core::compress::{Compressor, ErrorBound, Norm, qsgd::Qsgd, top_k::TopK};
use briquette_core::reduce::{AgreedStep, dense::Dense, gather::Gather};
use briquette_core::wrapper::error_feedback::ErrorFeedback;
use briquette_core::{CompressionRatio, Key, Layout, Message};

/// Result of a run on a rank: the averages, and its wrapper at the end.
type Run<R> = (Vec<Vec<f32>>, R);

/// Runs one exchange per step in a world; `input(rank, step, average of the previous step)`.
fn run<R: Reducer>(
    world: usize,
    steps: u64,
    make: impl Fn() -> R + Sync,
    input: impl Fn(usize, u64, &[f32]) -> Vec<f32> + Sync,
) -> Vec<Run<R>> {
    let body = |mut comm: Session| {
        let (mut reducer, mut averages) = (make(), Vec::<Vec<f32>>::new());
        for step in 0..steps {
            let input = input(comm.rank(), step, averages.last().map_or(&[], Vec::as_slice));
            let layout = Layout::flat(input.len());
            let mut average = vec![0.0; input.len()];
            let agreed_step = AgreedStep { step, ..AgreedStep::default() };
            let (key, slots) = (Key::new(3).step(step), layout.slots());
            let round =
                Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None };
            reducer.exchange(round, &mut comm)?;
            averages.push(average);
        }
        Ok::<_, ReduceError>((averages, reducer))
    };
    Local::run(world, body).into_iter().collect::<Result<_, _>>().unwrap()
}

fn top(k: usize, of: usize) -> Gather<TopK, Mean> {
    Gather::new(TopK::ratio(CompressionRatio::new(of as f64 / k as f64).unwrap()), Mean)
}

fn norm2(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum()
}

/// Returns values of at most 12 bits, so that sums and halves are exact.
fn dyadic(rank: usize, step: u64, len: usize) -> Vec<f32> {
    use rand::Rng;
    let mut rng = Key::new(8).step(step).rank(rank).block(0);
    (0..len).map(|_| f32::from(rng.random_range(-1000_i16..1000)) / 64.0).collect()
}

#[test]
fn ef21_by_hand() {
    let gradients = [[4.0, 1.0], [2.0, 3.0]];
    let runs = run(2, 3, || Shifted::ef21(top(1, 2)), |rank, _, _| gradients[rank].to_vec());
    // Sent: (4,0) and (0,3); then the whole differences (0,1) and (2,0); then nothing is left.
    assert_eq!(runs[0].0, [[2.0, 1.5], [3.0, 2.0], [3.0, 2.0]]);
    assert_eq!((runs[0].1.memory(), runs[1].1.memory()), (&gradients[0][..], &gradients[1][..]));
    assert_eq!(runs[0].1.mean_memory(), [3.0, 2.0]);
}

#[test]
fn diana_by_hand() {
    // Dense, alpha 1/2, gradient 4: the difference is 4, 2, 1; the average always 4; the memory 2, 3, 3.5.
    let runs = run(1, 3, || Shifted::diana(Dense, 0.5).unwrap(), |_, _, _| vec![4.0]);
    assert_eq!(runs[0].0, [[4.0], [4.0], [4.0]]);
    assert_eq!(runs[0].1.memory(), [3.5]);
}

#[test]
fn a_difference_that_is_not_finite_is_refused_and_the_memories_stay() {
    let mut comm = Local::world(1).remove(0);
    let mut reducer = Shifted::ef21(Dense);
    let layout = Layout::new([("w", vec![1]), ("b", vec![1])]);
    let mut step = |reducer: &mut Shifted<Dense>, input: [f32; 2]| {
        let (mut average, agreed_step) = ([0.0; 2], AgreedStep::default());
        let (key, slots) = (Key::new(0), layout.slots());
        reducer.exchange(
            Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None },
            &mut comm,
        )
    };
    step(&mut reducer, [1.0, f32::MAX]).unwrap();
    let error = step(&mut reducer, [1.0, -f32::MAX]).unwrap_err();
    assert_eq!(error, ReduceError::NonFinite { rank: 0, slot: "b".into() });
    assert_eq!((reducer.memory(), reducer.mean_memory()), (&[1.0, f32::MAX][..], &[1.0, f32::MAX][..]));
}

/// Runs the papers' pseudocode in one process, without a session.
fn naive(world: usize, steps: u64, compressor: &mut dyn Compressor, alpha: f32, len: usize) -> Vec<Vec<f32>> {
    let mut own = vec![vec![0.0_f32; len]; world];
    let mut server = vec![0.0_f32; len];
    let mut averages = Vec::new();
    for step in 0..steps {
        let mut mean = vec![0.0_f32; len];
        for (rank, own) in own.iter_mut().enumerate() {
            let g = dyadic(rank, step, len);
            let difference: Vec<f32> = (0..len).map(|j| g[j] - own[j]).collect();
            let (mut message, mut delta) = (Message::default(), vec![0.0; len]);
            compressor.compress_into(&difference, Key::new(3).step(step).rank(rank).bucket(0), &mut message);
            message.decode_into(&mut delta).unwrap();
            for j in 0..len {
                own[j] += alpha * delta[j];
                mean[j] += 1.0 / world as f32 * delta[j];
            }
        }
        averages.push((0..len).map(|j| server[j] + mean[j]).collect());
        (0..len).for_each(|j| server[j] += alpha * mean[j]);
    }
    averages
}

#[test]
fn both_equal_their_naive_twins_to_the_bit() {
    let qsgd = Qsgd::new(3, 16, Norm::L2).unwrap();
    let input = |rank, step, _: &[f32]| dyadic(rank, step, 40);
    for world in [1, 2, 3, 5] {
        let diana = run(world, 6, || Shifted::diana(Gather::new(qsgd, Mean), 0.25).unwrap(), input);
        let ef21 = run(world, 6, || Shifted::ef21(top(4, 40)), input);
        let mut top_k = TopK::fraction(0.1).unwrap();
        for rank in 0..world {
            assert_eq!(diana[rank].0, naive(world, 6, &mut qsgd.clone(), 0.25, 40));
            assert_eq!(ef21[rank].0, naive(world, 6, &mut top_k, 1.0, 40));
        }
    }
}

#[test]
fn without_compression_both_are_the_plain_mean() {
    let input = |rank, step, _: &[f32]| dyadic(rank, step, 30);
    let plain = run(4, 5, || Dense, input);
    for alpha in [1.0, 0.5] {
        let diana = run(4, 5, || Shifted::diana(Dense, alpha).unwrap(), input);
        assert_eq!(diana[0].0, plain[0].0);
    }
    assert_eq!(run(4, 5, || Shifted::ef21(Dense), input)[0].0, plain[0].0);
}

#[test]
fn ef21_distortion_contracts_by_one_minus_delta_a_call() {
    let (len, k) = (40, 4);
    for steps in 1..30 {
        let run = run(2, steps, || Shifted::ef21(top(k, len)), |rank, _, _| dyadic(rank, 0, len));
        for (rank, (_, layer)) in run.iter().enumerate() {
            let g = dyadic(rank, 0, len);
            let bound = (1.0 - k as f64 / len as f64).powi(steps as i32) * norm2(&g, &[0.0; 40]);
            assert!(norm2(layer.memory(), &g) <= bound * (1.0 + 1e-6), "after {steps}");
        }
    }
}

#[test]
fn diana_distortion_contracts_by_one_minus_alpha_a_call_in_the_mean() {
    // 64 vectors of 32 values, each in a separate bucket, so that there are enough draws of one compressor.
    let (vectors, bucket) = (64, 32);
    let qsgd = Qsgd::new(2, bucket, Norm::L2).unwrap();
    let len = vectors * bucket;
    let ErrorBound::Unbiased { omega } = qsgd.error_bound(&vec![1.0; len]) else { unreachable!() };
    let alpha = 1.0 / (1.0 + omega);
    let g = dyadic(0, 0, len);
    for steps in [1, 5, 20, 60] {
        let make = || Shifted::diana(Gather::new(qsgd, Mean), alpha as f32).unwrap();
        let run = run(1, steps, make, |_, _, _| g.clone());
        let bound = (1.0 - alpha).powi(steps as i32) * norm2(&g, &vec![0.0; len]);
        let left = norm2(run[0].1.memory(), &g);
        assert!(left <= 1.05 * bound, "after {steps}: {left} of {bound}");
    }
}

#[test]
fn memories_stay_together_over_thousands_of_exchanges() {
    let (world, len) = (3, 20);
    let input = |rank, step, _: &[f32]| dyadic(rank, step, len).iter().map(|v| 0.3 * v).collect();
    let runs = run(world, 3000, || Shifted::ef21(top(3, len)), input);
    let mut worst = 0.0_f32;
    for j in 0..len {
        let mean = runs.iter().map(|(_, layer)| f64::from(layer.memory()[j])).sum::<f64>() / world as f64;
        worst = worst.max((mean as f32 - runs[0].1.mean_memory()[j]).abs());
        assert!(runs.iter().all(|(_, layer)| layer.mean_memory()[j].to_bits() == runs[0].1.mean_memory()[j].to_bits()));
    }
    println!("drift after 3000 exchanges of values below 5: {worst:e}");
    assert!(worst > 0.0 && worst < 3e-5, "{worst:e}"); // sqrt(3000) roundings of values between 2 and 8
}

/// Returns curvatures and centers of `f_i(x) = ½ Σ a_ij (x_j − c_ij)²`, different on each rank.
fn quadratic(rank: usize) -> (Vec<f32>, Vec<f32>) {
    let curvature = dyadic(rank, 1, 10).iter().map(|v| 1.0 + v.abs() / 16.0).collect();
    (curvature, dyadic(rank, 2, 10))
}

/// Runs gradient descent from zero with `make`'s averages; returns the relative distance to the optimum.
fn descend<R: Reducer>(world: usize, steps: u64, rate: f32, make: impl Fn() -> R + Sync) -> f64 {
    let body = |mut comm: Session| {
        let (curvature, centre) = quadratic(comm.rank());
        let (mut reducer, layout, mut x) = (make(), Layout::flat(10), vec![0.0_f32; 10]);
        for step in 0..steps {
            let input: Vec<f32> = (0..10).map(|j| curvature[j] * (x[j] - centre[j])).collect();
            let (mut average, agreed_step) = (vec![0.0; 10], AgreedStep::default());
            let (key, slots) = (Key::new(1).step(step), layout.slots());
            let round =
                Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None };
            reducer.exchange(round, &mut comm)?;
            (0..10).for_each(|j| x[j] -= rate * average[j]);
        }
        Ok::<_, ReduceError>(x)
    };
    let x = Local::run(world, body).swap_remove(0).unwrap();
    let sum = |term: &dyn Fn(f64, f64) -> f64, j: usize| -> f64 {
        (0..world).map(quadratic).map(|(a, c)| term(f64::from(a[j]), f64::from(c[j]))).sum()
    };
    let best: Vec<f32> = (0..10).map(|j| (sum(&|a, c| a * c, j) / sum(&|a, _| a, j)) as f32).collect();
    (norm2(&x, &best) / norm2(&best, &[0.0; 10])).sqrt()
}

#[test]
fn on_ranks_that_differ_only_memories_reach_the_optimum() {
    // L = 1.98, W = 4; QSGD of 2 bits: omega = 1.08, so DIANA allows rates up to 0.19.
    let qsgd = Qsgd::new(2, 512, Norm::Max).unwrap();
    let ErrorBound::Unbiased { omega } = qsgd.error_bound(&[1.0; 10]) else { unreachable!() };
    let alpha = (1.0 / (1.0 + omega)) as f32;
    let plain = descend(4, 1500, 0.1, || Gather::new(qsgd, Mean));
    let diana = descend(4, 1500, 0.1, || Shifted::diana(Gather::new(qsgd, Mean), alpha).unwrap());
    let lossy = descend(4, 1500, 0.1, || top(2, 10));
    let fed = descend(4, 1500, 0.1, || ErrorFeedback::new(top(2, 10)));
    let ef21 = descend(4, 1500, 0.1, || Shifted::ef21(top(2, 10)));
    println!("qsgd {plain:e}, diana {diana:e}; top-k {lossy:e}, error feedback {fed:e}, ef21 {ef21:e}");
    assert!(plain > 1e-2 && lossy > 1e-2 && fed > 1e-2, "{plain:e} {lossy:e} {fed:e}");
    assert!(diana < 1e-6 && ef21 < 1e-6, "{diana:e} {ef21:e}");
}

/// Returns the magnitudes of `x` on `f_i = ⟨a_i, x⟩² + ¼‖x‖²`, from (1, 1, 1) at rate 0.02.
fn three_ranks<R: Reducer>(steps: usize, make: impl Fn() -> R + Sync) -> Vec<f32> {
    let body = |mut comm: Session| {
        let mut a = [2.0_f32; 3];
        a[comm.rank()] = -3.0;
        let (mut reducer, layout, mut x) = (make(), Layout::flat(3), [1.0_f32; 3]);
        let mut sizes = Vec::new();
        for _ in 0..steps {
            let along = 2.0 * (a[0] * x[0] + a[1] * x[1] + a[2] * x[2]);
            let input = [0, 1, 2].map(|j| along * a[j] + 0.5 * x[j]);
            let (mut average, agreed_step) = ([0.0; 3], AgreedStep::default());
            let (key, slots) = (Key::new(0), layout.slots());
            let round =
                Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None };
            reducer.exchange(round, &mut comm)?;
            (0..3).for_each(|j| x[j] -= 0.02 * average[j]);
            sizes.push(x.iter().fold(0.0_f32, |m, v| m.max(v.abs())));
        }
        Ok::<_, ReduceError>(sizes)
    };
    Local::run(3, body).swap_remove(0).unwrap()
}

#[test]
fn top_1_without_memory_diverges_by_the_exact_factor_and_memories_repair_it() {
    // Each rank's gradient at (t,t,t) is 2t·aᵢ + t/2, largest at i: −5.5t. So x grows by 1 + 0.02·5.5/3 a step.
    let factor = 1.0 + 11.0 * 0.02 / 6.0;
    for (step, size) in (1..).zip(three_ranks(500, || top(1, 3))) {
        let expected = f64::powi(factor, step);
        assert!((f64::from(size) / expected - 1.0).abs() < 2e-7 * f64::from(step), "step {step}: {size}");
    }
    let last = |sizes: Vec<f32>| sizes[sizes.len() - 1];
    let fed = last(three_ranks(3000, || ErrorFeedback::new(top(1, 3))));
    let ef21 = last(three_ranks(3000, || Shifted::ef21(top(1, 3))));
    println!("after 3000 steps: error feedback {fed:e}, ef21 {ef21:e}");
    assert!(fed < 1e-25, "{fed:e}");
    assert!(ef21 < 1e-6, "{ef21:e}");
}
