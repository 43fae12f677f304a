//! Overhead of a world of one over plain Burn: median times of interleaved steps, and their ratio; for large models peak memory too.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail, ensure};
use briquette::DistributedConfig;
use briquette::core::comm::Local;
use briquette_benches::overhead::{BILSTM, Plain, RESNET8, Steps, Wide, Wrapped, compare};
use briquette_benches::trainer::machine;
use briquette_cli::allocator::KEEP;
use briquette_cli::measure::median;
use burn::tensor::Device;
use clap::Parser;

/// Overhead of a world of one over plain Burn: median step times, taken in turns, and their ratio
#[derive(Debug, Parser)]
struct Cli {
    /// Steps of each
    #[arg(long, default_value_t = 100)]
    steps: usize,
    /// Write the table here as CSV too
    #[arg(long)]
    csv: Option<PathBuf>,
    /// A perceptron with hidden layers of this many values instead: each way in a process of its own, with the allocator's default
    /// settings and with those of `briquette launch`
    #[arg(long)]
    width: Option<usize>,
    /// Processes of each way, in turns
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// One way, in this process
    #[arg(long, hide = true, requires = "width")]
    way: Option<String>,
}

/// Plain Burn, and the wrapped variants.
const WAYS: [&str; 4] = ["plain", "dense", "top-k 100x", "auto"];
/// Batch size of the large model.
const BATCH: usize = 16;

fn main() -> Result<()> {
    briquette::zoo::install();
    let cli = Cli::parse();
    match (cli.width, &cli.way) {
        (Some(width), Some(way)) => one_way(Wide { width, batch: BATCH }, way, cli.steps),
        (Some(width), None) => large(width, &cli),
        (None, _) => small(&cli),
    }
}

fn small(cli: &Cli) -> Result<()> {
    let mut csv = cli.csv.as_ref().map(csv::Writer::from_path).transpose()?;
    if let Some(csv) = &mut csv {
        let columns = ["plain_seconds", "wrapped_seconds", "median_ratio", "machine", "cores", "command"];
        csv.write_record(["model", "steps"].iter().chain(&columns))?;
    }
    let ((cpu, cores), command) = (machine(), format!("overhead --steps {}", cli.steps));
    for name in ["resnet8", "bilstm"] {
        let (plain, wrapped, ratio) =
            if name == "resnet8" { compare(RESNET8, cli.steps) } else { compare(BILSTM, cli.steps) };
        println!("{name:8} plain {:.1} ms, wrapped {:.1} ms, ratio {ratio:.4}", plain * 1e3, wrapped * 1e3);
        if let Some(csv) = &mut csv {
            csv.write_record([
                name,
                &cli.steps.to_string(),
                &plain.to_string(),
                &wrapped.to_string(),
                &ratio.to_string(),
                &cpu,
                &cores.to_string(),
                &command,
            ])?;
        }
    }
    csv.map(|mut csv| csv.flush()).transpose()?;
    Ok(())
}

/// Cost of one way.
#[derive(Debug, Clone, Copy)]
struct Taken {
    /// Median of a step.
    seconds: f64,
    /// Peak memory of the process in bytes.
    peak: u64,
    /// Page faults of a step after warm-up, caused by pages that the allocator had returned.
    faults: f64,
}

/// Steps excluded from the measurement.
const WARM_UP: usize = 3;

/// Trains in a thread, as ranks do, and prints the cost.
fn one_way(case: Wide, way: &str, steps: usize) -> Result<()> {
    // A thread's heap is not the process's.
    let trained = std::thread::spawn({
        let way = way.to_owned();
        move || taken(case, &way, steps)
    });
    let Taken { seconds, peak, faults } = trained.join().map_err(|_| anyhow!("{way}: the rank panicked"))??;
    println!("{seconds} {peak} {faults}");
    Ok(())
}

fn taken(case: Wide, way: &str, steps: usize) -> Result<Taken> {
    let device = Device::flex();
    let wrapped = |config| -> Box<dyn Steps> {
        let comm = Local::world(1).remove(0);
        Box::new(Wrapped::new(case, &device, comm, config))
    };
    let mut trained: Box<dyn Steps> = match way {
        "plain" => Box::new(Plain::new(case, &device)),
        "dense" => wrapped(DistributedConfig::dense()),
        "top-k 100x" => wrapped(DistributedConfig::top_k(0.01)?),
        "auto" => wrapped(DistributedConfig::auto()),
        _ => bail!("no way `{way}`: the ways are {WAYS:?}"),
    };
    for _ in 0..WARM_UP {
        trained.step();
    }
    let (mut seconds, before) = (Vec::with_capacity(steps), faults()?);
    for _ in 0..steps {
        let start = Instant::now();
        trained.step();
        seconds.push(start.elapsed().as_secs_f64());
    }
    let faults = (faults()? - before) as f64 / steps as f64;
    Ok(Taken { seconds: median(seconds), peak: peak()?, faults })
}

/// Returns the page faults of this process that needed no disk access.
fn faults() -> Result<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name, in parentheses, may hold spaces; the eighth value after it is the number.
    let rest = stat.rsplit_once(')').context("no name in /proc/self/stat")?.1;
    Ok(rest.split_whitespace().nth(7).context("no page faults in /proc/self/stat")?.parse()?)
}

/// Returns the peak memory of this process in bytes.
fn peak() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no peak memory in /proc")?;
    Ok(1024 * line.trim().trim_end_matches(" kB").parse::<u64>()?)
}

/// Measures the cost of one way in a separate process.
fn measure(width: usize, way: &str, steps: usize, keeps: bool) -> Result<Taken> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--width", &width.to_string(), "--way", way, "--steps", &steps.to_string()]);
    for (name, _) in KEEP {
        command.env_remove(name);
    }
    if keeps {
        command.envs(KEEP);
    }
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{way}: {}", String::from_utf8_lossy(&output.stderr));
    let [seconds, peak, faults] = text.split_whitespace().collect::<Vec<_>>()[..] else {
        bail!("{way} printed {text}")
    };
    Ok(Taken { seconds: seconds.parse()?, peak: peak.parse()?, faults: faults.parse()? })
}

/// Measures every way, with and without the settings: medians over rounds, ratios to the better plain figure of the same round.
fn large(width: usize, cli: &Cli) -> Result<()> {
    let parameters = Wide { width, batch: BATCH }.parameters();
    let kinds: Vec<_> = [false, true].into_iter().flat_map(|keeps| WAYS.map(|way| (way, keeps))).collect();
    let mut rounds = Vec::new();
    for _ in 0..cli.rounds.max(1) {
        rounds
            .push(kinds.iter().map(|(way, keeps)| measure(width, way, cli.steps, *keeps)).collect::<Result<Vec<_>>>()?);
    }
    let mut csv = cli.csv.as_ref().map(csv::Writer::from_path).transpose()?;
    let columns =
        ["parameters", "way", "allocator", "seconds", "ratio_to_better_plain", "peak_vectors", "faults_of_a_step"];
    let of_run = ["steps", "rounds", "machine", "cores", "command"];
    csv.iter_mut().try_for_each(|csv| csv.write_record(columns.iter().chain(&of_run)))?;
    let ((cpu, cores), command) =
        (machine(), format!("overhead --width {width} --steps {} --rounds {}", cli.steps, cli.rounds));
    for (index, (way, keeps)) in kinds.iter().enumerate() {
        let better = |round: &[Taken]| round[0].seconds.min(round[WAYS.len()].seconds);
        let over_rounds = |of: &dyn Fn(&[Taken]) -> f64| median(rounds.iter().map(|round| of(round)).collect());
        let seconds = over_rounds(&|round| round[index].seconds);
        let ratio = over_rounds(&|round| round[index].seconds / better(round));
        let peak = over_rounds(&|round| round[index].peak as f64 / 4.0 / parameters as f64);
        let faults = over_rounds(&|round| round[index].faults);
        let allocator = if *keeps { "keeps" } else { "default" };
        println!(
            "{parameters} {way:10} {allocator:7} {:7.1} ms, ratio {ratio:.3}, peak {peak:.1} vectors, {faults:.0} page faults a step",
            seconds * 1e3
        );
        let (seconds, ratio, peak) = (seconds.to_string(), format!("{ratio:.4}"), format!("{peak:.2}"));
        let faults = format!("{faults:.0}");
        let (parameters, steps) = (parameters.to_string(), cli.steps.to_string());
        let (rounds, cores) = (cli.rounds.to_string(), cores.to_string());
        let row =
            [&parameters, *way, allocator, &seconds, &ratio, &peak, &faults, &steps, &rounds, &cpu, &cores, &command];
        csv.iter_mut().try_for_each(|csv| csv.write_record(row))?;
    }
    csv.map(|mut csv| csv.flush()).transpose()?;
    Ok(())
}
