use super::*;
use crate::compress::Compressor;
use crate::math::largest;
use crate::{CompressionFactor, Key};
use proptest::prelude::*;
use rand::Rng;

/// Values that include ties, zeros of both signs, denormals and extremes.
pub(in crate::compress) fn awkward() -> impl Strategy<Value = f32> {
    prop_oneof![
        (-3..4_i32).prop_map(|v| v as f32),
        prop::sample::select(vec![0.0, -0.0, 1e-45, -1e-45, 3e-39, f32::MAX, -f32::MAX, f32::MIN_POSITIVE]),
        any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |v| v.is_finite()),
    ]
}

/// Returns the inputs on which every sparsifier is tested: its message must decode to `x` at the kept indices and 0 elsewhere, finite.
pub(in crate::compress) fn edges() -> Vec<Vec<f32>> {
    let extremes = vec![f32::MAX, -f32::MAX, f32::MAX, 1.0, -0.0, 1e-45];
    let denormals = (1..60).map(|i| f32::from_bits(i) * if i % 2 == 0 { -1.0 } else { 1.0 }).collect();
    vec![vec![], vec![-7.5], vec![0.0; 9], vec![-0.0; 9], vec![2.0; 90], vec![-f32::MAX; 40], extremes, denormals]
}

/// Compresses, and checks that kept values are bit-exact; returns the kept indices.
pub(in crate::compress) fn kept(mut compressor: impl Compressor, x: &[f32], key: Key) -> Vec<u32> {
    let mut message = Message::default();
    compressor.compress_into(x, key, &mut message);
    let mut decoded = vec![f32::NAN; x.len()];
    message.decode_into(&mut decoded).unwrap();
    let indices = message.sparse_indices().unwrap().to_vec();
    for (i, (&d, &x)) in decoded.iter().zip(x).enumerate() {
        assert_eq!(d, if indices.contains(&(i as u32)) { x } else { 0.0 });
    }
    indices
}

/// Checks a compressor that keeps the largest values against a sort, and the count against the declared error bound.
pub(in crate::compress) fn keeps_the_largest_as_declared(compressor: impl Compressor, x: &[f32]) {
    let ErrorBound::Contractive { delta } = compressor.error_bound(x) else { panic!("not contractive") };
    let indices = kept(compressor, x, Key::new(0));
    let nonzero = x.iter().filter(|v| **v != 0.0).count();
    assert_eq!(indices.len(), ((delta * x.len() as f64).round() as usize).min(nonzero));
    let mut order: Vec<u32> = (0..x.len() as u32).collect();
    order.sort_by(|&a, &b| x[b as usize].abs().total_cmp(&x[a as usize].abs()).then(a.cmp(&b)));
    order.truncate(indices.len());
    order.sort_unstable();
    assert_eq!(indices, order);
}

/// Checks that multi-level compression equals direct compression: refining a coarser message gives the message of the vector.
pub(in crate::compress) fn refining_equals_starting_over(
    mut compressor: impl Compressor,
    x: &[f32],
    factors: [f64; 2],
) {
    let (mut coarse, mut refined, mut direct) = (Message::default(), Message::default(), Message::default());
    let (key, factors) = (Key::new(5), factors.map(|factor| CompressionFactor::new(factor).unwrap()));
    compressor.knob().unwrap().tune(factors[0]);
    compressor.compress_into(x, key, &mut coarse);
    compressor.knob().unwrap().tune(factors[1]);
    compressor.refine_into(x, &coarse, key, &mut refined);
    compressor.compress_into(x, key, &mut direct);
    assert_eq!(refined, direct, "{factors:?}");
}

/// Returns noise of one of the distributions that thresholds are fitted to, by name.
pub(in crate::compress) fn noise(name: &str, len: usize, seed: u64) -> Vec<f32> {
    let mut rng = Key::new(seed).purpose(name).block(0);
    let mut uniform = || 1.0 - rng.random::<f64>();
    let mut draw = || {
        let sign = if uniform() < 0.5 { -1.0 } else { 1.0 };
        let u = uniform();
        sign * match name {
            "gauss" => (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos(),
            "laplace" => -u.ln(),
            // Pareto with exponent 1.2: no variance.
            "heavy" => u.powf(-1.0 / 1.2) - 1.0,
            _ => unreachable!("{name} is no distribution"),
        } as f32
    };
    (0..len).map(|_| draw()).collect()
}

#[test]
fn tails_by_hand() {
    let x = [3.0, -4.0, 0.0, 1.0, -1.0, 0.5, -0.0, 2.0, -2.0, 4.0];
    // 3 + 4 + 2 + 2 + 4.
    assert_eq!(tail(&x, floor_of(2.0)), Tail { count: 5, sum: 15.0 });
    assert_eq!((count(&x, floor_of(2.0)), count(&x, floor_of(0.0)), largest(&x)), (5, 8, 4.0));
    assert_eq!(collected(&x, floor_of(2.0), [2, 5]), [0, 1, 7, 8, 9]);
    assert_eq!(collected(&x, floor_of(2.0), [2, 4]), [1, 9], "more than 4: the 2 largest");
    let mut indices = vec![0, 1, 3, 9];
    let mut among = Picks::among(&x, &mut indices);
    among.retain_largest(2);
    let mut values = Vec::new();
    among.finish_into(&mut values);
    assert_eq!((indices, values), (vec![1, 9], vec![-4.0, 4.0]));
}

fn collected(x: &[f32], floor: u32, limits: [usize; 2]) -> Vec<u32> {
    let (mut storage, mut values) = (Vec::new(), Vec::new());
    let mut picks = Picks::new(&mut storage);
    collect(x, floor, limits, &mut picks);
    picks.finish_into(&mut values);
    assert!(storage.iter().zip(&values).all(|(&i, v)| x[i as usize].to_bits() == v.to_bits()));
    storage
}

#[test]
fn a_floor_far_too_low_still_gives_the_largest_in_bounded_room() {
    let rising: Vec<f32> = (0..60_000).map(|i| (i / 7) as f32).collect();
    let close = (0..60_000).map(|i| f32::from_bits(0x3f80_0000 + i / 7)).collect();
    for x in [noise("heavy", 60_000, 1), rising, close, vec![-2.5; 60_000]] {
        for k in [1, 100, 1500] {
            let few = collected(&x, NONZERO, [k, k + k / 3]);
            let mut cut = Cut::find(x.iter().map(|&v| magnitude(v)), k);
            let exact: Vec<u32> = (0..60_000).filter(|&i| cut.keeps(magnitude(x[i as usize]))).collect();
            assert_eq!(few, exact);
            // Two numbers per pick.
            assert!(few.capacity() < 4 * (4 * (k + k / 3) + 1024 + BLOCK), "{}", few.capacity());
        }
    }
}

proptest! {
    #[test]
    fn passes_equal_the_naive_ones(x in proptest::collection::vec(awkward(), 0..200), at in awkward()) {
        let floor = floor_of(f64::from(at.abs()));
        let naive: Vec<u32> =
            (0..x.len() as u32).filter(|&i| x[i as usize] != 0.0 && x[i as usize].abs() >= at.abs()).collect();
        prop_assert_eq!(&collected(&x, floor, [0, x.len()]), &naive);
        let Tail { count: n, sum } = tail(&x, floor);
        let expected: f64 = naive.iter().map(|&i| f64::from(x[i as usize].abs())).sum();
        prop_assert_eq!((n, count(&x, floor)), (naive.len(), naive.len()));
        prop_assert!((sum - expected).abs() <= 1e-12 * expected);
        let floors = [floor, NONZERO, 0, u32::MAX >> 1];
        prop_assert_eq!(counts(&x, floors), floors.map(|f| x.iter().filter(|v| magnitude(**v) >= f).count()));
        prop_assert_eq!(largest(&x), x.iter().fold(0.0, |m: f32, v| m.max(v.abs())));
    }
}
