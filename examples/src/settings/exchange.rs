//! Which flags make the exchange, and what they make.

use anyhow::{Context, Result, bail};
use briquette::core::compress::Compressor;
use briquette::core::config::{CompressorConfig, Config, ControllerConfig, Exchange, Feedback, Rhythm};
use briquette::core::layer::Momentum;
use briquette::core::{CompressionFactor, Layout};

use super::{FeedbackSpec, OptimizerKind, Settings};
use crate::spec::{ControllerSpec, ReducerSpec, Toggle};

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

/// `--reducer`, `--compressor`, `--feedback`.
type ExchangeFlags = (Option<ReducerSpec>, Option<String>, Option<FeedbackSpec>);

/// Defaults for what the exchange of gradients uses; what it does not use must not be given.
pub(super) fn flags(
    local: bool,
    correction: Toggle,
    (reducer, compressor, feedback): ExchangeFlags,
) -> Result<ExchangeFlags> {
    if local {
        let under = "--local-steps, which averages parameters exactly";
        return Ok((
            unused("reducer", reducer, under)?,
            unused("compressor", compressor, under)?,
            unused("feedback", feedback, under)?,
        ));
    }
    let reducer = reducer.unwrap_or(ReducerSpec::Gather);
    let under = format!("--reducer {reducer}");
    let compressor = match reducer {
        ReducerSpec::Gather => Some(compressor.unwrap_or_else(|| "topk:20x:q8".into())),
        _ => unused("compressor", compressor, &under)?,
    };
    let feedback = match (correction, reducer) {
        (Toggle::On, _) => unused("feedback", feedback, "--momentum-correction on, which feeds back by itself")?,
        (Toggle::Off, ReducerSpec::Dense) => unused("feedback", feedback, &under)?,
        (Toggle::Off, _) => Some(feedback.unwrap_or(FeedbackSpec::Error)),
    };
    Ok((Some(reducer), compressor, feedback))
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
            bail!("--bucket-values is for --reducer gather, dense or shared-random-k, without --local-steps");
        }
        if self.data.is_some() && self.dataset == "generated" {
            bail!("--data would be ignored under --dataset generated: leave it away");
        }
        self.config(1)?.build(&Layout::flat(1000), self.ranks)?;
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
            return Ok(Config::Periodic(Rhythm { every }));
        };
        let reducer = spec.config(self.compressor()?)?;
        let full = self.full_factor()?;
        let tunable = !matches!(spec, ReducerSpec::Dense | ReducerSpec::PowerSgd(_));
        let controller = match &self.controller {
            ControllerSpec::Constant => ControllerConfig::None,
            other if tunable => other.config(full, steps_per_epoch).context("--controller")?,
            other => bail!(
                "--controller {other} turns the compression factor, but --reducer {spec} has none; use --reducer gather \
                 with --compressor topk or qsgd, or --reducer shared-random-k, or --controller constant"
            ),
        };
        let feedback = match (self.momentum_correction, self.feedback) {
            (Toggle::On, _) => {
                let momentum = self.momentum.context("--momentum-correction on needs --momentum")? as f32;
                Feedback::Momentum(Momentum { momentum, ..Momentum::default() })
            }
            (Toggle::Off, Some(FeedbackSpec::Error)) => Feedback::Error,
            (Toggle::Off, _) => Feedback::None,
        };
        Ok(Config::EveryStep(Exchange { reducer, feedback, controller, bucket_values: self.bucket_values }))
    }
}
