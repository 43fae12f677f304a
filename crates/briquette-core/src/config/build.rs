//! Construction of reducers from settings: nests the wrappers, and rejects incompatible settings.

use super::groups::Group;
use super::{Exchange, ReducerConfig, combine};
use crate::Layout;
use crate::error::ConfigError;
use crate::reduce::dense::Dense;
use crate::seam::{Controller, Reducer};
use crate::wrapper::{adaptive::Adaptive, bucketed::Bucketed, grouped::Grouped, metered::Metered};

/// Minimum number of values in a bucket that is exchanged during the backward pass.
const FEWEST_VALUES: usize = 16_384;

impl Exchange {
    /// Builds the reducer without a strategy.
    ///
    /// # Errors
    /// [`ConfigError`] for every setting that cannot work.
    pub fn build_reducer(&self, layout: &Layout, world: usize) -> Result<Box<dyn Reducer>, ConfigError> {
        ConfigError::unless(self.bucket_values != Some(0), "bucket_values", "at least 1", 0)?;
        combine::exchange(self, Some(world), Some(layout))?;
        let (main, others) = self.groups(layout)?;
        let controller = self.controller.get().build(&self.feedback, world)?;
        if main.members.is_empty() && !layout.is_empty() && controller.is_some() {
            return Err(ConfigError::conflict(
                format!("controller {}", self.controller),
                "this model",
                "a controller turns the ratio of the slots that no rule has and that are not kept dense, and there are none",
                "lower dense_below, or use controller none",
            ));
        }
        let mut reducer = match controller {
            None => self.fixed(&main.layout)?,
            Some(controller) => self.adaptive(&main.layout, controller)?,
        };
        if !others.is_empty() {
            let others: Result<Vec<_>, ConfigError> = others.into_iter().map(|g| self.group(g)).collect();
            reducer = Box::new(Grouped::new(layout, reducer, others?));
        }
        if let Some(threads) = self.threads {
            reducer = threaded(reducer, threads)?;
        }
        // A dense exchange sends everything, so there is no gain to measure.
        let metered: Box<dyn Reducer> = match self.reducer.get().traits().is_dense && self.rules.is_empty() {
            true => Box::new(Metered::seconds_only(reducer)),
            false => {
                Box::new(Metered::new(reducer).with_outer_feedback(self.feedback.get().requirement().keeps_state()))
            }
        };
        let (feedback, own) = (self.feedback.get(), self.reducer.get());
        match feedback.requirement().keeps_state() {
            true => Ok(own.wrap_outer(feedback.wrap(metered, self, layout)?)),
            false => feedback.wrap(own.wrap_outer(metered), self, layout),
        }
    }

    pub(super) fn bucketed<R: Reducer>(&self, layout: &Layout, make: impl FnMut(usize) -> R) -> Bucketed<R> {
        // Validation refuses 0.
        match self.bucket_values.map(|values| values.max(1)) {
            values if self.during_backward => {
                Bucketed::last_first(layout, values.unwrap_or((layout.len() / 4).max(FEWEST_VALUES)), make)
            }
            values => Bucketed::new(layout, values.unwrap_or(usize::MAX), make),
        }
    }

    pub(super) fn is_cut(&self) -> bool {
        self.bucket_values.is_some() || self.during_backward
    }

    /// Builds a reducer without a controller.
    fn fixed(&self, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        match (self.reducer.get().requires_all_slots(), self.is_cut()) {
            // A single bucket around it would change its key and its name in saved state.
            (true, false) => self.reducer.get().build(self, layout),
            _ => Ok(Box::new(self.buckets(&self.reducer, layout)?)),
        }
    }

    /// Builds the reducer of a rule's group.
    fn group(&self, group: Group) -> Result<(Vec<usize>, Box<dyn Reducer>), ConfigError> {
        Ok((group.members, Box::new(self.buckets(&group.reducer, &group.layout)?)))
    }

    fn buckets(&self, reducer: &ReducerConfig, layout: &Layout) -> Result<Bucketed<Box<dyn Reducer>>, ConfigError> {
        let count = self.bucketed(layout, |_| Dense).ranges().count();
        let parts: Vec<_> = (0..count).map(|_| reducer.get().build(self, layout)).collect::<Result<_, _>>()?;
        let mut parts = parts.into_iter();
        Ok(self.bucketed(layout, |_| parts.next().expect("as many parts as buckets")))
    }

    /// Builds a reducer with a controller.
    fn adaptive(&self, layout: &Layout, controller: Box<dyn Controller>) -> Result<Box<dyn Reducer>, ConfigError> {
        let adaptive = Adaptive::new(self.fixed(layout)?, controller)?.probing(self.probing);
        Ok(match self.is_cut() {
            false => Box::new(adaptive),
            true => Box::new(adaptive.dense_in(self.bucketed(layout, |_| Dense))),
        })
    }
}

#[cfg(feature = "rayon")]
fn threaded(reducer: Box<dyn Reducer>, threads: usize) -> Result<Box<dyn Reducer>, ConfigError> {
    Ok(Box::new(crate::wrapper::threaded::Threaded::new(reducer, threads)?))
}

#[cfg(not(feature = "rayon"))]
fn threaded(_: Box<dyn Reducer>, threads: usize) -> Result<Box<dyn Reducer>, ConfigError> {
    let why = "it has one thread a rank";
    Err(ConfigError::conflict("this build", format!("threads {threads}"), why, "build with the cargo feature `rayon`"))
}
