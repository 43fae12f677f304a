//! The laws: what every algorithm of this crate keeps, whatever it is.
//!
//! One table over `config::representatives()`, in worlds of 1, 2, 3 and 5 ranks. Law 6 (round trip, hostile bytes)
//! stands beside the message and in `wire_format.rs`, the statistics of law 7 beside each compressor.
//!
//! 1 agreement · 2 honesty · 3 conservation · 4 failure leaves no trace · 5 resume · 7 declared class · 8 accounting ·
//! 9 same observations, same decision · 10 non-finite input is refused everywhere

mod driver;

use briquette_core::comm::{Communicator, Faulty, Local, all_reduce_traffic};
use briquette_core::compress::{Class, ValueKind};
use briquette_core::config::{
    CompressorConfig, CompressorKind, Config, Exchange, Feedback, ReducerConfig, representatives,
};
use briquette_core::error::SyncError;
use briquette_core::state::State;
use briquette_core::{Key, Message, Traffic};

use driver::{Outcome, Rank, gradient, layout, run_world, steps_of};

const WORLDS: [usize; 4] = [1, 2, 3, 5];

fn exchanges() -> impl Iterator<Item = Exchange> {
    representatives().into_iter().filter_map(|config| match config {
        Config::EveryStep(exchange) => Some(exchange),
        Config::Periodic(_) => None,
    })
}

#[test]
fn law_1_averages_are_bit_identical_on_every_rank() {
    for config in representatives() {
        for world in WORLDS {
            let runs = run_world(&config, world, 5);
            for rank in &runs[1..] {
                for (step, (a, b)) in runs[0].iter().zip(rank).enumerate() {
                    assert!(same_bits(&a.average, &b.average), "{config:?}, world {world}, step {step}");
                }
            }
        }
    }
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

#[test]
fn law_2_the_mean_of_what_was_sent_is_the_average() {
    for exchange in exchanges() {
        for world in WORLDS {
            let runs = steps_of(&exchange, world, 4);
            for step in 0..4 {
                for i in 0..layout().len() {
                    let sent = || runs.iter().map(|r| f64::from(r[step].sent[i]));
                    let mean = sent().sum::<f64>() / world as f64;
                    // A memory is subtracted before and added after, and keeps every earlier step's rounding.
                    let kept = |r: &Vec<Outcome>| r[..step].iter().map(|o| Memory::of(&o.state).size(i)).sum::<f64>();
                    let size = sent().map(f64::abs).sum::<f64>() + runs.iter().map(kept).sum::<f64>();
                    // PowerSGD multiplies factors: its rounding grows with the rank of the factors, not only with W.
                    let terms = if matches!(exchange.reducer, ReducerConfig::PowerSgd { .. }) { 64.0 } else { 2.0 };
                    let bound = terms * (world as f64 + 1.0) * f64::from(f32::EPSILON) * size + 1e-12;
                    let off = (f64::from(runs[0][step].average[i]) - mean).abs();
                    assert!(off <= bound, "{exchange:?}, world {world}, step {step}, value {i}: off by {off:e}");
                }
            }
        }
    }
}

#[test]
fn law_3_what_is_not_sent_stays_in_the_residual() {
    let keeps_residual = |e: &Exchange| matches!(e.feedback, Feedback::Error | Feedback::Momentum(_));
    for exchange in exchanges().filter(keeps_residual) {
        for world in WORLDS {
            let runs = steps_of(&exchange, world, 8);
            for (rank, run) in runs.iter().enumerate() {
                let mut before = Memory::default();
                for (step, outcome) in run.iter().enumerate() {
                    let after = Memory::of(&outcome.state);
                    let input = gradient(rank, step as u64);
                    let owed = before.owed(&exchange, &input, world);
                    for (i, owed) in owed.iter().enumerate() {
                        let (sent, residual) = (outcome.sent[i], after.residual[i]);
                        let ok = if exact(&exchange.reducer) {
                            // Either the value was sent as it is, or not at all.
                            (sent == *owed && residual == 0.0) || (sent == 0.0 && residual == *owed)
                        } else {
                            (f64::from(sent) + f64::from(residual) - f64::from(*owed)).abs()
                                <= 4.0
                                    * f64::from(f32::EPSILON)
                                    * f64::from(sent.abs().max(residual.abs()).max(owed.abs()))
                        };
                        assert!(
                            ok,
                            "{exchange:?}, rank {rank}/{world}, step {step}, value {i}: {owed} = {sent} + {residual}"
                        );
                    }
                    before = after;
                }
            }
        }
    }
}

#[test]
fn law_3_a_memory_moves_by_alpha_towards_what_was_sent() {
    for exchange in exchanges() {
        for (rank, run) in steps_of(&exchange, 3, 8).iter().enumerate() {
            let alpha = match exchange.feedback {
                Feedback::None | Feedback::Error | Feedback::Momentum(_) => continue,
                Feedback::Diana { alpha } => alpha,
                Feedback::Ef21 => Some(1.0),
            };
            let before = std::iter::once(Memory::default()).chain(run.iter().map(|o| Memory::of(&o.state)));
            for (step, (outcome, before)) in run.iter().zip(before).enumerate() {
                let after = Memory::of(&outcome.state);
                if exchange.feedback == Feedback::Ef21 {
                    assert!(same_bits(&after.memory, &outcome.sent), "{exchange:?}, rank {rank}, step {step}");
                    assert!(same_bits(&after.mean_memory, &outcome.average), "{exchange:?}, rank {rank}, step {step}");
                }
                // Without a setting it is the compressor's: read off the first step, and held to it later.
                let alpha = alpha.unwrap_or_else(|| first_alpha(&run[0]));
                for (i, sent) in outcome.sent.iter().enumerate() {
                    let old = before.memory.get(i).copied().unwrap_or(0.0);
                    let off = (after.memory[i] - (old + alpha * (sent - old))).abs();
                    let bound = 8.0 * f32::EPSILON * (old.abs() + sent.abs());
                    assert!(off <= bound, "{exchange:?}, rank {rank}, step {step}, value {i}: off by {off:e}");
                }
            }
        }
    }
}

/// How far the memory went from zero to the largest value sent.
fn first_alpha(first: &Outcome) -> f32 {
    let largest = (0..first.sent.len()).max_by(|&a, &b| first.sent[a].abs().total_cmp(&first.sent[b].abs())).unwrap();
    Memory::of(&first.state).memory[largest] / first.sent[largest]
}

/// Whether sent values are the vector's own bits.
fn exact(reducer: &ReducerConfig) -> bool {
    match reducer {
        ReducerConfig::Dense | ReducerConfig::SharedRandomK { .. } => true,
        ReducerConfig::SparseAllReduce { .. } | ReducerConfig::SketchedSgd(_) => true,
        ReducerConfig::PowerSgd { .. } => false,
        ReducerConfig::MultiStep { inner, .. } => exact(inner),
        ReducerConfig::Gather { compressor, .. } => {
            use CompressorKind::{Dense, RandomK, TopK};
            compressor.values().is_none()
                && match compressor.compressor() {
                    Dense(_) => true,
                    TopK(top_k) => top_k.values() == ValueKind::F32,
                    RandomK(random_k) => !random_k.is_scaled(),
                    // A sparsifier sends the values it keeps as they are.
                    other => other.is_sparse(),
                }
        }
    }
}

/// A layer's memory, read from its saved state.
#[derive(Default)]
struct Memory {
    residual: Vec<f32>,
    velocity: Vec<f32>,
    memory: Vec<f32>,
    mean_memory: Vec<f32>,
}

impl Memory {
    fn of(state: &State) -> Memory {
        let vector = |name| state.f32s(name, None).unwrap_or_default().to_vec();
        Memory {
            residual: vector("residual"),
            velocity: vector("velocity"),
            memory: vector("memory"),
            mean_memory: vector("mean_memory"),
        }
    }

    /// Of the values that are subtracted before an exchange and added after it.
    fn size(&self, i: usize) -> f64 {
        [&self.memory, &self.mean_memory].into_iter().filter_map(|m| m.get(i)).map(|v| f64::from(v.abs())).sum()
    }

    /// What the rank wants to send: the naive twin of the layers.
    fn owed(&self, exchange: &Exchange, input: &[f32], world: usize) -> Vec<f32> {
        let residual = |i: usize| self.residual.get(i).copied().unwrap_or(0.0);
        let Feedback::Momentum(settings) = exchange.feedback else {
            return input.iter().enumerate().map(|(i, g)| residual(i) + g).collect();
        };
        let norm = input.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        let limit = settings.clip.unwrap() / (world as f64).sqrt();
        let scale = if norm > limit { (limit / norm) as f32 } else { 1.0 };
        let velocity = |i: usize| self.velocity.get(i).copied().unwrap_or(0.0);
        (0..input.len()).map(|i| residual(i) + (settings.momentum * velocity(i) + input[i] * scale)).collect()
    }
}

#[test]
fn law_3_dense_keeps_the_residual_exactly_zero() {
    let exchange = Exchange { feedback: Feedback::Error, ..Exchange::default() };
    for run in steps_of(&exchange, 3, 4) {
        assert!(run.iter().all(|o| Memory::of(&o.state).residual.iter().all(|r| *r == 0.0)));
    }
}

#[test]
fn law_4_a_failure_leaves_no_trace() {
    for config in representatives() {
        let world = 3;
        let clean = run_world(&config, world, 4);
        let calls = calls_of_step(&config, world);
        for failing in 0..world {
            for call in 0..calls {
                check_failure(&config, world, (failing, call), &clean);
            }
        }
    }
}

/// Sends and receives of one rank in step 2.
fn calls_of_step(config: &Config, world: usize) -> u64 {
    let counts = driver::each_rank(Local::world(world), |comm, rank| {
        let mut comm = Faulty::never(comm);
        let mut state = Rank::new(config, rank, world);
        (0..2).for_each(|_| drop(state.step(&mut comm).unwrap()));
        let before = comm.calls();
        state.step(&mut comm).unwrap();
        comm.calls() - before
    });
    *counts.iter().max().unwrap()
}

/// Fails in step 2, restores all ranks to its start on a fresh world, and goes on.
fn check_failure(config: &Config, world: usize, (failing, call): (usize, u64), clean: &[Vec<Outcome>]) {
    let saved = driver::each_rank(Local::world(world), |mut comm, rank| {
        let mut state = Rank::new(config, rank, world);
        (0..2).for_each(|_| drop(state.step(&mut comm).unwrap()));
        state
    });
    let saved = driver::each_pair(Local::world(world), saved, |comm, mut state, rank| {
        let start = state.clone_saved(config, world);
        let at = if rank == failing { call } else { u64::MAX };
        let mut comm = Faulty::at(comm, at);
        let before = state.save();
        if state.step(&mut comm).is_err() {
            comm.abort("the step failed");
            assert_eq!(
                state.save(),
                before,
                "{config:?}: rank {rank} changed when rank {failing} failed at call {call}"
            );
        }
        start
    });
    let after = driver::each_pair(Local::world(world), saved, |mut comm, mut state, _| {
        (0..2).map(|_| state.step(&mut comm).unwrap()).collect::<Vec<_>>()
    });
    for (rank, outcomes) in after.iter().enumerate() {
        for (outcome, expected) in outcomes.iter().zip(&clean[rank][2..]) {
            assert!(same_bits(&outcome.average, &expected.average), "{config:?}: rank {rank} after call {call}");
        }
    }
}

#[test]
fn law_5_a_resumed_run_continues_to_the_bit() {
    for config in representatives() {
        for world in WORLDS {
            let whole = run_world(&config, world, 8);
            let resumed = driver::each_rank(Local::world(world), |mut comm, rank| {
                let mut first = Rank::new(&config, rank, world);
                (0..4).for_each(|_| drop(first.step(&mut comm).unwrap()));
                let mut second = first.clone_saved(&config, world);
                drop(first);
                (0..4).map(|_| second.step(&mut comm).unwrap()).collect::<Vec<_>>()
            });
            for (rank, outcomes) in resumed.iter().enumerate() {
                for (a, b) in outcomes.iter().zip(&whole[rank][4..]) {
                    assert!(same_bits(&a.average, &b.average), "{config:?}, rank {rank} of {world}");
                    assert_eq!(a.state, b.state, "{config:?}, rank {rank} of {world}");
                    assert_eq!(a.factor, b.factor);
                }
            }
        }
    }
}

#[test]
fn law_7_declared_classes_hold() {
    let compressors = exchanges().filter_map(|e| match e.reducer {
        ReducerConfig::Gather { compressor, per_slot: false } => Some(compressor),
        _ => None,
    });
    for config in compressors {
        for (name, x) in driver::vectors() {
            check_class(&config, name, &x);
        }
    }
}

fn check_class(config: &CompressorConfig, name: &str, x: &[f32]) {
    let (mut compressor, mut message) = (config.build(), Message::default());
    let norm2: f64 = x.iter().map(|v| f64::from(*v).powi(2)).sum();
    let nonzero = x.iter().filter(|v| **v != 0.0).count();
    let class = compressor.class(x);
    let draws = if matches!(class, Class::Contractive { .. }) { 200 } else { 2000 };
    let mut errors = Vec::new();
    for step in 0..draws {
        compressor.compress_into(x, Key::new(9).step(step), &mut message);
        let mut decoded = vec![0.0; x.len()];
        message.decode_into(&mut decoded).unwrap();
        let error: f64 = x.iter().zip(&decoded).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
        errors.push(error);
        if let (true, Class::Contractive { delta }) = (compressor.selects(), class) {
            // A share that is declared is sent: were it not, only equal magnitudes would show it in the error.
            let declared = (delta * x.len() as f64 * (1.0 - 1e-12)).ceil() as usize;
            assert!(message.kept() >= declared.min(nonzero), "{config} on {name}: {} kept", message.kept());
        }
    }
    // 5.5 standard deviations of the mean: what hardly any draw does shows in both.
    let mean = errors.iter().sum::<f64>() / draws as f64;
    let variance = errors.iter().map(|e| (e - mean).powi(2)).sum::<f64>() / draws as f64;
    let noise = 5.5 * (variance / draws as f64).sqrt();
    let worst = errors.iter().copied().fold(0.0, f64::max);
    let (error, bound) = match class {
        Class::Contractive { delta } => (worst, (1.0 - delta) * norm2),
        Class::MeanContractive { delta } => (mean - noise, (1.0 - delta) * norm2),
        Class::Unbiased { omega } | Class::Biased { omega } => (mean - noise, omega * norm2.max(f64::MIN_POSITIVE)),
    };
    assert!(error <= bound + 1e-6 * bound, "{config} on {name}: {error} exceeds {bound} of {norm2}");
}

#[test]
fn law_8_traffic_is_what_the_transport_counted() {
    for config in representatives() {
        for world in WORLDS {
            for run in run_world(&config, world, 3) {
                for outcome in run {
                    assert_eq!(outcome.reported, outcome.counted, "{config:?}, world {world}");
                }
            }
        }
    }
}

#[test]
fn law_8_dense_moves_what_the_ring_formula_says() {
    for world in WORLDS {
        for (rank, run) in run_world(&Config::dense(), world, 1).iter().enumerate() {
            assert_eq!(run[0].counted, all_reduce_traffic(layout().len(), world, rank));
        }
    }
}

#[test]
fn law_8_a_gather_sends_its_message_and_a_length_to_every_other_rank() {
    let compressor: CompressorConfig = "topk:8x".parse().unwrap();
    let exchange = Exchange { reducer: ReducerConfig::gather(compressor), ..Exchange::default() };
    for world in WORLDS {
        for (rank, run) in steps_of(&exchange, world, 1).iter().enumerate() {
            let mut message = Message::default();
            compressor.build().compress_into(&gradient(rank, 0), Key::new(0), &mut message);
            let expected = (world as u64 - 1) * (4 + message.encoded_len() as u64);
            assert_eq!(run[0].counted.sent, expected);
        }
    }
}

#[test]
fn law_9_ranks_decide_alike() {
    for config in representatives() {
        let runs = run_world(&config, 5, 12);
        for rank in &runs[1..] {
            let factors = |run: &[Outcome]| run.iter().map(|o| o.factor).collect::<Vec<_>>();
            assert_eq!(factors(rank), factors(&runs[0]), "{config:?}");
        }
    }
}

#[test]
fn law_10_a_value_that_is_not_finite_is_refused_everywhere_before_it_reaches_any_state() {
    for config in representatives() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let results = driver::each_rank(Local::world(3), |mut comm, rank| {
                let mut state = Rank::new(&config, rank, 3);
                (0..2).for_each(|_| drop(state.step(&mut comm).unwrap()));
                let before = state.save();
                if rank == 1 {
                    state.poison = Some((70, bad));
                }
                let error = state.step(&mut comm).map(drop).unwrap_err();
                assert_eq!(state.save(), before);
                state.poison = None;
                // The world goes on.
                (error, state.step(&mut comm).unwrap().average)
            });
            for (error, average) in results {
                let expected = SyncError::NonFinite { step: 2, rank: 1, slot: "conv.bias".into() };
                assert_eq!(error, expected, "{config:?}");
                assert!(average.iter().all(|v| v.is_finite()));
            }
        }
    }
}

#[test]
fn a_world_of_one_goes_through_the_whole_path() {
    // No shortcut: a lone rank's average is its compressed vector, not its vector.
    let exchange = Exchange { reducer: ReducerConfig::gather("topk:8x".parse().unwrap()), ..Exchange::default() };
    let run = &steps_of(&exchange, 1, 1)[0];
    assert_eq!(run[0].average.iter().filter(|v| **v != 0.0).count(), 16); // 131 / 8 = 16.4
    assert_eq!(run[0].counted, Traffic::default());
}
