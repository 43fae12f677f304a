//! Settings: flags, `--config run.toml`, and their resolution.
//!
//! A run is described by [`Options`]: every flag, optional. The file given with `--config` uses the same names. Flags
//! take precedence over the file, and the file over the trainer's defaults. [`Settings`] is the resolved description:
//! the task's settings, and the exchange as a [`Config`] of core. It is printed, and written to `config.toml`, which is
//! itself a valid `--config`.

mod budget;
mod check;
mod exchange;
mod optimizer;
mod server;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use briquette::core::config::{
    AggregatorConfig, CompressorConfig, Config, Feedback, Parts, ReducerConfig, ServerConfig, StrategyConfig,
};
use briquette::sim::Network;
use clap::Args;
use serde::{Deserialize, Serialize};

pub use self::budget::{SizeSpec, TimeSpec};
use self::exchange::{Reasons, Resolved};
pub use self::exchange::{WarmUp, families};
pub use self::optimizer::OptimizerKind;
use crate::lr_schedule::LrSchedule;
use crate::spec::{ClockSpec, ControllerSpec, OverlapSpec, RecordSpec, RulesSpec, Toggle};

/// Declares one line per flag: those of the task with their defaults, and those that stand for keys of core's [`Config`].
macro_rules! flags {
    (@resolved $type:ty) => { Option<$type> };
    (@resolved $type:ty, $default:expr) => { $type };
    (@resolve $given:expr) => { $given };
    (@resolve $given:expr, $default:expr) => { $given.unwrap_or_else(|| $default) };
    (
        task { $($(#[$task_meta:meta])* $task:ident : $task_type:ty $(= $default:expr)?),* $(,)? }
        exchange { $($(#[$meta:meta])* $flag:ident : $type:ty),* $(,)? }
    ) => {
        /// Every flag of the trainers; the same names (with dashes) are the keys of `--config`.
        // The comments of the fields are the texts of `--help`, where brackets are not links.
        #[allow(rustdoc::broken_intra_doc_links)]
        #[derive(Debug, Clone, Default, Args, Deserialize)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields)]
        pub struct Options {
            /// The run's id, in its config.toml; of no account for another run.
            #[arg(skip)]
            pub run: Option<String>,
            /// The exchange, in a config.toml; flags change it.
            #[arg(skip)]
            pub config: Option<Parts>,
            $($(#[$task_meta])* #[arg(long)] pub $task: Option<$task_type>,)*
            $($(#[$meta])* #[arg(long)] pub $flag: Option<$type>,)*
        }

        impl Options {
            /// Returns the values of `self` that are set, and those of `other` elsewhere.
            #[must_use]
            pub fn or(self, other: Options) -> Options {
                Options {
                    run: self.run.or(other.run),
                    config: self.config.or(other.config),
                    $($task: self.$task.or(other.$task),)*
                    $($flag: self.$flag.or(other.$flag)),*
                }
            }

            /// Fills in missing values; checks only that the flags can be combined.
            ///
            /// # Errors
            /// Names a flag that would be ignored, or is impossible.
            pub fn fill(self) -> Result<Settings> {
                let Resolved { config, warm_up, choices } = self.exchange()?;
                let mut settings = Settings {
                    $($task: flags!(@resolve self.$task $(, $default)?),)*
                    warm_up,
                    config,
                    reasons: Reasons(choices),
                };
                settings.momentum = exchange::momentum(settings.optimizer, settings.momentum)?;
                Ok(settings)
            }
        }

        /// A resolved run. Settings that do not apply are absent, such as momentum under Adam.
        #[derive(Debug, Clone, PartialEq, Serialize)]
        #[serde(rename_all = "kebab-case")]
        #[allow(missing_docs)] // the flags' help says what each is
        pub struct Settings {
            $(pub $task: flags!(@resolved $task_type $(, $default)?),)*
            /// Controller that becomes one of core once the length of an epoch is known.
            #[serde(rename = "controller")]
            pub warm_up: Option<WarmUp>,
            pub config: Config,
            /// Each part of the exchange, with the reason for it.
            #[serde(skip)]
            pub(crate) reasons: Reasons,
        }
    };
}

flags! {
  task {
    /// Data to train on: cifar10, cifar100 or ag-news as the trainer takes, or `generated`, which needs no file
    dataset: String = String::new(),
    /// Directory with the dataset's files; otherwise the user's cache, then a download
    #[arg(value_name = "DIR")]
    data: PathBuf,
    /// The model; an unknown name lists the valid ones
    model: String = String::new(),
    /// Ranks, each a thread with a model of its own
    ranks: usize = 4,
    /// Train without lock step: rank 0 keeps the model, the others compute for it at their own pace and send gradients dense, or as
    /// --compressor and --feedback error or none say; a step is an update of the model. Below is what there is
    server: ServerConfig,
    /// Passes over the training data; with --steps, what a schedule that is not constant is stretched over
    epochs: usize = 5,
    /// Stop after this many optimizer steps, whatever the epochs
    steps: u64,
    /// Bytes that all ranks together may send in the run, such as 500MB, under auto or cost-aware: the ratio that this needs, even above
    /// the limit of accuracy. The first broadcast is not counted
    #[arg(value_name = "SIZE")]
    budget: SizeSpec,
    /// Time that the run's steps may take, such as 10m, under auto or cost-aware: the least compression that is fast enough, even above
    /// the limit of accuracy. Evaluation, checkpoints and step headers (some latencies a step) are not counted
    #[arg(value_name = "TIME")]
    deadline: TimeSpec,
    /// Samples per rank and step
    batch: usize = 32,
    /// Peak learning rate
    lr: f64 = 0.1,
    /// Momentum of SGD, in [0, 1)
    momentum: f64,
    /// Weight decay: `decay · parameter` is added to each rank's gradient
    weight_decay: f64 = 0.0,
    /// sgd, adam, or muon (Adam outside of hidden matrices); or one of briquette's: comp-ams (AMSGrad of Comp-AMS), sign-sgd (generalized SignSGD), generic-adam, delayed-adagrad,
    /// delayed-adagrad-momentum, ftrl-sgd (momentum that grows, for the last iterate), padamw, one-bit-adam (with --feedback one-bit-adam:WARM_UP)
    optimizer: OptimizerKind = OptimizerKind::Sgd,
    /// Evaluate the mean of the parameters after each step from this one on (counted from 0), with BatchNorm's statistics estimated anew:
    /// Gadam with --optimizer adam, GadamX with padamw, but for --weight-decay, which those decouple. For a rate that stays large, --schedule constant; training itself is as without
    #[arg(value_name = "STEP")]
    average_from: u64,
    /// Learning rate over the run: constant, cosine, exponential (down to --lr over the number of steps), or one-cycle (up over 30 %,
    /// then down)
    schedule: LrSchedule = LrSchedule::Constant,
    /// Seed of weights, data order, augmentation and compressors
    seed: u64 = 1,
    /// The links that are simulated: unlimited, or bandwidth,latency[,ranks-per-link] such as 100mbit,1ms; other paths behind it,
    /// as in 10gbit,20us;0-3/4-7=100mbit,30ms; or trace:FILE, links that change over time, a CSV with seconds,mbit,ms[,path], which
    /// starts over at its last row (benches/traces.py writes some)
    network: String = "unlimited".into(),
    /// Compute time as seen by controllers and simulated time: wall, or fixed:50ms a step, which makes a run
    /// reproducible (fixed:500ms,50ms where rank 0 is slower than the others; fixed:50ms;lognormal=0.3;slow=0.03x10
    /// with stragglers; fixed:50ms;samples=32 for a time proportional to the samples; trace:FILE with the seconds of each rank, a line for each step)
    clock: ClockSpec = ClockSpec::Wall,
    /// Seconds of encoding and decoding under --clock fixed, a CSV with reducer (as in config.toml), ratio, values, seconds
    #[arg(value_name = "FILE")]
    compress_seconds: PathBuf,
    /// Backend of the model: flex, ndarray, tch, wgpu, vulkan, metal or cuda, if they were built in; several with
    /// commas for ranks in turn; `list` shows the available ones
    backend: String = crate::backend::default().into(),
    /// The device's number in `--backend list`, or several with commas for ranks in turn; the ranks of a machine share its GPUs
    /// out if absent
    device: String,
    /// Steps between taking rank 0's parameters on every rank, 0 for never; 100 if absent where ranks round differently
    rebroadcast: u64,
    /// Image augmentation: none, flip, or crop-flip
    augment: AugmentSpec,
    /// Samples of a rank in a step: off for --batch, auto for a share of all ranks' batches by its measured speed, so that all ranks end
    /// together
    balance: BalanceSpec,
    /// In an elastic world whose number of ranks has changed: batch for a --batch of each rank as before, rate to scale --lr with the number of
    /// ranks as well, step for as many samples in a step as before
    resize: ResizeSpec,
    /// Split the data unevenly over ranks by class: concentration of a Dirichlet distribution, smaller is more uneven
    non_iid: f64,
    /// Directory for config.toml, metrics.jsonl, summary.json and checkpoints
    #[arg(value_name = "DIR")]
    out: PathBuf = PathBuf::from("runs/latest"),
    /// Steps between checkpoints; an epoch if absent, 0 for none but the last
    checkpoint_every: u64,
    /// Write checkpoints in a thread while training goes on: on or off. A checkpoint is then complete at the next one, or at the
    /// end; each rank holds its file in memory until it is written
    background_saving: Toggle,
    /// Write rank 0's gradient of this step to gradient.safetensors in --out, for `briquette inspect`: STEP, or STEP:bf16 for
    /// half the size
    #[arg(value_name = "STEP")]
    record_gradient: RecordSpec,
    /// Write every rank's frames to frames/ in --out, from which `tables` replays the run on other networks: on or off. Those of an
    /// interrupted run end with its last step
    record_frames: Toggle,
    /// Steps between tables of every slot in metrics.jsonl, with the controller's state; 0 for none
    #[arg(value_name = "N")]
    slots_every: u64 = 50,
    /// Serve the numbers of rank 0's last step to Prometheus here while training, such as 127.0.0.1:9000
    #[arg(value_name = "IP:PORT")]
    metrics_addr: SocketAddr,
    /// Epochs between evaluations on the test samples; the last epoch is always evaluated
    eval_every: u64 = 1,
    /// Use only the first N training samples
    #[arg(value_name = "N")]
    train_limit: usize,
    /// Use only the first N test samples
    #[arg(value_name = "N")]
    test_limit: usize,
  }
  exchange {
    /// Synchronization strategy; the available ones are listed below
    strategy: StrategyConfig,
    /// Reducer that combines vectors; if absent, one whose ratio the controller sets (ladder under auto), gather with --compressor, dense where parameters are averaged
    reducer: ReducerConfig,
    /// The same as --feedback momentum:M with the M of --momentum (sgd), in place of the optimizer's momentum: on or off
    momentum_correction: Toggle,
    /// Compressor under gather and multi-step, such as topk:0.01, topk:20x,values=q8, topk:20x+natural, qsgd:4; the
    /// available ones are listed below
    compressor: CompressorConfig,
    /// Under gather and multi-step: on for a message for each layer, off for one in all
    per_slot: Toggle,
    /// Aggregator with which gather combines the ranks' contributions, such as krum:1, which tolerates a rank that sends anything
    aggregator: AggregatorConfig,
    /// Layers that another compressor (or reducer) takes, by their path, as PATTERN=COMPRESSOR,...: *.norm.*=dense,*head.weight=qsgd:8
    rules: RulesSpec,
    /// Layers of fewer values are exchanged dense; 0 if absent, 1024 with --per-slot on
    dense_below: usize,
    /// Feedback for values that were not sent; if absent, one that suits reducer, strategy and optimizer
    feedback: Feedback,
    /// Controller of the compression ratio, auto if nothing names one: none, schedule:8x (one ratio), schedule[:from=4x,epochs=1] (a warm-up to the ratio that is
    /// set), gravac (for a small model gravac:10x,max=100x,epsilon=0.4,window=25), or another one of below
    controller: ControllerSpec,
    /// The same as --strategy local-sgd:N: average parameters every N steps; what is evaluated is an average
    #[arg(value_name = "N")]
    local_steps: u64,
    /// Steps by which averages come late: 0, or 1 for the same as --strategy delayed, whose exchange has the whole of the next step to
    /// hide behind, and which wants a far lower rate under momentum
    #[arg(value_name = "N")]
    staleness: u64,
    /// Values a bucket holds at least; one bucket if absent
    bucket_values: usize,
    /// Computation that a bucket's exchange overlaps: off for none, backward for the backward pass that computes the others
    overlap: OverlapSpec,
    /// Threads a rank encodes and decodes with; its own alone if absent
    threads: usize,
    /// Any key of the exchange, by the name that it has in TOML, with dots for tables; may be given several times. Wins over all
    /// others: --set reducer=power-sgd:4 --set controller.kind=gravac --set controller.epsilon=0.4
    #[arg(value_name = "KEY=VALUE")]
    set: Vec<String>,
  }
}

/// Samples of a rank in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum BalanceSpec {
    /// The batch.
    Off,
    /// A share of all ranks' batches by the rank's speed.
    Auto,
}

/// Constant quantity in an elastic world of another size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ResizeSpec {
    /// The batch of a rank, and the learning rate.
    Batch,
    /// The batch of a rank, and the learning rate per rank.
    Rate,
    /// The samples of a step.
    Step,
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

impl Options {
    /// Reads `--config`.
    ///
    /// # Errors
    /// Names the file, and the invalid line and key.
    pub fn read(path: &Path) -> Result<Options> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read --config {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("in --config {}", path.display()))
    }

    /// Fills in missing values and checks ranges.
    ///
    /// # Errors
    /// Names the flag and the values it may take.
    pub fn resolve(self) -> Result<Settings> {
        let settings = self.fill()?;
        settings.check()?;
        Ok(settings)
    }
}

impl Settings {
    /// Returns the simulated network.
    ///
    /// # Errors
    /// Describes the syntax of a network.
    pub fn network(&self) -> Result<Network> {
        let network: Network = self.network.parse().context("--network")?;
        network.check(self.ranks).context("--network")?;
        Ok(network)
    }

    /// Returns whether time is simulated.
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
        assert!(settings.corrects_momentum());
        let written = toml::to_string(&settings).unwrap();
        let again = toml::from_str::<Options>(&written).unwrap().resolve().unwrap();
        assert_eq!(again, settings, "config.toml is a valid --config");
    }

    #[test]
    fn impossible_settings_name_the_flag() {
        let wrong = |options: Options| format!("{:#}", options.resolve().unwrap_err());
        assert!(wrong(Options { ranks: Some(0), ..Options::default() }).contains("--ranks must be at least 1"));
        let set = |text: &str| Options { set: Some(vec![text.to_owned()]), ..Options::default() };
        assert!(wrong(set("reducer=gather:topk:2")).contains("at most 1"));
        assert!(wrong(Options { network: Some("fast".into()), ..Options::default() }).contains("--network"));
        let unknown = toml::from_str::<Options>("rank = 3").unwrap_err().to_string();
        assert!(unknown.contains("unknown field `rank`"), "{unknown}");
    }

    #[test]
    fn short_forms_and_keys_are_the_same_settings() {
        let options = |toml: &str| toml::from_str::<Options>(toml).unwrap().resolve().unwrap().config;
        for (short, set) in [
            ("reducer = 'power-sgd:4'", "['reducer=power-sgd:4']"),
            ("compressor = 'qsgd:4'\nper-slot = 'on'", "['reducer=gather:qsgd:4,per-slot=on']"),
            (
                "compressor = 'qsgd:4'\nper-slot = 'on'",
                "['reducer.kind=gather', 'reducer.compressor=qsgd:4', 'reducer.per-slot=true']",
            ),
            (
                "feedback = 'none'\nbucket-values = 7\noverlap = 'backward'",
                "['feedback=none', 'bucket-values=7', 'during-backward=true']",
            ),
            ("momentum-correction = 'on'", "['feedback=momentum:0.9']"),
            ("local-steps = 3", "['strategy=local-sgd:3', 'reducer=dense', 'feedback=none']"),
            (
                "reducer = 'dense'\nrules = '*.bias=sign'",
                "['reducer=dense', \"rules=[{slots='*.bias', reducer='gather:sign'}]\"]",
            ),
        ] {
            assert_eq!(options(short), options(&format!("set = {set}")), "{short}");
        }
    }
}
