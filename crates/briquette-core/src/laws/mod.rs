//! Laws: properties that every algorithm satisfies, as test functions for your own algorithms (feature `testing`).
//!
//! [`strategy`], [`reducer`] and [`compressor`] check your algorithm against all laws that apply, with 1, 2, 3 and 5 ranks and
//! on vectors of 131 to 40 007 values. If a law is broken they panic, and name the law, the number of values and ranks, and
//! the rank. They take seconds in an optimized build.
//!
//! ```
//! use briquette_core::{Layout, laws};
//! use briquette_core::aggregate::mean::Mean;
//! use briquette_core::compress::top_k::TopK;
//! use briquette_core::error::ConfigError;
//! use briquette_core::reduce::gather::Gather;
//! use briquette_core::sync::every_step::EveryStep;
//!
//! let own = laws::OwnStrategy::new("top-k, a quarter", |_: &Layout, _: usize| {
//!     Ok::<_, ConfigError>(EveryStep::new(Gather::new(TopK::fraction(0.25)?, Mean)))
//! });
//! laws::agrees(&laws::Setup::short(&own, 3)); // one law in one place
//! ```
//!
//! | law | function |
//! |---|---|
//! | 1 agreement; where replicas differ, conservation | [`agrees`], [`conserves_its_mean`] |
//! | 2 honesty | [`is_honest`], [`is_honest_within`], [`is_honest_in_sum`], [`stays_in_range`] |
//! | 4 failure leaves no trace | [`leaves_no_trace`], [`stages_until_committed`] |
//! | 5 resume | [`resumes_to_the_bit`], [`restores_state_of_step_0`] |
//! | 6 round trip | [`round_trips`] |
//! | 7 declared class | [`check_class`] |
//! | 8 accounting, over a resume too | [`accounts_for_its_bytes`], [`accounts_over_a_resume`] |
//! | 9 same observations, same decision | [`decides_identically`] |
//! | 10 non-finite values are rejected | [`refuses_what_is_not_finite`] |
//! | 11 a lost rank leaves one of two histories; residuals are conserved | [`continues_without_lost`], [`conserves_over_survivors`] |
//!
//! [`holds_absent_slots`] is an additional check: a slot for which no rank has a gradient is not moved, and its stored state is
//! unchanged.
//!
//! Law 3, conservation, concerns a quantity of each wrapper: test it next to the wrapper.
//!
//! [`compress`] has checks of a compressor by itself.
//!
//! [`train`] runs a strategy by SGD on a small problem, to compare it with its equations or with another strategy.

mod absent;
mod class;
pub mod compress;
mod data;
mod delivered;
mod device;
mod driver;
mod elastic;
mod exchange;
mod failure;
pub mod train;

pub use absent::holds_absent_slots;
pub use class::check_class;
pub use data::{gradient, learning_rate, long, sampled, short, vectors};
pub use delivered::Delivered;
pub use device::{HostDevice, Kernels};
pub use driver::{Outcome, Rank, Setup, assert_same_runs, each_rank, same_bits};
pub use elastic::{conserves_over_survivors, continues_without_lost, is_elastic};
pub use exchange::{
    accounts_for_its_bytes, agrees, conserves_its_mean, decides_identically, is_honest, is_honest_in_sum,
    is_honest_within, stays_in_range,
};
pub use failure::{
    accounts_over_a_resume, calls_of_step, leaves_no_trace, refuses_what_is_not_finite, restores_state_of_step_0,
    resumes_to_the_bit, stages_until_committed, steps_to_fail_at,
};

use std::fmt;

use crate::aggregate::mean::Mean;
use crate::config::Config;
use crate::error::ConfigError;
use crate::reduce::gather::Gather;
use crate::seam::{Compressor, ErrorBound, Reducer, SyncStrategy};
use crate::settings::{DownlinkResidual, Exchange};
use crate::sync::every_step::EveryStep;
use crate::{Key, Layout, Message};

/// Number of steps over which the error of a downlink is measured.
pub const STEPS_DOWN: usize = 20;

/// Creates the strategy of a rank.
pub trait Synchronizes: fmt::Debug + Sync {
    /// Creates the strategy of one of `world` ranks.
    ///
    /// # Errors
    /// [`ConfigError`] for settings that are not valid.
    fn strategy(&self, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError>;

    /// Returns whether law 2 bounds the differences between replicas. Ranks then receive different averages, and every rank's
    /// sum is off by at most the [residual](Reduces::downlink_residual).
    fn bounds_replica_differences(&self, _len: usize) -> bool {
        false
    }

    /// Returns the minimum number of ranks.
    fn min_ranks(&self) -> usize {
        1
    }

    /// Returns whether it is also tested on 40 007 values, which takes the longest.
    fn is_tried_long(&self) -> bool {
        true
    }
}

/// Creates the reducer of a rank.
pub trait Reduces: fmt::Debug + Sync {
    /// Creates the reducer of one of `world` ranks.
    ///
    /// # Errors
    /// [`ConfigError`] for settings that are not valid.
    fn reducer(&self, layout: &Layout, world: usize) -> Result<Box<dyn Reducer>, ConfigError>;

    /// Returns whether the average is the mean of what was sent.
    fn is_mean(&self) -> bool {
        true
    }

    /// Returns the error class of the downlink compression of that mean of `len` values, if there is any.
    fn downlink(&self, _len: usize) -> Option<ErrorBound> {
        None
    }

    /// Returns the residual of the downlink, which is sent later.
    fn downlink_residual(&self, _len: usize) -> Option<DownlinkResidual> {
        None
    }

    /// Returns the minimum number of ranks.
    fn min_ranks(&self) -> usize {
        1
    }

    /// Returns whether it is also tested on 40 007 values, which takes the longest.
    fn is_tried_long(&self) -> bool {
        true
    }
}

impl Synchronizes for Config {
    fn strategy(&self, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        self.build(layout, world)
    }
    fn bounds_replica_differences(&self, len: usize) -> bool {
        let mut differing = self.exchange.reducers().filter(|reducer| !reducer.get().averages_equal()).peekable();
        differing.peek().is_some() && differing.all(|reducer| reducer.get().downlink_residual(len).is_some())
    }
    fn min_ranks(&self) -> usize {
        Config::min_ranks(self)
    }
    fn is_tried_long(&self) -> bool {
        Reduces::is_tried_long(&self.exchange)
    }
}

impl Reduces for Exchange {
    fn reducer(&self, layout: &Layout, world: usize) -> Result<Box<dyn Reducer>, ConfigError> {
        self.build_reducer(layout, world)
    }
    fn is_mean(&self) -> bool {
        self.aggregator.get().is_mean()
    }
    fn downlink(&self, len: usize) -> Option<ErrorBound> {
        self.reducers().find_map(|reducer| reducer.get().downlink(len))
    }
    fn downlink_residual(&self, len: usize) -> Option<DownlinkResidual> {
        self.reducers().find_map(|reducer| reducer.get().downlink_residual(len))
    }
    fn min_ranks(&self) -> usize {
        Exchange::min_ranks(self)
    }
    fn is_tried_long(&self) -> bool {
        self.reducers().any(|reducer| reducer.get().traits().searches)
    }
}

/// A strategy of your own: a name, and the function that creates it.
#[derive(Clone)]
pub struct OwnStrategy<F> {
    name: String,
    make: F,
    min_ranks: usize,
}

impl<F> OwnStrategy<F> {
    /// Names a strategy; `make` creates it from the layout and the number of ranks.
    pub fn new(name: impl Into<String>, make: F) -> Self {
        OwnStrategy { name: name.into(), make, min_ranks: 1 }
    }

    /// Sets the minimum number of ranks that it is tested with.
    #[must_use]
    pub fn with_at_least(mut self, ranks: usize) -> Self {
        self.min_ranks = ranks;
        self
    }
}

impl<F> fmt::Debug for OwnStrategy<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl<S, F> Synchronizes for OwnStrategy<F>
where
    S: SyncStrategy + 'static,
    F: Fn(&Layout, usize) -> Result<S, ConfigError> + Sync,
{
    fn strategy(&self, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        Ok(Box::new((self.make)(layout, world)?))
    }
    fn min_ranks(&self) -> usize {
        self.min_ranks
    }
}

/// A reducer of your own, as [`OwnStrategy`] for strategies.
#[derive(Clone)]
pub struct OwnReducer<F> {
    own: OwnStrategy<F>,
    is_mean: bool,
}

impl<F> OwnReducer<F> {
    /// Names a reducer; `make` creates it from the layout and the number of ranks.
    pub fn new(name: impl Into<String>, make: F) -> Self {
        OwnReducer { own: OwnStrategy::new(name, make), is_mean: true }
    }

    /// Declares that the average is not a mean but lies in the range of what is sent, and sets the minimum number of ranks.
    #[must_use]
    pub fn without_mean(mut self, ranks: usize) -> Self {
        (self.is_mean, self.own.min_ranks) = (false, ranks);
        self
    }
}

impl<F> fmt::Debug for OwnReducer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.own.fmt(f)
    }
}

impl<R, F> Reduces for OwnReducer<F>
where
    R: Reducer + 'static,
    F: Fn(&Layout, usize) -> Result<R, ConfigError> + Sync,
{
    fn reducer(&self, layout: &Layout, world: usize) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new((self.own.make)(layout, world)?))
    }
    fn is_mean(&self) -> bool {
        self.is_mean
    }
    fn min_ranks(&self) -> usize {
        self.own.min_ranks
    }
}

/// Checks a strategy against laws 1, 4, 5, 8, 9 and 10.
///
/// # Panics
/// The message names the broken law, the algorithm, the place and the rank.
pub fn strategy<C: Synchronizes + Clone>(own: &C) {
    for setup in Setup::all(own) {
        agrees(&setup);
        conserves_its_mean(&setup);
        accounts_for_its_bytes(&setup);
        resumes_to_the_bit(&setup);
    }
    decides_identically(&Setup::short(own, 5));
    restores_state_of_step_0(&Setup::short(own, 2));
    holds_absent_slots(&Setup::short(own, 2));
    let setup = Setup::short(own, 3);
    accounts_over_a_resume(&setup);
    refuses_what_is_not_finite(&setup);
    steps_to_fail_at(&setup).into_iter().for_each(|step| leaves_no_trace(&setup, step));
}

/// Checks a reducer against laws 2 and 4 and, exchanged at every step, against the laws of a [`strategy`].
///
/// # Panics
/// As for [`strategy`].
pub fn reducer<C: Reduces + Clone>(own: &C) {
    for setup in Setup::reducers(own) {
        let downlink = own.downlink(setup.layout.len());
        let runs = setup.reduce_steps(if downlink.is_some() { STEPS_DOWN } else { 4 });
        match (downlink, own.downlink_residual(setup.layout.len())) {
            (_, Some(residual)) => is_honest_in_sum(&setup, &runs, residual),
            (Some(class), _) => is_honest_within(&setup, &runs, class),
            _ if own.is_mean() => (0..4).for_each(|step| is_honest(&setup, &runs, step)),
            _ => (0..4).for_each(|step| stays_in_range(&setup, &runs, step)),
        }
        if setup.layout == short() {
            stages_until_committed(&setup);
        }
    }
    let every_step = |layout: &Layout, world: usize| Ok(EveryStep::new(own.reducer(layout, world)?));
    strategy(&OwnStrategy::new(format!("{own:?}"), &every_step).with_at_least(own.min_ranks()));
}

/// Checks a compressor against laws 6 and 7 and, sent by an all-gather, against the laws of a [`reducer`].
///
/// # Panics
/// As for [`strategy`]; law 7 also names the vector that breaks it.
pub fn compressor<C: Compressor + 'static>(name: &str, make: impl Fn() -> C + Sync) {
    for (vector, x) in vectors() {
        round_trips(&mut make(), &x);
        if let Err(fault) = check_class(&mut make(), &x) {
            panic!("law 7 broken: {name} on {vector}: {fault}");
        }
    }
    let gather = |_: &Layout, _| Ok(Gather::new(make(), Mean));
    reducer(&OwnReducer::new(name, &gather));
}

/// Checks law 6: a message decodes from its bytes unchanged, and their number is the one that it states.
///
/// # Panics
/// If either does not hold.
pub fn round_trips(compressor: &mut dyn Compressor, x: &[f32]) {
    let (mut message, mut back, mut bytes) = (Message::default(), Message::default(), Vec::new());
    compressor.compress_into(x, Key::new(3), &mut message);
    message.encode_into(&mut bytes);
    assert_eq!(message.len(), x.len(), "law 6 broken: length");
    assert_eq!(message.encoded_len(), bytes.len(), "law 6 broken: bytes");
    assert_eq!(back.decode_from(&bytes), Ok(()), "law 6 broken");
    assert_eq!(back, message, "law 6 broken: another message came back");
}

#[cfg(test)]
mod tests;
