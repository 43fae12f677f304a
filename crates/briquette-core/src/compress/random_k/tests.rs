use super::*;
use crate::laws::compress::{edges, kept};
use crate::math::{distance2, norm2};

fn fraction(share: f64) -> RandomK {
    RandomK::fraction(share).unwrap()
}

fn decoded(mut random_k: RandomK, x: &[f32], key: Key) -> Vec<f32> {
    let (mut message, mut out) = (Message::default(), vec![0.0; x.len()]);
    random_k.compress_into(x, key, &mut message);
    message.decode_into(&mut out).unwrap();
    out
}

#[test]
fn two_of_four_by_hand() {
    // Position i is taken if u·(positions left) < (still missing); the first four uniforms of this key decide.
    let mut rng = Key::new(5).block(0);
    let (mut missing, mut expected) = (2.0, [0.0; 4]);
    let x = [3.0, -4.0, -0.0, 7.0];
    for (i, left) in [4.0, 3.0, 2.0, 1.0].into_iter().enumerate() {
        if rng.random::<f64>() * left < missing {
            missing -= 1.0;
            expected[i] = 2.0 * x[i];
        }
    }
    assert_eq!(decoded(fraction(0.5).scaled(), &x, Key::new(5)), expected);
    assert_eq!(kept(fraction(0.5), &x, Key::new(5)).len(), 2);
}

/// Checks the draw of few positions against a naive reference that adds them to a set one by one.
#[test]
fn few_positions_are_the_first_that_differ() {
    for (len, k) in [(16, 1), (32, 2), (400, 25), (70_000, 4375), (1 << 20, 300)] {
        let (key, mut drawn, mut naive) = (Key::new(6).step(k as u64), 0, std::collections::BTreeSet::new());
        let mut rng = key.block(0);
        while naive.len() < k {
            if drawn % BLOCK == 0 {
                rng = key.block(drawn / BLOCK);
            }
            naive.insert(((u128::from(rng.next_u64()) * len as u128) >> 64) as u32);
            drawn += 1;
        }
        let mut chosen = Vec::new();
        draw(key, len, k, &mut chosen);
        assert!(chosen.iter().eq(&naive), "{k} of {len}");
        if len >= BLOCK {
            let mut again = vec![7];
            choose(key, len, k, &mut again);
            assert_eq!(again, chosen);
        }
    }
}

#[test]
fn every_position_of_few_is_as_likely_as_another() {
    const DRAWS: u64 = 20_000;
    let (mut counts, mut chosen) = ([0.0_f64; 48], Vec::new());
    for step in 0..DRAWS {
        chosen.clear();
        draw(Key::new(9).step(step), 48, 3, &mut chosen);
        chosen.iter().for_each(|&i| counts[i as usize] += 1.0);
    }
    // Mean 1250, standard deviation √(20 000·1/16·15/16) = 34.2; 5.5 of them.
    assert!(counts.iter().all(|c| (c - 1250.0).abs() < 188.0), "{counts:?}");
}

#[test]
fn refined_draws_are_as_likely_as_direct_ones() {
    const DRAWS: u64 = 20_000;
    let (x, mut counts) = (vec![1.0; 48], [0.0_f64; 48]);
    let mut messages: [Message; 3] = Default::default();
    for step in 0..DRAWS {
        let key = Key::new(9).step(step);
        // 24 of 48, 8 of those, 3 of those.
        let [coarse, middle, fine] = &mut messages;
        fraction(0.5).compress_into(&x, key, coarse);
        fraction(1.0 / 6.0).refine_into(&x, coarse, key, middle);
        fraction(1.0 / 16.0).scaled().refine_into(&x, middle, key, fine);
        let indices = [&*coarse, middle, fine].map(|message| message.sparse_indices().unwrap());
        assert_eq!(indices.map(<[u32]>::len), [24, 8, 3]);
        assert!(indices.windows(2).all(|pair| pair[1].iter().all(|i| pair[0].contains(i))), "{indices:?}");
        assert_eq!(fine.sparse_f32().unwrap().1, [16.0; 3]);
        indices[2].iter().for_each(|&i| counts[i as usize] += 1.0);
    }
    // As above: mean 1250, 5.5 standard deviations.
    assert!(counts.iter().all(|c| (c - 1250.0).abs() < 188.0), "{counts:?}");
}

#[test]
fn edges_are_finite() {
    for x in edges() {
        assert_eq!(kept(fraction(0.5), &x, Key::new(1)).len(), x.len().div_ceil(2));
        assert!(decoded(fraction(0.1).scaled(), &x, Key::new(2)).iter().all(|v| v.is_finite()));
        assert_eq!(decoded(fraction(1.0).scaled(), &x, Key::new(3)), x);
    }
    assert!([0.0, 1.5, f64::NAN].map(RandomK::fraction).iter().all(Result::is_err));
}

#[test]
fn ranks_and_steps_draw_for_themselves() {
    let x = vec![1.0; 1000];
    let draw = |rank, step| kept(fraction(0.1), &x, Key::new(1).step(step).rank(rank));
    assert_eq!(draw(0, 0), draw(0, 0));
    assert!(draw(0, 0) != draw(1, 0) && draw(0, 0) != draw(0, 1));
}

/// Checks the mean, and the variance against its exact closed form: `(d/k − 1)·xᵢ²` per coordinate.
#[test]
fn scaled_draws_are_unbiased_with_the_exact_variance() {
    const DRAWS: u64 = 10_000;
    let mut outlier: Vec<f32> = (0..60).map(|i| (i as f32 * 1.3).sin()).collect();
    outlier[7] = 200.0;
    let gauss = crate::laws::compress::noise("gauss", 60, 4);
    let one_hot = (0..60).map(|i| if i == 11 { -3.0 } else { 0.0 }).collect();
    for x in [gauss, outlier, one_hot, vec![0.7; 60], vec![1e-40; 60]] {
        let (random_k, omega) = (fraction(0.2).scaled(), 4.0);
        assert_eq!(random_k.error_bound(&x), ErrorBound::Unbiased { omega });
        let (mut mean, mut energies) = (vec![0.0_f64; x.len()], Vec::new());
        for step in 0..DRAWS {
            let out = decoded(random_k, &x, Key::new(6).step(step));
            mean.iter_mut().zip(&out).for_each(|(m, v)| *m += f64::from(*v) / DRAWS as f64);
            energies.push(distance2(&x, &out));
        }
        for (&x, &mean) in x.iter().zip(&mean) {
            let sd = (omega / DRAWS as f64).sqrt() * f64::from(x.abs());
            assert!((mean - f64::from(x)).abs() <= 5.5 * sd + 1e-44, "{x}: mean {mean}");
        }
        let (energy, sd) = crate::laws::compress::mean_and_deviation(&energies);
        let exact = omega * norm2(&x);
        // Checks the coordinates together, for a bias in the same direction everywhere.
        let off: f64 = x.iter().zip(&mean).map(|(x, m)| (f64::from(*x) - m).powi(2)).sum();
        let spread = norm2(&x).powi(2) / x.iter().map(|x| f64::from(*x).powi(4)).sum::<f64>();
        if spread >= 20.0 {
            assert!(off <= (1.0 + 6.0 * (2.0 / spread).sqrt()) * exact / DRAWS as f64, "{off}, spread {spread}");
        }
        assert!((energy - exact).abs() <= 5.5 * sd + 1e-6 * exact, "{energy}, exactly {exact}");
    }
}

#[test]
fn unscaled_draws_lose_what_the_class_says() {
    let x = crate::laws::compress::noise("laplace", 60, 4);
    let energies: Vec<f64> =
        (0..10_000).map(|s| distance2(&x, &decoded(fraction(0.2), &x, Key::new(7).step(s)))).collect();
    let (energy, sd) = crate::laws::compress::mean_and_deviation(&energies);
    assert!((energy - 0.8 * norm2(&x)).abs() <= 5.5 * sd);
}
