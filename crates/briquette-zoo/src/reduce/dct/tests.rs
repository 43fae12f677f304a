use super::*;
use crate::reduce::transformed::testkit::reduced;
use briquette_core::config::Config;
use briquette_core::laws::compress::noise;
use briquette_core::math::norm2;
use proptest::prelude::*;

/// Coefficients of a block by the definition, in f64.
fn naive(x: &[f32]) -> Vec<f64> {
    let n = x.len() as f64;
    let of = |i: usize| {
        let scale = if i == 0 { (1.0 / n).sqrt() } else { (2.0 / n).sqrt() };
        let angle = |j: usize| PI * (2 * j + 1) as f64 * i as f64 / (2.0 * n);
        scale * x.iter().enumerate().map(|(j, v)| f64::from(*v) * angle(j).cos()).sum::<f64>()
    };
    (0..x.len()).map(of).collect()
}

/// Sum and difference over √2. A ramp of four: `6/2 = 3`, then `−(cos 3π/8 + 3·cos π/8)/√2 = −2.2304`, 0 and
/// `(cos π/8 − 3·cos 3π/8)/√2 = −0.1585`.
#[test]
fn golden() {
    let mut pair = [3.0, -1.0];
    Dct2::new(2).forward(&mut pair);
    assert!((pair[0] - 2.0_f32.sqrt()).abs() < 1e-6 && (pair[1] - 8.0_f32.sqrt()).abs() < 1e-6, "{pair:?}");
    let mut ramp = [0.0, 1.0, 2.0, 3.0];
    Dct2::new(4).forward(&mut ramp);
    assert_eq!(ramp.map(|v| (v * 1e4).round()), [30000.0, -22304.0, 0.0, -1585.0]);
    let slots = Layout::new([("a", vec![11]), ("b", vec![0]), ("c", vec![3])]);
    let cut: Vec<_> = Blocks { size: 4, transforms: Vec::new() }.ranges(slots.slots()).collect();
    assert_eq!(cut, [0..4, 4..8, 8..11, 11..14]);
}

#[test]
fn cosines_are_those_of_the_library() {
    for n in [1, 2, 3, 64, 255, 256] {
        for m in 0..6 * n {
            let expected = (PI * m as f64 / (2.0 * n as f64)).cos();
            assert!((cosine(m, n) - expected).abs() < 1e-14, "{m} of {n}");
        }
    }
}

proptest! {
    #[test]
    fn it_is_the_transform_and_its_inverse(x in proptest::collection::vec(-10.0_f32..10.0, 1..257)) {
        let (dct, mut ours) = (Dct2::new(x.len()), x.clone());
        dct.forward(&mut ours);
        for (ours, expected) in ours.iter().zip(naive(&x)) {
            prop_assert!((f64::from(*ours) - expected).abs() < 1e-4, "{ours} {expected}");
        }
        dct.inverse(&mut ours);
        for (ours, expected) in ours.iter().zip(&x) {
            prop_assert!((ours - expected).abs() < 1e-4, "{ours} {expected}");
        }
    }
}

/// Two ranks, slots of 7 and 30 values: blocks of 8, 8, 8, 7 and 6 values.
#[test]
fn the_mean_commutes_with_the_transform() {
    let layout = Layout::new([("a", vec![7]), ("b", vec![30])]);
    let inputs = [noise("gauss", 37, 1), noise("gauss", 37, 2)];
    for text in ["reducer=dct:8,inner=(dense)", "reducer=dct:8,inner=(gather:topk:1x)"] {
        let ranks = reduced(text, &layout, &inputs);
        for rank in 0..2 {
            let near = |i: usize| (ranks[rank][0][i] - 0.5 * (inputs[0][i] + inputs[1][i])).abs() < 1e-5;
            assert!((0..37).all(near) && ranks[rank][0] == ranks[0][0], "{text}");
            assert!((0..37).all(|i| (ranks[rank][1][i] - inputs[rank][i]).abs() < 1e-5), "{text}");
        }
    }
}

/// Share of the energy that one value in 16 has, with and without the transform.
fn captured(x: &Vec<f32>) -> [f64; 2] {
    let layout = Layout::flat(x.len());
    ["reducer=dct:64,inner=(gather:chunk-topk:16x:64)", "reducer=gather:chunk-topk:16x:64"].map(|text| {
        let [_, sent] = reduced(text, &layout, std::slice::from_ref(x)).remove(0);
        norm2(&sent) / norm2(x)
    })
}

/// Claim: few coefficients have the energy of a vector that is smooth inside blocks.
#[test]
fn few_coefficients_have_the_energy_of_smooth_blocks() {
    let wave = |i: usize| (i as f32 * 0.05).sin() + 0.5 * (i as f32 * 0.021).cos();
    let [with, without] = captured(&(0..1 << 14).map(wave).collect());
    assert!(with > 0.98 && without < 0.25, "{with} against {without}");
}

/// The claim does not hold for independent values (no gain), nor for a few large ones (a loss).
#[test]
fn independent_values_gain_nothing_and_spikes_lose() {
    let gauss = noise("gauss", 1 << 14, 5);
    let [with, without] = captured(&gauss);
    assert!((with / without - 1.0).abs() < 0.05, "{with} against {without}");
    let spikes = gauss.iter().enumerate().map(|(i, v)| if i % 64 == 9 { 50.0 * v } else { *v }).collect();
    let [with, without] = captured(&spikes);
    assert!(with < 0.5 && without > 0.9, "{with} against {without}");
}

#[test]
fn the_largest_values_stay_finite() {
    for len in [1, 3, 64, 256] {
        let (dct, mut block) = (Dct2::new(len), vec![f32::MAX; len]);
        dct.forward(&mut block);
        assert!(block.iter().all(|v| v.is_finite()), "{len}");
        dct.inverse(&mut block);
        assert!(block.iter().all(|v| v.is_finite()), "{len}");
    }
}

#[test]
fn settings_that_cannot_work_are_refused() {
    crate::install();
    let build = |text: &str| text.parse::<Config>().and_then(|config| config.build(&Layout::flat(4096), 4).map(drop));
    for (text, words) in [
        ("reducer=dct:0", "block of dct must be 2 to 256, got 0"),
        ("reducer=dct:1", "block of dct must be 2 to 256, got 1"),
        ("reducer=dct:257", "block of dct must be 2 to 256, got 257"),
        ("reducer=dct:8,inner=(two-way:sign,down=sign) feedback=error", "compresses the mean once more"),
        ("reducer=dct:8,inner=(ternary-all-reduce) feedback=error", "not contractive"),
    ] {
        let error = build(text).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
}
