//! About a minute: four ranks train on generated images, dense and with the default, over a simulated 100 Mbit/s link.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anyhow::Result;
use briquette::core::Key;
use briquette::core::config::ReducerConfig;
use briquette_cli::terminal::bytes;
use briquette_cli::terminal::printable;
use briquette_datasets::{Augment, ImageKind, ImageSource};
use briquette_examples::cli::{before_all, exit_code};
use briquette_examples::interrupt;
use briquette_examples::lr_schedule::LrSchedule;
use briquette_examples::models::ImageModelKind;
use briquette_examples::output::Output;
use briquette_examples::record::Summary;
use briquette_examples::settings::{AugmentSpec, Options, Settings};
use briquette_examples::spec::ClockSpec;
use briquette_examples::subscriber::show_warnings;
use briquette_examples::task::ImageTask;
use briquette_examples::train::{Control, train};
use clap::Parser;
use comfy_table::{Table, presets::UTF8_BORDERS_ONLY};

/// Four ranks train on generated images, dense and with the default that decides by itself; about a minute on two cores
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// Directory for the two run folders
    #[arg(long, default_value = "runs/quickstart")]
    out: PathBuf,
    /// The simulated link
    #[arg(long, default_value = "100mbit,1ms")]
    network: String,
    /// Ranks
    #[arg(long, default_value_t = 4)]
    ranks: usize,
    /// Optimizer steps of each run
    #[arg(long, default_value_t = 96)]
    steps: u64,
    /// No progress bar
    #[arg(long)]
    plain: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let output = Output::default();
    show_warnings(&output);
    output.take_panics();
    // Its own folder, of its own runs.
    let control = Control { plain: cli.plain, overwrite: true, output: output.clone(), ..Control::default() };
    let code = match run(&cli, &control) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(130),
        Err(error) => {
            let error = before_all(error, &control);
            output.err(format_args!("error: {}", printable(&format!("{error:#}"))));
            ExitCode::from(exit_code(&error))
        }
    };
    output.finish();
    code
}

/// Both runs and the table; false when interrupted.
fn run(cli: &Cli, control: &Control) -> Result<bool> {
    interrupt::catch(control)?;
    let mut rows = Vec::new();
    for (name, folder, adaptive) in [("dense", "dense", false), ("auto, the default", "auto", true)] {
        let settings = settings(cli, folder, adaptive)?;
        control.say(format_args!("{name}: {} ranks, {} steps, link {}", cli.ranks, cli.steps, cli.network));
        rows.push((name, one(&settings, control)?));
        if control.stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
    }
    print(cli, control, &rows);
    Ok(true)
}

fn settings(cli: &Cli, folder: &str, adaptive: bool) -> Result<Settings> {
    // What no flag names is decided by itself.
    let reducer = (!adaptive).then_some(ReducerConfig::Dense);
    let own = Options { reducer, ..Options::default() };
    let shared = Options {
        dataset: Some("generated".into()),
        model: Some("resnet8".into()),
        ranks: Some(cli.ranks),
        batch: Some(16),
        epochs: Some(1000),
        steps: Some(cli.steps),
        lr: Some(0.1),
        augment: Some(AugmentSpec::Flip),
        schedule: Some(LrSchedule::OneCycle),
        network: Some(cli.network.clone()),
        clock: Some(ClockSpec::Fixed(vec![0.05])),
        eval_every: Some(1000),
        checkpoint_every: Some(0),
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

fn print(cli: &Cli, control: &Control, rows: &[(&str, Summary)]) {
    let mut table = Table::new();
    table.load_preset(UTF8_BORDERS_ONLY);
    table.set_header(["what travels", "test accuracy", "bytes sent", "time on the simulated link", "time here"]);
    for (name, summary) in rows {
        table.add_row([
            (*name).to_owned(),
            format!("{:.1} %", 100.0 * summary.final_test_accuracy),
            bytes(summary.bytes_sent),
            format!("{:.1} s (simulated)", summary.simulated_seconds.unwrap_or_default()),
            format!("{:.0} s", summary.wall_seconds),
        ]);
    }
    control.say(format_args!("\n{table}"));
    if let [(_, dense), (_, adaptive)] = rows {
        if dense.bytes_sent == 0 {
            control.say("One rank alone sends nothing: use --ranks 2 or more to compare.");
            return control.say(format_args!("Run folders: {}", cli.out.display()));
        }
        let (before, after) = (dense.simulated_seconds.unwrap_or(1.0), adaptive.simulated_seconds.unwrap_or(1.0));
        control.say(format_args!(
            "{:.0} times fewer bytes; on {} with 50 ms of computing a step, {:.1} times as fast as dense.",
            dense.bytes_sent as f64 / adaptive.bytes_sent.max(1) as f64,
            cli.network,
            before / after.max(1e-9),
        ));
    }
    control.say(format_args!("Run folders: {}", cli.out.display()));
}
