//! What the trainers' command lines share.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use briquette::Checkpoint;
use briquette_tcp::Environment;
use clap::Parser;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::record::{Summary, forget};
use crate::settings::{Options, Settings};
use crate::train::Control;

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
    /// --data, --backend, --device, --rebroadcast, --eval-every and --checkpoint-every may be given anew (another backend rounds differently),
    /// and the number of steps may change under --schedule constant only: others are stretched over the run
    #[arg(long, value_name = "DIR")]
    pub resume: Option<PathBuf>,
    /// Replace the run that is in the directory of --out, checkpoints and all
    #[arg(long, conflicts_with = "resume")]
    pub overwrite: bool,
    /// No progress bar
    #[arg(long)]
    pub plain: bool,
}

/// Prints the resolved settings, trains, prints the summary; Ctrl-C leaves a checkpoint and exits with 130. Under a launcher
/// (RANK and its companions are set) this process is one rank of a world over TCP.
pub fn main(cli: Cli, defaults: Options, run: impl FnOnce(&Settings, &Control) -> Result<Summary>) -> ExitCode {
    show_warnings();
    if cli.options.backend.as_deref() == Some("list") {
        println!("{}", crate::backend::list());
        return ExitCode::SUCCESS;
    }
    let (cli, settings, control) = match prepare(cli, defaults) {
        Ok(prepared) => prepared,
        Err(error) => {
            eprintln!("error: {}", causes(&error));
            return ExitCode::from(REFUSED);
        }
    };
    match launched(&cli, &settings, &control, run) {
        Ok(summary) if summary.interrupted => ExitCode::from(130),
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", causes(&error));
            ExitCode::FAILURE
        }
    }
}

/// What was asked for cannot be done, and nothing was begun: as for a wrong flag. A launcher need not try again.
const REFUSED: u8 = 2;

/// Everything that can be refused before anything is begun.
fn prepare(cli: Cli, defaults: Options) -> Result<(Cli, Settings, Control)> {
    let place = Environment::read(|name| std::env::var(name).ok())?;
    let (cli, settings) = match &place {
        None => {
            let settings = resolve(&cli, defaults)?;
            (cli, settings)
        }
        Some(place) => resolve_as_rank(cli, defaults, place)?,
    };
    let control = Control {
        plain: cli.plain || place.is_some(),
        // One rank speaks for all.
        quiet: place.as_ref().is_some_and(|place| place.rank != 0),
        resume: cli.resume.is_some(),
        overwrite: cli.overwrite,
        stop: Arc::default(),
        place,
    };
    control.check_out(&settings.out)?;
    check_devices(&settings, &control)?;
    Ok((cli, settings, control))
}

/// The devices that this process's ranks will want can be had.
fn check_devices(settings: &Settings, control: &Control) -> Result<()> {
    let ranks = control.place.as_ref().map_or(0..settings.ranks, |place| place.rank..place.rank + 1);
    for rank in ranks {
        crate::backend::device(settings, rank, control.local_rank(rank))?;
    }
    Ok(())
}

fn launched(
    cli: &Cli,
    settings: &Settings,
    control: &Control,
    run: impl FnOnce(&Settings, &Control) -> Result<Summary>,
) -> Result<Summary> {
    let first = control.place.as_ref().is_some_and(|place| place.rank == 0 && place.restart == 0);
    if cli.overwrite && first {
        // At once, so that an attempt that begins nothing does not leave the earlier run to be continued.
        forget(&settings.out).with_context(|| format!("--overwrite: cannot empty {}", settings.out.display()))?;
    }
    catch_interrupts(Arc::clone(&control.stop), control.quiet)?;
    if !control.quiet {
        println!("{}", toml::to_string(settings)?);
    }
    let summary = run(settings, control)?;
    if !control.quiet {
        report(settings, &summary);
    }
    Ok(summary)
}

/// For a process that a launcher started as one rank of many: the world's size is the launcher's, and a world that was
/// started again continues from its newest checkpoint. (What is there is this run's own: the first attempt ends with
/// [`REFUSED`] where another run is, and the launcher does not start it again.)
fn resolve_as_rank(mut cli: Cli, defaults: Options, place: &Environment) -> Result<(Cli, Settings)> {
    if let Some(ranks) = cli.options.ranks.filter(|ranks| *ranks != place.world) {
        bail!("--ranks {ranks}: this process was launched as one of {}; leave --ranks away", place.world);
    }
    cli.options.ranks = Some(place.world);
    let settings = resolve(&cli, defaults.clone())?;
    if settings.network != "unlimited" {
        bail!("--network {}: between launched processes the network is real; leave it away", settings.network);
    }
    if place.restart == 0 || cli.resume.is_some() {
        return Ok((cli, settings));
    }
    if !Checkpoint::any(&settings.out.join("checkpoints")) {
        // Ended before the first checkpoint: what the attempt before left is of no use.
        return Ok((Cli { overwrite: true, ..cli }, settings));
    }
    let options = Options { out: None, ..cli.options };
    let cli = Cli { resume: Some(settings.out), config: None, overwrite: false, options, ..cli };
    let settings = resolve(&cli, defaults)?;
    Ok((cli, settings))
}

/// Warnings of the libraries on standard error, but for what graphics drivers say when they are asked whether they are there.
pub fn show_warnings() {
    let filter = Targets::new().with_default(LevelFilter::WARN).with_target("wgpu_hal", LevelFilter::OFF);
    let stderr = fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    // Fails only where there is a subscriber already, which then has them.
    let _ =
        tracing_subscriber::registry().with(stderr.without_time().with_target(false).with_filter(filter)).try_init();
}

fn resolve(cli: &Cli, defaults: Options) -> Result<Settings> {
    let Some(directory) = &cli.resume else {
        let file = cli.config.as_deref().map(Options::read).transpose()?.unwrap_or_default();
        return cli.options.clone().or(file).or(defaults).resolve();
    };
    if cli.config.is_some() || cli.options.out.is_some() {
        bail!("--resume DIR takes everything from DIR: leave --config and --out away");
    }
    let path = directory.join("config.toml");
    if !path.is_file() {
        bail!("--resume {}: no config.toml there; give the --out directory of a run", directory.display());
    }
    let saved = Options::read(&path).with_context(|| format!("--resume {}", directory.display()))?;
    refuse_changes(directory, &saved, &cli.options)?;
    Options { out: Some(directory.clone()), ..cli.options.clone().or(saved) }.resolve()
}

/// What a run may take anew when it is continued: nothing that changes what a step computes, but for how a device rounds.
/// (Where `epochs` and `steps` would, by way of the schedule, the checkpoint knows: see [`crate::train`].)
const MAY_CHANGE: [&str; 8] =
    ["epochs", "steps", "data", "backend", "device", "rebroadcast", "eval-every", "checkpoint-every"];

fn refuse_changes(directory: &Path, saved: &Options, given: &Options) -> Result<()> {
    let (saved, given) = (toml::Table::try_from(saved)?, toml::Table::try_from(given)?);
    let there = |key: &str| saved.get(key).map_or("not set".to_owned(), ToString::to_string);
    let changed: Vec<String> = given
        .iter()
        .filter(|(key, value)| !MAY_CHANGE.contains(&key.as_str()) && saved.get(*key) != Some(value))
        .map(|(key, value)| format!("--{key} is {} there, {value} here", there(key)))
        .collect();
    if changed.is_empty() {
        return Ok(());
    }
    bail!(
        "--resume {}: {}. A run goes on as it began: leave that away, or begin another run with --out. These \
         may change: --{}",
        directory.display(),
        changed.join(", "),
        MAY_CHANGE.join(", --")
    )
}

/// An error and its causes, each said once: some repeat theirs.
fn causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            text = if text.is_empty() { cause } else { format!("{text}: {cause}") };
        }
    }
    text
}

/// The first Ctrl-C ends the run after the step; a second one ends the process.
fn catch_interrupts(stop: Arc<AtomicBool>, quiet: bool) -> Result<()> {
    let handler = move || {
        if stop.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        if quiet {
            return;
        }
        eprintln!("\nstopping after this step, with a checkpoint; once more to stop now");
    };
    ctrlc::set_handler(handler).context("cannot watch for Ctrl-C")
}

fn report(settings: &Settings, summary: &Summary) {
    println!();
    match summary.final_test_accuracy.is_nan() {
        true => println!("test accuracy     not evaluated yet"),
        false => {
            println!("test accuracy     {:.4} (best {:.4})", summary.final_test_accuracy, summary.best_test_accuracy)
        }
    }
    println!("bytes sent        {}", traffic(summary));
    println!("wall time         {:.1} s", summary.wall_seconds);
    if let Some(seconds) = summary.simulated_seconds {
        println!("simulated time    {seconds:.1} s on {} with clock {}", settings.network, settings.clock);
    }
    if summary.interrupted {
        println!("interrupted at step {}; continue with --resume {}", summary.steps, settings.out.display());
    }
    println!("written to        {}", settings.out.display());
}

/// One rank alone has nobody to send to, and nothing to compare with.
fn traffic(summary: &Summary) -> String {
    if summary.bytes_sent == 0 {
        return "none".into();
    }
    let ratio = summary.bytes_dense as f64 / summary.bytes_sent as f64;
    format!("{} by all ranks, {ratio:.2}x fewer than the dense ring", bytes(summary.bytes_sent))
}

/// Bytes for people.
pub fn bytes(count: u64) -> String {
    let count = count as f64;
    let (value, unit) = match count {
        c if c >= 1e9 => (c / 1e9, "GB"),
        c if c >= 1e6 => (c / 1e6, "MB"),
        c if c >= 1e3 => (c / 1e3, "kB"),
        c => (c, "B"),
    };
    format!("{value:.1} {unit}")
}
