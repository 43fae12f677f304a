use super::*;
use briquette_core::comm::Local;
use briquette_core::config::Exchange;
use briquette_core::reduce::AgreedStep;
use briquette_core::state::{State, Stateful};
use briquette_core::{Key, Layout};

fn input(rank: usize, step: u64, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 5 + rank * 3) as f32 * 0.83 + step as f32 * 0.4).sin() * (1.0 + rank as f32)).collect()
}

fn exchange(
    reducer: &mut dyn Reducer,
    step: u64,
    input: &[f32],
    comm: &mut Session,
) -> Result<[Vec<f32>; 2], ReduceError> {
    let layout = Layout::flat(input.len());
    let (mut average, mut sent) = (vec![9.0; input.len()], vec![9.0; input.len()]);
    let agreed_step = &AgreedStep { step, learning_rate: Some(0.5), ..AgreedStep::default() };
    let (key, slots, out) = (Key::new(4).step(step), layout.slots(), Some(&mut sent[..]));
    reducer.exchange(Round { key, slots, agreed_step, input, average: &mut average, sent: out }, comm)?;
    Ok([average, sent])
}

fn settings(text: &str) -> Smooth {
    text.parse::<briquette_core::config::ReducerConfig>().unwrap().downcast_ref::<Smooth>().unwrap().clone()
}

#[test]
fn each_ranks_message_is_read_in_that_ranks_norm_by_hand() {
    crate::install();
    // Signs and a scale. Rank 0, L = (4, 1): (6, −1) is scaled to (3, −1), compressed to (2, −2), and decoded to (4, −2). Rank 1, L = (1,
    // 9): (1, 3) is scaled to (1, 1), and decoded to (1, 3). The mean is (2.5, 0.5).
    let ranks = Local::run(2, |mut comm| {
        let mut reducer = settings("smooth:sign,alpha=0").given(&[vec![4.0, 1.0], vec![1.0, 9.0]]).unwrap();
        let input = [[6.0, -1.0], [1.0, 3.0]][comm.rank()];
        exchange(&mut reducer, 0, &input, &mut comm)
    });
    let ranks: Vec<_> = ranks.into_iter().map(Result::unwrap).collect();
    assert_eq!(ranks[0], [vec![2.5, 0.5], vec![4.0, -2.0]]);
    assert_eq!(ranks[1], [vec![2.5, 0.5], vec![1.0, 3.0]]);
}

#[test]
fn with_the_same_smoothness_everywhere_it_is_diana_or_the_gather_of_its_compressor() {
    crate::install();
    for (smooth, plain, feedback) in [
        ("smooth:qsgd:4,alpha=0.25", "gather:qsgd:4", "diana:0.25"),
        ("smooth:qsgd:4,alpha=0", "gather:qsgd:4", "none"),
        ("smooth:topk:3x,alpha=0", "gather:topk:3x", "none"),
    ] {
        let run = |of: &(dyn Fn() -> Box<dyn Reducer> + Sync)| {
            let ranks = Local::run(3, |mut comm| {
                let (mut reducer, rank) = (of(), comm.rank());
                let mut step = |step| Ok(exchange(&mut *reducer, step, &input(rank, step, 20), &mut comm)?[0].clone());
                (0..6).map(&mut step).collect::<Result<Vec<_>, ReduceError>>()
            });
            ranks.into_iter().next().unwrap().unwrap()
        };
        let smooth = run(&|| Box::new(settings(smooth).given(&[vec![4.0; 20]]).unwrap()));
        let plain = run(&|| {
            let (reducer, feedback) = (plain.parse().unwrap(), feedback.parse().unwrap());
            let (exchange, layout) = (Exchange { reducer, feedback, ..Exchange::default() }, Layout::flat(20));
            // Without the buckets, whose random bits differ.
            let gather = exchange.reducer.get().build(&exchange, &layout).unwrap();
            exchange.feedback.get().wrap(gather, &exchange, &layout).unwrap()
        });
        for (step, (a, b)) in smooth.iter().zip(&plain).enumerate() {
            assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5), "step {step}: {a:?}, {b:?}");
        }
    }
}

/// On `½ Σ Lⱼxⱼ²` with steps of plain SGD the estimate is `L`, bounded below by the largest divided by `condition`.
#[test]
fn the_warm_up_finds_the_diagonal() {
    crate::install();
    for per_rank in [false, true] {
        let curvatures = |rank: usize| [[4.0_f32, 0.5, 0.0, 1.0], [2.0, 1.5, 0.0, 1.0]][rank];
        let ranks = Local::run(2, |mut comm| {
            let text = format!("smooth:qsgd:8,warm_up=4,condition=100,per_rank={per_rank}");
            let mut reducer = settings(&text).estimated(4).unwrap();
            let (mut x, own) = ([1.0_f32; 4], curvatures(comm.rank()));
            for step in 0..6 {
                let gradient: Vec<f32> = x.iter().zip(own).map(|(x, l)| l * x).collect();
                let [average, _] = exchange(&mut reducer, step, &gradient, &mut comm)?;
                x.iter_mut().zip(&average).for_each(|(x, average)| *x -= 0.5 * average);
            }
            let mut state = State::default();
            reducer.save(&mut state);
            Ok::<_, ReduceError>(state.f32s("inner/weights", None).unwrap().to_vec())
        });
        let weights =
            ranks.into_iter().map(Result::unwrap).reduce(|a, b| if a == b { a } else { panic!("{a:?}, {b:?}") });
        let expected: &[f32] = match per_rank {
            false => &[3.0, 1.0, 0.03, 1.0],
            true => &[4.0, 0.5, 0.04, 1.0, 2.0, 1.5, 0.02, 1.0],
        };
        let found: Vec<f32> = weights.unwrap().iter().map(|w| w * w).collect();
        assert!(
            found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-3 * b) && found.len() == expected.len(),
            "{found:?}"
        );
    }
}

/// Two ranks with different optima, ill-conditioned quadratics, learning rates of the theory: `1/(L + 6ω·max L/W)` and `1/(L + 6𝓛/W)`.
/// `𝓛` is `Σ Lⱼ·pⱼ(1 − pⱼ)` for a vector of equal values under one level and a sign, plus half of that.
#[test]
fn where_the_loss_is_ill_conditioned_the_norm_of_the_loss_takes_fewer_rounds() {
    crate::install();
    const LEN: usize = 16;
    let curvature = |i: usize| 10_f32.powf(-2.0 * i as f32 / (LEN - 1) as f32);
    let optimum = |rank: usize, i: usize| ((i * 7 + rank * 5) as f32).sin();
    let excess = |plain: bool, rate: f32| {
        let ranks = Local::run(2, |mut comm| {
            let l: Vec<f32> = if plain { vec![1.0; LEN] } else { (0..LEN).map(curvature).collect() };
            let mut reducer = settings("smooth:qsgd:s1:512:l2").given(&[l]).unwrap();
            let mut x = [0.0_f32; LEN];
            for step in 0..800 {
                let g: Vec<f32> = (0..LEN).map(|i| curvature(i) * (x[i] - optimum(comm.rank(), i))).collect();
                let [average, _] = exchange(&mut reducer, step, &g, &mut comm)?;
                x.iter_mut().zip(&average).for_each(|(x, average)| *x -= rate * average);
            }
            let off = |i: usize| x[i] - (optimum(0, i) + optimum(1, i)) / 2.0;
            Ok::<_, ReduceError>((0..LEN).map(|i| curvature(i) * off(i).powi(2)).sum::<f32>())
        });
        ranks.into_iter().next().unwrap().unwrap()
    };
    let (omega, trace) = ((LEN as f32).sqrt(), (0..LEN).map(curvature).sum::<f32>());
    let chance = 1.0 / omega;
    let diana = excess(true, 1.0 / (1.0 + 3.0 * omega));
    let plus = excess(false, 1.0 / (1.0 + 3.0 * 1.5 * chance * (1.0 - chance) * trace));
    println!("excess after 800 rounds: DIANA {diana:e}, DIANA+ {plus:e}");
    assert!(plus < 0.3 * diana, "DIANA {diana:e}, DIANA+ {plus:e}");
}

#[test]
fn impossible_settings_name_what_is_wrong() {
    crate::install();
    for (l, words) in [(vec![1.0, 0.0], "above 0"), (vec![f32::NAN, 1.0], "NaN"), (vec![], "values of a smoothness")] {
        let error = settings("smooth:qsgd:4").given(&[l]).unwrap_err().to_string();
        assert!(error.contains("smoothness") && error.contains(words), "{error}");
    }
    for (text, feedback, words) in [
        ("smooth:qsgd:4,warm_up=1", "none", "warm-up of smooth"),
        ("smooth:qsgd:4,condition=0.5", "none", "condition of smooth"),
        ("smooth:qsgd:2,alpha=0.9", "none", "at most 0."),
        ("smooth:topk:4x,alpha=0.5", "none", "alpha=0"),
        ("smooth:qsgd:4", "diana", "state of its own"),
        ("smooth:qsgd:4", "momentum:0.9", "plain SGD"),
    ] {
        let error = match text.parse() {
            Ok(reducer) => {
                let exchange = Exchange { reducer, feedback: feedback.parse().unwrap(), ..Exchange::default() };
                exchange.build_reducer(&Layout::flat(100), 2).map(drop).unwrap_err().to_string()
            }
            Err(error) => briquette_core::error::ConfigError::to_string(&error),
        };
        assert!(error.contains(words), "{text}, {feedback}: {error}");
    }
}

/// Slopes 0, 3 and 4 after steps of 1: curvatures 3 and 1, of which 3 is kept. In the other coordinate the later curvature, 1, is the
/// larger.
#[test]
fn the_steepest_curvature_of_the_warm_up_is_kept_by_hand() {
    let mut warm_up = WarmUp::default();
    for (gradient, steepest) in [([0.0, 0.0], [0.0, 0.0]), ([3.0, -0.5], [3.0, 0.5]), ([4.0, 0.5], [3.0, 1.0])] {
        warm_up.observe(&gradient, &[2.0, 2.0], 0.5).unwrap();
        warm_up.each(Staged::commit);
        assert_eq!(warm_up.steepest.now()[..], steepest);
    }
    let weights = warm_up.weights(100.0);
    assert!((weights[0] - 3.0_f32.sqrt()).abs() < 1e-6 && weights[1] == 1.0, "{weights:?}");
}
