//! Elastic worlds: processes that join a running world.

use std::thread;
use std::time::Duration;

use briquette::core::membership::Policy;
use briquette::tcp::TcpBuilder;
use briquette::{DistributedConfig, DistributedOptimizer, Error};
use burn::optim::GradientsParams;

use crate::common::*;
use crate::elastic::{DILOCO, EARLY};

/// Parameters, step, world, norm of the residual, and bytes received in the hand-over, of a member.
type Grown = (Vec<(String, Vec<u32>)>, u64, usize, Option<f64>, u64);

/// Two processes over TCP (threads here) make steps until a third has joined, and three more; without it, they end at step `until`. At its first step the new member has no
/// samples, or if it `fails`, it ends by an error before. Returns each one's parameters, step and world, and for the new member the norm of its residual after that step.
fn grow(until: u64, config: fn(usize) -> DistributedConfig, fails: bool) -> Vec<Result<Grown, String>> {
    grow_model(until, config, fails, Net::new)
}

fn grow_model<M: Model>(
    until: u64,
    config: fn(usize) -> DistributedConfig,
    fails: bool,
    model: fn(u64) -> M,
) -> Vec<Result<Grown, String>> {
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (master, seeds, policy) = (free(), [free(), free()], Policy { fewest: 1, patience: 20.0 });
    let member = &|rank: usize| {
        let text = |error: Error| error.to_string();
        let builder = TcpBuilder::new(rank.min(1), 2, &master).world_name("growing").members(seeds.clone());
        let builder = builder.deadline(Duration::from_secs(20)).join_deadline(Duration::from_secs(10)).channels(1);
        let is_new = rank == 2;
        let entered = if is_new { builder.join_running(policy) } else { builder.join_elastic(policy) };
        let (session, members) = entered.map_err(|error| error.to_string())?;
        let optim = DistributedOptimizer::new(sgd(), session, config(rank), 7).with_membership(members);
        let (mut optim, model) = (optim.with_replica_check(1), model(5 + rank as u64));
        let mut model = optim.join(model).map_err(text)?;
        if is_new && fails {
            optim.synchronizer_mut().session().abort("its disk is full");
            return Err("its disk is full".into());
        }
        let (mut left, mut norm, mut received) = (3, None, 0);
        while left > 0 {
            let (step, is_idle) = (optim.synchronizer().step(), is_new && norm.is_none());
            optim.record_samples(if is_idle { 0 } else { 4 });
            let forward = optim.forward_model(&model).map_err(text)?;
            let gradients = match is_idle {
                true => GradientsParams::new(),
                false => grads(&model, &forward.loss(data(step, optim.rank()), 4)),
            };
            drop(forward);
            let world = optim.world();
            if world == 3 && received == 0 {
                received = optim.synchronizer_mut().session().traffic().received;
            }
            model = optim.step(1e-4, model, gradients).map_err(text)?;
            let now = || optim.report().exchange.residual_energy.map_or(f64::NAN, |left| left.residual_norm());
            norm = norm.or_else(|| is_new.then(now));
            left -= u64::from(world == 3 && !fails || step + left > until);
            thread::sleep(Duration::from_millis(1));
        }
        optim.leave(&model).map_err(text)?;
        let generation = optim.generation().expect("an elastic world").number;
        assert!(generation >= 2 || !fails, "with the new member, and without it");
        let parameters = bits(&model).into_iter().filter(|(path, _)| !path.contains("running")).collect();
        Ok((parameters, optim.synchronizer().step(), optim.world(), norm, received))
    };
    thread::scope(|threads| {
        let running = [0, 1, 2].map(|rank| threads.spawn(move || member(rank)));
        running.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

#[test]
fn a_new_member_gets_the_state_of_the_others_and_no_residual() {
    let ends = grow(3000, |_| top_k(), false);
    let [Ok(first), Ok(second), Ok(new)] = &ends[..] else { panic!("{ends:?}") };
    assert!(first.0 == second.0 && first.0 == new.0, "all have the same parameters");
    assert_eq!([second, new].map(|end| (end.1, end.2)), [(first.1, 3); 2]);
    assert!(first.1 >= 3 && new.3 == Some(0.0), "without samples it had nothing to send: {:?}", new.3);
}

/// 40 000 parameters: 160 kB for the new member, and only the comparison of settings for the others.
#[test]
fn the_state_goes_to_the_new_member_alone() {
    let ends = grow_model(3000, |_| DistributedConfig::dense(), false, |seed| Mlp::wide(seed, 4000));
    let [Ok(_), Ok(second), Ok(new)] = &ends[..] else { panic!("{ends:?}") };
    assert!(second.4 > 0 && second.4 < 20_000 && new.4 > 160_000, "{} {}", second.4, new.4);
}

/// Gradients are exchanged during the backward pass, in an order that the new member does not know.
#[test]
fn a_new_member_enters_where_gradients_are_exchanged_during_the_backward_pass() {
    let ends = grow(3000, |_| config(EARLY), false);
    let [Ok(first), Ok(second), Ok(new)] = &ends[..] else { panic!("{ends:?}") };
    assert!(first.0 == second.0 && first.0 == new.0, "all have the same parameters");
    assert_eq!([second, new].map(|end| (end.1, end.2)), [(first.1, 3); 2]);
}

/// DiLoCo with a period of three steps. The new member enters at the end of a period, and makes whole ones.
#[test]
fn a_new_member_of_local_steps_enters_at_the_end_of_a_period() {
    let ends = grow(3000, |_| config(&DILOCO.replace("2}", "3}")), false);
    let [Ok(first), Ok(second), Ok(new)] = &ends[..] else { panic!("{ends:?}") };
    assert!(first.0 == second.0 && first.0 == new.0, "all have the same parameters");
    assert_eq!([second, new].map(|end| (end.1, end.2)), [(first.1, 3); 2]);
    assert!(first.1.is_multiple_of(3), "{}", first.1);
}

/// It stops with a reason after it has received its state, while the others are in their next step.
#[test]
fn a_new_member_that_fails_before_its_first_exchange_is_lost_and_the_others_go_on() {
    let ends = grow(400, |_| top_k(), true);
    let [Ok(first), Ok(second), Err(failed)] = &ends[..] else { panic!("{ends:?}") };
    assert!(first.0 == second.0 && (first.1, first.2) == (second.1, 2), "{} {}", first.1, first.2);
    assert_eq!(failed, "its disk is full");
}

#[test]
fn a_new_member_with_other_settings_is_refused_and_the_others_go_on() {
    let ends = grow(300, |rank| if rank == 2 { DistributedConfig::dense() } else { top_k() }, false);
    let [Ok(first), Ok(second), Err(refused)] = &ends[..] else { panic!("{ends:?}") };
    assert!(first.0 == second.0 && (first.1, first.2) == (second.1, 2), "{} {}", first.1, first.2);
    assert!(refused.contains("cannot join"), "{refused}");
}
