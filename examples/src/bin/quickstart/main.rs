//! Quickstart of less than a minute: four ranks train on generated images, dense and with the default, over a simulated
//! 100 Mbit/s link. Ends with a table, a picture and a page.

mod chart;
mod comparison;
mod report;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf, absolute};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use briquette::core::Key;
use briquette::core::config::ReducerConfig;
use briquette_cli::terminal::printable;
use briquette_datasets::{Augment, ImageKind, ImageSource};
use briquette_examples::cli::{before_all, exit_code};
use briquette_examples::interrupt;
use briquette_examples::lr_schedule::LrSchedule;
use briquette_examples::models::ImageModelKind;
use briquette_examples::record::{BURN_VERSION, GIT_REVISION, Summary};
use briquette_examples::settings::{AugmentSpec, Options, Settings};
use briquette_examples::spec::ClockSpec;
use briquette_examples::subscriber::show_warnings;
use briquette_examples::task::ImageTask;
use briquette_examples::train::{Control, train};
use clap::Parser;
use comfy_table::{Table, presets::UTF8_BORDERS_ONLY};

use crate::comparison::{COLUMNS, Comparison, Run, SMOOTHED};

const HELP: &str = "Comparison:
  Both runs train the same model (ResNet-8) on the same samples with the same seed. `dense` sends uncompressed gradients. `auto`, the
  default (DistributedOptimizer::auto), chooses the compression ratio at run time and adds what was not sent to later steps.
  Simulated: the link, and 50 ms of compute time per step. Measured: bytes, losses, accuracy and wall time.

Examples:
  quickstart                             the comparison
  quickstart --network 10gbit,50us       a fast link, on which auto saves little
  quickstart --network 20mbit,20ms       a slow link
  quickstart --ranks 2 --steps 32        a shorter run
  quickstart --report /tmp/page.html     writes the page to another file";

/// Trains four ranks on generated images, once dense and once with the default; less than a minute on four cores
#[derive(Debug, Parser)]
#[command(version, after_help = HELP)]
struct Cli {
    /// Directory of the two runs; replaces an earlier comparison
    #[arg(long, default_value = "runs/quickstart")]
    out: PathBuf,
    /// Simulated link: bandwidth in bits per second, and latency
    #[arg(long, default_value = "100mbit,1ms")]
    network: String,
    /// Number of ranks, each a thread
    #[arg(long, default_value_t = 4)]
    ranks: usize,
    /// Optimizer steps of each run
    #[arg(long, default_value_t = 96)]
    steps: u64,
    /// Seed of weights, order of samples and random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File of the page: HTML with embedded charts [default: report.html in --out]
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Writes no page
    #[arg(long, conflicts_with = "report")]
    no_report: bool,
    /// Shows no progress bar
    #[arg(long)]
    plain: bool,
}

fn main() -> ExitCode {
    briquette::zoo::install();
    // Its own folder, of its own runs.
    let control = Control { overwrite: true, ..Control::default() };
    let caught = interrupt::catch(&control);
    let cli = Cli::parse();
    let output = control.output.clone();
    show_warnings(&output);
    output.take_panics();
    let control = Control { plain: cli.plain, ..control };
    let code = match caught.and_then(|()| run(&cli, &control)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(interrupt::INTERRUPTED),
        Err(error) => {
            let error = before_all(error, &control);
            output.err(format_args!("error: {}", printable(&format!("{error:#}"))));
            ExitCode::from(exit_code(&error))
        }
    };
    output.finish();
    code
}

/// Executes both runs, and shows the results; returns false when interrupted.
fn run(cli: &Cli, control: &Control) -> Result<bool> {
    let settings = [settings(cli, "dense", false)?, settings(cli, "auto", true)?];
    let report = (!cli.no_report).then(|| cli.report.clone().unwrap_or_else(|| cli.out.join("report.html")));
    if let Some(path) = &cli.report {
        check(path)?;
    }
    let mut runs = Vec::new();
    for (name, settings) in ["dense", "auto"].into_iter().zip(&settings) {
        control.say(format_args!("{name}: {} ranks, {} steps, link {}", cli.ranks, cli.steps, cli.network));
        let summary = one(settings, control)?;
        if control.stop.load(Ordering::Relaxed) {
            control.output.err("interrupted: there is nothing to compare");
            return Ok(false);
        }
        runs.push(Run::read(name, settings, summary)?);
    }
    let [dense, auto] = <[Run; 2]>::try_from(runs).expect("two runs");
    let comparison = Comparison { network: cli.network.clone(), ranks: cli.ranks, dense, auto };
    show(&comparison, control);
    control.say(format_args!("Run folders: {}", cli.out.display()));
    if let Some(path) = report {
        let [settings, _] = &settings;
        let page = report::page(&comparison, &facts(settings));
        fs::write(&path, page).with_context(|| format!("cannot write --report {}", path.display()))?;
        control.say(format_args!("Report: {}", absolute(&path).unwrap_or(path).display()));
    }
    Ok(true)
}

fn settings(cli: &Cli, folder: &str, adaptive: bool) -> Result<Settings> {
    // Parts that no flag names are chosen automatically.
    let reducer = (!adaptive).then_some(ReducerConfig::dense());
    let own = Options { reducer, ..Options::default() };
    let shared = Options {
        dataset: Some("generated".into()),
        model: Some("resnet8".into()),
        ranks: Some(cli.ranks),
        batch: Some(16),
        epochs: Some(1000),
        steps: Some(cli.steps),
        seed: Some(cli.seed),
        lr: Some(0.1),
        augment: Some(AugmentSpec::Flip),
        schedule: Some(LrSchedule::OneCycle),
        network: Some(cli.network.clone()),
        clock: Some(ClockSpec::Fixed(Duration::from_millis(50).into())),
        eval_every: Some(1000),
        checkpoint_every: Some(0),
        slots_every: Some(8),
        train_limit: Some(2048),
        test_limit: Some(512),
        out: Some(cli.out.join(folder)),
        ..Options::default()
    };
    own.or(shared).resolve()
}

fn one(settings: &Settings, control: &Control) -> Result<Summary> {
    let source = ImageSource {
        train_limit: settings.train_limit,
        test_limit: settings.test_limit,
        seed: settings.seed,
        ..ImageSource::new(ImageKind::Generated { classes: 10 })
    };
    let task = ImageTask {
        images: source.load()?,
        kind: ImageModelKind::ResNet8,
        augment: Some(Augment::flip()),
        key: Key::new(settings.seed),
    };
    train(settings, &task, control)
}

/// Shows the picture, the table and the sentence.
fn show(comparison: &Comparison, control: &Control) {
    let mut table = Table::new();
    table.load_preset(UTF8_BORDERS_ONLY);
    table.set_header(COLUMNS);
    for run in comparison.runs() {
        table.add_row(run.row());
    }
    let curves = comparison.runs().map(Run::loss);
    let picture = chart::draw(&curves, "s (simulated)", 72, 13);
    control.say(format_args!("\nloss on training samples, mean of {SMOOTHED} steps\n{picture}\n{table}"));
    control.say(comparison.verdict());
}

/// Returns the circumstances in which the page was made.
fn facts(settings: &Settings) -> Vec<(&'static str, String)> {
    let cores = std::thread::available_parallelism().map_or_else(|_| "unknown".to_owned(), |cores| cores.to_string());
    let program = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&program).file_name().unwrap_or(OsStr::new("quickstart")).to_owned();
    let command = std::iter::once(name).chain(std::env::args_os().skip(1));
    let command: Vec<String> = command.map(|word| word.to_string_lossy().into_owned()).collect();
    vec![
        ("command", command.join(" ")),
        ("seed", settings.seed.to_string()),
        ("date", humantime::format_rfc3339_seconds(SystemTime::now()).to_string()),
        ("cores", cores),
        ("backend", settings.backend.clone()),
        ("system", format!("{} on {}", std::env::consts::OS, std::env::consts::ARCH)),
        ("Briquette", format!("{}, revision {GIT_REVISION}", env!("CARGO_PKG_VERSION"))),
        ("Burn", BURN_VERSION.to_owned()),
    ]
}

/// Checks before the runs that the page can be written here.
fn check(path: &Path) -> Result<()> {
    if path.is_dir() {
        bail!("--report {}: this is a directory", path.display());
    }
    let made = path.parent().map_or(Ok(()), fs::create_dir_all);
    made.with_context(|| format!("cannot write --report {}", path.display()))
}
