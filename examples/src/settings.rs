//! Flags, `--config run.toml`, and what they resolve to.
//!
//! A run is described by [`Options`]: every flag, optional. The file given with `--config` uses the same names. Flags win over
//! the file, the file over the trainer's defaults. [`Settings`] is the resolved description; it is printed, and written to
//! `config.toml`, which is itself a valid `--config`.

mod exchange;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use briquette::core::comm::Network;
use briquette::core::config::AggregatorConfig;
use clap::Args;
use serde::{Deserialize, Serialize};

use self::exchange::ExchangeFlags;
use crate::lr_schedule::LrSchedule;
use crate::spec::{ClockSpec, ControllerSpec, FeedbackSpec, RecordSpec, ReducerSpec, RulesSpec, Toggle};

macro_rules! options {
    ($($(#[doc = $doc:literal])+ $(#[arg($($arg:tt)*)])? $name:ident : $type:ty),* $(,)?) => {
        /// Every flag of the trainers; the same names (with dashes) are the keys of `--config`.
        // The comments of the fields are the texts of `--help`, where brackets are not links.
        #[allow(rustdoc::broken_intra_doc_links)]
        #[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields)]
        pub struct Options {
            /// The run's id, in its config.toml; of no account for another run.
            #[arg(skip)]
            #[serde(skip_serializing)]
            pub run: Option<String>,
            $($(#[doc = $doc])+ #[arg(long, $($($arg)*)?)] #[serde(skip_serializing_if = "Option::is_none")] pub $name: Option<$type>),*
        }

        impl Options {
            /// `self` where it says something, `other` elsewhere.
            #[must_use]
            pub fn or(self, other: Options) -> Options {
                Options { run: self.run.or(other.run), $($name: self.$name.or(other.$name)),* }
            }
        }
    };
}

options! {
    /// What to train on: cifar10, cifar100 or ag-news as the trainer takes, or `generated`, which needs no file
    dataset: String,
    /// Directory with the dataset's files; otherwise the user's cache, then a download
    #[arg(value_name = "DIR")]
    data: PathBuf,
    /// The model; an unknown name lists the valid ones
    model: String,
    /// Ranks, each a thread with a model of its own
    ranks: usize,
    /// Passes over the training data; with --steps, what a schedule that is not constant is stretched over
    epochs: usize,
    /// Stop after so many optimizer steps, whatever the epochs
    steps: u64,
    /// Samples per rank and step
    batch: usize,
    /// Peak learning rate
    lr: f64,
    /// Momentum of SGD, in [0, 1)
    momentum: f64,
    /// Weight decay: `decay · parameter` is added to each rank's gradient
    weight_decay: f64,
    /// sgd or adam
    optimizer: OptimizerKind,
    /// Learning rate over the run: constant, cosine, or one-cycle (up over 30 %, then down)
    schedule: LrSchedule,
    /// Seed of weights, data order, augmentation and compressors
    seed: u64,
    /// How gradients are combined: gather, dense, power-sgd[:RANK], shared-random-k[:FACTORx], sparse-all-reduce[:FACTORx],
    /// sketched-sgd[:FACTORx], ternary-all-reduce[:CLIP], or multi-step[:ROUNDS], several gathers of what those before left
    reducer: ReducerSpec,
    /// Deep Gradient Compression's momentum correction in place of the optimizer's momentum (sgd): on or off
    momentum_correction: Toggle,
    /// What travels under gather and multi-step: dense, f16, bf16, topk:0.01, topk:20x:q8, topk:20x+natural, qsgd:4, sign; an
    /// unknown one lists all
    compressor: String,
    /// Under gather and multi-step: on for a message for each layer, off for one in all
    per_slot: Toggle,
    /// How gather combines the ranks' contributions: mean, krum:BYZANTINE[,keep=M], or trimmed-mean:TRIM, which bear ranks that
    /// send anything
    aggregator: AggregatorConfig,
    /// Layers that another compressor takes, by their path, as PATTERN=COMPRESSOR,...: *.norm.*=dense,*head.weight=qsgd:8
    rules: RulesSpec,
    /// Layers of fewer values are exchanged dense; 0 if absent, 1024 with --per-slot on
    dense_below: usize,
    /// What becomes of what was not sent: error (feed it back), error-inside (with the learning rate of its own step),
    /// diana[:ALPHA], ef21, or none; what the compressor needs if absent
    feedback: FeedbackSpec,
    /// Who chooses the factor: constant, schedule[:from=4x,epochs=1], gravac[:epsilon=0.4,min=10x,max=100x,window=25,...]
    controller: ControllerSpec,
    /// Average parameters every so many steps instead of gradients every step (Local SGD); what is evaluated is an average
    local_steps: u64,
    /// Values a bucket holds at least; one bucket if absent
    bucket_values: usize,
    /// Exchange every other bucket in the background, on a second thread; needs --bucket-values
    overlap: Toggle,
    /// Threads a rank encodes and decodes with; its own alone if absent
    threads: usize,
    /// The link that is simulated: unlimited, or bandwidth,latency[,ranks-per-link] such as 100mbit,1ms
    network: String,
    /// What controllers and simulated time see as computing: wall, or fixed:50ms a step, which makes a run reproducible
    clock: ClockSpec,
    /// Where the model runs: flex, ndarray, tch, wgpu, vulkan, metal or cuda, as far as they were built in; several with commas
    /// for ranks in turn; `list` shows what there is
    backend: String,
    /// The device's number in `--backend list`, or several with commas for ranks in turn; the ranks of a machine share its GPUs
    /// out if absent
    device: String,
    /// Steps between taking rank 0's parameters on every rank, 0 for never; 100 if absent where ranks round differently
    rebroadcast: u64,
    /// Image augmentation: none, flip, or crop-flip
    augment: AugmentSpec,
    /// Split the data unevenly over ranks by class: concentration of a Dirichlet distribution, smaller is more uneven
    non_iid: f64,
    /// Directory for config.toml, metrics.jsonl, summary.json and checkpoints
    #[arg(value_name = "DIR")]
    out: PathBuf,
    /// Steps between checkpoints; an epoch if absent, 0 for none but the last
    checkpoint_every: u64,
    /// Write checkpoints in a thread while training goes on: on or off. A checkpoint is then complete at the next one, or at the
    /// end; each rank holds its file in memory until it is written
    background_saving: Toggle,
    /// Write rank 0's gradient of this step to gradient.safetensors in --out, for `briquette inspect`: STEP, or STEP:bf16 for
    /// half the size
    #[arg(value_name = "STEP")]
    record_gradient: RecordSpec,
    /// Epochs between evaluations on the test samples; the last epoch is always evaluated
    eval_every: u64,
    /// Use only the first N training samples
    #[arg(value_name = "N")]
    train_limit: usize,
    /// Use only the first N test samples
    #[arg(value_name = "N")]
    test_limit: usize,
}

/// SGD or Adam.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerKind {
    /// Momentum SGD.
    Sgd,
    /// Adam.
    Adam,
}

/// Image augmentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum AugmentSpec {
    /// As they are.
    None,
    /// Mirrored half the time.
    Flip,
    /// Moved by up to four pixels and mirrored half the time.
    CropFlip,
}

/// A resolved run. What has no part in it is absent: a compressor where everything travels, momentum under Adam.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)] // the flags' help says what each is
pub struct Settings {
    pub dataset: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
    pub model: String,
    pub ranks: usize,
    pub epochs: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    pub batch: usize,
    pub lr: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub momentum: Option<f64>,
    pub weight_decay: f64,
    pub optimizer: OptimizerKind,
    pub schedule: LrSchedule,
    pub seed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reducer: Option<ReducerSpec>,
    pub momentum_correction: Toggle,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compressor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_slot: Option<Toggle>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregator: Option<AggregatorConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<RulesSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense_below: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feedback: Option<FeedbackSpec>,
    pub controller: ControllerSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_steps: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket_values: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlap: Option<Toggle>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    pub network: String,
    pub clock: ClockSpec,
    pub backend: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rebroadcast: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub augment: Option<AugmentSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub non_iid: Option<f64>,
    pub out: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_every: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub background_saving: Option<Toggle>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_gradient: Option<RecordSpec>,
    pub eval_every: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train_limit: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test_limit: Option<usize>,
}

impl Options {
    /// Reads `--config`.
    ///
    /// # Errors
    /// Names the file, and the line and key that are wrong.
    pub fn read(path: &Path) -> Result<Options> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read --config {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("in --config {}", path.display()))
    }

    /// Fills what is missing and checks ranges.
    ///
    /// # Errors
    /// Names the flag and the values it may take.
    pub fn resolve(self) -> Result<Settings> {
        let momentum_correction = self.momentum_correction.unwrap_or(Toggle::Off);
        let optimizer = self.optimizer.unwrap_or(OptimizerKind::Sgd);
        let given = ExchangeFlags {
            reducer: self.reducer,
            compressor: self.compressor,
            per_slot: self.per_slot,
            aggregator: self.aggregator,
            rules: self.rules,
            dense_below: self.dense_below,
            feedback: self.feedback,
        };
        let exchange = given.resolve(self.local_steps.is_some(), momentum_correction)?;
        let settings = Settings {
            dataset: self.dataset.unwrap_or_default(),
            data: self.data,
            model: self.model.unwrap_or_default(),
            ranks: self.ranks.unwrap_or(4),
            epochs: self.epochs.unwrap_or(5),
            steps: self.steps,
            batch: self.batch.unwrap_or(32),
            lr: self.lr.unwrap_or(0.1),
            momentum: exchange::momentum(optimizer, self.momentum)?,
            weight_decay: self.weight_decay.unwrap_or(0.0),
            optimizer,
            schedule: self.schedule.unwrap_or(LrSchedule::Constant),
            seed: self.seed.unwrap_or(1),
            reducer: exchange.reducer,
            momentum_correction,
            compressor: exchange.compressor,
            per_slot: exchange.per_slot,
            aggregator: exchange.aggregator,
            rules: exchange.rules,
            dense_below: exchange.dense_below,
            feedback: exchange.feedback,
            controller: self.controller.unwrap_or(ControllerSpec::Constant),
            local_steps: self.local_steps,
            bucket_values: self.bucket_values,
            overlap: self.overlap,
            threads: self.threads,
            network: self.network.unwrap_or_else(|| "unlimited".into()),
            clock: self.clock.unwrap_or(ClockSpec::Wall),
            backend: self.backend.unwrap_or_else(|| crate::backend::default().into()),
            device: self.device,
            rebroadcast: self.rebroadcast,
            augment: self.augment,
            non_iid: self.non_iid,
            out: self.out.unwrap_or_else(|| PathBuf::from("runs/latest")),
            checkpoint_every: self.checkpoint_every,
            background_saving: self.background_saving,
            record_gradient: self.record_gradient,
            eval_every: self.eval_every.unwrap_or(1),
            train_limit: self.train_limit,
            test_limit: self.test_limit,
        };
        settings.check()?;
        Ok(settings)
    }
}

/// Most ranks of a run: each has a connection, or a queue, to each other one.
const RANKS: usize = 4096;
/// Most threads of a rank: more than the cores of any machine that it could use them on.
const THREADS: usize = 256;

impl Settings {
    fn check(&self) -> Result<()> {
        let counts = [("ranks", Some(self.ranks)), ("batch", Some(self.batch)), ("epochs", Some(self.epochs))];
        let limits =
            [("train-limit", self.train_limit), ("test-limit", self.test_limit), ("bucket-values", self.bucket_values)];
        let steps = [("steps", self.steps), ("eval-every", Some(self.eval_every)), ("local-steps", self.local_steps)];
        let steps = steps.map(|(flag, value)| (flag, value.map(|v| v as usize)));
        if let Some((flag, _)) = counts.into_iter().chain(limits).chain(steps).find(|(_, value)| *value == Some(0)) {
            bail!("--{flag} must be at least 1, got 0");
        }
        for (flag, value, limit) in [("ranks", self.ranks, RANKS), ("threads", self.threads.unwrap_or(1), THREADS)] {
            if value > limit {
                bail!("--{flag} must be at most {limit}, got {value}");
            }
        }
        // Parameters are f32: what is no number there is none here.
        let is_number = |value: f64| (value as f32).is_finite();
        if !(is_number(self.lr) && self.lr > 0.0) {
            bail!("--lr must be a positive number up to 3.4e38, got {}", self.lr);
        }
        if let Some(momentum) = self.momentum.filter(|momentum| !(0.0..1.0).contains(momentum)) {
            bail!("--momentum must be in [0, 1), got {momentum}");
        }
        if !(is_number(self.weight_decay) && self.weight_decay >= 0.0) {
            bail!("--weight-decay must be at least 0 and at most 3.4e38, got {}", self.weight_decay);
        }
        if self.momentum_correction == Toggle::On && self.optimizer == OptimizerKind::Adam {
            bail!("--momentum-correction on is for --optimizer sgd: Adam would take velocities for gradients");
        }
        if self.non_iid.is_some_and(|alpha| !(1e-6..=1e6).contains(&alpha)) {
            bail!("--non-iid must be between 1e-6 and 1e6, got {}", self.non_iid.unwrap_or_default());
        }
        self.network()?;
        crate::backend::backends(self)?;
        self.check_exchange()
    }

    /// The simulated link.
    ///
    /// # Errors
    /// Says what a network looks like.
    pub fn network(&self) -> Result<Network> {
        self.network.parse().context("--network")
    }

    /// Whether time is simulated.
    pub fn simulated(&self) -> bool {
        self.network != "unlimited" || self.clock != ClockSpec::Wall
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let file: Options = toml::from_str("ranks = 2\nbatch = 8\nmomentum-correction = \"on\"").unwrap();
        let flags = Options { ranks: Some(3), ..Options::default() };
        let settings = flags.or(file).resolve().unwrap();
        assert_eq!((settings.ranks, settings.batch, settings.epochs), (3, 8, 5));
        assert_eq!(settings.momentum_correction, Toggle::On);
        let written = toml::to_string(&settings).unwrap();
        let again = toml::from_str::<Options>(&written).unwrap().resolve().unwrap();
        assert_eq!(again, settings, "config.toml is a valid --config");
    }

    #[test]
    fn impossible_settings_name_the_flag() {
        let wrong = |options: Options| format!("{:#}", options.resolve().unwrap_err());
        assert!(wrong(Options { ranks: Some(0), ..Options::default() }).contains("--ranks must be at least 1"));
        assert!(wrong(Options { compressor: Some("topk:2".into()), ..Options::default() }).contains("at most 1"));
        assert!(wrong(Options { network: Some("fast".into()), ..Options::default() }).contains("--network"));
        let unknown = toml::from_str::<Options>("rank = 3").unwrap_err().to_string();
        assert!(unknown.contains("unknown field `rank`"), "{unknown}");
    }
}
