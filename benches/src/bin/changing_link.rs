//! Reaction of a controller to a link that changes during a run: ratio and time of every step.
//!
//! Ranks exchange a random vector every step and sleep for the compute time; nothing is trained. Without a launcher the
//! network is simulated. Under one (`scripts/two-machines.sh RATE target/release/changing_link --device v0,v1 …`) it is
//! real, and each rank shapes its own end with `tc` when the link is to change.
//!
//! `benches/results/changing-link-simulated.*` and `changing-link-tcp.*` were made with
//! `--config` and a file with `reducer = "ladder"`, `controller = "cost-aware:100x"`, `feedback = "error"`, because the
//! values are random, and `auto` would compress them little. Over TCP with `--links "0:1gbit 150:50mbit 300:1gbit"`.

use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Error, Result, bail};
use briquette::WallClock;
use briquette::core::comm::run_ranks;
use briquette::core::config::Config;
use briquette::core::error::CommError;
use briquette::core::reduce::LastExchange;
use briquette::core::step::Driver;
use briquette::core::sync::Header;
use briquette::core::{Key, Layout, Session};
use briquette::sim::{Compute, Network, SessionExt, Simulated};
use briquette_benches::ranks::write_csv;
use briquette_benches::trainer::machine;
use briquette_benches::vectors::Source;
use briquette_tcp::{Environment, TcpBuilder};
use clap::Parser;
use plotters::prelude::*;
use serde::{Deserialize, Serialize};

/// Reaction of a controller to a link that changes during a run
#[derive(Debug, Clone, Parser)]
struct Arguments {
    /// The exchange as TOML, a file; `auto` if absent
    #[arg(long)]
    config: Option<PathBuf>,
    /// Links, each with the step from which on it is there; latency counts where the network is simulated
    #[arg(long, value_delimiter = ' ', default_value = "0:1gbit,1ms 150:50mbit,1ms 300:1gbit,1ms")]
    links: Vec<Link>,
    /// Steps
    #[arg(long, default_value_t = 450)]
    steps: u64,
    /// Values of the vector
    #[arg(long, default_value_t = 1_300_000)]
    values: usize,
    /// Milliseconds of computing, before every step
    #[arg(long, default_value_t = 50)]
    compute: u64,
    /// Ranks, where the network is simulated
    #[arg(long, default_value_t = 4)]
    ranks: usize,
    /// The network devices of the ranks, where it is not
    #[arg(long, value_delimiter = ',')]
    device: Vec<String>,
    /// Write the steps here as CSV
    #[arg(long)]
    csv: Option<PathBuf>,
    /// Draw them here
    #[arg(long)]
    svg: Option<PathBuf>,
}

/// A link, valid from a step on.
#[derive(Debug, Clone)]
struct Link {
    from: u64,
    text: String,
    network: Network,
}

impl FromStr for Link {
    type Err = Error;
    fn from_str(text: &str) -> Result<Link> {
        let (from, link) = text.split_once(':').context("expected STEP:LINK, such as 150:50mbit,1ms")?;
        Ok(Link { from: from.parse()?, text: link.into(), network: link.parse()? })
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    network: String,
    link: String,
    step: u64,
    ratio: f64,
    step_ms: f64,
    exchange_ms: f64,
    compress_ms: f64,
    reason: String,
    machine: String,
    cores: usize,
}

fn main() -> Result<()> {
    briquette::zoo::install();
    let arguments = &Arguments::parse();
    let rows = match Environment::read(|name| std::env::var(name).ok())? {
        Some(place) => {
            let session =
                TcpBuilder::from_environment(&place)?.clock(std::sync::Arc::new(WallClock::start())).join()?;
            let rows = rank(arguments, session.into(), "tcp")?;
            if place.rank > 0 {
                return Ok(());
            }
            rows
        }
        None => {
            let first = arguments.links.first().context("--links: none")?;
            let compute = Compute::Fixed(Duration::from_millis(arguments.compute));
            let world = Simulated::world(arguments.ranks, first.network.clone(), compute);
            let mut all = run_ranks(world, |session| {
                rank(arguments, session, "simulated").map_err(|error| Failed(format!("{error:#}")))
            });
            all.swap_remove(0).map_err(|Failed(why)| Error::msg(why))?
        }
    };
    for row in rows.iter().filter(|row| !row.reason.is_empty()) {
        println!("step {}: {}", row.step, row.reason);
    }
    if let Some(path) = &arguments.svg {
        draw(path, arguments, &rows).map_err(|error| Error::msg(format!("cannot draw {}: {error}", path.display())))?;
    }
    write_csv(arguments.csv.as_deref(), &rows)
}

/// Failure of a rank, as text.
#[derive(Debug)]
struct Failed(String);

impl From<CommError> for Failed {
    fn from(error: CommError) -> Failed {
        Failed(error.to_string())
    }
}

fn config(arguments: &Arguments) -> Result<Config> {
    let Some(path) = &arguments.config else { return Ok(Config::auto()) };
    let text = std::fs::read_to_string(path).with_context(|| format!("--config {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("--config {}", path.display()))
}

/// Runs the steps of one rank.
fn rank(arguments: &Arguments, mut comm: Session, network: &str) -> Result<Vec<Row>> {
    let layout = Layout::flat(arguments.values);
    let mut driver = Driver::new(Key::new(1));
    driver.drive(config(arguments)?.build(&layout, comm.world())?, layout);
    let mut source = Source::Gaussian.values(arguments.values)?;
    source.rotate_left(1000 * comm.rank() % arguments.values.max(1));
    let (mut rows, mut end) = (Vec::new(), comm.now());
    let (machine, cores) = machine();
    let mut link = String::new();
    for step in 0..arguments.steps {
        if let Some(next) = arguments.links.iter().find(|link| link.from == step) {
            link.clone_from(&next.text);
            comm.set_network(next.network.clone());
            shape(arguments, &comm, next)?;
        }
        let begin = end;
        if comm.network().is_none() {
            sleep(Duration::from_millis(arguments.compute));
        }
        comm.begin_step(step);
        let compute_seconds = comm.now() - begin;
        let header = Header { samples: 1, compute_seconds, ..Header::default() };
        let (traffic, mut vector) = (comm.traffic(), source.clone());
        driver.exchange_gradient(header, &mut vector, &mut [true], &mut comm)?;
        // Other values at every step, of the same sizes.
        source.rotate_left(1);
        end = comm.now();
        let report = driver.report();
        let previous = LastExchange::reported(&report, comm.traffic() - traffic);
        let (compress_seconds, exchange_seconds) = (previous.compress_seconds, previous.exchange_seconds);
        driver.set_previous(previous);
        driver.end_step();
        rows.push(Row {
            network: network.into(),
            link: link.clone(),
            step,
            ratio: report.ratio.map_or(1.0, |ratio| ratio.get()),
            step_ms: 1e3 * (end - begin),
            exchange_ms: 1e3 * exchange_seconds,
            compress_ms: 1e3 * compress_seconds,
            reason: report.reason.unwrap_or_default(),
            machine: machine.clone(),
            cores,
        });
    }
    Ok(rows)
}

/// Shapes this rank's end of a real link.
fn shape(arguments: &Arguments, comm: &Session, link: &Link) -> Result<()> {
    let Some(device) = arguments.device.get(comm.rank()).filter(|_| comm.network().is_none()) else { return Ok(()) };
    let rate = link.text.split(',').next().unwrap_or_default();
    // As the script's own.
    let burst = if rate.ends_with("gbit") { "1mb" } else { "32kbit" };
    let shaped = Command::new("tc")
        .args(["qdisc", "change", "dev", device, "root", "tbf", "rate", rate, "burst", burst, "latency", "400ms"])
        .output()
        .context("cannot run tc")?;
    if !shaped.status.success() {
        bail!("tc qdisc change dev {device}: {}", String::from_utf8_lossy(&shaped.stderr).trim());
    }
    Ok(())
}

/// Draws the seconds of every step, and above them the ratio.
fn draw(path: &std::path::Path, arguments: &Arguments, rows: &[Row]) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(path, (900, 560)).into_drawing_area();
    area.fill(&WHITE)?;
    let (above, below) = area.split_vertically(220);
    let panel = |area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>, name: &str, of: fn(&Row) -> f64| {
        let most = rows.iter().map(of).fold(1.0, f64::max);
        let least = rows.iter().map(of).fold(f64::MAX, f64::min);
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(30)
            .y_label_area_size(52)
            .build_cartesian_2d(0.0..arguments.steps as f64, (0.8 * least..1.3 * most).log_scale())?;
        chart.configure_mesh().max_light_lines(0).x_desc("step").y_desc(name).draw()?;
        chart.draw_series(LineSeries::new(rows.iter().map(|row| (row.step as f64, of(row))), &BLUE))?;
        for link in &arguments.links {
            let at = (link.from as f64, 1.15 * most);
            chart.draw_series([Text::new(link.text.clone(), at, ("sans-serif", 14))])?;
            let line = [(link.from as f64, 0.8 * least), (link.from as f64, 1.3 * most)];
            chart.draw_series(LineSeries::new(line, BLACK.mix(0.4)))?;
        }
        Ok::<_, Box<dyn std::error::Error>>(())
    };
    panel(&above, "compression ratio", |row| row.ratio)?;
    panel(&below, "step, ms", |row| row.step_ms)?;
    Ok(area.present()?)
}
