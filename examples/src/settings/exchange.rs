//! From flags to core's [`Config`]: short forms stand for its keys, and `--set` reaches all of them.

use anyhow::{Context, Result, bail, ensure};
use briquette::core::compress::Compressor;
use briquette::core::config::{
    AggregatorConfig, CompressorKind, Config, ControllerConfig, Exchange, Feedback, ReducerConfig, ServerConfig,
    StrategyConfig,
};
use briquette::core::reduce::GatherConfig;
use briquette::core::wrapper::{Momentum, OneBitAdamConfig};
use briquette::core::{CompressionFactor, Layout};

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

/// The others have their own, or none.
pub(super) fn momentum(optimizer: OptimizerKind, given: Option<f64>) -> Result<Option<f64>> {
    match optimizer {
        OptimizerKind::Sgd => Ok(Some(given.unwrap_or(SGD_MOMENTUM))),
        other => unused("momentum", given.as_ref(), &format!("--optimizer {}", other.name())).map(|()| None),
    }
}

/// What a compressor may be set of: a gather, alone or in several rounds.
fn gather(reducer: &mut ReducerConfig) -> Option<&mut GatherConfig> {
    match reducer {
        ReducerConfig::Gather(gather) => Some(gather),
        ReducerConfig::MultiStep(rounds) => gather(&mut rounds.inner),
        _ => None,
    }
}

impl Options {
    /// The exchange: that of a file, or the default one, with what the flags change of it. Where neither sets anything of what
    /// travels, it is [`Config::auto`]; where flags alone do, the rest is as their short forms need it.
    pub(super) fn exchange(&self) -> Result<(Config, Option<WarmUp>)> {
        let is_auto = self.config.is_none() && !self.sets_content();
        let mut config = match &self.config {
            Some(config) => config.clone(),
            None if is_auto && self.server.is_none() => Config::auto(),
            None => Config::dense(),
        };
        self.set_strategy(&mut config)?;
        self.set_reducer(&mut config, is_auto)?;
        let mut warm_up = None;
        match &self.controller {
            Some(ControllerSpec::Core(controller)) => config.exchange.controller = controller.clone(),
            Some(ControllerSpec::WarmUp(shape)) => warm_up = Some(*shape),
            None => {}
        }
        config = set(config, self.set.as_deref().unwrap_or_default()).context("--set")?;
        self.set_feedback(&mut config, is_auto)?;
        Ok((config, warm_up))
    }

    /// Whether a flag is one of what travels, and not only of how the work is done. A run of an older version had top-k where none was.
    fn sets_content(&self) -> bool {
        let key = |set: &String| set.split('=').next().unwrap_or_default().trim().replace('-', "_");
        let sets = self.set.iter().flatten().map(key);
        let changes = |flag: &&str| *flag != "set" && !(*flag == "staleness" && self.staleness == Some(0));
        let mut keys = self.given().filter(changes).map(str::to_owned).chain(sets);
        self.former.is_some() || keys.any(|key| !Config::WORK_KEYS.contains(&key.as_str()))
    }

    fn set_strategy(&self, config: &mut Config) -> Result<()> {
        if let Some(strategy) = &self.strategy {
            config.strategy = strategy.clone();
        }
        if let Some(period) = self.local_steps {
            unused("local-steps", self.strategy.as_ref(), "--strategy")?;
            config.strategy = format!("local-sgd:{period}").parse().context("--local-steps")?;
        }
        if let Some(late) = self.staleness.filter(|late| *late > 0) {
            unused("staleness", self.strategy.as_ref(), "--strategy")?;
            unused("staleness", self.local_steps.as_ref(), "--local-steps")?;
            ensure!(late == 1, "--staleness {late}: averages come 0 steps late or 1 (delayed)");
            config.strategy = "delayed".parse().context("--staleness")?;
        }
        Ok(())
    }

    fn set_reducer(&self, config: &mut Config, is_auto: bool) -> Result<()> {
        let Config { strategy, exchange } = config;
        if let Some(reducer) = &self.reducer {
            exchange.reducer = reducer.clone();
        } else if self.config.is_none()
            && !is_auto
            && *strategy == StrategyConfig::EveryStep
            && (self.server.is_none() || self.compressor.is_some())
        {
            exchange.reducer = GatherConfig::default().into();
        }
        let under = match &*strategy {
            StrategyConfig::EveryStep => format!("--reducer {}", exchange.reducer),
            other => format!("--strategy {other}"),
        };
        match gather(&mut exchange.reducer) {
            Some(gather) => {
                gather.compressor = self.compressor.unwrap_or(gather.compressor);
                gather.per_slot = self.per_slot.map_or(gather.per_slot, Toggle::is_on);
            }
            None => {
                unused("compressor", self.compressor.as_ref(), &under)?;
                unused("per-slot", self.per_slot.as_ref(), &under)?;
            }
        }
        exchange.aggregator = self.aggregator.unwrap_or(exchange.aggregator);
        exchange.rules = self.rules.as_ref().map_or_else(|| std::mem::take(&mut exchange.rules), |rules| rules.rules());
        exchange.dense_below = self.dense_below.or(exchange.dense_below);
        exchange.bucket_values = self.bucket_values.or(exchange.bucket_values);
        if let Some(overlap) = self.overlap {
            exchange.overlap = overlap == OverlapSpec::On;
            exchange.during_backward = overlap == OverlapSpec::Backward;
        }
        exchange.threads = self.threads.or(exchange.threads);
        if is_exact(exchange) && *strategy == StrategyConfig::EveryStep {
            unused("dense-below", self.dense_below.as_ref(), &under)?;
            unused("feedback", self.feedback.as_ref(), &under)?;
        }
        Ok(())
    }

    /// What is given, or else what the reducers need.
    fn set_feedback(&self, config: &mut Config, is_auto: bool) -> Result<()> {
        let is_set = self.set.iter().flatten().any(|set| set.starts_with("feedback"));
        let exchange = &mut config.exchange;
        if self.momentum_correction == Some(Toggle::On) {
            unused("feedback", self.feedback.as_ref(), "--momentum-correction on, which feeds back by itself")?;
            let momentum = self.momentum.unwrap_or(SGD_MOMENTUM) as f32;
            exchange.feedback = Momentum { momentum, ..Momentum::default() }.into();
        } else if let Some(feedback) = self.feedback {
            exchange.feedback = feedback;
        } else if self.config.is_none() && !is_auto && !is_set {
            let is_lossy = exchange.reducers().any(|reducer| reducer.get().traits().needs_feedback);
            let allowed = self.server.is_none_or(|server| server.get().allows_memory());
            exchange.feedback = if is_lossy && allowed { Feedback::Error } else { Feedback::None };
        }
        Ok(())
    }
}

/// Whether everything travels as it is.
fn is_exact(exchange: &Exchange) -> bool {
    exchange.reducer.get().traits().is_dense && exchange.rules.is_empty()
}

/// `KEY=VALUE` each: the configuration as TOML, changed there, and read again.
fn set(config: Config, sets: &[String]) -> Result<Config> {
    if sets.is_empty() {
        return Ok(config);
    }
    let mut table = toml::Table::try_from(&config)?;
    for text in sets {
        let (key, value) = text.split_once('=').with_context(|| format!("`{text}` is not KEY=VALUE"))?;
        // What is no value of TOML is a text.
        let read = toml::from_str::<toml::Table>(&format!("value = {value}")).ok();
        let value = read.and_then(|mut table| table.remove("value")).unwrap_or_else(|| value.into());
        let key = key.trim().replace('-', "_");
        let (tables, key) = key.rsplit_once('.').map_or((None, &key[..]), |(tables, key)| (Some(tables), key));
        let mut inside = &mut table;
        for name in tables.into_iter().flat_map(|tables| tables.split('.')) {
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
    /// Whether every rank corrects its momentum before it compresses: the optimizer then has none.
    pub fn corrects_momentum(&self) -> bool {
        matches!(self.config.exchange.feedback, Feedback::Momentum(_) | Feedback::RankMomentum(_))
    }

    /// The warm-up and the momentum of 1-bit Adam, where that is exchanged.
    pub fn one_bit_adam(&self) -> Option<OneBitAdamConfig> {
        match self.config.exchange.feedback {
            Feedback::OneBitAdam(settings) => Some(settings),
            _ => None,
        }
    }

    /// What would be ignored is refused; the rest is built once, for any layout.
    pub(super) fn check_exchange(&self) -> Result<()> {
        let of_gradients = matches!(self.config.strategy, StrategyConfig::Minibatch(_));
        if !self.config.steps_with_averages() && !of_gradients && self.rebroadcast.is_some() {
            bail!(
                "--rebroadcast would be ignored under --strategy {}, which exchanges parameters itself: omit it",
                self.config.strategy
            );
        }
        let mut config = self.config(1)?;
        if config.steps_with_averages() {
            // Layers are known when the model is there: whether a rule matches one is checked then.
            config.exchange.rules.clear();
            config.exchange.dense_below = Some(0);
        }
        // Likewise whether there are as many layers as fragments.
        let layers = match &config.strategy {
            StrategyConfig::StreamingDiloco(settings) => settings.fragments.clamp(1, 1000),
            _ => 1,
        };
        config.build(&Layout::new((0..layers).map(|i| (i.to_string(), vec![1000]))), self.ranks)?;
        Ok(())
    }

    /// The ratio that reducer or compressor were set to, where it is one of a sparsifier.
    fn full_factor(&self) -> Option<CompressionFactor> {
        match &self.config.exchange.reducer {
            ReducerConfig::SharedRandomK(settings) => Some(settings.factor),
            other => {
                let compressor = other.get().compressor().map(|config| config.compressor());
                compressor.filter(CompressorKind::is_sparse).map(|compressor| compressor.nominal())
            }
        }
    }

    /// What Briquette is asked to do; a warm-up needs to know the steps of an epoch.
    ///
    /// # Errors
    /// What the controller finds wrong.
    pub fn config(&self, steps_per_epoch: u64) -> Result<Config> {
        let mut config = self.config.clone();
        if let Some(warm_up) = self.warm_up {
            let to = self.full_factor().context(
                "--controller schedule warms a sparsifier up: use --compressor topk:… or --reducer shared-random-k",
            )?;
            config.exchange.controller = warm_up.controller(to, steps_per_epoch);
        }
        Ok(config)
    }
}

/// What there is of each family, for `--help`.
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
mod tests {
    use super::*;
    use briquette::core::control::GraVacConfig;

    #[test]
    fn gravac_is_the_same_in_code_in_toml_and_as_a_flag() {
        for (text, settings) in [
            ("gravac", GraVacConfig::default()),
            ("gravac:10x,max=100x,epsilon=0.4,window=25", GraVacConfig::small_model()),
            (
                "gravac:epsilon=0.9,dense_steps=3",
                GraVacConfig { epsilon: 0.9, dense_steps: 3, ..GraVacConfig::default() },
            ),
        ] {
            let code = Config::gravac(settings);
            let toml = format!("reducer = 'gather:topk:10x:q8'\nfeedback = 'error'\ncontroller = '{text}'");
            assert_eq!(toml::from_str::<Config>(&toml).unwrap(), code, "{text}");
            let flags = Options {
                compressor: Some("topk:10x:q8".parse().unwrap()),
                controller: Some(text.parse().unwrap()),
                ..Options::default()
            };
            assert_eq!(flags.resolve().unwrap().config, code, "{text}");
            let set = vec!["reducer=gather:topk:10x:q8".to_owned(), format!("controller={text}")];
            assert_eq!(Options { set: Some(set), ..Options::default() }.resolve().unwrap().config, code, "{text}");
        }
    }

    /// The boundary of `Config`'s own defaults.
    #[test]
    fn without_a_flag_or_key_of_what_travels_it_is_auto() {
        let config = |text: &str| toml::from_str::<Options>(text).unwrap().resolve().unwrap().config;
        let auto = Config::auto();
        for nothing in ["", "optimizer = 'adam'", "[config]", "momentum = 0.5\nweight-decay = 0.1"] {
            assert_eq!(config(nothing), auto, "{nothing}");
        }
        let exchange = Exchange { bucket_values: Some(100), overlap: true, threads: Some(1), ..auto.exchange.clone() };
        let how = "bucket-values = 100\noverlap = 'on'\nthreads = 1";
        let keys = "[config]\nbucket_values = 100\noverlap = true\nthreads = 1";
        for how in [how, keys, "set = ['bucket-values=100', 'overlap=true', 'threads=1']"] {
            assert_eq!(config(how), Config { exchange: exchange.clone(), ..auto.clone() }, "{how}");
        }
        let during = Exchange { during_backward: true, ..auto.exchange.clone() };
        for how in ["set = ['during_backward=true']", "overlap = 'backward'", "[config]\nduring_backward = true"] {
            assert_eq!(config(how), Config { exchange: during.clone(), ..auto.clone() }, "{how}");
        }
        // What a flag or a key alone meant, it means.
        let top_k =
            Exchange { reducer: GatherConfig::default().into(), feedback: Feedback::Error, ..Exchange::default() };
        let gravac = Exchange { controller: "gravac".parse().unwrap(), ..top_k.clone() };
        let momentum = Exchange { feedback: Momentum::default().into(), ..top_k.clone() };
        for (flags, expected) in [
            ("controller = 'gravac'", gravac.clone()),
            ("per-slot = 'off'", top_k.clone()),
            ("aggregator = 'mean'", top_k.clone()),
            ("strategy = 'every-step'", top_k.clone()),
            ("momentum-correction = 'on'", momentum),
            ("momentum-correction = 'off'", top_k.clone()),
            ("compressor = 'topk:20x:q8'", top_k.clone()),
            ("dense-below = 5", Exchange { dense_below: Some(5), ..top_k }),
            ("set = ['controller=gravac']", gravac),
            ("reducer = 'dense'", Exchange::default()),
            ("[config]\nstrategy = 'every-step'", Exchange::default()),
            ("[config]\ncontroller = 'none'", Exchange::default()),
        ] {
            assert_eq!(config(flags), Config::every_step(expected), "{flags}");
        }
    }

    /// Their checkpoints have top-k.
    #[test]
    fn a_run_of_an_older_version_without_such_a_flag_goes_on_with_top_k() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.toml");
        std::fs::write(&path, "run = \"7\"\nranks = 2\nlr = 0.2\n").unwrap();
        let read = Options::read(&path).and_then(|options| options.of_older_version(&path)).unwrap();
        let exchange = read.resolve().unwrap().config.exchange;
        assert_eq!((exchange.reducer, exchange.feedback), (GatherConfig::default().into(), Feedback::Error));
    }
}
