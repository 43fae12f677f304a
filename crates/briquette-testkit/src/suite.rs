//! Transport suite: the facts that hold for every transport, and ways to run worlds that check them.
//!
//! A [`Launch`] makes worlds. [`Threads`] serves transports whose ranks can be threads of a test. A transport whose
//! ranks are processes brings its own, and each of its processes calls the facts in the same order.
//!
//! - Under `cargo test`: [`transport_suite!`](crate::transport_suite) makes one test per fact.
//! - In a program that a launcher starts once per rank: [`facts`] lists them all by name.
//! - [`channel_suite!`](crate::channel_suite): the same for exchanges in the background, for transports with channels.
//! - [`a_deadline_error_names_both_ranks`] and [`a_wait_for_any_rank_in_vain_names_all_of_them`] need a launcher of
//!   worlds with a short deadline, so they are in neither list.
//!
//! # Assumptions of a fact
//! Ranks compare their results inside the world, through the world itself, because a process sees no other rank's
//! results. Checks on results cover the ranks of this process only. No fact reads a clock to judge speed, and none
//! waits longer than the transport's own deadline: set it to about 20 seconds.

use briquette_core::Session;
use briquette_core::comm::{SMALL_ALL_REDUCE, run_ranks};
use briquette_core::error::CommError;
use std::fmt;

mod any;
mod channels;
mod collectives;
mod frames;
mod groups;
mod memory;
mod stopped;

pub use any::*;
pub use channels::*;
pub use collectives::*;
pub use frames::*;
pub use groups::*;
pub use memory::*;
pub use stopped::*;

/// A way to run a world.
pub trait Launch: Sync {
    /// Runs `body` on every rank of a new world of `ranks` and ends that world. Returns the results of the ranks that
    /// ran in this process, with their numbers.
    ///
    /// - `None` if this launcher has no world of that size; all processes of a launcher must return the same.
    /// - A process without a rank in this world returns an empty list.
    /// - The endpoint is dropped when `body` returns, while other ranks may still be in theirs.
    /// - A panic of `body` stops the other ranks with a reason that begins with `panicked`, and becomes
    ///   [`CommError::Aborted`] by this rank with the reason `panicked: ` and the panic's message, as in [`run_ranks`].
    fn run<T: Send>(
        &self,
        ranks: usize,
        body: impl Fn(&mut Session) -> Result<T, CommError> + Sync,
    ) -> Option<Results<T>>;
}

/// Results of the ranks of this process, each with its number.
pub type Results<T> = Vec<(usize, Result<T, CommError>)>;

/// Worlds of threads, created by a function from the number of ranks to their endpoints.
///
/// ```
/// use briquette_core::comm::Local;
/// use briquette_testkit::suite::{Threads, barrier_waits_for_every_rank};
///
/// barrier_waits_for_every_rank(&Threads(Local::world));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Threads<F>(pub F);

impl<S: Into<Session>, F: Fn(usize) -> Vec<S> + Sync> Launch for Threads<F> {
    fn run<T: Send>(
        &self,
        ranks: usize,
        body: impl Fn(&mut Session) -> Result<T, CommError> + Sync,
    ) -> Option<Results<T>> {
        Some(run_ranks((self.0)(ranks), |mut comm| body(&mut comm)).into_iter().enumerate().collect())
    }
}

/// One fact of the suite, for programs that run it without a test harness.
pub struct Fact<L> {
    /// The function's name, which states the fact.
    pub name: &'static str,
    /// Set if its worlds end stopped: by an abort, a panic, a loss or a disagreement. A launcher that keeps anything
    /// from one world for the next should not do so across these.
    pub stops: bool,
    /// Check, which panics if the fact does not hold.
    pub check: fn(&L),
}

impl<L> fmt::Debug for Fact<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fact({}{})", self.name, if self.stops { ", stops its worlds" } else { "" })
    }
}

/// Returns all facts in a fixed order, first those whose worlds run to their end.
///
/// ```
/// use briquette_core::comm::{Local, Session};
/// use briquette_testkit::suite::{Threads, facts};
///
/// let launch = Threads(Local::world as fn(usize) -> Vec<Session>);
/// let fact = &facts()[0];
/// (fact.check)(&launch);
/// assert_eq!((fact.name, fact.stops), ("all_gather_gives_everyone_everyone_elses_bytes", false));
/// ```
pub fn facts<L: Launch>() -> Vec<Fact<L>> {
    crate::__facts!(__table)
}

/// Creates a module with one test per fact: `transport_suite!(name, launch)`, where `launch` is an expression of a type
/// that implements [`Launch`](crate::suite::Launch).
///
/// ```
/// use briquette_core::comm::Local;
/// use briquette_testkit::{suite::Threads, transport_suite};
///
/// transport_suite!(local, Threads(Local::world));
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! transport_suite {
    ($name:ident, $launch:expr) => {
        mod $name {
            #[allow(unused_imports, reason = "the launcher may name anything around it, or nothing")]
            use super::*;

            fn launch() -> impl $crate::suite::Launch {
                $launch
            }
            $crate::__facts!(__tests);
        }
    };
}

/// Creates a module with one test per fact about exchanges in the background, for transports with two channels:
/// `channel_suite!(name, launch)`, as [`transport_suite!`](crate::transport_suite).
///
/// ```
/// use briquette_core::comm::Local;
/// use briquette_testkit::{channel_suite, suite::Threads};
///
/// channel_suite!(local, Threads(Local::world));
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! channel_suite {
    ($name:ident, $launch:expr) => {
        mod $name {
            #[allow(unused_imports, reason = "the launcher may name anything around it, or nothing")]
            use super::*;

            fn launch() -> impl $crate::suite::Launch {
                $launch
            }
            $crate::__tests! {
                goes_on [
                    frames_of_channels_do_not_mix
                    a_job_gives_the_bits_and_counts_the_bytes_of_the_foreground
                    a_job_needs_no_call_of_its_session
                    a_job_receives_from_any_rank_on_its_channel
                    a_rank_that_leaves_ends_its_jobs_first
                ]
                stops [an_abort_in_a_job_stops_every_channel_of_every_rank]
            }
        }
    };
}

/// Single list of facts, which is passed to another macro of this crate.
#[doc(hidden)]
#[macro_export]
macro_rules! __facts {
    ($then:ident) => {
        $crate::$then! {
            goes_on [
                all_gather_gives_everyone_everyone_elses_bytes
                all_to_all_brings_everyone_what_is_for_them
                all_reduce_equals_the_naive_sum_and_agrees_to_the_bit
                long_all_reduces_sum_in_ring_order_and_agree_to_the_bit
                all_reduce_of_f64_sums_in_rank_order
                broadcast_works_from_every_root
                barrier_waits_for_every_rank
                frames_of_a_pair_stay_in_order
                frames_of_any_rank_arrive_each_once_and_in_order
                frames_of_a_pair_stay_in_order_by_whichever_call_they_are_received
                a_group_receives_from_any_of_its_ranks_by_their_places
                many_large_frames_may_be_sent_before_any_is_received
                a_frame_of_five_megabytes_arrives_whole
                traffic_equals_the_formulas
                the_pool_stays_as_it_is_after_warm_up
                groups_exchange_beside_each_other
                a_hierarchical_all_reduce_is_the_flat_one
            ]
            stops [
                abort_reaches_pending_and_later_calls_of_every_rank
                panic_of_a_rank_stops_the_others_and_names_it
                vectors_of_different_lengths_stop_every_rank
                ranks_in_different_calls_get_both_names
                frames_of_a_rank_that_left_arrive_before_the_news
                a_wait_for_any_rank_goes_on_until_all_have_left
                an_abort_ends_a_wait_for_any_rank
                a_rank_outside_the_world_is_an_error
            ]
        }
    };
}

/// Expands the list to tests; `launch` is defined around it.
#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    (goes_on [$($one:ident)*] stops [$($other:ident)*]) => { $crate::__tests!(@ $($one)* $($other)*); };
    (@ $($fact:ident)*) => { $(#[test] fn $fact() { $crate::suite::$fact(&launch()); })* };
}

/// Expands the list to a table; `L` is defined around it.
#[doc(hidden)]
#[macro_export]
macro_rules! __table {
    (goes_on [$($one:ident)*] stops [$($other:ident)*]) => {
        vec![
            $(Fact { name: stringify!($one), stops: false, check: $one::<L> },)*
            $(Fact { name: stringify!($other), stops: true, check: $other::<L> },)*
        ]
    };
}

const WORLDS: [usize; 4] = [1, 2, 3, 5];

/// Runs `body` in worlds of every size and passes the results of this process's ranks to `check`: the size of the
/// world, the rank, its result.
fn every_world<T: Send>(
    launch: &impl Launch,
    body: impl Fn(&mut Session) -> Result<T, CommError> + Sync,
    check: impl Fn(usize, usize, Result<T, CommError>),
) {
    let mut worlds = 0;
    for world in WORLDS {
        let Some(results) = launch.run(world, &body) else { continue };
        worlds += 1;
        results.into_iter().for_each(|(rank, result)| check(world, rank, result));
    }
    assert!(worlds > 0, "the launcher has no world of {WORLDS:?} ranks");
}

/// Runs `body` in worlds of every size; no rank may fail.
fn all_ok(launch: &impl Launch, body: impl Fn(&mut Session) -> Result<(), CommError> + Sync) {
    every_world(launch, body, |world, rank, result| {
        assert_eq!(result, Ok(()), "rank {rank} of a world of {world}");
    });
}

/// Returns value `i` of a rank's vector. Such values do not sum exactly, so that the order of summation shows.
fn value(rank: usize, i: usize) -> f32 {
    ((i * 7919 + rank * 104_729) % 1000) as f32 * 0.37 - 100.0 / (rank + 3) as f32
}

fn values(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| value(rank, i)).collect()
}

/// Returns the sum of value `i`: in rank order, or in ring order from the rank that owns its chunk.
fn naive_sum(i: usize, len: usize, world: usize) -> f32 {
    let ring = (0..world).find(|c| i < (c + 1) * len / world).expect("chunks tile the vector");
    let first = if len <= SMALL_ALL_REDUCE { 0 } else { ring };
    let order = (0..world).map(|ahead| (first + ahead) % world);
    order.map(|rank| value(rank, i)).reduce(|sum, value| sum + value).expect("a rank")
}
