//! Core's transports satisfy the requirements on every transport.

use briquette_core::comm::{Clock, Faulty, Local, LocalBuilder, Session};
use briquette_sim::{Compute, SessionExt, Simulated};
use briquette_testkit::suite::{
    Running, Threads, a_deadline_error_names_both_ranks, a_limited_wait_ends_without_a_frame,
    a_wait_for_any_rank_in_vain_names_all_of_them,
};
use briquette_testkit::{channel_suite, transport_suite};
use std::sync::Arc;
use std::time::Duration;

/// Builds worlds whose tests fail instead of hanging when a rank waits in vain.
fn patient(ranks: usize) -> LocalBuilder {
    Local::builder(ranks).deadline(Duration::from_secs(20))
}

fn impatient(ranks: usize) -> LocalBuilder {
    Local::builder(ranks).deadline(Duration::from_millis(100))
}

fn simulated(local: LocalBuilder, compute: Compute) -> Vec<Session> {
    Simulated::over(local, "1gbit,50us".parse().expect("a network"), compute)
}

/// Compute that takes no time.
fn fixed() -> Compute {
    Compute::Fixed(Duration::ZERO)
}

/// Compute time measured by a clock that stands still.
fn measured() -> Compute {
    struct Noon;
    impl Clock for Noon {
        fn seconds(&self) -> f64 {
            43_200.0
        }
    }
    Compute::Measured(Arc::new(Noon))
}

fn stepped(world: Vec<Session>) -> Vec<Session> {
    world.into_iter().map(|comm| comm.stepped(Duration::from_millis(50))).collect()
}

fn faulty(local: LocalBuilder) -> Vec<Faulty> {
    local.endpoints().into_iter().map(Faulty::never).collect()
}

transport_suite!(local, Threads(|ranks| patient(ranks).build()));
transport_suite!(simulated_with_fixed_compute, Threads(|ranks| simulated(patient(ranks), fixed())));
transport_suite!(simulated_with_measured_compute, Threads(|ranks| simulated(patient(ranks), measured())));
transport_suite!(stepped, Threads(|ranks| stepped(patient(ranks).build())));
transport_suite!(faulty_without_a_fault, Threads(|ranks| faulty(patient(ranks))));

channel_suite!(channels_of_local, Threads(|ranks| patient(ranks).build()));
channel_suite!(channels_with_fixed_compute, Threads(|ranks| simulated(patient(ranks), fixed())));
channel_suite!(channels_with_measured_compute, Threads(|ranks| simulated(patient(ranks), measured())));
channel_suite!(channels_without_a_fault, Threads(|ranks| faulty(patient(ranks))));

#[test]
fn deadline_errors_name_both_ranks() {
    a_deadline_error_names_both_ranks(&Threads(|ranks| impatient(ranks).build()));
    a_deadline_error_names_both_ranks(&Threads(|ranks| simulated(impatient(ranks), fixed())));
    a_deadline_error_names_both_ranks(&Threads(|ranks| faulty(impatient(ranks))));
    a_wait_for_any_rank_in_vain_names_all_of_them(&Threads(|ranks| impatient(ranks).build()));
    a_wait_for_any_rank_in_vain_names_all_of_them(&Threads(|ranks| simulated(impatient(ranks), fixed())));
    a_wait_for_any_rank_in_vain_names_all_of_them(&Threads(|ranks| faulty(impatient(ranks))));
}

#[test]
fn limited_waits_end_without_a_frame() {
    a_limited_wait_ends_without_a_frame(&Threads(|ranks| patient(ranks).clock(Running::start()).build()));
    a_limited_wait_ends_without_a_frame(&Threads(|ranks| faulty(patient(ranks).clock(Running::start()))));
    a_limited_wait_ends_without_a_frame(&Threads(|ranks| simulated(patient(ranks), fixed())));
}
