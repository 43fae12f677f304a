use super::*;
use briquette_core::aggregate::mean::Mean;
use briquette_core::comm::Local;
use briquette_core::compress::top_k::TopK;
use briquette_core::config::Config;
use briquette_core::error::ReduceError;
use briquette_core::laws::compress::noise;
use briquette_core::laws::{Setup, is_elastic, same_bits};
use briquette_core::reduce::{AgreedStep, Round, dense::Dense, gather::Gather};
use briquette_core::state::{State, Stateful};
use briquette_core::{CompressionRatio, Key, Layout, Session};

fn top(k: usize, of: usize) -> Gather<TopK, Mean> {
    Gather::new(TopK::ratio(CompressionRatio::new(of as f64 / k as f64).unwrap()), Mean)
}

fn around<R: Reducer>(eta: f32, inner: R) -> RankMomentum<Shifted<R>> {
    Ef21Sgdm { eta }.around(inner).unwrap()
}

fn exchange(reducer: &mut impl Reducer, step: u64, input: &[f32], comm: &mut Session) -> Result<Vec<f32>, ReduceError> {
    let (layout, mut average) = (Layout::flat(input.len()), vec![0.0; input.len()]);
    let agreed_step = &AgreedStep { step, ..AgreedStep::default() };
    let round = Round {
        key: Key::new(3).step(step),
        slots: layout.slots(),
        agreed_step,
        input,
        average: &mut average,
        sent: None,
    };
    reducer.exchange(round, comm).map(|_| average)
}

/// Returns rank 0's averages by step.
fn averages<R: Reducer>(
    world: usize,
    steps: u64,
    make: impl Fn() -> R + Sync,
    input: impl Fn(usize, u64) -> Vec<f32> + Sync,
) -> Vec<Vec<f32>> {
    let body = |mut comm: Session| {
        let mut reducer = make();
        let rank = comm.rank();
        (0..steps).map(|step| exchange(&mut reducer, step, &input(rank, step), &mut comm)).collect()
    };
    Local::run(world, body).swap_remove(0).unwrap()
}

/// Gradients (4, 1) and (2, 3), η ½: the means are (2, .5), (3, .75), (3.5, .875) and (1, 1.5), (1.5, 2.25), (1.75, 2.625).
#[test]
fn two_ranks_by_hand() {
    let gradients = [[4.0, 1.0], [2.0, 3.0]];
    let averages = averages(2, 3, || around(0.5, top(1, 2)), |rank, _| gradients[rank].to_vec());
    // Sent: (2, 0) and (0, 1.5); of (1, .75) and (1.5, .75) the first; of (.5, .875) and (.25, 1.125) the second.
    assert_eq!(averages, [[1.0, 0.75], [2.25, 0.75], [2.25, 1.75]]);
}

/// The paper's algorithm in f64, in one process: top-k by sorting. η is ¼ and values have few bits, so all sums are exact.
#[test]
fn it_equals_its_naive_twin() {
    let (len, k, steps) = (40, 4, 5);
    let input = |rank: usize, step: u64| -> Vec<f32> {
        noise("gauss", len, 7 + 100 * rank as u64 + step).iter().map(|v| (v * 256.0).round() / 64.0).collect()
    };
    for world in [1, 2, 4] {
        let (mut means, mut kept) = (vec![vec![0.0_f64; len]; world], vec![vec![0.0_f64; len]; world]);
        let expected: Vec<Vec<f32>> = (0..steps)
            .map(|step| {
                for (rank, (v, g)) in means.iter_mut().zip(&mut kept).enumerate() {
                    v.iter_mut().zip(input(rank, step)).for_each(|(v, x)| *v = 0.75 * *v + 0.25 * f64::from(x));
                    let size = |i: &usize| (v[*i] - g[*i]).abs();
                    let mut order: Vec<usize> = (0..len).collect();
                    order.sort_by(|a, b| size(b).total_cmp(&size(a)));
                    order[..k].iter().for_each(|i| g[*i] = v[*i]);
                }
                (0..len).map(|i| (kept.iter().map(|g| g[i]).sum::<f64>() / world as f64) as f32).collect()
            })
            .collect();
        assert_eq!(averages(world, steps, || around(0.25, top(k, len)), input), expected, "{world} ranks");
    }
}

#[test]
fn an_eta_of_one_is_ef21_to_the_bit() {
    let input = |rank: usize, step: u64| noise("gauss", 50, 100 * rank as u64 + step);
    let plain = averages(3, 8, || Shifted::ef21(top(5, 50)), input);
    let with_one = averages(3, 8, || around(1.0, top(5, 50)), input);
    assert!(plain.iter().zip(&with_one).all(|(a, b)| same_bits(a, b)));
    assert_ne!(averages(3, 8, || around(0.9, top(5, 50)), input), plain);
}

#[test]
fn a_dense_exchange_is_the_momentum_of_the_mean() {
    let input = |rank: usize, step: u64| noise("gauss", 9, 100 * rank as u64 + step);
    let (fed, dense) = (averages(2, 6, || around(0.5, Dense), input), averages(2, 6, || Dense, input));
    let mut mean = [0.0; 9];
    for (fed, dense) in fed.iter().zip(&dense) {
        mean.iter_mut().zip(dense).for_each(|(m, x)| *m = 0.5 * *m + 0.5 * x);
        assert!(fed.iter().zip(mean).all(|(a, b)| (a - b).abs() < 1e-5), "{fed:?} {mean:?}");
    }
}

#[test]
fn a_resumed_run_has_the_same_bits() {
    let input = |step: u64| noise("gauss", 20, step);
    let mut comm = Local::world(1).remove(0);
    let mut whole = around(0.25, top(2, 20));
    let mut state = State::default();
    for step in 0..4 {
        exchange(&mut whole, step, &input(step), &mut comm).unwrap();
    }
    whole.save(&mut state);
    let mut resumed = around(0.25, top(2, 20));
    resumed.load(&state).unwrap();
    for step in 4..9 {
        let [a, b] =
            [&mut whole, &mut resumed].map(|reducer| exchange(reducer, step, &input(step), &mut comm).unwrap());
        assert!(same_bits(&a, &b), "step {step}");
    }
}

/// The memory of a lost rank is missing in the mean memory, as in EF21.
#[test]
fn elastic_worlds_refuse_it() {
    crate::install();
    for (feedback, accepted) in [("ef21-sgdm", false), ("ef21", false), ("error", true)] {
        let config: Config = format!("reducer=gather:topk:8x feedback={feedback}").parse().unwrap();
        assert_eq!(is_elastic(&Setup::short(&config, 3), 1), accepted, "{feedback}");
    }
}

#[test]
fn an_eta_outside_its_range_is_refused() {
    for eta in [0.0, -0.5, 1.5, f32::NAN] {
        let error = Ef21Sgdm { eta }.around(Dense).unwrap_err().to_string();
        assert!(error.contains("eta of ef21-sgdm must be in (0, 1]"), "{error}");
    }
    // 1 − η is 1 in f32: the momentum of such a mean is no error.
    assert!(Ef21Sgdm { eta: 1e-9 }.around(Dense).is_ok());
}

/// Returns the mean squared distance to the optimum over the last half of a run on `½ Σ aⱼ(xⱼ − cᵢⱼ)²`, with other centers on each rank.
fn distance<R: Reducer>(steps: u64, rate: f32, deviation: f32, make: impl Fn() -> R + Sync) -> f64 {
    let (world, len) = (4, 10);
    let center = |rank: usize| noise("gauss", len, 900 + rank as u64);
    let curvature = |j: usize| 0.5 + 0.1 * j as f32;
    let best: Vec<f32> = (0..len).map(|j| (0..world).map(|rank| center(rank)[j]).sum::<f32>() / world as f32).collect();
    let body = |mut comm: Session| {
        let (mut reducer, mut x, mut sum) = (make(), vec![0.0_f32; len], 0.0);
        let (rank, center) = (comm.rank(), center(comm.rank()));
        for step in 0..steps {
            let noise = noise("gauss", len, 10_000 * (1 + rank as u64) + step);
            let gradient: Vec<f32> =
                (0..len).map(|j| curvature(j) * (x[j] - center[j]) + deviation * noise[j]).collect();
            let average = exchange(&mut reducer, step, &gradient, &mut comm)?;
            x.iter_mut().zip(average).for_each(|(x, g)| *x -= rate * g);
            if step >= steps / 2 {
                sum += x.iter().zip(&best).map(|(x, c)| f64::from(x - c).powi(2)).sum::<f64>();
            }
        }
        Ok::<_, ReduceError>(sum / (steps - steps / 2) as f64)
    };
    Local::run(world, body).swap_remove(0).unwrap()
}

/// Claim: with small batches, EF21 stalls at a higher error than EF21-SGDM at the same learning rate.
#[test]
fn with_noise_ef21_stalls_above_ef21_sgdm() {
    let ef21 = |rate, deviation| distance(3000, rate, deviation, || Shifted::ef21(top(1, 10)));
    let sgdm = |rate, deviation| distance(3000, rate, deviation, || around(0.1, top(1, 10)));
    for rate in [0.01, 0.05, 0.1] {
        let [with_noise, without] = [2.0, 0.0].map(|deviation| [ef21(rate, deviation), sgdm(rate, deviation)]);
        println!("rate {rate}, EF21 and EF21-SGDM: {with_noise:?}, without noise {without:?}");
        assert!(with_noise[0] > 4.0 * with_noise[1], "{rate}: {with_noise:?}");
        assert!(without.iter().all(|distance| *distance < 1e-8), "{rate}: {without:?}");
    }
}
