//! Law 3: every value is either sent or kept in the residual.

use crate::exchanges;
use briquette_core::Key;
use briquette_core::comm::Local;
use briquette_core::config::{Exchange, Feedback, FeedbackRequirement};
use briquette_core::error::ReduceError;
use briquette_core::laws::{Outcome, Setup, gradient, learning_rate, long, same_bits, short};
use briquette_core::reduce::{AgreedStep, Reducer, Round};
use briquette_core::report::Report;
use briquette_core::state::{State, Stateful};
use briquette_core::wrapper::error_feedback::ErrorFeedbackConfig;
use briquette_core::wrapper::{inner_momentum::InnerMomentumConfig, momentum_correction::MomentumCorrectionConfig};
use briquette_zoo::control::gravac::GraVacConfig;
use briquette_zoo::wrapper::{dion::DionConfig, one_bit_adam::OneBitAdamConfig, shifted::Diana};

#[test]
fn law_3_what_is_not_sent_stays_in_the_residual() {
    for exchange in exchanges().into_iter().filter(keeps_residual) {
        for setup in Setup::<Exchange>::reducers(&exchange) {
            let steps = if setup.layout == short() { 8 } else { 4 };
            setup.reduce_steps(steps).iter().enumerate().for_each(|(rank, run)| check_conservation(&setup, rank, run));
        }
    }
}

fn keeps_residual(exchange: &Exchange) -> bool {
    exchange.feedback.get().requirement().keeps_residual()
}

/// Returns the share of a sent value that leaves the residual.
fn removed(setup: &Setup<Exchange>, i: usize) -> f32 {
    let slot = setup.layout.slots().iter().find(|slot| slot.range().contains(&i)).expect("slots cover the vector");
    setup.config.feedback.downcast_ref().map_or(1.0, |dion: &DionConfig| dion.removed(slot))
}

fn check_conservation(setup: &Setup<Exchange>, rank: usize, run: &[Outcome]) {
    let mut before = Memory::default();
    for (step, outcome) in run.iter().enumerate() {
        let mut after = Memory::of(&outcome.state);
        let input = gradient(&setup.layout, rank, step as u64);
        if setup.config.feedback.get().reads_rate() {
            // Converts a residual in units of parameters to gradients of this step.
            let rate = learning_rate(step as u64) as f32;
            for memory in [&mut before, &mut after] {
                memory.residual.iter_mut().for_each(|r| *r /= rate);
            }
        }
        let owed = before.owed(&setup.config, &input, setup.world, step as u64);
        for (i, owed) in owed.iter().enumerate() {
            // The residual is zero until something is omitted.
            let residual = after.residual.get(i).copied().unwrap_or_default();
            let removed = removed(setup, i);
            let sent = removed * outcome.sent[i];
            let is_shifted = before.agreed_velocity.get(i).is_some_and(|v| *v != 0.0);
            let ok = if !is_shifted
                && removed == 1.0
                && setup.config.reducers().all(|reducer| reducer.get().traits().is_exact)
            {
                // The value was either sent exactly, or not at all.
                (sent == *owed && residual == 0.0) || (sent == 0.0 && residual == *owed)
            } else {
                (f64::from(sent) + f64::from(residual) - f64::from(*owed)).abs()
                    <= 4.0
                        * f64::from(f32::EPSILON)
                        * f64::from(sent.abs().max(residual.abs()).max(owed.abs())).max(before.size(i))
            };
            assert!(ok, "{setup}, rank {rank}, step {step}, value {i}: {owed} = {sent} + {residual}");
        }
        before = Memory::of(&outcome.state);
    }
}

/// Returns averages and states of some steps, and the report of the last, with or without a request for the sent vector.
fn reduce(setup: &Setup<Exchange>, asks: bool) -> Vec<(Vec<f32>, State, Report)> {
    let outcomes = Local::run(setup.world, |mut comm| {
        let mut reducer = setup.config.build_reducer(&setup.layout, setup.world).unwrap();
        let (mut average, mut sent) = (vec![0.0; setup.layout.len()], vec![0.0; setup.layout.len()]);
        let (mut state, mut report) = (State::default(), Report::default());
        for step in 0..4 {
            let input = gradient(&setup.layout, comm.rank(), step);
            let agreed_step = AgreedStep { step, learning_rate: Some(learning_rate(step)), ..AgreedStep::default() };
            let sent = asks.then_some(&mut sent[..]);
            let (key, slots, average) = (Key::new(5).step(step), setup.layout.slots(), &mut average);
            reducer
                .exchange(Round { key, slots, agreed_step: &agreed_step, input: &input, average, sent }, &mut comm)?;
        }
        reducer.save(&mut state);
        reducer.report(&mut report);
        Ok::<_, ReduceError>((average, state, report))
    });
    outcomes.into_iter().map(Result::unwrap).collect()
}

/// Without that request, a reducer may subtract its messages instead: the same residual, and the same gains up to rounding.
#[test]
fn law_3_asking_for_what_was_sent_changes_nothing() {
    for exchange in exchanges() {
        for (layout, world) in [(short(), 3), (long(), 2)] {
            let setup = Setup { world: world.max(exchange.min_ranks()), config: exchange.clone(), layout };
            for (rank, (asked, not)) in reduce(&setup, true).iter().zip(reduce(&setup, false)).enumerate() {
                assert!(same_bits(&asked.0, &not.0), "{setup}, rank {rank}: average");
                assert_eq!(format!("{:?}", asked.1), format!("{:?}", not.1), "{setup}, rank {rank}: state");
                let gains = |report: &Report| -> Vec<f64> {
                    report.gain.into_iter().chain(report.slots.iter().map(|slot| slot.gain)).collect()
                };
                let (with, without) = (gains(&asked.2), gains(&not.2));
                assert!(with.len() == without.len() && !with.is_empty(), "{setup}");
                for (a, b) in with.iter().zip(&without) {
                    assert!(
                        (a - b).abs() <= 1e-9 * (1.0 + a.abs()),
                        "{setup}, rank {rank}: gains {with:?}, {without:?}"
                    );
                }
                let kept = |report: &Report| report.slots.iter().map(|slot| slot.kept).collect::<Vec<_>>();
                assert_eq!(kept(&asked.2), kept(&not.2), "{setup}, rank {rank}: values kept");
            }
        }
    }
}

#[test]
fn law_3_holds_while_gravac_goes_through_dense_safe_and_bold() {
    for world in [1, 2, 3, 5] {
        let mut seen = [false; 3];
        for exchange in exchanges().into_iter().filter(keeps_residual) {
            let Some(settings) = exchange.controller.downcast_ref::<GraVacConfig>() else { continue };
            let setup = Setup { config: exchange.clone(), layout: short(), world };
            let runs = setup.reduce_steps(24);
            runs.iter().enumerate().for_each(|(rank, run)| check_conservation(&setup, rank, run));
            let ratios: Vec<f64> = runs[0].iter().map(|o| o.ratio.unwrap()).collect();
            println!("{setup}: {ratios:?}");
            // The first steps are dense by plan; later ones because too little would have been kept.
            seen[0] |= ratios[settings.dense_steps as usize..].contains(&1.0);
            seen[1] |= ratios.contains(&settings.min.get());
            seen[2] |= ratios.iter().any(|ratio| *ratio > settings.min.get());
        }
        assert_eq!(seen, [true; 3], "dense, safe and bold in a world of {world}");
    }
}

#[test]
fn law_3_a_memory_moves_by_alpha_towards_what_was_sent() {
    for exchange in exchanges() {
        let world = exchange.min_ranks().max(3);
        let setup = Setup { config: exchange, layout: short(), world };
        for (rank, run) in setup.reduce_steps(8).iter().enumerate() {
            // Without a setting the compressor determines it: read from the first step, and required later.
            let feedback = &setup.config.feedback;
            let named = feedback.downcast_ref::<Diana>().and_then(|diana| diana.alpha);
            let alpha = match feedback.get().requirement() {
                FeedbackRequirement::Contractive => 1.0,
                FeedbackRequirement::Unbiased => named.unwrap_or_else(|| first_alpha(&run[0])),
                _ => continue,
            };
            let before = std::iter::once(Memory::default()).chain(run.iter().map(|o| Memory::of(&o.state)));
            for (step, (outcome, before)) in run.iter().zip(before).enumerate() {
                let after = Memory::of(&outcome.state);
                if feedback.get().requirement() == FeedbackRequirement::Contractive {
                    assert!(same_bits(&after.memory, &outcome.sent), "{setup}, rank {rank}, step {step}");
                    assert!(same_bits(&after.mean_memory, &outcome.average), "{setup}, rank {rank}, step {step}");
                }
                for (i, sent) in outcome.sent.iter().enumerate() {
                    let old = before.memory.get(i).copied().unwrap_or(0.0);
                    let off = (after.memory[i] - (old + alpha * (sent - old))).abs();
                    let bound = 8.0 * f32::EPSILON * (old.abs() + sent.abs());
                    assert!(off <= bound, "{setup}, rank {rank}, step {step}, value {i}: off by {off:e}");
                }
            }
        }
    }
}

/// Returns the fraction of the largest sent value by which the memory moved from zero.
fn first_alpha(first: &Outcome) -> f32 {
    let largest = (0..first.sent.len()).max_by(|&a, &b| first.sent[a].abs().total_cmp(&first.sent[b].abs())).unwrap();
    Memory::of(&first.state).memory[largest] / first.sent[largest]
}

#[test]
fn law_3_dense_keeps_the_residual_exactly_zero() {
    let exchange = Exchange { feedback: Feedback::error(), ..Exchange::default() };
    for setup in Setup::<Exchange>::reducers(&exchange) {
        for outcome in setup.reduce_steps(4).into_iter().flatten() {
            assert!(Memory::of(&outcome.state).residual.iter().all(|r| *r == 0.0), "{setup}");
        }
    }
}

/// Stored vectors of a layer, read from its saved state.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) residual: Vec<f32>,
    velocity: Vec<f32>,
    memory: Vec<f32>,
    mean_memory: Vec<f32>,
    agreed_velocity: Vec<f32>,
    momentum: Vec<f32>,
}

impl Memory {
    pub(crate) fn of(state: &State) -> Memory {
        let vector = |name: &str| state.f32s(name, None).unwrap_or_default().to_vec();
        // Stored by the layer around the reducer, by one inside a momentum, or by the reducer in the only bucket.
        let own = |name| [vector(name), vector(&format!("inner/{name}")), vector(&format!("bucket-0/{name}"))].concat();
        Memory {
            residual: vector("residual"),
            velocity: vector("velocity"),
            memory: own("memory"),
            mean_memory: own("mean_memory"),
            agreed_velocity: vector("agreed_velocity"),
            momentum: vector("momentum"),
        }
    }

    /// Returns the size of the values that are subtracted before an exchange and added after it, or the reverse.
    pub(crate) fn size(&self, i: usize) -> f64 {
        [&self.memory, &self.mean_memory, &self.agreed_velocity, &self.momentum]
            .into_iter()
            .filter_map(|m| m.get(i))
            .map(|v| f64::from(v.abs()))
            .sum()
    }

    /// Returns the vector that the rank has to send: a naive reference for the layers.
    fn owed(&self, exchange: &Exchange, input: &[f32], world: usize, step: u64) -> Vec<f32> {
        let at = |vector: &[f32], i: usize| vector.get(i).copied().unwrap_or(0.0);
        if let Some(&OneBitAdamConfig { warm_up, beta }) = exchange.feedback.downcast_ref()
            && step >= warm_up
        {
            let momentum = |i: usize| beta * at(&self.momentum, i) + (1.0 - beta) * input[i];
            return (0..input.len()).map(|i| at(&self.residual, i) + momentum(i)).collect();
        }
        let correction =
            exchange.feedback.downcast_ref().map(|its: &MomentumCorrectionConfig| (its.momentum, its.clip.unwrap()));
        let inner = exchange.feedback.downcast_ref().map(|its: &InnerMomentumConfig| (its.momentum, f64::INFINITY));
        let Some((momentum, clip)) = correction.or(inner) else {
            let decay = exchange.feedback.downcast_ref().and_then(|its: &ErrorFeedbackConfig| its.decay).unwrap_or(1.0);
            return input.iter().enumerate().map(|(i, g)| decay * at(&self.residual, i) + g).collect();
        };
        let norm = input.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        let limit = clip * (world as f64).sqrt();
        let scale = if norm > limit { (limit / norm) as f32 } else { 1.0 };
        let velocity = |i: usize| at(&self.residual, i) + (momentum * at(&self.velocity, i) + input[i] * scale);
        (0..input.len()).map(|i| velocity(i) - momentum * at(&self.agreed_velocity, i)).collect()
    }
}
