use std::time::Duration;

use super::super::testkit::{Sgd, Simulation, loss, mean, noisy, simulate};
use super::super::{DiLoCoConfig, Outer};
use super::*;
use crate::comm::{Local, run_ranks};
use crate::error::CommError;
use crate::reduce::{AgreedStep, Dense};
use crate::{Key, Traffic};

const SGD: Sgd = Sgd { rate: 0.05, momentum: 0.0, steps: 24 };

fn layout() -> Layout {
    Layout::new([("a", vec![3]), ("b", vec![1]), ("c", vec![4]), ("d", vec![2])])
}

fn streaming(settings: StreamingDiLoCoConfig) -> StreamingDiLoCo {
    StreamingDiLoCo::new(settings, &layout(), |_| Ok(Box::new(Dense))).unwrap()
}

/// Trains the ten values of the layout; what each rank ends with, and the bytes it sent at each step.
fn run<S: SyncStrategy>(world: usize, strategy: impl Fn() -> S + Sync, sgd: Sgd) -> Vec<(Vec<f32>, Vec<u64>)> {
    let ranks = run_ranks(Local::world(world), |mut comm| {
        let (mut strategy, mut x, layout) = (strategy(), vec![3.0; 10], layout());
        let mut sent = Vec::new();
        strategy.begin(&x);
        for step in 0..sgd.steps {
            let before: Traffic = comm.traffic();
            let agreed_step = AgreedStep { step, ..AgreedStep::default() };
            let cx = Context { key: Key::new(5), slots: layout.slots(), agreed_step: &agreed_step, ranks: &[] };
            let g = noisy(comm.rank(), step, &x);
            x.iter_mut().zip(&g).for_each(|(x, g)| *x -= sgd.rate * g);
            if strategy.plan(step).parameters {
                strategy.after_step(&mut x, &cx, &mut comm).unwrap();
            }
            strategy.commit();
            strategy.after_commit(&cx, &mut comm);
            sent.push(comm.traffic().sent - before.sent);
        }
        strategy.settle(&mut comm).unwrap();
        Ok::<_, CommError>((x, sent))
    });
    ranks.into_iter().map(Result::unwrap).collect()
}

fn models(ranks: Vec<(Vec<f32>, Vec<u64>)>) -> Vec<Vec<f32>> {
    ranks.into_iter().map(|(x, _)| x).collect()
}

#[test]
fn one_fragment_that_is_waited_for_is_diloco() {
    let settings = StreamingDiLoCoConfig { period: 4, fragments: 1, ..StreamingDiLoCoConfig::default() };
    let diloco = DiLoCoConfig { period: 4, ..DiLoCoConfig::default() };
    let ours = run(3, || streaming(settings), SGD);
    assert_eq!(ours, run(3, || Outer::new(diloco, Dense, None).unwrap(), SGD));
}

/// Every fragment by itself, in f64: its own anchor and momentum, exchanged in turns and landing later.
#[test]
fn fragments_are_dilocos_of_their_own() {
    for (overlap, mixing) in [(0, 0.0), (3, 0.5), (1, 0.0)] {
        let settings = StreamingDiLoCoConfig {
            period: 6,
            fragments: 3,
            overlap,
            mixing: Some(mixing),
            ..StreamingDiLoCoConfig::default()
        };
        let ours = models(run(3, || streaming(settings), SGD));
        let fragment = |i: usize| [0, 0, 0, 1, 2, 2, 2, 2, 0, 0][i];
        let (mut x, mut anchor, mut momentum) = (vec![vec![3.0_f64; 10]; 3], vec![3.0; 10], vec![0.0; 10]);
        let mut sent = vec![0.0; 10];
        for step in 0..SGD.steps {
            for (rank, x) in x.iter_mut().enumerate() {
                let here: Vec<f32> = x.iter().map(|x| *x as f32).collect();
                x.iter_mut().zip(noisy(rank, step, &here)).for_each(|(x, g)| *x -= f64::from(SGD.rate) * f64::from(g));
            }
            for i in 0..10 {
                let due = |step: u64| (step + 1 + 6 - 2 * fragment(i)).is_multiple_of(6);
                if due(step) {
                    sent[i] = anchor[i] - x.iter().map(|x| x[i]).sum::<f64>() / 3.0;
                }
                if step >= overlap && due(step - overlap) {
                    momentum[i] = 0.9 * momentum[i] + sent[i];
                    anchor[i] -= 0.7 * (sent[i] + 0.9 * momentum[i]);
                    let mixing = f64::from(mixing);
                    x.iter_mut().for_each(|x| x[i] = mixing * x[i] + (1.0 - mixing) * anchor[i]);
                }
            }
        }
        let off = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs();
        let worst = ours.iter().flatten().zip(x.iter().flatten()).map(off).fold(0.0, f64::max);
        assert!(worst < 1e-4, "{settings:?}: off by {worst}");
    }
}

#[test]
fn as_many_bytes_as_diloco_and_fewer_at_once() {
    let settings = StreamingDiLoCoConfig { period: 8, fragments: 2, ..StreamingDiLoCoConfig::default() };
    let diloco = DiLoCoConfig { period: 8, ..DiLoCoConfig::default() };
    let whole = run(4, || Outer::new(diloco, Dense, None).unwrap(), SGD);
    let parts = run(4, || streaming(settings), SGD);
    for ((_, whole), (_, parts)) in whole.iter().zip(&parts) {
        assert_eq!(whole.iter().sum::<u64>(), parts.iter().sum::<u64>());
        // Seven of ten values in the larger fragment.
        let peaks = [whole, parts].map(|sent| *sent.iter().max().unwrap());
        assert!(peaks[1] * 10 <= peaks[0] * 7, "{peaks:?}");
    }
}

/// The claim: an overlap hides the exchange, at a loss near that of DiLoCo.
#[test]
fn an_overlap_hides_the_exchange_and_costs_little() {
    let sgd = Sgd { steps: 400, ..SGD };
    let settings =
        |overlap| StreamingDiLoCoConfig { period: 20, fragments: 4, overlap, ..StreamingDiLoCoConfig::default() };
    let end = |overlap| loss(&mean(&models(run(4, || streaming(settings(overlap)), sgd))));
    let (waited, late) = (end(0), end(4));
    assert!(late < 2.0 * waited + 0.01, "{late} against {waited}");
    // 20 000 values in one tensor: 6 steps of 10 ms travel.
    let one = |overlap| StreamingDiLoCoConfig { period: 20, fragments: 1, overlap, ..StreamingDiLoCoConfig::default() };
    let strategy =
        |overlap| move || StreamingDiLoCo::new(one(overlap), &Layout::flat(20_000), |_| Ok(Box::new(Dense))).unwrap();
    let world =
        || Simulation { world: 4, network: "20mbit,1ms".parse().unwrap(), compute: vec![Duration::from_millis(10)] };
    let still = |_: usize, _: u64, x: &[f32]| vec![0.0; x.len()];
    let seconds =
        [0, 12].map(|overlap| simulate(world(), strategy(overlap), &[0.0; 20_000], (Sgd { steps: 99, ..SGD }, &still)));
    assert!(seconds[0] > 1.15 && seconds[1] < 1.0, "{seconds:?}");
}

#[test]
fn settings_that_cannot_work_are_said() {
    let error = |settings: StreamingDiLoCoConfig| {
        let built = StreamingDiLoCo::new(settings, &layout(), |_| Ok(Box::new(Dense)));
        built.map(drop).unwrap_err().to_string()
    };
    let good = StreamingDiLoCoConfig::default();
    for (settings, words) in [
        (StreamingDiLoCoConfig { period: 0, ..good }, "a period of at least 1"),
        (StreamingDiLoCoConfig { fragments: 0, ..good }, "fragments of streaming-diloco"),
        (StreamingDiLoCoConfig { fragments: 200, ..good }, "fragments of streaming-diloco"),
        (StreamingDiLoCoConfig { overlap: 100, ..good }, "overlap of streaming-diloco must be below its period"),
        (StreamingDiLoCoConfig { mixing: Some(1.0), ..good }, "mixing of streaming-diloco must be in [0, 1)"),
        (
            StreamingDiLoCoConfig { fragments: 5, ..good },
            "5 fragments of streaming-diloco are more than the model's 4 tensors",
        ),
    ] {
        let error = error(settings);
        assert!(error.contains(words), "{error}");
    }
}
