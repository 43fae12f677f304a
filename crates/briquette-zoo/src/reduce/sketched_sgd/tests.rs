use rand::Rng;

use super::hashes::{PRIME, column, hash, multiply_add};
use super::*;
use briquette_core::comm::{Local, Session, all_reduce_traffic};
use briquette_core::reduce::{AgreedStep, dense::Dense};
use briquette_core::{Layout, Traffic};

fn ratio(value: f64) -> CompressionRatio {
    CompressionRatio::new(value).unwrap()
}

/// Returns the average, `sent` and traffic of one exchange, per rank.
fn exchange<R: Reducer>(
    world: usize,
    make: impl Fn() -> R + Sync,
    input: impl Fn(usize) -> Vec<f32> + Sync,
) -> Vec<(Vec<f32>, Vec<f32>, Traffic)> {
    let body = |mut comm: Session| {
        let input = input(comm.rank());
        let (layout, agreed_step, key) = (Layout::flat(input.len()), AgreedStep::default(), Key::new(3));
        let (mut average, mut sent) = (vec![0.0; input.len()], vec![0.0; input.len()]);
        let (slots, out) = (layout.slots(), Some(&mut sent[..]));
        let round = Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: out };
        let traffic = make().reduce(round, &mut comm)?.traffic;
        Ok::<_, ReduceError>((average, sent, traffic))
    };
    Local::run(world, body).into_iter().collect::<Result<_, _>>().unwrap()
}

/// Returns multiples of 1/64: sums are exact.
fn dyadic(rank: usize, len: usize) -> Vec<f32> {
    let mut rng = Key::new(8).rank(rank).block(0);
    (0..len).map(|_| f32::from(rng.random_range(-1000_i16..1000)) / 64.0).collect()
}

fn make(settings: SketchedSgdConfig) -> impl Fn() -> SketchedSgd + Sync {
    move || SketchedSgd::new(settings).unwrap()
}

#[test]
fn the_exact_round_by_hand() {
    // 4 candidates of 4 values: no sketch. Means (1, 2.5, 2, -3): the largest is -3, to which rank 0 contributed -2.
    let inputs = [vec![4.0, 3.0, 2.0, -2.0], vec![-2.0, 2.0, 2.0, -4.0]];
    let settings = SketchedSgdConfig { ratio: ratio(4.0), ..SketchedSgdConfig::default() };
    let ranks = exchange(2, make(settings), |rank| inputs[rank].clone());
    assert_eq!(ranks[0].0, [0.0, 0.0, 0.0, -3.0]);
    assert_eq!((&ranks[0].1[..], &ranks[1].1[..]), (&[0.0, 0.0, 0.0, -2.0][..], &[0.0, 0.0, 0.0, -4.0][..]));
}

#[test]
fn a_hash_by_hand() {
    // The polynomial is i: its lowest bit is the sign, i/2 of 2⁶⁰ the column.
    let place = |coefficients: [u64; 4], i, columns| {
        let hash = hash(&coefficients, i);
        (column(hash, columns), hash & 1)
    };
    assert_eq!(place([0, 1, 0, 0], 6, 10), (0, 0));
    assert_eq!(place([0, 1, 0, 0], 7, 10), (0, 1));
    // 2⁶⁰ − 1 is odd, and its half is the middle of the range: column 2⁵⁹·10/2⁶⁰ = 4.99….
    assert_eq!(place([(1 << 60) - 1, 0, 0, 0], 5, 10), (4, 1));
    // 1 + 2·3 + 3·9 + 4·27 = 142.
    assert_eq!(place([1, 2, 3, 4], 3, 1 << 60), (71, 0));
}

#[test]
fn multiplication_modulo_the_prime_equals_the_naive_twin() {
    let mut rng = Key::new(1).block(0);
    let edge = [0, 1, 2, PRIME - 1, PRIME - 2, 1 << 60];
    let random: Vec<u64> = (0..60).map(|_| rng.random_range(0..PRIME)).collect();
    for &x in edge.iter().chain(&random) {
        for &y in edge.iter().chain(&random) {
            for z in edge {
                let naive = (u128::from(x) * u128::from(y) + u128::from(z)) % u128::from(PRIME);
                assert_eq!(u128::from(multiply_add(x, y, z)), naive, "{x}·{y} + {z}");
            }
        }
    }
}

#[test]
fn sketches_are_linear_and_all_reduce() {
    let (len, columns, world) = (500, 40, 4);
    let hashes = Hashes::new(Key::new(2), 3);
    let sketch = |x: &[f32]| {
        let mut table = Vec::new();
        hashes.sketch(x, columns, &mut table);
        table
    };
    let inputs: Vec<Vec<f32>> = (0..world).map(|rank| dyadic(rank, len)).collect();
    let sum: Vec<f32> = (0..len).map(|i| inputs.iter().map(|x| x[i]).sum()).collect();
    let tables = Local::run(world, |mut comm| {
        let mut table = sketch(&inputs[comm.rank()]);
        comm.all_reduce_sum(&mut table)?;
        Ok::<_, ReduceError>(table)
    });
    // The inputs are dyadic, so sums are exact.
    for table in tables {
        assert_eq!(table.unwrap(), sketch(&sum));
    }
    let twice: Vec<f32> = inputs[0].iter().map(|v| -2.0 * v).collect();
    assert_eq!(sketch(&twice), sketch(&inputs[0]).iter().map(|v| -2.0 * v).collect::<Vec<_>>());
}

#[test]
fn a_rows_estimate_is_unbiased_with_variance_below_the_bound() {
    let (x, columns, draws) = (dyadic(0, 60), 10, 4000);
    let (mut table, mut estimate) = (Vec::new(), vec![0.0; x.len()]);
    let (mut mean, mut lost) = (vec![0.0_f64; x.len()], vec![0.0_f64; x.len()]);
    for draw in 0..draws {
        let hashes = Hashes::new(Key::new(draw), 1);
        hashes.sketch(&x, columns, &mut table);
        hashes.estimate(&table, &mut estimate);
        for i in 0..x.len() {
            mean[i] += f64::from(estimate[i]) / draws as f64;
            lost[i] += f64::from(estimate[i] - x[i]).powi(2) / draws as f64;
        }
    }
    let energy: f64 = x.iter().map(|v| f64::from(*v).powi(2)).sum();
    for i in 0..x.len() {
        let variance = (energy - f64::from(x[i]).powi(2)) / columns as f64;
        let off = (mean[i] - f64::from(x[i])).abs();
        assert!(off < 5.0 * (variance / draws as f64).sqrt(), "coordinate {i}: off by {off}");
        assert!((lost[i] / variance - 1.0).abs() < 0.15, "coordinate {i}: {} of {variance}", lost[i]);
    }
}

/// Returns the share of estimates that are further off than `limit`, with this many rows; each draw uses other hashes.
fn far_off(x: &[f32], (rows, columns): (usize, usize), limit: f32, draws: u64) -> f64 {
    let (mut table, mut estimate, mut far) = (Vec::new(), vec![0.0; x.len()], 0);
    for draw in 0..draws {
        let hashes = Hashes::new(Key::new(draw), rows);
        hashes.sketch(x, columns, &mut table);
        hashes.estimate(&table, &mut estimate);
        far += x.iter().zip(&estimate).filter(|(x, e)| (*x - *e).abs() > limit).count();
    }
    far as f64 / (draws as usize * x.len()) as f64
}

#[test]
fn medians_are_far_off_only_where_most_rows_are() {
    let (mut x, columns) = (dyadic(1, 300), 60);
    let rest: f64 = x.iter().map(|v| f64::from(*v).powi(2)).sum();
    x[7] = 1000.0;
    // By Chebyshev the other values alone bring a row further off than the limit with probability 1/8 at most; their sums are nearly
    // normal, so it is .5 %. In the column of the 1000, where 1 value in 60 is, a row is further off anyway. Together 2.2 %; three rows of
    // five at once, 1e-4. A mean of the rows would be off by 1000/5 if one of them is: 1 − (59/60)⁵ = 8 %.
    let limit = (8.0 * rest / columns as f64).sqrt() as f32;
    assert!(limit < 1000.0 / 5.0, "{limit}");
    let [row, median] = [1, 5].map(|rows| far_off(&x, (rows, columns), limit, 60));
    assert!((0.014..0.030).contains(&row), "{row}");
    assert!(median < 0.0005, "{median}");
}

/// Returns noise, and some coordinates that are large only in the sum.
fn planted(rank: usize, len: usize, heavy: &[usize]) -> Vec<f32> {
    let mut rng = Key::new(5).rank(rank).block(0);
    let mut x: Vec<f32> = (0..len).map(|_| rng.random::<f32>() - 0.5).collect();
    heavy.iter().for_each(|&i| x[i] += if i % 2 == 0 { 4.0 } else { -4.0 });
    // Values that a rank's own top-k would send instead.
    (0..heavy.len()).for_each(|j| x[(rank * 1009 + j * 37) % len] += if j % 2 == 0 { 6.0 } else { -6.0 });
    x
}

#[test]
fn planted_heavy_coordinates_are_all_found() {
    let (len, world) = (20_000, 8);
    let heavy: Vec<usize> = (0..50).map(|j| 11 + 391 * j).collect();
    // The sum has 32 at each, and ‖x‖ is about 270: a row is off by 270/√1000 = 8.5, the median of seven by about 4.
    let settings = SketchedSgdConfig { ratio: ratio(len as f64 / 50.0), rows: 7, width: 20.0, candidates: 4 };
    let ranks = exchange(world, make(settings), |rank| planted(rank, len, &heavy));
    let found: Vec<usize> = (0..len).filter(|&i| ranks[0].0[i] != 0.0).collect();
    assert_eq!(found, heavy);
    for &i in &heavy {
        let mean = (0..world).map(|rank| f64::from(planted(rank, len, &heavy)[i])).sum::<f64>() / world as f64;
        assert!((f64::from(ranks[0].0[i]) - mean).abs() < 1e-6, "{i}");
        assert_eq!(ranks[3].1[i], planted(3, len, &heavy)[i]);
    }
}

#[test]
fn with_every_coordinate_it_is_dense_to_the_bit() {
    for (world, len) in [(1, 30), (2, 30), (3, 1500), (5, 1500)] {
        let input = |rank| dyadic(rank, len).iter().map(|v| 0.3 * v).collect();
        let settings = SketchedSgdConfig { ratio: CompressionRatio::DENSE, ..SketchedSgdConfig::default() };
        let ours = exchange(world, make(settings), input);
        let dense = exchange(world, || Dense, input);
        for (ours, dense) in ours.iter().zip(&dense) {
            assert_eq!((&ours.0, &ours.1, ours.2), (&dense.0, &dense.1, dense.2));
        }
    }
}

/// Implements the module's method with sorts and remainders.
fn naive(inputs: &[Vec<f32>], settings: SketchedSgdConfig) -> Vec<f32> {
    let (world, len) = (inputs.len(), inputs[0].len());
    let k = settings.ratio.keep(len);
    let columns = (settings.width * k as f64).ceil() as usize;
    let hashes = Hashes::new(Key::new(0).purpose("count-sketch"), settings.rows);
    let spot = |row: usize, i: usize| {
        let power = |n: u32| (0..n).fold(1_u128, |p, _| p * i as u128 % u128::from(PRIME));
        let terms = (0..4).map(|n| u128::from(hashes.rows[row][n]) * power(n as u32) % u128::from(PRIME));
        let hash = terms.sum::<u128>() % u128::from(PRIME);
        ((hash / 2 * columns as u128 / (1 << 60)) as usize, if hash % 2 == 0 { 1.0 } else { -1.0 })
    };
    let sum: Vec<f32> = (0..len).map(|i| inputs.iter().map(|x| x[i]).sum()).collect();
    let mut table = vec![vec![0.0_f32; columns]; settings.rows];
    for (row, table) in table.iter_mut().enumerate() {
        (0..len).for_each(|i| table[spot(row, i).0] += spot(row, i).1 * sum[i]);
    }
    let estimate = |i: usize| {
        let mut said: Vec<f32> = (0..settings.rows).map(|row| spot(row, i).1 * table[row][spot(row, i).0]).collect();
        said.sort_by(f32::total_cmp);
        said[settings.rows / 2]
    };
    let estimates: Vec<f32> = (0..len).map(estimate).collect();
    let best = |x: &[f32], among: Vec<usize>, count: usize| {
        let mut order: Vec<usize> = among.into_iter().filter(|&i| x[i] != 0.0).collect();
        order.sort_by(|&a, &b| x[b].abs().total_cmp(&x[a].abs()).then(a.cmp(&b)));
        order.truncate(count);
        order
    };
    let candidates = best(&estimates, (0..len).collect(), settings.candidates * k);
    let mut average = vec![0.0; len];
    best(&sum, candidates, k).into_iter().for_each(|i| average[i] = sum[i] * (1.0 / world as f32));
    average
}

#[test]
fn exchanges_equal_the_naive_twin_to_the_bit() {
    for world in [1, 2, 4] {
        for settings in [
            SketchedSgdConfig { ratio: ratio(20.0), rows: 3, width: 4.0, candidates: 2 },
            SketchedSgdConfig { ratio: ratio(50.0), rows: 1, width: 1.5, candidates: 1 },
        ] {
            let inputs: Vec<Vec<f32>> = (0..world).map(|rank| dyadic(rank, 400)).collect();
            let ranks = exchange(world, make(settings), |rank| inputs[rank].clone());
            assert_eq!(ranks[0].0, naive(&inputs, settings), "{settings:?}, world {world}");
        }
    }
}

#[test]
fn traffic_is_a_sketch_and_the_candidates() {
    // 6000 values, k = 300: 3 rows of 900 columns, then 600 values.
    let settings = SketchedSgdConfig { ratio: ratio(20.0), rows: 3, width: 3.0, candidates: 2 };
    for world in [2, 5] {
        for (rank, run) in exchange(world, make(settings), |rank| dyadic(rank, 6000)).iter().enumerate() {
            let expected = all_reduce_traffic(2700, world, rank) + all_reduce_traffic(600, world, rank);
            assert_eq!(run.2, expected);
        }
    }
}

#[test]
fn impossible_settings_are_refused() {
    let good = SketchedSgdConfig::default();
    for (settings, says) in [
        (SketchedSgdConfig { rows: 4, ..good }, "odd"),
        (SketchedSgdConfig { rows: 0, ..good }, "1 to 99"),
        (SketchedSgdConfig { width: 0.5, ..good }, "in [1, 1000]"),
        (SketchedSgdConfig { width: f64::NAN, ..good }, "in [1, 1000]"),
        (SketchedSgdConfig { candidates: 0, ..good }, "at least 1"),
    ] {
        let error = SketchedSgd::new(settings).map(drop).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}
