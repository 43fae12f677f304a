use super::*;
use briquette_core::comm::all_reduce_traffic;
use briquette_core::config::Config;
use briquette_core::config::{Exchange, Feedback, ReducerConfig, Rule, StrategyConfig, StrategySettings};
use briquette_core::laws::{
    Setup, resumes_to_the_bit,
    train::{Sgd, loss, mean, noisy, train},
};
use briquette_core::reduce::dense::Dense;
use briquette_core::sync::{outer::Outer, periodic::Periodic};

const SGD: Sgd = Sgd { rate: 0.05, momentum: 0.0, steps: 24 };

/// `slots` slots of `len` values.
fn layout(slots: usize, len: usize) -> Layout {
    Layout::new((0..slots).map(|slot| (slot.to_string(), vec![len])))
}

fn settings(period: u64, fragments: u64, overlap: u64) -> StreamingDiLoCoConfig {
    StreamingDiLoCoConfig { period: Some(period), fragments, overlap, ..StreamingDiLoCoConfig::default() }
}

fn streaming(settings: StreamingDiLoCoConfig, layout: Layout) -> impl Fn() -> StreamingDiLoCo<Dense> + Sync {
    move || StreamingDiLoCo::new(settings, &layout, |_| Ok(Dense)).unwrap()
}

fn diloco(period: u64) -> impl Fn() -> Outer<DiLoCo, Dense> + Sync {
    move || Outer::new(DiLoCo { period: Some(period), ..DiLoCo::default() }, Dense, None).unwrap()
}

fn close(a: &[Vec<f32>], b: &[Vec<f64>]) -> bool {
    a.iter().flatten().zip(b.iter().flatten()).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-4)
}

#[test]
fn of_one_fragment_at_once_it_is_diloco_to_the_bit() {
    let ours = train(4, streaming(settings(4, 1, 0), layout(10, 1)), &[3.0; 10], (SGD, &noisy));
    assert_eq!(ours, train(4, diloco(4), &[3.0; 10], (SGD, &noisy)));
    // Also through a reducer that draws random numbers and one with a residual.
    for (compressor, feedback) in [("randk:4x:scaled", Feedback::none()), ("topk:4x", Feedback::error())] {
        let reducer = ReducerConfig::gather(compressor.parse().unwrap());
        let exchange = Exchange { reducer, feedback, ..Exchange::default() };
        let run = |strategy: StrategyConfig| {
            let build = || strategy.get().build(&exchange, &Layout::flat(10), 4).unwrap();
            train(4, build, &[3.0; 10], (SGD, &noisy))
        };
        let diloco = DiLoCo { period: Some(4), ..DiLoCo::default() };
        assert_eq!(run(settings(4, 1, 0).into()), run(diloco.into()), "{compressor}");
    }
}

/// The method's equations in one thread and f64.
fn serial(settings: StreamingDiLoCoConfig, world: usize) -> Vec<Vec<f64>> {
    let StreamingDiLoCoConfig { fragments, overlap, .. } = settings;
    let period = settings.steps();
    let [mixing, rate, momentum] = [settings.mixing(), settings.rate, settings.momentum].map(f64::from);
    let mut x = vec![vec![3.0_f64; 10]; world];
    let (mut anchor, mut b) = (vec![3.0_f64; 10], vec![0.0; 10]);
    let mut under_way: Vec<(u64, usize, f64)> = Vec::new();
    for step in 0..SGD.steps {
        for (rank, x) in x.iter_mut().enumerate() {
            let here: Vec<f32> = x.iter().map(|x| *x as f32).collect();
            let gradient = noisy(rank, step, &here);
            x.iter_mut().zip(gradient).for_each(|(x, g)| *x -= f64::from(SGD.rate) * f64::from(g));
        }
        for i in 0..10 {
            if (step + 1) % period == (i as u64 % fragments) * period / fragments {
                let come = x.iter().map(|x| anchor[i] - x[i]).sum::<f64>() / world as f64;
                under_way.push((step + overlap, i, come));
            }
        }
        under_way.retain(|&(arrives, i, come)| {
            if arrives == step {
                b[i] = momentum * b[i] + come;
                anchor[i] -= rate * (come + momentum * b[i]);
                x.iter_mut().for_each(|x| x[i] = mixing * x[i] + (1.0 - mixing) * anchor[i]);
            }
            arrives > step
        });
    }
    x
}

#[test]
fn it_is_dilocos_recursion_of_each_fragment_staggered_late_and_mixed() {
    let kept = |mixing| Some(mixing);
    for settings in [
        settings(4, 2, 0),
        settings(5, 3, 0),
        settings(4, 2, 1),
        settings(5, 1, 4),
        StreamingDiLoCoConfig { mixing: kept(0.25), ..settings(6, 3, 2) },
        StreamingDiLoCoConfig { mixing: kept(0.0), rate: 0.4, ..settings(8, 2, 4) },
        StreamingDiLoCoConfig { mixing: kept(0.75), momentum: 0.5, ..settings(4, 4, 0) },
    ] {
        let ours = train(3, streaming(settings, layout(10, 1)), &[3.0; 10], (SGD, &noisy));
        assert!(close(&ours, &serial(settings, 3)), "{settings:?}");
    }
}

/// Two values, a fragment each, that ranks move by 4 and 12 a step. For `b`, `D` is -8 and -13, its momentum -8 and -17, and
/// the anchor 0 + 0.5·(8 + 4) = 6 and 6 + 0.5·(13 + 8.5) = 16.75. For `a`, `D` is -16 and the anchor 0.5·(16 + 8) = 12.
#[test]
fn golden() {
    let settings = StreamingDiLoCoConfig { rate: 0.5, momentum: 0.5, ..settings(2, 2, 1) };
    let gradient = |rank: usize, _: u64, _: &[f32]| vec![[-4.0, -12.0][rank]; 2];
    let run = |steps| {
        train(2, streaming(settings, layout(2, 1)), &[0.0; 2], (Sgd { rate: 1.0, momentum: 0.0, steps }, &gradient))
    };
    assert_eq!(run(1), [[4.0, 4.0], [12.0, 12.0]]);
    assert_eq!(run(2), [[8.0, 7.0], [24.0, 15.0]]);
    assert_eq!(run(3), [[12.0, 11.0], [24.0, 27.0]]);
    assert_eq!(run(4), [[16.0, 15.875], [36.0, 27.875]]);
}

#[test]
fn one_rank_that_takes_all_of_it_is_its_optimizer() {
    let sgd = Sgd { momentum: 0.9, ..SGD };
    let settings = StreamingDiLoCoConfig { rate: 1.0, momentum: 0.0, ..settings(4, 2, 0) };
    let ours = train(1, streaming(settings, layout(10, 1)), &[3.0; 10], (sgd, &noisy));
    let alone = train(1, || Periodic::new(1).unwrap(), &[3.0; 10], (sgd, &noisy));
    assert!(ours[0].iter().zip(&alone[0]).all(|(a, b)| (a - b).abs() < 1e-5));
}

#[test]
fn every_fragment_is_due_once_a_period_and_by_itself() {
    let due = |period, fragments| (0..period).map(|step| settings(period, fragments, 0).due(step)).collect::<Vec<_>>();
    assert_eq!(due(4, 2), [None, Some(1), None, Some(0)]);
    assert_eq!(due(5, 3), [Some(1), None, Some(2), None, Some(0)]);
    assert_eq!(due(3, 3), [Some(1), Some(2), Some(0)]);
    // No product overflows.
    assert_eq!(settings(u64::MAX, 3, 0).due(u64::MAX / 3 * 2 - 1), Some(2));
}

fn setup(strategy: impl Into<StrategyConfig>, layout: Layout, world: usize) -> Setup<Config> {
    Setup { config: Config { strategy: strategy.into(), exchange: Exchange::default() }, layout, world }
}

#[test]
fn what_is_under_way_is_saved_and_sent_again() {
    let setup = setup(settings(4, 1, 2), layout(3, 5), 3);
    let runs = setup.run(6);
    let under_way = |step: usize| runs[0][step].state.f32s("fragment-0/input", None).unwrap().len();
    assert_eq!([2, 3, 4, 5].map(under_way), [0, 15, 15, 0]);
    // It saves after step 3.
    resumes_to_the_bit(&setup);
}

#[test]
fn the_peak_of_bytes_is_lower_by_the_number_of_fragments_and_their_sum_the_same() {
    let sent = |strategy: StrategyConfig| {
        let run = setup(strategy, layout(4, 8192), 4).run(17).swap_remove(1);
        run.iter().map(|step| step.counted.sent).collect::<Vec<_>>()
    };
    let whole = sent(DiLoCo { period: Some(8), ..DiLoCo::default() }.into());
    let exchange = all_reduce_traffic(4 * 8192, 4, 1).sent;
    assert_eq!((whole.iter().sum::<u64>(), whole.iter().max()), (2 * exchange, Some(&exchange)));
    for overlap in [0, 1] {
        let streamed = sent(settings(8, 4, overlap).into());
        assert_eq!((streamed.iter().sum::<u64>(), streamed.iter().max()), (2 * exchange, Some(&(exchange / 4))));
    }
}

/// Claim: the loss with fragments is that of DiLoCo, and near it with overlap. The ranks' share of their own parameters
/// shortens outer steps: slower progress, and less noise. This also holds if only one value of four, in 8 bits, of the outer
/// gradients is sent.
#[test]
fn the_loss_is_near_dilocos() {
    let end = |x: Vec<Vec<f32>>| loss(&mean(&x));
    let task = |steps| (Sgd { steps, ..SGD }, &noisy as _);
    let whole = |steps| end(train(4, diloco(20), &[3.0; 40], task(steps)));
    let parts = |settings, steps| end(train(4, streaming(settings, layout(10, 4)), &[3.0; 40], task(steps)));
    let [waits, mixed] = [0, 4].map(|overlap| settings(20, 4, overlap));
    let late = StreamingDiLoCoConfig { mixing: Some(0.0), ..mixed };
    let reducer = ReducerConfig::gather("topk:4x,values=q8".parse().unwrap());
    let exchange = Exchange { reducer, feedback: Feedback::error(), ..Exchange::default() };
    let build = || mixed.build(&exchange, &layout(10, 4), 4).unwrap();
    let compressed = end(train(4, build, &[3.0; 40], task(2400)));
    let early = [whole(800), parts(waits, 800), parts(late, 800), parts(mixed, 800)];
    let at_length = [whole(2400), parts(waits, 2400), parts(late, 2400), parts(mixed, 2400), compressed];
    let found = format!("DiLoCo, in fragments, late, mixed, compressed: {early:?}, {at_length:?}");
    assert!(early[1] < 1.1 * early[0] && early[2] < 1.1 * early[0] && early[3] < 4.0 * early[0], "{found}");
    assert!(at_length.iter().all(|loss| *loss < 1.1 * at_length[0]), "{found}");
}

/// Claim: outer gradients in 4-bit floats, without a residual, end at the loss of exact ones.
#[test]
fn outer_gradients_in_4_bit_floats_end_at_the_loss_of_exact_ones() {
    crate::install();
    let ends = ["dense", "gather:float4:e3m0", "gather:float4:e2m1"].map(|reducer| {
        let exchange =
            Exchange { reducer: reducer.parse().unwrap(), feedback: Feedback::none(), ..Exchange::default() };
        let build = || settings(20, 4, 4).build(&exchange, &layout(10, 4), 4).unwrap();
        loss(&mean(&train(4, build, &[3.0; 40], (Sgd { steps: 2400, ..SGD }, &noisy))))
    });
    println!("{ends:?}");
    assert!(ends.iter().all(|loss| *loss < 1.1 * ends[0]), "{ends:?}");
}

#[test]
fn a_rule_is_of_the_fragments_that_have_its_slots() {
    let built = |slots: &str| {
        let rules = vec![Rule::compressor(slots, "topk:4x".parse().unwrap()).unwrap()];
        let exchange = Exchange { rules, feedback: Feedback::error(), ..Exchange::default() };
        settings(4, 2, 1).build(&exchange, &layout(4, 8), 2).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(built("1"), Ok(()));
    assert!(built("fc").unwrap_err().contains("it matches no slot; there are 0, 1, 2, 3"));
}

#[test]
fn settings_out_of_range_are_refused() {
    crate::install();
    let good = settings(9, 4, 2);
    for (settings, words) in [
        (StreamingDiLoCoConfig { period: Some(0), ..good }, "period of streaming-diloco must be at least 1"),
        (StreamingDiLoCoConfig { fragments: 0, ..good }, "fragments of streaming-diloco must be at least 1"),
        (StreamingDiLoCoConfig { fragments: 10, ..good }, "and at most the period, got 10"),
        (StreamingDiLoCoConfig { overlap: 3, ..good }, "overlap of streaming-diloco must be at most period/fragments"),
        (StreamingDiLoCoConfig { overlap: 9, fragments: 1, ..good }, "and below the period, got 9"),
        (StreamingDiLoCoConfig { mixing: Some(1.5), ..good }, "mixing of streaming-diloco must be in [0, 1]"),
        (StreamingDiLoCoConfig { rate: 0.0, ..good }, "rate of streaming-diloco must be above 0"),
        (StreamingDiLoCoConfig { momentum: 1.0, ..good }, "momentum of streaming-diloco must be in [0, 1)"),
        (
            StreamingDiLoCoConfig { fragments: 5, overlap: 1, ..good },
            "fragments=5 of streaming-diloco does not go with a model with 4 slots",
        ),
    ] {
        let error = StreamingDiLoCo::new(settings, &layout(4, 1), |_| Ok(Dense)).map(drop).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let exchange = Exchange { controller: "gravac".parse().unwrap(), ..Exchange::default() };
    let config = Config { strategy: good.into(), exchange };
    let error = config.build(&layout(4, 1), 2).map(drop).unwrap_err().to_string();
    assert!(error.contains("strategy streaming-diloco") && error.contains("controller"), "{error}");
}
