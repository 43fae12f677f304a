use super::*;
use crate::laws::compress::noise;
use crate::math::largest;
use proptest::prelude::*;

/// Values that include ties, zeros of both signs, denormals and extremes.
pub(in crate::compress) fn awkward() -> impl Strategy<Value = f32> {
    prop_oneof![
        (-3..4_i32).prop_map(|v| v as f32),
        prop::sample::select(vec![0.0, -0.0, 1e-45, -1e-45, 3e-39, f32::MAX, -f32::MAX, f32::MIN_POSITIVE]),
        any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |v| v.is_finite()),
    ]
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
