//! From settings to reducers: what goes around what, and which settings cannot go together.

use super::rules::Group;
use super::{CompressorConfig, ControllerConfig, Exchange, Feedback, ReducerConfig};
use crate::aggregate::Aggregator;
use crate::compress::{Class, Compressor, TernGrad};
use crate::control::Controller;
use crate::error::ConfigError;
use crate::layer::{Adaptive, Bucketed, ErrorFeedback, Grouped, Metered, MomentumCorrection, Shifted};
use crate::reduce::{
    Dense, Gather, Grain, MultiStep, PowerSgd, Reducer, SharedRandomK, SketchedSgd, SparseAllReduce, Stateless,
    TernaryAllReduce,
};
use crate::sync::{EveryStep, SyncStrategy};
use crate::{CompressionFactor, Layout};

impl Exchange {
    pub(super) fn build(&self, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        Ok(Box::new(EveryStep::new(self.build_reducer(layout, world)?)))
    }

    /// The reducer alone, without a rhythm.
    ///
    /// # Errors
    /// [`ConfigError`] for every setting that cannot work.
    pub fn build_reducer(&self, layout: &Layout, world: usize) -> Result<Box<dyn Reducer>, ConfigError> {
        self.check_feedback()?;
        if self.overlap && self.bucket_values.is_none() {
            return Err(ConfigError::Conflict(
                "overlap exchanges one bucket while others are encoded and decoded, and without bucket values there is \
                 one bucket: set them, or leave overlap off"
                    .into(),
            ));
        }
        let (main, others) = self.groups(layout)?;
        if main.members.is_empty() && !layout.is_empty() && self.controller != ControllerConfig::None {
            return Err(ConfigError::Conflict(
                "a controller turns the factor of the slots that no rule has and that are not kept dense, and there are \
                 none: lower dense_below, or use controller none"
                    .into(),
            ));
        }
        self.check_aggregator(world)?;
        self.check_residual_stays_bounded(layout)?;
        let mut reducer = match self.controller.build(world)? {
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
        // Dense sends everything: there is no gain to measure.
        let metered = match (&self.reducer, self.rules.is_empty()) {
            (ReducerConfig::Dense, true) => Metered::seconds_only(reducer),
            _ => Metered::new(reducer),
        };
        Ok(match self.feedback {
            Feedback::None => Box::new(metered),
            Feedback::Error => Box::new(ErrorFeedback::new(metered)),
            Feedback::ErrorInside => Box::new(ErrorFeedback::inside_learning_rate(metered)),
            Feedback::Momentum(settings) => Box::new(MomentumCorrection::new(metered, settings)?),
            Feedback::Diana { alpha } => Box::new(Shifted::diana(metered, self.memory_step(alpha, layout)?)?),
            Feedback::Ef21 => {
                self.check_contracts(layout)?;
                Box::new(Shifted::ef21(metered))
            }
        })
    }

    /// Every reducer there is: the main one, then those of the rules.
    pub fn reducers(&self) -> impl Iterator<Item = &ReducerConfig> {
        [&self.reducer].into_iter().chain(self.rules.iter().map(|rule| &rule.reducer))
    }

    /// The fewest ranks that it works with.
    pub fn fewest_ranks(&self) -> usize {
        self.aggregator.get().fewest_ranks()
    }

    /// Residuals of what amplifies grow without bound.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`] names the compressor.
    pub fn check_feedback(&self) -> Result<(), ConfigError> {
        let fed_back = !matches!(self.feedback, Feedback::None | Feedback::Diana { .. });
        let mut compressors = self.reducers().filter_map(|reducer| match reducer {
            ReducerConfig::Gather { compressor, .. } => Some(compressor),
            _ => None,
        });
        match compressors.find(|compressor| fed_back && compressor.refuses_feedback()) {
            None => Ok(()),
            Some(compressor) => Err(ConfigError::Conflict(format!(
                "compressor {compressor} is not contractive: use it with feedback none or diana, or unscaled with feedback"
            ))),
        }
    }

    pub(super) fn bucketed<R: Stateless>(
        &self,
        layout: &Layout,
        make: impl FnMut(usize) -> R,
    ) -> Result<Bucketed<R>, ConfigError> {
        match self.bucket_values {
            Some(0) => Err(ConfigError::range("values a bucket holds", "at least 1", 0)),
            values => Ok(Bucketed::new(layout, values.unwrap_or(usize::MAX), make).overlapped(self.overlap)),
        }
    }

    /// How many buckets `layout` is cut into.
    fn bucket_count(&self, layout: &Layout) -> Result<usize, ConfigError> {
        Ok(self.bucketed(layout, |_| Dense)?.ranges().count())
    }

    /// Without a controller.
    fn fixed(&self, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        if let ReducerConfig::PowerSgd { rank } = self.reducer {
            return match self.bucket_values {
                None => Ok(Box::new(PowerSgd::new(rank)?)),
                Some(_) => Err(ConfigError::Conflict(
                    "power-sgd exchanges all matrices at once: leave bucket values away".into(),
                )),
            };
        }
        Ok(Box::new(self.buckets(&self.reducer, layout)?))
    }

    /// The group of a rule.
    fn group(&self, group: Group<'_>) -> Result<(Vec<usize>, Box<dyn Stateless>), ConfigError> {
        Ok((group.members, Box::new(self.buckets(group.reducer, &group.layout)?)))
    }

    fn buckets(&self, reducer: &ReducerConfig, layout: &Layout) -> Result<Bucketed<Box<dyn Stateless>>, ConfigError> {
        let count = self.bucket_count(layout)?;
        let parts: Vec<_> = (0..count).map(|_| self.part(reducer, layout)).collect::<Result<_, _>>()?;
        let mut parts = parts.into_iter();
        self.bucketed(layout, |_| parts.next().expect("as many parts as buckets"))
    }

    /// The reducer of one bucket.
    fn part(&self, reducer: &ReducerConfig, layout: &Layout) -> Result<Box<dyn Stateless>, ConfigError> {
        Ok(match reducer {
            ReducerConfig::Dense => Box::new(Dense),
            ReducerConfig::Gather { compressor, per_slot } => Box::new(self.gather(compressor.build(), *per_slot)),
            ReducerConfig::SharedRandomK { factor, scaled } => Box::new(self.random_k(*factor, *scaled)?),
            ReducerConfig::MultiStep { rounds, inner } => {
                let part = self.part(inner, layout)?;
                Box::new(match self.class(inner, layout)? {
                    Some(Class::Unbiased { omega }) => MultiStep::unbiased(part, *rounds, omega)?,
                    _ => MultiStep::contractive(part, *rounds)?,
                })
            }
            ReducerConfig::SparseAllReduce { factor } => Box::new(SparseAllReduce::new(*factor)),
            ReducerConfig::SketchedSgd(settings) => Box::new(SketchedSgd::new(*settings)?),
            ReducerConfig::TernaryAllReduce { clip } if *clip == f32::INFINITY => {
                Box::new(TernaryAllReduce::new(TernGrad::unclipped()))
            }
            ReducerConfig::TernaryAllReduce { clip } => Box::new(TernaryAllReduce::new(TernGrad::clipped(*clip)?)),
            ReducerConfig::PowerSgd { .. } => {
                return Err(ConfigError::Conflict(
                    "power-sgd remembers: it cannot be a part of another reducer".into(),
                ));
            }
        })
    }

    /// Under a controller: the reducer needs a knob.
    fn adaptive(&self, layout: &Layout, controller: Box<dyn Controller>) -> Result<Box<dyn Reducer>, ConfigError> {
        let mut reducer = self.fixed(layout)?;
        let why = match &self.reducer {
            _ if reducer.knob().is_some() => return Ok(Box::new(Adaptive::new(reducer, controller)?)),
            ReducerConfig::Gather { compressor, .. } => {
                let valid = CompressorConfig::tunable().join(", ");
                format!("compressor {compressor} has none; use one of {valid}")
            }
            other => format!(
                "reducer {} has none; use gather with topk or qsgd, or shared-random-k, or controller none",
                other.name()
            ),
        };
        Err(ConfigError::Conflict(format!("a controller sets the compression ratio by a knob, but {why}")))
    }

    fn gather<C: Compressor>(&self, compressor: C, per_slot: bool) -> Gather<C, Box<dyn Aggregator>> {
        let gather = Gather::new(compressor, self.aggregator.build());
        if per_slot { gather.grain(Grain::PerSlot) } else { gather }
    }

    /// An aggregator that is no mean sees every contribution to every value, or a rank could decide what it does not see.
    fn check_aggregator(&self, world: usize) -> Result<(), ConfigError> {
        let (name, aggregator) = (self.aggregator, self.aggregator.get());
        let conflict = |why: String| Err(ConfigError::Conflict(format!("aggregator {name} {why}")));
        let fewest = aggregator.fewest_ranks();
        match &self.reducer {
            _ if world < fewest => conflict(format!("needs at least {fewest} ranks, got {world}")),
            _ if aggregator.is_mean() => Ok(()),
            ReducerConfig::Gather { .. }
                if !self.rules.is_empty() || self.dense_below.is_some_and(|below| below > 0) =>
            {
                conflict("combines all slots: leave out rules and dense_below, whose slots are averaged".into())
            }
            ReducerConfig::Gather { .. } if self.controller != ControllerConfig::None => conflict(
                "combines every step, and under a controller dense steps are averaged: use controller none".into(),
            ),
            ReducerConfig::Gather { .. } if aggregator.rates() && self.bucket_values.is_some() => {
                conflict("rates whole contributions: leave out bucket values".into())
            }
            ReducerConfig::Gather { .. } => match self.feedback {
                Feedback::Diana { .. } | Feedback::Ef21 => conflict(
                    "is not linear, and the memories of diana and ef21 need a mean: use feedback none or error".into(),
                ),
                Feedback::None | Feedback::Error | Feedback::ErrorInside | Feedback::Momentum(_) => Ok(()),
            },
            other => conflict(format!(
                "combines messages, and reducer {} exchanges otherwise: use reducer gather (with compressor dense, if nothing is to \
                 be compressed)",
                other.name()
            )),
        }
    }

    fn random_k(&self, factor: CompressionFactor, scaled: bool) -> Result<SharedRandomK, ConfigError> {
        match self.feedback {
            _ if !scaled => Ok(SharedRandomK::new(factor)),
            Feedback::None | Feedback::Diana { .. } => Ok(SharedRandomK::scaled(factor)),
            Feedback::Error | Feedback::ErrorInside | Feedback::Ef21 | Feedback::Momentum(_) => Err(ConfigError::Conflict(
                "scaled shared-random-k is not contractive: use it with feedback none or diana, or unscaled with feedback"
                    .into(),
            )),
        }
    }
}

#[cfg(feature = "rayon")]
fn threaded(reducer: Box<dyn Reducer>, threads: usize) -> Result<Box<dyn Reducer>, ConfigError> {
    Ok(Box::new(crate::layer::Threaded::new(reducer, threads)?))
}

#[cfg(not(feature = "rayon"))]
fn threaded(_: Box<dyn Reducer>, threads: usize) -> Result<Box<dyn Reducer>, ConfigError> {
    let why = format!("threads is {threads}, and this build has one a rank: build with the cargo feature `rayon`");
    Err(ConfigError::Conflict(why))
}
