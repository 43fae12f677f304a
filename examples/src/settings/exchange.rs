//! Which flags make the exchange, and what they make.

use anyhow::{Context, Result, bail};
use briquette::core::compress::Compressor;
use briquette::core::config::{AggregatorConfig, CompressorConfig, Config, ControllerConfig, Exchange, Feedback};
use briquette::core::layer::Momentum;
use briquette::core::{CompressionFactor, Layout};

use super::{OptimizerKind, Settings};
use crate::spec::{ControllerSpec, FeedbackSpec, ReducerSpec, RulesSpec, Toggle};

/// Refuses a flag that would be ignored.
fn unused<T>(flag: &str, given: Option<T>, under: &str) -> Result<Option<T>> {
    if given.is_some() {
        bail!("--{flag} would be ignored under {under}: leave it away");
    }
    Ok(None)
}

/// Adam has its own.
pub(super) fn momentum(optimizer: OptimizerKind, given: Option<f64>) -> Result<Option<f64>> {
    match optimizer {
        OptimizerKind::Sgd => Ok(Some(given.unwrap_or(0.9))),
        OptimizerKind::Adam => unused("momentum", given, "--optimizer adam"),
    }
}

/// The flags of an exchange of gradients.
pub(super) struct ExchangeFlags {
    pub(super) reducer: Option<ReducerSpec>,
    pub(super) compressor: Option<String>,
    pub(super) per_slot: Option<Toggle>,
    pub(super) aggregator: Option<AggregatorConfig>,
    pub(super) rules: Option<RulesSpec>,
    pub(super) dense_below: Option<usize>,
    pub(super) feedback: Option<FeedbackSpec>,
}

impl ExchangeFlags {
    /// Defaults for what the exchange uses; what it does not use must not be given.
    pub(super) fn resolve(self, local: bool, correction: Toggle) -> Result<ExchangeFlags> {
        if local {
            let under = "--local-steps, which averages parameters exactly";
            return Ok(ExchangeFlags {
                reducer: unused("reducer", self.reducer, under)?,
                compressor: unused("compressor", self.compressor, under)?,
                per_slot: unused("per-slot", self.per_slot, under)?,
                aggregator: unused("aggregator", self.aggregator, under)?,
                rules: unused("rules", self.rules, under)?,
                dense_below: unused("dense-below", self.dense_below, under)?,
                feedback: unused("feedback", self.feedback, under)?,
            });
        }
        let reducer = self.reducer.unwrap_or(ReducerSpec::Gather);
        let under = format!("--reducer {reducer}");
        let (compressor, per_slot) = match reducer.compresses() {
            true => (Some(self.compressor.unwrap_or_else(|| "topk:20x:q8".into())), self.per_slot),
            false => (unused("compressor", self.compressor, &under)?, unused("per-slot", self.per_slot, &under)?),
        };
        let aggregator = match reducer {
            ReducerSpec::Gather => self.aggregator,
            _ => unused("aggregator", self.aggregator, &under)?,
        };
        let exact = reducer == ReducerSpec::Dense && self.rules.is_none();
        let dense_below = if exact { unused("dense-below", self.dense_below, &under)? } else { self.dense_below };
        let feedback = match correction {
            Toggle::On => unused("feedback", self.feedback, "--momentum-correction on, which feeds back by itself")?,
            Toggle::Off if exact => unused("feedback", self.feedback, &under)?,
            Toggle::Off => {
                let compressor = compressor.as_deref().map(str::parse::<CompressorConfig>).transpose();
                let unbiased = matches!(reducer, ReducerSpec::TernaryAllReduce(_));
                let lossy = !unbiased && compressor.context("--compressor")?.is_none_or(|c| c.needs_feedback());
                let lossy = lossy || self.rules.as_ref().is_some_and(RulesSpec::needs_feedback);
                let default = if lossy { FeedbackSpec::Error } else { FeedbackSpec::None };
                Some(self.feedback.unwrap_or(default))
            }
        };
        let (reducer, rules) = (Some(reducer), self.rules);
        Ok(ExchangeFlags { reducer, compressor, per_slot, aggregator, rules, dense_below, feedback })
    }
}

impl Settings {
    /// What would be ignored is refused; the rest is built once, for any layout.
    pub(super) fn check_exchange(&self) -> Result<()> {
        let local = self.local_steps.is_some();
        if local && self.momentum_correction == Toggle::On {
            bail!("--local-steps averages parameters, not gradients: --momentum-correction must be off");
        }
        if local && self.controller != ControllerSpec::Constant {
            bail!("--local-steps averages parameters exactly: --controller must be constant, got {}", self.controller);
        }
        if self.bucket_values.is_some() && (local || matches!(self.reducer, Some(ReducerSpec::PowerSgd(_)))) {
            bail!("--bucket-values is for every --reducer but power-sgd, without --local-steps");
        }
        if self.overlap == Some(Toggle::On) && self.bucket_values.is_none() {
            bail!("--overlap would be ignored without --bucket-values: one bucket has nothing to overlap with");
        }
        if local && self.rebroadcast.is_some() {
            bail!(
                "--rebroadcast would be ignored under --local-steps, which makes replicas equal itself: leave it away"
            );
        }
        if local && self.threads.is_some() {
            bail!("--threads would be ignored under --local-steps, which compresses nothing: leave it away");
        }
        if self.data.is_some() && self.dataset == "generated" {
            bail!("--data would be ignored under --dataset generated: leave it away");
        }
        let mut config = self.config(1)?;
        if !local {
            // Layers are known when the model is there: whether a rule matches one is checked then.
            config.exchange.rules.clear();
            config.exchange.dense_below = Some(0);
        }
        config.build(&Layout::flat(1000), self.ranks)?;
        Ok(())
    }

    /// What gather sends, where there is one.
    fn compressor(&self) -> Result<Option<CompressorConfig>> {
        self.compressor.as_deref().map(str::parse).transpose().context("--compressor")
    }

    /// The factor that reducer or compressor were set to, where it is one of a sparsifier.
    ///
    /// # Errors
    /// What is wrong with the compressor.
    fn full_factor(&self) -> Result<Option<CompressionFactor>> {
        let compressor = self.compressor()?.map(|config| config.compressor());
        Ok(match (self.reducer, compressor) {
            (Some(ReducerSpec::SharedRandomK(factor)), _) => Some(factor),
            (_, compressor) => compressor.filter(|c| c.is_sparse()).map(|c| c.nominal()),
        })
    }

    /// What Briquette is asked to do; schedules need to know the steps of an epoch.
    ///
    /// # Errors
    /// What the reducer, compressor or controller finds wrong.
    pub fn config(&self, steps_per_epoch: u64) -> Result<Config> {
        let Some(spec) = self.reducer else {
            let every = self.local_steps.context("neither --reducer nor --local-steps")?;
            return Ok(Config::local_sgd(every));
        };
        let per_slot = self.per_slot == Some(Toggle::On);
        let reducer = spec.config(self.compressor()?, per_slot)?;
        let controller = match &self.controller {
            ControllerSpec::Constant => ControllerConfig::None,
            other if spec.is_tunable() => other.config(self.full_factor()?, steps_per_epoch).context("--controller")?,
            other => bail!(
                "--controller {other} turns the compression factor, but --reducer {spec} has none that it could turn; use \
                 --reducer gather with --compressor topk or qsgd, or --reducer shared-random-k, or --controller constant"
            ),
        };
        let feedback = match self.momentum_correction {
            Toggle::On => {
                let momentum = self.momentum.context("--momentum-correction on needs --momentum")? as f32;
                Momentum { momentum, ..Momentum::default() }.into()
            }
            Toggle::Off => self.feedback.map_or(Feedback::None, Feedback::from),
        };
        let rules = self.rules.as_ref().map(RulesSpec::rules).unwrap_or_default();
        Ok(Config::every_step(Exchange {
            reducer,
            aggregator: self.aggregator.unwrap_or_default(),
            feedback,
            controller,
            bucket_values: self.bucket_values,
            overlap: self.overlap == Some(Toggle::On),
            rules,
            dense_below: self.dense_below,
            threads: self.threads,
        }))
    }
}
