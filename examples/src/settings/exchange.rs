//! Conversion of flags to core's [`Config`]: short forms stand for its keys, and `--set` reaches all of them.

use anyhow::{Context, Result, bail, ensure};
use briquette::core::CompressionRatio;
use briquette::core::compress::Compressor;
use briquette::core::config::{
    AggregatorConfig, Choice, CompressorKind, Config, ControllerConfig, Feedback, Parts, ReducerConfig, ServerConfig,
    StrategyConfig,
    combine::{self, InnerOptimizer},
};
use briquette::core::reduce::{gather::GatherConfig, shared_random_k::SharedRandomKConfig};
use briquette::core::wrapper::momentum_correction::MomentumCorrectionConfig;
use briquette::zoo::reduce::multi_step::MultiStepConfig;
use briquette::zoo::sync::minibatch::MinibatchConfig;
use briquette::zoo::wrapper::one_bit_adam::OneBitAdamConfig;

use super::{OptimizerKind, Options, Settings};
pub use crate::spec::WarmUp;
use crate::spec::{ControllerSpec, OverlapSpec, Toggle};

/// Refuses a flag that would be ignored.
fn unused<T>(flag: &str, given: Option<&T>, under: &str) -> Result<()> {
    match given {
        Some(_) => bail!("--{flag} would be ignored under {under}: omit it"),
        None => Ok(()),
    }
}

const SGD_MOMENTUM: f64 = 0.9;

/// Returns the momentum of SGD; other optimizers have their own, or none.
pub(super) fn momentum(optimizer: OptimizerKind, given: Option<f64>) -> Result<Option<f64>> {
    match optimizer {
        OptimizerKind::Sgd => Ok(Some(given.unwrap_or(SGD_MOMENTUM))),
        other => unused("momentum", given.as_ref(), &format!("--optimizer {}", other.name())).map(|()| None),
    }
}

/// Returns the reducer with another gather, alone or in several rounds. Returns `None` if it has none.
fn with_gather(reducer: &ReducerConfig, other: impl FnOnce(&GatherConfig) -> GatherConfig) -> Option<ReducerConfig> {
    match reducer.downcast_ref() {
        Some(MultiStepConfig { rounds, inner }) => {
            let inner = with_gather(inner, other)?;
            Some(MultiStepConfig { rounds: *rounds, inner }.into())
        }
        None => reducer.downcast_ref().map(|gather| other(gather).into()),
    }
}

/// Reasons for the parts of an exchange. They are ignored when two runs are compared.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reasons(pub(super) Vec<Choice>);

impl PartialEq for Reasons {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Exchange that results from flags, `--set` and a file.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) config: Config,
    pub(super) warm_up: Option<WarmUp>,
    /// Each part, with the reason for it.
    pub(super) choices: Vec<Choice>,
}

impl Options {
    /// Resolves the exchange: the parts named by flags and a file, and the parts that core's
    /// [rules](briquette::core::config::parts) choose.
    pub(super) fn exchange(&self) -> Result<Resolved> {
        let mut parts = self.config.clone().unwrap_or_default();
        let mut warm_up = None;
        match &self.controller {
            Some(ControllerSpec::Core(controller)) => parts.controller = Some(controller.clone()),
            Some(ControllerSpec::WarmUp(shape)) => {
                warm_up = Some(*shape);
                // It is resolved once the steps of an epoch are known; the compressor under warm-up is a sparsifier.
                parts.controller = Some(ControllerConfig::none());
            }
            None => {}
        }
        self.set_strategy(&mut parts)?;
        self.set_reducer(&mut parts)?;
        parts = set(parts, self.set.as_deref().unwrap_or_default()).context("--set")?;
        self.set_feedback(&mut parts)?;
        let (config, mut choices) = match &self.server {
            Some(server) => of_server(parts, server),
            None => parts.choose(),
        };
        self.refuse_unused(&config)?;
        if let Some(shape) = warm_up {
            let named = choices.iter_mut().find(|choice| choice.part == "controller");
            named.into_iter().for_each(|choice| *choice = Choice::named("controller", String::from(shape)));
        }
        Ok(Resolved { config, warm_up, choices })
    }

    fn set_strategy(&self, parts: &mut Parts) -> Result<()> {
        if let Some(strategy) = &self.strategy {
            parts.strategy = Some(strategy.clone());
        }
        if let Some(period) = self.local_steps {
            unused("local-steps", self.strategy.as_ref(), "--strategy")?;
            parts.strategy = Some(format!("local-sgd:{period}").parse().context("--local-steps")?);
        }
        if let Some(late) = self.staleness.filter(|late| *late > 0) {
            unused("staleness", self.strategy.as_ref(), "--strategy")?;
            unused("staleness", self.local_steps.as_ref(), "--local-steps")?;
            ensure!(late == 1, "--staleness {late}: averages come 0 steps late or 1 (delayed)");
            parts.strategy = Some("delayed".parse().context("--staleness")?);
        }
        Ok(())
    }

    fn set_reducer(&self, parts: &mut Parts) -> Result<()> {
        let strategy = parts.strategy.clone().unwrap_or_default();
        let is_every_step = strategy.is_every_step();
        let names_a_message = self.compressor.is_some() || self.per_slot == Some(Toggle::On);
        if let Some(reducer) = &self.reducer {
            parts.reducer = Some(reducer.clone());
        } else if parts.reducer.is_none() && names_a_message && is_every_step {
            parts.reducer = Some(GatherConfig::default().into());
        }
        let named = |gather: &GatherConfig| GatherConfig {
            compressor: self.compressor.as_ref().unwrap_or(&gather.compressor).clone(),
            per_slot: self.per_slot.map_or(gather.per_slot, Toggle::is_on),
        };
        match parts.reducer.as_ref().and_then(|reducer| with_gather(reducer, named)) {
            Some(reducer) => parts.reducer = Some(reducer),
            None if self.reducer.is_some() || names_a_message => {
                let under = match &parts.reducer {
                    Some(reducer) if is_every_step => format!("--reducer {reducer}"),
                    _ => format!("--strategy {strategy}"),
                };
                unused("compressor", self.compressor.as_ref(), &under)?;
                unused("per-slot", self.per_slot.as_ref(), &under)?;
            }
            None => {}
        }
        let rest = &mut parts.rest;
        rest.aggregator = self.aggregator.as_ref().unwrap_or(&rest.aggregator).clone();
        rest.rules = self.rules.as_ref().map_or_else(|| std::mem::take(&mut rest.rules), |rules| rules.rules());
        rest.dense_below = self.dense_below.or(rest.dense_below);
        rest.bucket_values = self.bucket_values.or(rest.bucket_values);
        if let Some(overlap) = self.overlap {
            rest.during_backward = overlap == OverlapSpec::Backward;
        }
        rest.threads = self.threads.or(rest.threads);
        Ok(())
    }

    fn set_feedback(&self, parts: &mut Parts) -> Result<()> {
        if self.momentum_correction == Some(Toggle::On) {
            unused("feedback", self.feedback.as_ref(), "--momentum-correction on, which feeds back by itself")?;
            let momentum = self.momentum.unwrap_or(SGD_MOMENTUM) as f32;
            parts.feedback = Some(MomentumCorrectionConfig { momentum, ..MomentumCorrectionConfig::default() }.into());
        }
        parts.feedback = self.feedback.clone().or(parts.feedback.take());
        Ok(())
    }

    fn refuse_unused(&self, config: &Config) -> Result<()> {
        let is_exact = config.exchange.reducer.get().traits().is_dense && config.exchange.rules.is_empty();
        if !is_exact || !config.strategy.is_every_step() {
            return Ok(());
        }
        let under = format!("--reducer {}", config.exchange.reducer);
        unused("dense-below", self.dense_below.as_ref(), &under)?;
        unused("feedback", self.feedback.as_ref(), &under)
    }
}

/// Resolves a server's exchange: workers send dense if no reducer is named, and only error feedback is possible.
fn of_server(mut parts: Parts, server: &ServerConfig) -> (Config, Vec<Choice>) {
    let is_open = (parts.reducer.is_none(), parts.feedback.is_none());
    let needs = parts.reducer.get_or_insert_default().get().traits().needs_feedback;
    let keeps_state = needs && server.get().allows_residual();
    parts.feedback.get_or_insert_with(if keeps_state { Feedback::error } else { Feedback::none });
    parts.controller.get_or_insert_default();
    let (config, mut choices) = parts.choose();
    let why = [
        "under --server dense is sent where nothing else is named",
        "under --server a worker keeps its errors or nothing",
    ];
    for (is_open, part, why) in [(is_open.0, "reducer", why[0]), (is_open.1, "feedback", why[1])] {
        let open = choices.iter_mut().find(|choice| choice.part == part && is_open);
        open.into_iter().for_each(|choice| choice.reason = Some(why.to_owned()));
    }
    (config, choices)
}

/// Applies `KEY=VALUE` settings: the parts are converted to TOML, changed there, and read again.
fn set(parts: Parts, sets: &[String]) -> Result<Parts> {
    if sets.is_empty() {
        return Ok(parts);
    }
    let mut table = toml::Table::try_from(&parts)?;
    for text in sets {
        let (key, value) = text.split_once('=').with_context(|| format!("`{text}` is not KEY=VALUE"))?;
        // A value that is not valid TOML is taken as a string.
        let read = toml::from_str::<toml::Table>(&format!("value = {value}")).ok();
        let value = read.and_then(|mut table| table.remove("value")).unwrap_or_else(|| value.into());
        let key = key.trim().replace('-', "_");
        let (tables, key) = key.rsplit_once('.').map_or((None, &key[..]), |(tables, key)| (Some(tables), key));
        let mut inside = &mut table;
        for name in tables.into_iter().flat_map(|tables| tables.split('.')) {
            if key != "kind" && !inside.contains_key(name) {
                bail!("`{name}` is left open: set it whole, or set {name}.kind first");
            }
            let entry = inside.entry(name).or_insert_with(|| toml::Table::new().into());
            if key == "kind" && entry.is_str() {
                *entry = toml::Table::new().into();
            }
            let text = entry.to_string();
            let wrong = || format!("`{name}` is {text}: set it whole, or set {name}.kind first");
            inside = entry.as_table_mut().with_context(wrong)?;
        }
        inside.insert(key.to_owned(), value);
    }
    Ok(table.try_into()?)
}

impl Settings {
    /// Returns each part of the exchange and the reason for it. A feedback that depends on the optimizer is given as resolved.
    pub fn choices(&self) -> Vec<Choice> {
        let momentum = self.momentum.filter(|momentum| *momentum > 0.0 && !self.corrects_momentum());
        let optimizer = match (self.optimizer, momentum) {
            (OptimizerKind::Sgd, Some(momentum)) => format!("SGD with momentum {momentum}"),
            (OptimizerKind::Sgd, None) => "SGD without momentum".to_owned(),
            (other, _) => format!("{}, not SGD with momentum", other.name()),
        };
        let mut choices = self.reasons.0.clone();
        if let Some(decided) = self.config.clone().choose_feedback(momentum.map(|m| m as f32), &optimizer)
            && self.server.is_none()
        {
            choices.retain(|choice| choice.part != "feedback");
            choices.push(decided);
        }
        choices
    }

    /// Resolves the settings for a run of `steps` steps: chooses the parts that the strategy leaves open until that
    /// number is known.
    #[must_use]
    pub(crate) fn for_steps(&self, steps: Option<u64>) -> (Self, Option<Choice>) {
        let mut settings = self.clone();
        let choice = settings.config.choose_for(steps);
        steps.into_iter().for_each(|steps| settings.set_budget(steps));
        (settings, choice)
    }

    /// Returns whether every rank corrects its momentum before it compresses: the optimizer then has none.
    pub fn corrects_momentum(&self) -> bool {
        self.config.exchange.feedback.get().optimizer() == Some(InnerOptimizer::Sgd)
    }

    /// Returns the warm-up and the momentum of 1-bit Adam, if its momentum is exchanged.
    pub fn one_bit_adam(&self) -> Option<OneBitAdamConfig> {
        self.config.exchange.feedback.downcast_ref().copied()
    }

    /// Refuses settings that would be ignored, and builds the rest once, for any layout.
    pub(super) fn check_exchange(&self) -> Result<()> {
        let of_gradients = self.config.strategy.is::<MinibatchConfig>();
        if !self.config.steps_with_averages() && !of_gradients && self.rebroadcast.is_some() {
            bail!(
                "--rebroadcast would be ignored under --strategy {}, which exchanges parameters itself: omit it",
                self.config.strategy
            );
        }
        // Layers are known once the model exists: whether a rule matches one is checked then.
        Ok(combine::check_without_model(&self.config(1)?, &combine::Run::default().with_world(self.ranks))?)
    }

    /// Returns the ratio set for the reducer or compressor, if it is one of a sparsifier.
    fn full_ratio(&self) -> Option<CompressionRatio> {
        let reducer = &self.config.exchange.reducer;
        let compressor = reducer.get().compressor().filter(|config| config.compressor().is_sparse());
        let sparsifier = compressor.map(|config| config.build().nominal());
        sparsifier.or_else(|| reducer.downcast_ref().map(|random: &SharedRandomKConfig| random.ratio))
    }

    /// Returns the configuration for Briquette; a warm-up needs the number of steps per epoch.
    ///
    /// # Errors
    /// Errors of the controller.
    pub fn config(&self, steps_per_epoch: u64) -> Result<Config> {
        let mut config = self.config.clone();
        if let Some(warm_up) = self.warm_up {
            let to = self.full_ratio().context(
                "--controller schedule warms a sparsifier up: use --compressor topk:… or --reducer shared-random-k",
            )?;
            config.exchange.controller = warm_up.controller(to, steps_per_epoch);
        }
        Ok(config)
    }
}

/// Lists the members of each family, for `--help`.
pub fn families() -> String {
    let lists = [
        ("--strategy, --set strategy=", StrategyConfig::help()),
        ("--reducer, --set reducer=", ReducerConfig::help()),
        ("--compressor, --set reducer=gather:", CompressorKind::help()),
        ("--aggregator, --set aggregator=", AggregatorConfig::help()),
        ("--feedback, --set feedback=", Feedback::help()),
        ("--controller, --set controller=", ControllerConfig::help()),
        ("--server", ServerConfig::help()),
    ];
    let list = |(flag, entries): (&str, Vec<(String, &str)>)| {
        let entries = entries.into_iter().map(|(syntax, help)| format!("  {syntax}\n          {help}\n"));
        format!("\n{flag}\n{}", entries.collect::<String>())
    };
    lists.map(list).concat()
}

#[cfg(test)]
mod tests;
