//! Hybrid parallelism compared with data parallelism: the same numbers, different traffic. The head and the batch
//! decide which sends fewer bytes.

use std::fs::File;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use briquette::Backend;
use briquette::sim::{Compute, Network, Simulated};
use briquette_cli::memory;
use briquette_cli::terminal::{bytes, complain, printable, show};
use briquette_datasets::{ImageKind, ImageSet, ImageSource};
use briquette_examples::cli::exit_code;
use briquette_examples::hybrid::{Parallelism, Plan, Settings, Trained, largest_difference, train};
use briquette_examples::record::GIT_REVISION;
use briquette_examples::train::Refused;
use burn::tensor::Device;
use clap::Parser;
use comfy_table::{Table, presets::UTF8_BORDERS_ONLY};
use serde::Serialize;

const ABOUT: &str = "Hybrid parallelism (Das et al. 2016) beside data parallelism, over a simulated link";
const LONG_ABOUT: &str = "Hybrid parallelism (Das et al. 2016) beside data parallelism, over a simulated link.

A VGG-11 with a quarter of the channels and a head of two hidden layers of --head outputs is trained twice from the same weights on the \
same samples. Data-parallel, every rank has all of it and gradients are averaged. Hybrid, each rank has some columns of each layer of the \
head, and activations are exchanged there instead; only the gradients of the convolutions are averaged. Neither run compresses.

The network that comes out is the same, up to the order of sums: that is the column `difference`, the largest of any parameter. Rounding \
may tip a ReLU, so that long runs part, as data-parallel ranks part from one process.

The bytes differ: a head's parameters grow with the square of --head and do not depend on the batch, its activations grow with --head times the global \
batch. So hybrid wins where the head is wide (about --head > 2 x ranks x --batch) and loses elsewhere. Its exchanges pay eight latencies a step. \
Times are those of the exchanges alone, on the clock of the simulated link.";
const EXAMPLES: &str = "Examples:
  hybrid                                   three heads, two ranks and four, a small batch
  hybrid --head 512 --batch 8,64,256       from where hybrid wins to where it loses
  hybrid --head 512 --batch 16 --steps 50 --data cifar-10-batches-bin
  hybrid --head 64,512,4096 --batch 8,64,256 --csv hybrid.csv";

#[derive(Debug, Parser)]
#[command(version, about = ABOUT, long_about = LONG_ABOUT, after_help = EXAMPLES, max_term_width = 110)]
struct Cli {
    /// Outputs of both hidden layers; several with commas, and so for --batch and --ranks
    #[arg(long, value_delimiter = ',', default_value = "64,512,4096")]
    head: Vec<usize>,
    /// Samples of each rank and step
    #[arg(long, value_delimiter = ',', default_value = "8")]
    batch: Vec<NonZeroUsize>,
    /// Ranks, which are threads here
    #[arg(long, value_delimiter = ',', default_value = "2,4")]
    ranks: Vec<NonZeroUsize>,
    /// Optimizer steps of each run
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// The simulated link of each rank
    #[arg(long, default_value = "1gbit,50us")]
    network: Network,
    /// Directory with CIFAR-10's binary files; without it, images are generated
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Learning rate of SGD
    #[arg(long, default_value_t = 0.001)]
    lr: f64,
    /// Its momentum
    #[arg(long, default_value_t = 0.9)]
    momentum: f64,
    /// Seed of the initial weights and of generated images
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Write the table to this file, too
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

/// Both runs of one combination. Bytes are sent per step by a rank, averaged over the ranks; seconds are simulated
/// seconds per step.
#[derive(Debug, Serialize)]
struct Row {
    head: usize,
    batch: usize,
    ranks: usize,
    head_parameters: usize,
    data_parallel_bytes: f64,
    hybrid_bytes: f64,
    /// Part of `hybrid_bytes` that depends on head and batch.
    hybrid_activation_bytes: f64,
    network: String,
    data_parallel_seconds: f64,
    hybrid_seconds: f64,
    faster: &'static str,
    first_loss: f32,
    last_loss: f32,
    largest_difference: f32,
    command: String,
    revision: &'static str,
}

fn main() -> ExitCode {
    briquette::zoo::install();
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(format_args!("error: {}", printable(&format!("{error:#}"))));
            ExitCode::from(exit_code(&error))
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    let device = Backend::Flex.device(0)?.autodiff();
    let mut all = Vec::new();
    for (head, batch, ranks) in combinations(cli) {
        let settings = settings(cli, head, batch, ranks);
        let refused = |error| Refused::new(format!("--head {head} --ranks {ranks}: {error}"));
        settings.plan.check(ranks).map_err(refused)?;
        check_memory(&settings)?;
        all.push(settings);
    }
    // Before anything is trained for it.
    let file = cli.csv.as_ref().map(|path| File::create(path).with_context(|| format!("--csv {}", path.display())));
    let file = file.transpose()?;
    let images = images(cli, &all)?;
    let rows = all.iter().map(|settings| row(cli, settings, &images, &device)).collect::<Result<Vec<_>>>()?;
    show(table(cli, &rows))?;
    if let Some(file) = file {
        let mut csv = csv::Writer::from_writer(file);
        rows.iter().try_for_each(|row| csv.serialize(row))?;
        csv.flush()?;
    }
    Ok(())
}

fn combinations(cli: &Cli) -> Vec<(usize, NonZeroUsize, usize)> {
    let with_head = |head| cli.batch.iter().map(move |batch| (head, *batch));
    let sizes = cli.head.iter().copied().flat_map(with_head);
    sizes.flat_map(|(head, batch)| cli.ranks.iter().map(move |ranks| (head, batch, ranks.get()))).collect()
}

fn settings(cli: &Cli, head: usize, batch: NonZeroUsize, ranks: usize) -> Settings {
    let Cli { steps, lr, momentum, seed, .. } = *cli;
    Settings { plan: Plan::vgg11_slim(head, CLASSES), ranks, batch, steps, lr, momentum, seed }
}

const CLASSES: usize = 10;

/// Checks that the ranks of the data-parallel run fit into memory: for each a model, its gradients, their average and a
/// momentum, and one more vector in transit between model and exchange.
fn check_memory(settings: &Settings) -> Result<()> {
    let values = settings.plan.parameters() as u64;
    let needed = (settings.ranks as u64).saturating_mul(5 * 4).saturating_mul(values);
    Ok(memory::check(
        &format!("--ranks {}: that many models of {values} values take at least", settings.ranks),
        needed,
    )?)
}

/// Generates as many images as the longest run uses, up to a limit; beyond it they are repeated.
fn images(cli: &Cli, all: &[Settings]) -> Result<ImageSet> {
    let most = all.iter().map(|settings| settings.ranks * settings.batch.get()).max().unwrap_or(1);
    let (kind, train_limit) = match cli.data {
        Some(_) => (ImageKind::Cifar10, None),
        None => (ImageKind::Generated { classes: CLASSES }, Some(most.saturating_mul(cli.steps as usize).min(4096))),
    };
    let source = ImageSource {
        dir: cli.data.clone(),
        train_limit,
        test_limit: Some(1),
        seed: cli.seed,
        ..ImageSource::new(kind)
    };
    Ok(source.load()?.train)
}

fn row(cli: &Cli, settings: &Settings, images: &ImageSet, device: &Device) -> Result<Row> {
    let run = |how| {
        let world = Simulated::world(settings.ranks, cli.network.clone(), Compute::Fixed(Duration::ZERO));
        train(settings, how, world, images, device)
    };
    let (data, hybrid) = (run(Parallelism::Data)?, run(Parallelism::Hybrid)?);
    let mean = |ranks: &[Trained], of: fn(&Trained) -> &[u64]| {
        let sum: u64 = ranks.iter().flat_map(of).sum();
        sum as f64 / (settings.ranks as u64 * settings.steps) as f64
    };
    let seconds = |ranks: &[Trained]| ranks.iter().map(|rank| rank.seconds).fold(0.0, f64::max) / settings.steps as f64;
    let loss = |step: usize| hybrid.iter().map(|rank| rank.losses[step]).sum::<f32>() / settings.ranks as f32;
    let [data_parallel_seconds, hybrid_seconds] = [seconds(&data), seconds(&hybrid)];
    Ok(Row {
        head: settings.plan.hidden[0],
        batch: settings.batch.get(),
        ranks: settings.ranks,
        head_parameters: settings.plan.head_parameters(),
        data_parallel_bytes: mean(&data, |rank| &rank.bytes),
        hybrid_bytes: mean(&hybrid, |rank| &rank.bytes),
        hybrid_activation_bytes: mean(&hybrid, |rank| &rank.activation_bytes),
        network: cli.network.to_string(),
        data_parallel_seconds,
        hybrid_seconds,
        faster: match hybrid_seconds.total_cmp(&data_parallel_seconds) {
            std::cmp::Ordering::Less => "hybrid",
            std::cmp::Ordering::Equal => "neither",
            std::cmp::Ordering::Greater => "data-parallel",
        },
        first_loss: loss(0),
        last_loss: loss(settings.steps as usize - 1),
        largest_difference: largest_difference(&data[0].network, &hybrid[0].network),
        command: std::env::args().skip(1).fold("hybrid".to_owned(), |command, word| command + " " + &word),
        revision: GIT_REVISION,
    })
}

fn table(cli: &Cli, rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_preset(UTF8_BORDERS_ONLY);
    table.set_header(["head", "batch", "ranks", "data-parallel", "hybrid", "faster", "loss", "difference"]);
    let exchange = |sent: f64, seconds: f64| format!("{}, {:.1} ms", bytes(sent.round() as u64), 1e3 * seconds);
    for row in rows {
        table.add_row([
            row.head.to_string(),
            row.batch.to_string(),
            row.ranks.to_string(),
            exchange(row.data_parallel_bytes, row.data_parallel_seconds),
            exchange(row.hybrid_bytes, row.hybrid_seconds),
            row.faster.to_owned(),
            format!("{:.3} to {:.3}", row.first_loss, row.last_loss),
            format!("{:.0e}", row.largest_difference),
        ]);
    }
    let what = "What a rank sends in a step, and the simulated time of the exchanges alone, on";
    format!("{table}\n{what} {}. Batch is a rank's; difference is the largest of any parameter.\n", cli.network)
}
