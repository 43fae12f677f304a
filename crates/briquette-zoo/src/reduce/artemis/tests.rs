use super::*;
use crate::wrapper::shifted::Shifted;
use briquette_core::Layout;
use briquette_core::aggregate::mean::Mean;
use briquette_core::comm::Local;
use briquette_core::compress::{Norm, qsgd::Qsgd};
use briquette_core::config::{CompressorConfig, Exchange, ReducerConfig};
use briquette_core::reduce::{AgreedStep, gather::Gather};
use briquette_core::state::State;

fn settings(text: &str) -> ArtemisConfig {
    text.parse::<ReducerConfig>().unwrap().downcast_ref().cloned().unwrap()
}

fn build(settings: &ArtemisConfig, len: usize, world: usize) -> Box<dyn Reducer> {
    let exchange = Exchange { reducer: settings.clone().into(), ..Exchange::default() };
    // Without the wrappers around it.
    assert!(exchange.build_reducer(&Layout::flat(len), world).is_ok());
    exchange.reducer.get().build(&exchange, &Layout::flat(len)).unwrap()
}

/// Runs one exchange at `step`; returns the average and `sent`.
fn exchange(
    reducer: &mut dyn Reducer,
    step: u64,
    input: &[f32],
    comm: &mut Session,
) -> Result<[Vec<f32>; 2], ReduceError> {
    let (layout, agreed_step) = (Layout::flat(input.len()), AgreedStep { step, ..AgreedStep::default() });
    let (mut average, mut sent) = (vec![9.0; input.len()], vec![9.0; input.len()]);
    let (key, slots, out) = (Key::new(4).step(step), layout.slots(), Some(&mut sent[..]));
    reducer.exchange(Round { key, slots, agreed_step: &agreed_step, input, average: &mut average, sent: out }, comm)?;
    Ok([average, sent])
}

fn input(rank: usize, step: u64, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7 + rank * 3) as f32 * 0.61 + step as f32 * 0.3).sin() * (1.0 + rank as f32)).collect()
}

/// Returns the averages of some steps on rank 0; every rank has the same.
fn averages(make: impl Fn() -> Box<dyn Reducer> + Sync, world: usize, len: usize, steps: u64) -> Vec<Vec<f32>> {
    let mut ranks = Local::run(world, |mut comm| {
        let (mut reducer, rank) = (make(), comm.rank());
        (0..steps)
            .map(|step| Ok(exchange(&mut *reducer, step, &input(rank, step, len), &mut comm)?[0].clone()))
            .collect()
    })
    .into_iter()
    .map(|run: Result<Vec<_>, ReduceError>| run.unwrap());
    let first = ranks.next().unwrap();
    assert!(ranks.all(|run| run == first));
    first
}

fn near(a: &[f32], b: &[f32], bound: f32) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= bound)
}

#[test]
fn memories_by_hand() {
    crate::install();
    // A lossless compressor, α = ½, two ranks with (2, 4) and (4, 0), each of which serves one value. At first all memories are 0, and the
    // mean is (3, 2): h₀ = (1, 2), h₁ = (2, 0), H = (1.5, 1). Then the differences are those halves again, and the mean is H + ((1, 2) +
    // (2, 0))/2 = (3, 2): h₀ = (1.5, 3), h₁ = (3, 0), H = (2.25, 1.5).
    for (variant, served) in [("pp2", [vec![2.25], vec![1.5]]), ("pp1", [vec![1.5, 3.0], vec![3.0, 0.0]])] {
        let settings = settings(&format!("artemis:dense,down=dense,alpha=0.5,variant={variant}"));
        let states = Local::run(2, |mut comm| {
            let (mut reducer, input) = (build(&settings, 2, 2), [[2.0, 4.0], [4.0, 0.0]][comm.rank()]);
            for step in 0..2 {
                let [average, sent] = exchange(&mut *reducer, step, &input, &mut comm)?;
                assert_eq!((average, sent), (vec![3.0, 2.0], input.to_vec()), "{variant}");
            }
            let mut state = State::default();
            reducer.save(&mut state);
            Ok::<_, ReduceError>([
                state.f32s("memory", None).unwrap().to_vec(),
                state.f32s("served", None).unwrap().to_vec(),
            ])
        });
        let states: Vec<_> = states.into_iter().map(Result::unwrap).collect();
        let [first, second] = served;
        assert_eq!(states, [[vec![1.5, 3.0], first], [vec![3.0, 0.0], second]], "{variant}");
    }
}

/// Simulates the algorithm on one rank, with dense vectors and without encoded messages: one server per range.
fn twin(settings: &ArtemisConfig, alpha: f32, world: usize, len: usize, steps: u64) -> Vec<Vec<f32>> {
    let (mut up, mut down, mut message) = (settings.up.build(), settings.down.build(), Message::default());
    let mut lose = |compressor: &mut dyn Compressor, x: &[f32], key| {
        let mut out = vec![0.0; x.len()];
        compressor.compress_into(x, key, &mut message);
        message.decode_into(&mut out).unwrap();
        out
    };
    let range = |q: usize| match settings.server {
        None => q * len / world..(q + 1) * len / world,
        Some(server) => {
            if q == server {
                0..len
            } else {
                0..0
            }
        }
    };
    let (mut h, mut mean_h, mut averages) = (vec![vec![0.0_f32; len]; world], vec![0.0_f32; len], Vec::new());
    for step in 0..steps {
        let key = Key::new(4).step(step);
        let active = draw(key, settings.participation, world);
        let p = settings.participation;
        let weight = ((1.0 - (1.0 - p).powf(world as f64)) / p) as f32 / world as f32;
        let mut average = vec![0.0; len];
        for q in (0..world).filter(|q| !range(*q).is_empty()) {
            let mut g =
                if settings.variant == Variant::Pp2 { mean_h[range(q)].to_vec() } else { vec![0.0; range(q).len()] };
            for i in (0..world).filter(|i| active[*i]) {
                let gradient = input(i, step, len);
                let difference: Vec<f32> = range(q).map(|j| gradient[j] - h[i][j]).collect();
                let sent = lose(&mut *up, &difference, key.rank(i).bucket(q));
                for (at, j) in range(q).enumerate() {
                    g[at] += weight * sent[at];
                    if settings.variant == Variant::Pp1 {
                        g[at] += weight * h[i][j];
                    }
                    h[i][j] += alpha * sent[at];
                    mean_h[j] += alpha / world as f32 * sent[at];
                }
            }
            average[range(q)].copy_from_slice(&lose(&mut *down, &g, key.purpose("down").bucket(q)));
        }
        averages.push(average);
    }
    averages
}

#[test]
fn averages_are_those_of_a_simulation_on_one_rank_to_the_bit() {
    let quantized = CompressorConfig::from(Qsgd::new(3, 8, Norm::L2).unwrap());
    for variant in [Variant::Pp1, Variant::Pp2] {
        for server in [None, Some(0), Some(2)] {
            for participation in [0.4, 1.0] {
                let (up, down, alpha) = (quantized.clone(), quantized.clone(), Some(0.25));
                let settings = ArtemisConfig { up, down, alpha, participation, variant, server };
                for len in [1, 23] {
                    let got = averages(|| build(&settings, len, 3), 3, len, 6);
                    assert_eq!(got, twin(&settings, 0.25, 3, len, 6), "{settings:?}, {len} values");
                }
            }
        }
    }
}

#[test]
fn where_all_take_part_both_variants_are_the_same_and_without_loss_downwards_they_are_diana() {
    let len = 40;
    let qsgd = || Qsgd::new(3, 8, Norm::L2).unwrap();
    let of = |variant| {
        let (up, down) = (CompressorConfig::from(qsgd()), "dense".parse().unwrap());
        let (participation, alpha, server) = (1.0, Some(0.125), Some(0));
        let settings = ArtemisConfig { up, down, alpha, participation, variant, server };
        averages(|| build(&settings, len, 3), 3, len, 8)
    };
    let diana = averages(|| Box::new(Shifted::diana(Gather::new(qsgd(), Mean), 0.125).unwrap()), 3, len, 8);
    for (step, ((pp1, pp2), diana)) in of(Variant::Pp1).iter().zip(of(Variant::Pp2)).zip(diana).enumerate() {
        assert!(near(pp1, &pp2, 2e-6) && near(&pp2, &diana, 2e-6), "step {step}: {pp1:?}, {pp2:?}, {diana:?}");
    }
}

#[test]
fn some_rank_always_takes_part_and_each_as_often_as_the_weights_count_on() {
    for (p, world) in [(0.5, 3), (0.05, 2), (1.0, 4)] {
        let draws = 20_000;
        let mut counts = vec![0.0; world];
        for step in 0..draws {
            let active = draw(Key::new(1).step(step), p, world);
            assert!(active.contains(&true));
            counts.iter_mut().zip(active).for_each(|(count, active)| *count += f64::from(u8::from(active)));
        }
        let expected = p / (1.0 - (1.0 - p).powf(world as f64));
        let bound = 5.0 * (expected * (1.0 - expected) / draws as f64).sqrt() + 1e-9;
        for count in counts {
            let off = (count / draws as f64 - expected).abs();
            assert!(off <= bound, "p = {p}, {world} ranks: off by {off}");
        }
    }
}

#[test]
fn the_mean_over_draws_is_the_mean_gradient() {
    crate::install();
    let (len, draws) = (6, 6000);
    for text in [
        "artemis:randk:2x:scaled,down=randk:2x:scaled,participation=0.6",
        "artemis:qsgd:3,participation=0.4,variant=pp1",
    ] {
        let settings = settings(text);
        let sums = Local::run(2, |mut comm| {
            let (mut reducer, rank) = (build(&settings, len, 2), comm.rank());
            // Starts from non-zero memories.
            (0..3).try_for_each(|step| exchange(&mut *reducer, step, &input(rank, step, len), &mut comm).map(drop))?;
            let (layout, agreed_step, x) = (Layout::flat(len), AgreedStep::default(), input(rank, 9, len));
            let (mut sums, mut average) = (vec![[0.0_f64; 2]; len], vec![0.0; len]);
            for draw in 0..draws {
                let (key, slots) = (Key::new(7).step(draw), layout.slots());
                reducer.reduce(
                    Round { key, slots, agreed_step: &agreed_step, input: &x, average: &mut average, sent: None },
                    &mut comm,
                )?;
                reducer.discard();
                sums.iter_mut()
                    .zip(&average)
                    .for_each(|(s, v)| *s = [s[0] + f64::from(*v), s[1] + f64::from(*v).powi(2)]);
            }
            Ok::<_, ReduceError>(sums)
        });
        for (i, [sum, squares]) in sums.into_iter().next().unwrap().unwrap().into_iter().enumerate() {
            let (n, expected) = (draws as f64, f64::from(input(0, 9, len)[i] + input(1, 9, len)[i]) / 2.0);
            let (mean, deviation) = (sum / n, ((squares / n - (sum / n).powi(2)) / n).sqrt());
            assert!(
                (mean - expected).abs() <= 5.0 * deviation,
                "{text}, value {i}: {mean}, not {expected} ± {deviation}"
            );
        }
    }
}

#[test]
fn in_another_world_servers_begin_with_what_the_ranks_remember() {
    crate::install();
    // After loading, every rank has the mean memory (1, 3), and no server has any. The next mean is then correct, and so is the servers'
    // state, although three ranks serve instead of two.
    for variant in ["pp1", "pp2"] {
        let settings = settings(&format!("artemis:dense,down=dense,alpha=0.5,participation=0.5,variant={variant}"));
        let outcomes = Local::run(3, |mut comm| {
            let (mut reducer, mut state, rank) = (build(&settings, 3, 3), State::default(), comm.rank());
            state.put("memory", vec![1.0_f32, 3.0, 2.0]);
            state.put("served", Vec::<f32>::new());
            reducer.load(&state).unwrap();
            (0..4).map(|step| exchange(&mut *reducer, step, &input(rank, step, 3), &mut comm)).collect()
        });
        let outcomes: Vec<Vec<[Vec<f32>; 2]>> =
            outcomes.into_iter().map(|run: Result<_, ReduceError>| run.unwrap()).collect();
        for step in 0..4 {
            let mean: Vec<f32> =
                (0..3).map(|i| outcomes.iter().map(|run| run[step][1][i]).sum::<f32>() / 3.0).collect();
            assert!(near(&outcomes[0][step][0], &mean, 1e-5), "{variant}, step {step}: {outcomes:?}");
        }
    }
}

#[test]
fn impossible_settings_name_what_is_wrong_before_any_rank_talks() {
    crate::install();
    let error = |text: &str, feedback: &str| {
        let reducer = match text.parse::<ReducerConfig>() {
            Ok(reducer) => reducer,
            Err(error) => return error.to_string(),
        };
        let exchange = Exchange { reducer, feedback: feedback.parse().unwrap(), ..Exchange::default() };
        exchange.build_reducer(&Layout::flat(100), 4).map(drop).unwrap_err().to_string()
    };
    for (text, feedback, words) in [
        ("artemis:qsgd:4,server=4", "none", &["server=4", "a world of 4 ranks: it needs at least 5 ranks"][..]),
        ("artemis:topk:10x", "none", &["unbiased", "up=topk:10x"]),
        ("artemis:qsgd:4,down=sign", "none", &["unbiased", "down=sign"]),
        ("artemis:qsgd:4", "error", &["state of its own", "feedback error", "use feedback none"]),
        ("artemis:qsgd:2,alpha=0.9", "none", &["alpha 0.9 of artemis", "at most 0."]),
        ("artemis:qsgd:2,alpha=-1", "none", &["alpha of artemis", "-1"]),
        ("artemis:qsgd:4,participation=0", "none", &["participation of artemis", "in [0.001, 1]"]),
        ("artemis:qsgd:4,variant=pp3", "none", &["pp3", "pp1", "pp2"]),
    ] {
        let error = error(text, feedback);
        assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
    }
}

/// `α` is `1/(2(1 + ω))` by default. Without loss that is ½: for (4, 8), memories are ½, ¾ and ⅞. Sending one of two values, doubled, has
/// `ω = 1` and `α = ¼`: after one exchange the memory of the value that was sent is `¼·2` of it, and the other's is 0.
#[test]
fn default_step_sizes_by_hand() {
    crate::install();
    let memories = |text: &str, steps: u64| {
        let (mut comm, mut reducer) = (Local::world(1).remove(0), build(&settings(text), 2, 1));
        let memory = |step| {
            exchange(&mut *reducer, step, &[4.0, 8.0], &mut comm).unwrap();
            reducer.commit();
            let mut state = State::default();
            reducer.save(&mut state);
            state.f32s("memory", None).unwrap().to_vec()
        };
        (0..steps).map(memory).collect::<Vec<_>>()
    };
    assert_eq!(memories("artemis:dense,down=dense", 3), [[2.0, 4.0], [3.0, 6.0], [3.5, 7.0]]);
    let [memory] = &memories("artemis:randk:2x:scaled,down=dense", 1)[..] else { unreachable!() };
    assert!(memory == &[2.0, 0.0] || memory == &[0.0, 4.0], "{memory:?}");
}
