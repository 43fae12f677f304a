use super::*;
use briquette_core::aggregate::mean::Mean;
use briquette_core::comm::{Local, Session};
use briquette_core::compress::{Compressor, Norm, qsgd::Qsgd, scaled_sign::ScaledSign, top_k::TopK};
use briquette_core::reduce::{AgreedStep, gather::Gather, shared_random_k::SharedRandomK};
use briquette_core::{Key, Layout, Message};
use rand::Rng;

/// Returns the average, `sent` and traffic of one exchange, per rank.
fn exchange<R: Reducer>(
    world: usize,
    key: Key,
    make: impl Fn() -> R + Sync,
    input: impl Fn(usize) -> Vec<f32> + Sync,
) -> Vec<(Vec<f32>, Vec<f32>, Traffic)> {
    let body = |mut comm: Session| {
        let input = input(comm.rank());
        let (layout, agreed_step) = (Layout::flat(input.len()), AgreedStep::default());
        let (mut average, mut sent) = (vec![0.0; input.len()], vec![0.0; input.len()]);
        let (slots, out) = (layout.slots(), Some(&mut sent[..]));
        let round = Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: out };
        let exchanged = make().exchange(round, &mut comm)?;
        Ok::<_, ReduceError>((average, sent, exchanged.traffic))
    };
    Local::run(world, body).into_iter().collect::<Result<_, _>>().unwrap()
}

fn ratio(value: f64) -> CompressionRatio {
    CompressionRatio::new(value).unwrap()
}

fn top(k: usize, of: usize) -> Gather<TopK, Mean> {
    Gather::new(TopK::ratio(ratio(of as f64 / k as f64)), Mean)
}

fn times<R>(rounds: usize, make: impl Fn() -> R) -> Vec<R> {
    (0..rounds).map(|_| make()).collect()
}

/// Returns multiples of 1/64: sums and quarters are exact.
fn dyadic(rank: usize, len: usize) -> Vec<f32> {
    let mut rng = Key::new(8).rank(rank).block(0);
    (0..len).map(|_| f32::from(rng.random_range(-1000_i16..1000)) / 64.0).collect()
}

fn energy(x: &[f32]) -> f64 {
    x.iter().map(|v| f64::from(*v).powi(2)).sum()
}

fn error(x: &[f32], y: &[f32]) -> f64 {
    energy(&x.iter().zip(y).map(|(a, b)| a - b).collect::<Vec<_>>())
}

#[test]
fn rounds_by_hand() {
    // Top-1 twice: 4, then 3 of the remainder.
    let top_k =
        exchange(1, Key::new(0), || MultiStep::contractive(times(2, || top(1, 4))).unwrap(), |_| vec![4., -3., 2., 1.]);
    assert_eq!((&top_k[0].0, &top_k[0].1), (&vec![4.0, -3.0, 0.0, 0.0], &vec![4.0, -3.0, 0.0, 0.0]));
    // omega 1: damping 1/2, q² = 1/4, weight (1/2)/(3/4) = 2/3. A compressor that loses nothing sends x, then x/2:
    // 2/3·(6 + 3) = 6.
    let make =
        || MultiStep::unbiased(times(2, || Gather::new(Qsgd::new(3, 512, Norm::Max).unwrap(), Mean)), 1.0).unwrap();
    let [six, minus_two] = exchange(1, Key::new(0), make, |_| vec![6.0, -2.0])[0].0[..] else { unreachable!() };
    assert!((six - 6.0).abs() < 1e-6 && (minus_two + 2.0).abs() < 1e-6, "{six} {minus_two}");
}

#[test]
fn rounds_of_top_k_are_one_top_k_of_all_of_them() {
    let len = 60;
    for world in [1, 2, 4] {
        for (k, rounds) in [(5, 4), (1, 7), (20, 3)] {
            let input = |rank| dyadic(rank, len);
            let many =
                exchange(world, Key::new(0), || MultiStep::contractive(times(rounds, || top(k, len))).unwrap(), input);
            let one = exchange(world, Key::new(0), || top(k * rounds, len), input);
            for (many, one) in many.iter().zip(&one) {
                assert_eq!((&many.0, &many.1), (&one.0, &one.1), "{rounds} of top-{k} in a world of {world}");
            }
        }
    }
}

#[test]
fn one_round_is_the_inner_reducer_to_the_bit() {
    let qsgd = || Gather::new(Qsgd::new(3, 16, Norm::L2).unwrap(), Mean);
    let random = || SharedRandomK::scaled(ratio(4.0));
    let input = |rank| dyadic(rank, 50).iter().map(|v| 0.3 * v).collect();
    for (key, world) in [(Key::new(1), 1), (Key::new(2), 3)] {
        let once = exchange(world, key, || MultiStep::unbiased(vec![qsgd()], 1.7).unwrap(), input);
        assert_eq!(once, exchange(world, key, qsgd, input));
        let once = exchange(world, key, || MultiStep::unbiased(vec![random()], 3.0).unwrap(), input);
        assert_eq!(once, exchange(world, key, random, input));
        let once = exchange(world, key, || MultiStep::contractive(vec![top(5, 50)]).unwrap(), input);
        assert_eq!(once, exchange(world, key, || top(5, 50), input));
    }
}

/// Runs the paper's pseudocode for one rank.
fn naive(x: &[f32], key: Key, rounds: usize, omega: f64, compressor: &mut dyn Compressor) -> Vec<f32> {
    let (mut v, q) = (vec![0.0_f64; x.len()], omega / (1.0 + omega));
    for r in 0..rounds {
        let left: Vec<f32> = x.iter().zip(&v).map(|(x, v)| (f64::from(*x) - v) as f32).collect();
        let key = if r == 0 { key } else { key.purpose("multi-step").bucket(r) };
        let (mut message, mut decoded) = (Message::default(), vec![0.0; x.len()]);
        compressor.compress_into(&left, key.rank(0).bucket(0), &mut message);
        message.decode_into(&mut decoded).unwrap();
        v.iter_mut().zip(decoded).for_each(|(v, c)| *v += f64::from(c) / (1.0 + omega));
    }
    v.iter().map(|v| (v / (1.0 - q.powi(rounds as i32))) as f32).collect()
}

#[test]
fn rounds_equal_the_naive_twin() {
    // Signs twice: if the remainder is far from a tie, the reference's rounding changes nothing.
    let (x, key) = (dyadic(0, 40), Key::new(4));
    for rounds in [1, 2, 5] {
        let make = || MultiStep::contractive(times(rounds, || Gather::new(ScaledSign::new(), Mean))).unwrap();
        let ours = exchange(1, key, make, |_| x.clone());
        let twin = naive(&x, key, rounds, 0.0, &mut ScaledSign::new());
        assert!(error(&ours[0].0, &twin) <= 1e-9 * energy(&x), "{rounds}");
        let qsgd = Qsgd::new(4, 512, Norm::L2).unwrap();
        let make = || MultiStep::unbiased(times(rounds, || Gather::new(qsgd, Mean)), 0.9).unwrap();
        let ours = exchange(1, key, make, |_| x.clone());
        let twin = naive(&x, key, rounds, 0.9, &mut qsgd.clone());
        assert!(error(&ours[0].0, &twin) <= 1e-9 * energy(&x), "{rounds}");
    }
}

#[test]
fn the_error_contracts_with_every_round() {
    let (len, k) = (100, 5);
    let mut equal = vec![0.7_f32; len];
    equal[3] = -0.7;
    for x in [dyadic(0, len), equal, (0..len).map(|i| 0.5_f32.powi(i as i32)).collect()] {
        for rounds in 1..12 {
            let sent = exchange(
                1,
                Key::new(0),
                || MultiStep::contractive(times(rounds, || top(k, len))).unwrap(),
                |_| x.clone(),
            );
            let bound = (1.0 - k as f64 / len as f64).powi(rounds as i32);
            assert!(error(&x, &sent[0].0) <= (bound + 1e-12) * energy(&x), "top-k, {rounds} rounds");
            // A scaled sign leaves 1 − ‖x‖₁²/(d‖x‖²) of its input, so no round makes it worse.
            let sign = |rounds| {
                let make = || MultiStep::contractive(times(rounds, || Gather::new(ScaledSign::new(), Mean))).unwrap();
                error(&x, &exchange(1, Key::new(0), make, |_| x.clone())[0].0)
            };
            assert!(sign(rounds + 1) <= sign(rounds) + 1e-9 * energy(&x), "sign, {rounds} rounds");
        }
    }
}

/// Returns the mean of the results over draws, and their mean relative error.
fn statistics<R: Reducer>(x: &[f32], draws: u64, mut reducer: R) -> (Vec<f64>, f64) {
    let mut comm = Local::world(1).remove(0);
    let (layout, agreed_step) = (Layout::flat(x.len()), AgreedStep::default());
    let (mut mean, mut lost) = (vec![0.0; x.len()], 0.0);
    for step in 0..draws {
        let (key, mut average) = (Key::new(11).step(step), vec![0.0; x.len()]);
        let round = Round {
            key,
            slots: layout.slots(),
            agreed_step: &agreed_step,
            input: x,
            average: &mut average,
            sent: None,
        };
        reducer.exchange(round, &mut comm).unwrap();
        lost += error(x, &average) / energy(x) / draws as f64;
        mean.iter_mut().zip(&average).for_each(|(mean, v)| *mean += f64::from(*v) / draws as f64);
    }
    (mean, lost)
}

#[test]
fn unbiased_rounds_are_unbiased_and_within_the_variance() {
    let (x, draws) = (dyadic(0, 50), 4000);
    let bound = |omega: f64, rounds: i32| {
        let q: f64 = omega / (1.0 + omega);
        q.powi(rounds) / (1.0 - q.powi(rounds))
    };
    for rounds in [1, 2, 4] {
        // Scaled random-k has the variance d/k − 1 exactly: 4 here, and 0.694 after 4 rounds.
        let random = MultiStep::unbiased(times(rounds, || SharedRandomK::scaled(ratio(5.0))), 4.0).unwrap();
        let (mean, lost) = statistics(&x, draws, random);
        let expected = bound(4.0, rounds as i32);
        println!("random-k, {rounds} rounds: {lost:.4} of {expected:.4}");
        assert!((lost / expected - 1.0).abs() < 0.05, "{rounds} rounds: {lost} of {expected}");
        let off: f64 = mean.iter().zip(&x).map(|(m, x)| (m - f64::from(*x)).powi(2)).sum();
        assert!(off <= 2.0 * expected * energy(&x) / draws as f64, "{rounds} rounds");
        let omega = 50_f64.sqrt(); // one level, L2
        let qsgd = || Gather::new(Qsgd::new(2, 512, Norm::L2).unwrap(), Mean);
        let (mean, lost) = statistics(&x, draws, MultiStep::unbiased(times(rounds, qsgd), omega).unwrap());
        println!("qsgd, {rounds} rounds: {lost:.4} of {:.4}", bound(omega, rounds as i32));
        assert!(lost <= 1.05 * bound(omega, rounds as i32), "{rounds} rounds: {lost}");
        let off: f64 = mean.iter().zip(&x).map(|(m, x)| (m - f64::from(*x)).powi(2)).sum();
        assert!(off <= 2.0 * lost * energy(&x) / draws as f64, "{rounds} rounds");
    }
}

#[test]
fn traffic_is_that_of_every_round() {
    let input = |rank| dyadic(rank, 64);
    let one = exchange(3, Key::new(0), || Gather::new(ScaledSign::new(), Mean), input);
    for rounds in [2, 5] {
        let make = || MultiStep::contractive(times(rounds, || Gather::new(ScaledSign::new(), Mean))).unwrap();
        for (many, one) in exchange(3, Key::new(0), make, input).iter().zip(&one) {
            assert_eq!((many.2.sent, many.2.received), (rounds as u64 * one.2.sent, rounds as u64 * one.2.received));
        }
    }
}

#[test]
fn impossible_settings_are_refused() {
    let error = MultiStep::<Gather<TopK, Mean>>::contractive(Vec::new()).map(drop).unwrap_err().to_string();
    assert!(error.contains("at least 1"), "{error}");
    for omega in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(MultiStep::unbiased(vec![top(1, 4)], omega).is_err());
    }
}
