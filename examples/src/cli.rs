//! Command line shared by the trainers.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use briquette::WorldChange;
use briquette::core::error::ConfigError;
use briquette_cli::memory::{self, TooLarge};
use briquette_cli::terminal::{bytes, printable};
use briquette_datasets::DataError;
use briquette_tcp::{Environment, JoinError};
use clap::{Command, CommandFactory, FromArgMatches, Parser};
use serde_json::Value;
use tracing_chrome::FlushGuard;

use crate::directory::holds_a_run;
use crate::interrupt::{self, INTERRUPTED};
use crate::record::{Changes, Summary};
use crate::settings::{Options, Settings, families};
use crate::subscriber::{show_warnings, trace};
use crate::train::{Control, OF_SIZE, Refused};

/// A trainer's command line.
#[derive(Debug, Clone, Parser)]
#[command(version, max_term_width = 110)]
pub struct Cli {
    /// The run, flag by flag.
    #[command(flatten)]
    pub options: Options,
    /// A TOML file with the same names as the flags; flags win
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Continue the run in this directory from its newest checkpoint. Its config.toml counts; only --epochs, --steps,
    /// --data, --backend, --device, --rebroadcast, --eval-every, --checkpoint-every, --background-saving, --slots-every and --metrics-addr may be given anew (another backend rounds differently),
    /// and the number of steps may change under --schedule constant only: others are stretched over the run
    #[arg(long, value_name = "DIR")]
    pub resume: Option<PathBuf>,
    /// With --resume: the run may go on with another number of ranks, and with another --batch. What the ranks had not sent is spread evenly
    /// over those there are now, or dropped. The epoch goes on after the samples it has seen, up to a step's of which are seen again
    /// where steps are of another size
    #[arg(long, value_name = "spread|drop", requires = "resume")]
    pub world_change: Option<OwnState>,
    /// Replace the run that is in the directory of --out, checkpoints and all, when every rank is ready to begin
    #[arg(long, conflicts_with = "resume")]
    pub overwrite: bool,
    /// No progress bar
    #[arg(long)]
    pub plain: bool,
    /// Write what each rank computes, encodes, exchanges and waits for, and when, to this file, for ui.perfetto.dev; of ranks
    /// that are processes, each writes its own (trace.json, trace.rank1.json, ...). In wall time: not with --network or --clock
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

/// Treatment of the ranks' own state (residuals, velocities) in a world of another size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OwnState {
    /// Each rank starts with the mean over the ranks that saved.
    Spread,
    /// Each rank starts with none.
    Drop,
}

/// A trainer, as its `--help` describes it.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// File name of the program.
    pub name: &'static str,
    /// Its description.
    pub about: &'static str,
    /// Example command lines.
    pub examples: &'static str,
}

/// Builds a trainer's command: `--help` lists the available exchanges, `-h` does not.
fn command(Program { name, about, examples }: Program) -> Command {
    let command = Cli::command().name(name).about(about).after_help(examples);
    command.after_long_help(format!("{examples}\n{}", families()))
}

/// Reads the command line, prints the resolved settings, trains, and prints the summary; Ctrl-C leaves a checkpoint and
/// exits with 130. Under a launcher (RANK and its companions are set) this process is one rank of a world over TCP.
pub fn main(program: Program, defaults: Options, run: impl FnOnce(&Settings, &Control) -> Result<Summary>) -> ExitCode {
    briquette::zoo::install();
    let control = Control::default();
    let caught = interrupt::catch(&control);
    let output = control.output.clone();
    output.take_panics();
    let code = match caught.and_then(|()| code(program, defaults, control, run)) {
        Ok(code) => code,
        Err(error) => {
            output.err(format_args!("error: {}", printable(&causes(&error))));
            exit_code(&error)
        }
    };
    output.finish();
    ExitCode::from(code)
}

/// Exit code of a request that is invalid, as for a wrong flag; nothing was started. A launcher need not try again.
const REFUSED: u8 = 2;
const FAILED: u8 = 1;

/// Returns a trainer's exit code for an error.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    let is_interrupt = |cause: &JoinError| matches!(cause, JoinError::Cancelled { .. });
    if error.chain().filter_map(|cause| cause.downcast_ref()).any(is_interrupt) {
        return INTERRUPTED;
    }
    if error.chain().any(is_permanent) { REFUSED } else { FAILED }
}

/// Returns whether another attempt would fail in the same way: invalid settings, of one rank or of the ranks combined.
fn is_permanent(cause: &(dyn Error + 'static)) -> bool {
    let of_ranks = |error: &briquette::Error| {
        use briquette::Error::{Config, Mismatch, OtherRun};
        matches!(error, Config(_) | Mismatch { .. } | OtherRun { .. })
    };
    cause.is::<Refused>()
        || cause.is::<ConfigError>()
        || cause.downcast_ref().is_some_and(JoinError::is_permanent)
        || cause.downcast_ref().is_some_and(of_ranks)
}

/// Turns an error that occurs before the run has started into a refusal, unless it may be transient: a failed download,
/// or memory used by another program.
pub fn before_all(error: anyhow::Error, control: &Control) -> anyhow::Error {
    let may_pass = error.chain().any(|cause| {
        cause.downcast_ref().is_some_and(DataError::may_pass)
            || cause.downcast_ref().is_some_and(|memory: &TooLarge| memory.may_pass)
    });
    if control.stage.prepares() && !may_pass { Refused::new(causes(&error)).into() } else { error }
}

fn code(
    program: Program,
    defaults: Options,
    control: Control,
    run: impl FnOnce(&Settings, &Control) -> Result<Summary>,
) -> Result<u8> {
    let cli = Cli::from_arg_matches(&command(program).get_matches()).unwrap_or_else(|error| error.exit());
    if cli.options.backend.as_deref() == Some("list") {
        show_warnings(&control.output);
        control.output.out(crate::backend::list());
        return Ok(0);
    }
    let prepared = prepare(cli, defaults, control);
    let (settings, control, _trace) = prepared.map_err(|error| Refused::new(causes(&error)))?;
    control.say(toml::to_string(&settings)?);
    settings.choices().iter().for_each(|choice| control.say(format_args!("# {choice}")));
    if let Some(rate) = settings.optimizer.other_rate() {
        control.say(format_args!("# --optimizer {}: {rate}; --lr is {}", settings.optimizer.name(), settings.lr));
    }
    let summary = run(&settings, &control).map_err(|error| before_all(error, &control))?;
    report(&settings, &summary, &control);
    Ok(if summary.interrupted { INTERRUPTED } else { 0 })
}

/// Performs every check that can refuse the run before anything has started.
fn prepare(cli: Cli, defaults: Options, control: Control) -> Result<(Settings, Control, Option<FlushGuard>)> {
    let place = Environment::from_env()?;
    let settings = match &place {
        None => resolve(&cli, defaults)?,
        Some(place) => resolve_as_rank(&cli, defaults, place)?,
    };
    let control = Control {
        plain: cli.plain || place.is_some(),
        // Rank 0 alone prints.
        quiet: false,
        resume: cli.resume.is_some(),
        world_change: cli.world_change.map(|own| match own {
            OwnState::Spread => WorldChange::SpreadResiduals,
            OwnState::Drop => WorldChange::DropResiduals,
        }),
        overwrite: cli.overwrite,
        place,
        ..control
    };
    let control = Control { quiet: !control.is_rank_0(), ..control };
    if control.quiet {
        control.stage.hush();
    }
    control.check_out(&settings.out)?;
    let rank = control.place.as_ref().map(|place| place.rank);
    let trace = cli.trace.map(|file| trace(&control.output, &file, rank, &settings)).transpose()?;
    if trace.is_none() {
        show_warnings(&control.output);
    }
    check_devices(&settings, &control)?;
    Ok((settings, control, trace))
}

/// Checks that the devices for this process's ranks are available.
fn check_devices(settings: &Settings, control: &Control) -> Result<()> {
    let ranks = control.place.as_ref().map_or(0..settings.ranks, |place| place.rank..place.rank + 1);
    for rank in ranks {
        crate::backend::device(settings, rank, control.local_rank(rank))?;
    }
    Ok(())
}

/// Resolves the settings of a process that a launcher started as one rank of many: the launcher sets the world size.
fn resolve_as_rank(cli: &Cli, defaults: Options, place: &Environment) -> Result<Settings> {
    if let Some(ranks) = cli.options.ranks.filter(|ranks| *ranks != place.world) {
        bail!("--ranks {ranks}: this process was launched as one of {}; omit --ranks", place.world);
    }
    let options = Options { ranks: Some(place.world), ..cli.options.clone() };
    let settings = resolve(&Cli { options, ..cli.clone() }, defaults)?;
    if settings.network != "unlimited" {
        bail!("--network {}: between launched processes the network is real; omit it", settings.network);
    }
    Ok(settings)
}

fn resolve(cli: &Cli, defaults: Options) -> Result<Settings> {
    let Some(directory) = &cli.resume else {
        let file = cli.config.as_deref().map(Options::read).transpose()?.unwrap_or_default();
        return cli.options.clone().or(file).or(defaults).resolve();
    };
    if cli.config.is_some() || cli.options.out.is_some() {
        bail!("--resume DIR takes everything from DIR: omit --config and --out");
    }
    let path = directory.join("config.toml");
    if !path.is_file() {
        let shown = directory.display();
        if directory.is_dir() && !holds_a_run(directory) {
            bail!("--resume {shown}: no config.toml there: no run has begun in it; begin one with --out {shown}");
        }
        bail!("--resume {shown}: no config.toml there; give the --out directory of a run");
    }
    let saved = Options::read(&path).with_context(|| format!("--resume {}", directory.display()))?;
    let now = Options { out: Some(directory.clone()), ..cli.options.clone().or(saved.clone()) };
    let settings = now.clone().fill()?;
    if cli.world_change.is_some() && (settings.server.is_some() || settings.non_iid.is_some()) {
        bail!(
            "--world-change: under --server and --non-iid each rank has its own part of the data; resume with as many ranks as before"
        );
    }
    refuse_changes(directory, saved.fill()?, &settings, cli.world_change.is_some())?;
    now.resolve()
}

/// Settings that may change when a run is resumed: those that do not change the computation of a step, except for a
/// device's rounding. (`epochs` and `steps` would, through the schedule; that is checked against the checkpoint: see
/// [`crate::train`].)
const MAY_CHANGE: [&str; 11] = [
    "epochs",
    "steps",
    "data",
    "backend",
    "device",
    "rebroadcast",
    "eval-every",
    "checkpoint-every",
    "background-saving",
    "slots-every",
    "metrics-addr",
];

fn refuse_changes(directory: &Path, saved: Settings, now: &Settings, other_world: bool) -> Result<()> {
    let (saved, now) = (by_flag(&saved)?, by_flag(now)?);
    let text = |settings: &Flags, key: &str| settings.get(key).map_or("not set".to_owned(), ToString::to_string);
    let keys: BTreeSet<&String> = saved.keys().chain(now.keys()).collect();
    let may_change = |key: &str| MAY_CHANGE.contains(&key) || other_world && OF_SIZE.contains(&key);
    let changed: Vec<&String> =
        keys.into_iter().filter(|key| !may_change(key) && saved.get(*key) != now.get(*key)).collect();
    let hint = match changed.iter().any(|key| OF_SIZE.contains(&key.as_str())) {
        true => "; with --world-change, --ranks and --batch too",
        false => "",
    };
    let changed: Vec<String> = changed
        .into_iter()
        .map(|key| format!("--{key} is {} there, {} here", text(&saved, key), text(&now, key)))
        .collect();
    if changed.is_empty() {
        return Ok(());
    }
    bail!(
        "--resume {}: {}. A run goes on as it began: omit that, or begin another run with --out. These \
         may change: --{}{hint}",
        directory.display(),
        changed.join(", "),
        MAY_CHANGE.join(", --")
    )
}

type Flags = serde_json::Map<String, Value>;

/// Returns the settings by their flags, including the keys of the exchange. (Not as TOML, whose integers end at 2⁶³.)
fn by_flag(settings: &Settings) -> Result<Flags> {
    let Value::Object(mut flags) = serde_json::to_value(settings)? else { bail!("settings are a table") };
    if let Some(Value::Object(config)) = flags.remove("config") {
        flags.extend(config.into_iter().map(|(key, value)| (key.replace('_', "-"), value)));
    }
    // Depends on the resumed directory, whatever its path.
    flags.remove("out");
    flags.retain(|_, value| !value.is_null());
    Ok(flags)
}

/// Formats an error and its causes, without repetitions: some errors include their cause.
fn causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            text = if text.is_empty() { cause } else { format!("{text}: {cause}") };
        }
    }
    text
}

/// Checks that the samples to be generated, of `bytes` each, fit into memory.
///
/// # Errors
/// States the required and the available memory.
pub fn check_samples(settings: &Settings, bytes: u64) -> Result<()> {
    let limits = [settings.train_limit, settings.test_limit].map(|limit| limit.unwrap_or(0) as u64);
    if settings.dataset != "generated" {
        return Ok(());
    }
    let [train, test] = limits;
    let samples = train.saturating_add(test);
    let what = format!("--train-limit and --test-limit: {samples} samples take");
    Ok(memory::check(&what, samples.saturating_mul(bytes))?)
}

fn report(settings: &Settings, summary: &Summary, control: &Control) {
    let Summary { final_test_accuracy: accuracy, best_test_accuracy: best, .. } = summary;
    let accuracy =
        if accuracy.is_nan() { "not evaluated yet".into() } else { format!("{accuracy:.4} (best {best:.4})") };
    control.say(format_args!("\ntest accuracy     {accuracy}"));
    control.say(format_args!("bytes sent        {}", traffic(summary)));
    control.say(format_args!("wall time         {:.1} s", summary.wall_seconds));
    if let Some(Changes { generations, lost_ranks, new_members, seconds }) = summary.elastic {
        let formed = format!("{lost_ranks} ranks lost, {new_members} new; {seconds:.2} s to form them");
        control.say(format_args!("generations       {generations}: {formed}"));
    }
    if let Some(seconds) = summary.simulated_seconds {
        let Settings { network, clock, .. } = settings;
        let length = settings.network().ok().and_then(|network| network.repeats_after());
        let again =
            length.filter(|length| seconds > *length).map(|length| format!(", which starts over every {length} s"));
        let again = again.unwrap_or_default();
        control.say(format_args!("simulated time    {seconds:.1} s on {network}{again}, with clock {clock}"));
    }
    let out = settings.out.display();
    if summary.interrupted {
        control.say(format_args!("interrupted at step {}; continue with --resume {out}", summary.steps));
    }
    control.say(format_args!("written to        {out}"));
}

/// Formats the traffic. A single rank sends nothing, so there is nothing to compare with.
fn traffic(summary: &Summary) -> String {
    if summary.bytes_sent == 0 {
        return "none".into();
    }
    let ratio = summary.bytes_dense as f64 / summary.bytes_sent as f64;
    format!("{} by all ranks, {ratio:.2}x fewer than the dense ring", bytes(summary.bytes_sent))
}
