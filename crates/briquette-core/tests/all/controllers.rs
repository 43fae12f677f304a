//! Claims of controllers: fewer bits first and more later reach a lower loss than a constant number, and per-slot ratios send
//! less than one ratio for all where slots differ.

use briquette_core::aggregate::mean::Mean;
use briquette_core::comm::Local;
use briquette_core::compress::{Compressor, Norm, qsgd::Qsgd, top_k::TopK};
use briquette_core::error::ReduceError;
use briquette_core::reduce::{
    AgreedStep, Reducer, Round,
    gather::{Gather, Grain},
};
use briquette_core::report::Report;
use briquette_core::wrapper::adaptive::Adaptive;
use briquette_core::{CompressionRatio, Key, Layout};
use briquette_zoo::control::{adaqs::Adaqs, l_greco::LGreco};
use rand_distr::{Distribution, StandardNormal};

/// Result of an SGD run: bits per value at every step, the mean loss of the last quarter, and bytes sent.
#[derive(Debug, PartialEq)]
struct Run {
    bits: Vec<f64>,
    loss: f64,
    sent: u64,
}

/// Takes 1024 steps on `½‖x‖²/d` with four ranks, from 4 in each of 512 values, with normal noise in every gradient.
fn descend<R: Reducer>(rate: f32, make: impl Fn() -> R + Sync) -> Run {
    let (steps, len) = (1024, 512);
    let ranks = Local::run(4, |mut comm| {
        let (mut reducer, layout, mut x, mut average) = (make(), Layout::flat(len), vec![4.0_f32; len], vec![0.0; len]);
        let mut run = Run { bits: Vec::new(), loss: 0.0, sent: 0 };
        for step in 0..steps {
            let mut rng = Key::new(6).rank(comm.rank()).step(step).block(0);
            let noise = |x: &f32| -> f32 { x + Distribution::<f32>::sample(&StandardNormal, &mut rng) };
            let input: Vec<f32> = x.iter().map(noise).collect();
            let (agreed_step, key, slots) =
                (AgreedStep { step, ..AgreedStep::default() }, Key::new(1).step(step), layout.slots());
            let round =
                Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None };
            reducer.exchange(round, &mut comm)?;
            x.iter_mut().zip(&average).for_each(|(x, g)| *x -= rate * g);
            let mut report = Report::default();
            reducer.report(&mut report);
            run.bits.push(32.0 / report.ratio.expect("a reducer with a knob").get());
            if step >= steps * 3 / 4 {
                run.loss += x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / (len as f64 * steps as f64 / 2.0);
            }
        }
        run.sent = comm.traffic().sent;
        Ok::<_, ReduceError>(run)
    });
    let mut ranks = ranks.into_iter().map(Result::unwrap);
    let first = ranks.next().unwrap();
    assert!(ranks.all(|rank| rank == first));
    first
}

fn qsgd(bits: u8) -> Gather<Qsgd, Mean> {
    Gather::new(Qsgd::new(bits, 512, Norm::L2).unwrap(), Mean)
}

/// Gradients start with a mean of 4 standard deviations, which halves every 89 steps until the quantization noise exceeds it.
#[test]
fn adaqs_raises_bits_as_the_mean_falls_and_ends_as_low_as_with_all_bits_for_fewer_bytes_than_six() {
    let adaqs = || Adaptive::new(qsgd(4), Adaqs::default().controller().unwrap()).unwrap();
    let rate = 1.0 / 128.0;
    let [adaptive, six, eight] = [descend(rate, adaqs), descend(rate, || qsgd(6)), descend(rate, || qsgd(8))];
    let raised: Vec<usize> = (1..1024).filter(|&t| adaptive.bits[t] != adaptive.bits[t - 1]).collect();
    assert!(adaptive.bits.is_sorted() && adaptive.bits[0] == 2.0 && adaptive.bits[1023] == 8.0, "{raised:?}");
    assert!(raised.windows(2).all(|pair| (60..180).contains(&(pair[1] - pair[0]))), "{raised:?}");
    assert!(adaptive.sent < six.sent, "{} and {} bytes", adaptive.sent, six.sent);
    assert!(adaptive.loss < 0.95 * six.loss, "{} and {}", adaptive.loss, six.loss);
    assert!(adaptive.loss < 1.02 * eight.loss, "{} and {}", adaptive.loss, eight.loss);
    // If nothing falls, no bits are raised.
    assert!(descend(0.0, adaqs).bits.iter().all(|bits| *bits == 2.0));
}

/// Exchanges once on two ranks. Returns the energy that both lost, and the bytes that both sent.
fn exchange<R: Reducer>(layout: &Layout, vectors: &[Vec<f32>; 2], make: impl Fn() -> R + Sync) -> (f64, u64) {
    let ranks = Local::run(2, |mut comm| {
        let (input, agreed_step) = (&vectors[comm.rank()], AgreedStep::default());
        let (mut average, mut sent) = (vec![0.0; input.len()], vec![0.0; input.len()]);
        let (key, slots) = (Key::new(2), layout.slots());
        let round =
            Round { key, slots, agreed_step: &agreed_step, input, average: &mut average, sent: Some(&mut sent) };
        make().reduce(round, &mut comm)?;
        let lost = input.iter().zip(&sent).map(|(x, s)| f64::from(x - s).powi(2)).sum::<f64>();
        Ok::<_, ReduceError>((lost, comm.traffic().sent))
    });
    ranks.into_iter().map(Result::unwrap).fold((0.0, 0), |sum, rank| (sum.0 + rank.0, sum.1 + rank.1))
}

fn per_slot<C: Compressor>(compressor: C) -> Gather<C, Mean> {
    Gather::new(compressor, Mean).grain(Grain::PerSlot)
}

fn l_greco<C: Compressor>(compressor: C) -> impl Reducer {
    let controller = LGreco { ratio: compressor.nominal(), ..LGreco::default() }.controller().unwrap();
    Adaptive::new(per_slot(compressor), controller).unwrap()
}

#[test]
fn l_greco_sends_fewer_bytes_than_one_ratio_where_slots_differ_and_loses_no_more() {
    let layout = Layout::new([("embedding", vec![400, 50]), ("hidden", vec![100, 100]), ("output", vec![10, 500])]);
    for seed in 0..5 {
        let vector = |rank: usize| -> Vec<f32> {
            let mut rng = Key::new(seed).rank(rank).block(0);
            let mut slot = |len, size: f32| -> Vec<f32> {
                (0..len).map(|_| size * Distribution::<f32>::sample(&StandardNormal, &mut rng)).collect()
            };
            [slot(20_000, 0.1), slot(10_000, 1.0), slot(5000, 4.0)].concat()
        };
        let vectors = [vector(0), vector(1)];
        let top_k = TopK::ratio(CompressionRatio::new(16.0).unwrap());
        let qsgd = Qsgd::new(4, 512, Norm::Max).unwrap();
        for (uniform, chosen, bytes) in [
            (exchange(&layout, &vectors, || per_slot(top_k)), exchange(&layout, &vectors, || l_greco(top_k)), 0.5),
            (exchange(&layout, &vectors, || per_slot(qsgd)), exchange(&layout, &vectors, || l_greco(qsgd)), 0.8),
        ] {
            assert!(chosen.0 <= uniform.0, "seed {seed}: loses {} and {}", chosen.0, uniform.0);
            let ratio = chosen.1 as f64 / uniform.1 as f64;
            assert!(ratio < bytes, "seed {seed}: sends {} and {} bytes", chosen.1, uniform.1);
        }
    }
}
