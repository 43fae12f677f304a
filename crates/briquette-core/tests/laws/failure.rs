//! Laws of runs that are cut short: failure leaves no trace, resume, non-finite input.

use crate::{exchanges, representatives};
use briquette_core::config::{Config, Exchange, Feedback};
use briquette_core::laws::{self, Setup, long, short};
use briquette_core::reduce::power_sgd::PowerSgdConfig;

#[test]
fn law_4_a_failure_leaves_no_trace() {
    for config in representatives() {
        let setup = Setup::short(&config, 3);
        laws::steps_to_fail_at(&setup).into_iter().for_each(|step| laws::leaves_no_trace(&setup, step));
    }
}

#[test]
fn law_4_what_is_not_committed_leaves_no_trace() {
    for exchange in exchanges() {
        let world = exchange.min_ranks().max(3);
        laws::stages_until_committed(&Setup { config: exchange, layout: short(), world });
    }
}

#[test]
fn law_4_a_failure_inside_a_ring_leaves_no_trace() {
    let sketched = exchanges().into_iter().find(|e| e.reducer.name() == "sketched-sgd").unwrap();
    let dense = |feedback| Exchange { feedback, ..Exchange::default() };
    let power = Exchange { reducer: PowerSgdConfig { rank: 2 }.into(), ..dense(Feedback::error()) };
    for exchange in [dense(Feedback::none()), dense(Feedback::error()), sketched, power] {
        let setup = Setup { config: Config::every_step(exchange), layout: long(), world: 3 };
        let calls = laws::calls_of_step(&setup, 1);
        // The header's gather is 2 sends and 2 receives, a ring of three ranks 4 and 4.
        assert!(calls >= 12, "{setup}: {calls} calls, no ring");
        laws::leaves_no_trace(&setup, 1);
    }
}

#[test]
fn law_5_a_resumed_run_continues_to_the_bit() {
    for config in representatives() {
        for setup in Setup::<Config>::all(&config) {
            laws::resumes_to_the_bit(&setup);
        }
    }
}

#[test]
fn law_5_a_trained_optimizer_takes_back_the_state_of_step_0() {
    for config in representatives() {
        laws::restores_state_of_step_0(&Setup::short(&config, 2));
    }
}

#[test]
fn law_10_a_value_that_is_not_finite_is_refused_everywhere_before_it_reaches_any_state() {
    for config in representatives() {
        laws::refuses_what_is_not_finite(&Setup::short(&config, 3));
    }
}

#[test]
fn a_slot_that_no_rank_has_a_gradient_for_is_held() {
    for config in representatives() {
        for world in [1, 3] {
            laws::holds_absent_slots(&Setup::short(&config, world));
        }
    }
}
