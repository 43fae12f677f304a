//! Builds reducers from settings: nests the wrappers, and rejects incompatible settings.

use super::rules::Group;
use super::{CompressorConfig, ControllerConfig, Exchange, ReducerConfig};
use crate::Layout;
use crate::control::Controller;
use crate::error::ConfigError;
use crate::reduce::{Dense, Reducer};
use crate::wrapper::{Adaptive, Bucketed, Grouped, Metered, Probing};

/// Minimum number of values in a bucket that is exchanged during the backward pass.
const FEWEST_VALUES: usize = 16_384;

impl Exchange {
    /// Builds the reducer without a strategy.
    ///
    /// # Errors
    /// [`ConfigError`] for every setting that cannot work.
    pub fn build_reducer(&self, layout: &Layout, world: usize) -> Result<Box<dyn Reducer>, ConfigError> {
        let (main, others) = self.groups(layout)?;
        let controller = self.controller.get().build(&self.feedback, world)?;
        if main.members.is_empty() && !layout.is_empty() && controller.is_some() {
            return Err(ConfigError::Conflict(
                "a controller turns the factor of the slots that no rule has and that are not kept dense, and there are \
                 none: lower dense_below, or use controller none"
                    .into(),
            ));
        }
        if controller.is_none() && self.probing != Probing::default() {
            let why = "probing first would be ignored without a controller: set one, or leave it out";
            return Err(ConfigError::Conflict(why.into()));
        }
        if let Some(reducer) = self.reducers().find(|reducer| reducer.get().fewest_ranks() > world) {
            let fewest = reducer.get().fewest_ranks();
            return Err(ConfigError::Conflict(format!("reducer {reducer} needs at least {fewest} ranks, got {world}")));
        }
        self.reducers().try_for_each(|reducer| reducer.get().check_world(world))?;
        self.check_aggregator(world)?;
        self.check_memory(layout)?;
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
        // Dense sends everything, so there is no gain to measure.
        let metered: Box<dyn Reducer> = match self.reducer.get().traits().is_dense && self.rules.is_empty() {
            true => Box::new(Metered::seconds_only(reducer)),
            false => Box::new(Metered::new(reducer).under_memory(self.feedback.get().asks().remembers())),
        };
        let (feedback, own) = (self.feedback.get(), self.reducer.get());
        match feedback.asks().remembers() {
            true => Ok(own.around_memory(feedback.wrap(metered, self, layout)?)),
            false => feedback.wrap(own.around_memory(metered), self, layout),
        }
    }

    pub(super) fn bucketed<R: Reducer>(
        &self,
        layout: &Layout,
        make: impl FnMut(usize) -> R,
    ) -> Result<Bucketed<R>, ConfigError> {
        match self.bucket_values {
            Some(0) => Err(ConfigError::range("bucket_values", "at least 1", 0)),
            values if self.during_backward => {
                Ok(Bucketed::last_first(layout, values.unwrap_or((layout.len() / 4).max(FEWEST_VALUES)), make))
            }
            values => Ok(Bucketed::new(layout, values.unwrap_or(usize::MAX), make)),
        }
    }

    fn is_cut(&self) -> bool {
        self.bucket_values.is_some() || self.during_backward
    }

    /// Returns the number of buckets of `layout`.
    fn bucket_count(&self, layout: &Layout) -> Result<usize, ConfigError> {
        Ok(self.bucketed(layout, |_| Dense)?.ranges().count())
    }

    /// Builds a reducer without a controller.
    fn fixed(&self, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        match (self.reducer.get().takes_all_slots(), self.is_cut()) {
            // A single bucket around it would change its key and its name in saved state.
            (true, false) => self.reducer.get().build(self, layout),
            _ => Ok(Box::new(self.buckets(&self.reducer, layout)?)),
        }
    }

    /// Builds the reducer of a rule's group.
    fn group(&self, group: Group<'_>) -> Result<(Vec<usize>, Box<dyn Reducer>), ConfigError> {
        Ok((group.members, Box::new(self.buckets(group.reducer, &group.layout)?)))
    }

    fn buckets(&self, reducer: &ReducerConfig, layout: &Layout) -> Result<Bucketed<Box<dyn Reducer>>, ConfigError> {
        let count = self.bucket_count(layout)?;
        let parts: Vec<_> = (0..count).map(|_| reducer.get().build(self, layout)).collect::<Result<_, _>>()?;
        let mut parts = parts.into_iter();
        self.bucketed(layout, |_| parts.next().expect("as many parts as buckets"))
    }

    /// Builds a reducer with a controller. The reducer must have a knob.
    fn adaptive(&self, layout: &Layout, controller: Box<dyn Controller>) -> Result<Box<dyn Reducer>, ConfigError> {
        let mut reducer = self.fixed(layout)?;
        if reducer.knob().is_some() {
            let adaptive = Adaptive::new(reducer, controller)?.probing(self.probing);
            return match self.is_cut() {
                false => Ok(Box::new(adaptive)),
                true => Ok(Box::new(adaptive.dense_in(self.bucketed(layout, |_| Dense)?))),
            };
        }
        let why = match self.reducer.get().compressor() {
            Some(compressor) => {
                let valid = CompressorConfig::tunable().join(", ");
                format!("compressor {compressor} has none; use one of {valid}")
            }
            None => format!(
                "reducer {} has none; use gather with topk or qsgd, or shared-random-k, or controller none",
                self.reducer.name()
            ),
        };
        Err(ConfigError::Conflict(format!("a controller sets the compression ratio by a knob, but {why}")))
    }

    /// Checks that the aggregator sees every rank's contribution to every value, unless it is the mean. Otherwise a rank could decide
    /// values that the aggregator does not see.
    fn check_aggregator(&self, world: usize) -> Result<(), ConfigError> {
        let (name, aggregator) = (&self.aggregator, self.aggregator.get());
        let conflict = |why: String| Err(ConfigError::Conflict(format!("aggregator {name} {why}")));
        let fewest = aggregator.fewest_ranks();
        if world < fewest {
            return conflict(format!("needs at least {fewest} ranks, got {world}"));
        }
        if aggregator.is_mean() {
            return Ok(());
        }
        if !self.reducer.get().traits().aggregates {
            let name = self.reducer.name();
            return conflict(format!(
                "combines messages, and reducer {name} exchanges otherwise: use reducer gather (with compressor dense, if \
                 nothing is to be compressed)"
            ));
        }
        if !self.rules.is_empty() || self.dense_below.is_some_and(|below| below > 0) {
            return conflict("combines all slots: leave out rules and dense_below, whose slots are averaged".into());
        }
        if self.controller != ControllerConfig::None {
            let why = "combines every step, and under a controller dense steps are averaged: use controller none";
            return conflict(why.into());
        }
        if aggregator.rates() && self.is_cut() {
            return conflict("rates whole contributions: leave out bucket values and during_backward".into());
        }
        if self.feedback.get().asks().sends_differences() {
            let why = "is not linear, and the memories of diana and ef21 need a mean: use feedback none or error";
            return conflict(why.into());
        }
        Ok(())
    }
}

#[cfg(feature = "rayon")]
fn threaded(reducer: Box<dyn Reducer>, threads: usize) -> Result<Box<dyn Reducer>, ConfigError> {
    Ok(Box::new(crate::wrapper::Threaded::new(reducer, threads)?))
}

#[cfg(not(feature = "rayon"))]
fn threaded(_: Box<dyn Reducer>, threads: usize) -> Result<Box<dyn Reducer>, ConfigError> {
    let why = format!("threads is {threads}, and this build has one a rank: build with the cargo feature `rayon`");
    Err(ConfigError::Conflict(why))
}
