//! Bytes and simulated time of a step for 4 to 1024 ranks, by reducer and strategy.
//!
//! Ranks are threads that exchange random values over the simulated network; nothing is trained. Bytes are all that a rank sends, headers included,
//! divided by the steps of a period. A rank computes for 50 ms a step. Encoding and decoding take no simulated time.
//!
//! In an all-gather of 1024 ranks a million messages are on their way at once. Rows whose messages would then need more memory than `--memory` are
//! left out in that world. Rows that the CSV has are not run again, and it is written after each row.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Error, Result};
use briquette::core::comm::run_ranks;
use briquette::core::config::Config;
use briquette::core::error::CommError;
use briquette::core::step::Driver;
use briquette::core::sync::Header;
use briquette::core::{Key, Layout, Session};
use briquette::sim::{Compute, Network, Simulated};
use briquette_benches::ranks::write_csv;
use briquette_benches::trainer::{day, machine};
use briquette_benches::vectors::Source;
use clap::Parser;
use comfy_table::{Table, presets};
use serde::{Deserialize, Serialize};

/// Bytes and simulated time of a step for 4 to 1024 ranks, by reducer and strategy
#[derive(Debug, Parser)]
struct Arguments {
    /// Numbers of ranks
    #[arg(long, value_delimiter = ',', default_value = "4,16,64,256,1024")]
    world: Vec<usize>,
    /// The simulated network
    #[arg(long, default_value = "100mbit,1ms")]
    network: Network,
    /// Columns of the four matrices that are exchanged, and rows of all together
    #[arg(long, default_value_t = 256)]
    side: usize,
    /// Only exchanges whose text contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Memory for messages in GB
    #[arg(long, default_value_t = 8.0)]
    memory: f64,
    /// CSV of the rows, also those of earlier runs
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/results/scale.csv"))]
    csv: PathBuf,
}

impl Arguments {
    fn values(&self) -> usize {
        self.side * self.side
    }
}

/// Exchanges, each with its period.
const EXCHANGES: [(&str, u64); 28] = [
    ("reducer=dense", 1),
    ("reducer=ring:bf16 feedback=none", 1),
    ("reducer=ring:int8 feedback=none", 1),
    ("reducer=ring:int4 feedback=none", 1),
    ("reducer=gather:minmax feedback=none", 1),
    ("reducer=gather:topk:100x:q8 feedback=error", 1),
    ("reducer=ladder:topk:100x feedback=error", 1),
    ("reducer=shared-random-k:100x feedback=error", 1),
    ("reducer=sparse-all-reduce:100x feedback=error", 1),
    ("reducer=sketched-sgd:100x feedback=error", 1),
    ("reducer=power-sgd:2 feedback=error", 1),
    ("reducer=ternary-all-reduce feedback=none", 1),
    ("reducer=two-way:sign,down=sign feedback=error", 1),
    ("strategy=sgp", 1),
    ("strategy=demo", 1),
    ("strategy=sparta:100", 1),
    ("strategy=local-sgd:8", 8),
    ("strategy=local-sgd:8 reducer=gather:topk:100x:q8 feedback=error", 8),
    ("strategy=diloco:8", 8),
    ("strategy=streaming-diloco:8", 8),
    ("strategy=eager-diloco:8", 8),
    ("strategy=sparse-loco:8", 8),
    ("strategy=no-loco:8", 8),
    ("strategy=slowmo:8", 8),
    ("strategy=bmuf:8", 8),
    ("strategy=easgd:8", 8),
    ("strategy=lsgd:8", 8),
    ("strategy=overlap-local-sgd:8", 8),
];

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    exchange: String,
    period: u64,
    values: usize,
    ranks: usize,
    network: String,
    /// Mean over ranks, and of the rank that sends most.
    bytes_a_step: f64,
    most_bytes_a_step: f64,
    seconds_a_step: f64,
    machine: String,
    cores: usize,
    date: String,
    command: String,
}

/// Failure of a rank, as text.
#[derive(Debug)]
struct Failed(String);

impl From<CommError> for Failed {
    fn from(error: CommError) -> Failed {
        Failed(error.to_string())
    }
}

fn main() -> Result<()> {
    briquette::zoo::install();
    let arguments = &Arguments::parse();
    let mut rows = read(&arguments.csv)?;
    for (exchange, period) in EXCHANGES.into_iter().filter(|(text, _)| text.contains(&arguments.only)) {
        // Bytes of one message to another rank in the world before, if all ranks send to all.
        let mut message = 0.0;
        for &ranks in &arguments.world {
            let needed = message * (ranks * ranks) as f64 / 1e9;
            if needed > arguments.memory {
                eprintln!("{exchange}, {ranks} ranks: left out, messages may need {needed:.0} GB");
                continue;
            }
            let is_this = |row: &&Row| {
                let network = arguments.network.to_string();
                row.exchange == exchange
                    && row.ranks == ranks
                    && row.network == network
                    && row.values == arguments.values()
            };
            let row = match rows.iter().find(is_this) {
                Some(row) => row.clone(),
                None => {
                    let row = measured(exchange, period, ranks, arguments)
                        .with_context(|| format!("{exchange}, {ranks} ranks"))?;
                    rows.push(row.clone());
                    sort(&mut rows);
                    write_csv(Some(&arguments.csv), &rows)?;
                    row
                }
            };
            message = period as f64 * row.most_bytes_a_step / (ranks - 1) as f64;
        }
    }
    print(&rows);
    Ok(())
}

/// Reads the rows of earlier runs, if there are any.
fn read(csv: &Path) -> Result<Vec<Row>> {
    if !csv.exists() {
        return Ok(Vec::new());
    }
    let rows = csv::Reader::from_path(csv)?.into_deserialize().collect::<Result<_, _>>();
    rows.with_context(|| format!("{} has other columns", csv.display()))
}

/// Sorts rows by exchange, in their order here, and by ranks.
fn sort(rows: &mut [Row]) {
    let place = |row: &Row| EXCHANGES.iter().position(|(exchange, _)| *exchange == row.exchange);
    rows.sort_by_key(|row| (place(row), row.ranks));
}

fn measured(exchange: &str, period: u64, ranks: usize, arguments: &Arguments) -> Result<Row> {
    let (bytes, seconds) = step(exchange, period, ranks, arguments)?;
    let mean = bytes.iter().sum::<f64>() / bytes.len() as f64;
    eprintln!("{exchange}, {ranks} ranks: {mean:.0} bytes and {:.1} ms a step", 1e3 * seconds);
    let (machine, cores) = machine();
    Ok(Row {
        exchange: exchange.to_owned(),
        period,
        values: arguments.values(),
        ranks,
        network: arguments.network.to_string(),
        bytes_a_step: mean,
        most_bytes_a_step: bytes.iter().copied().fold(0.0, f64::max),
        seconds_a_step: seconds,
        machine,
        cores,
        date: day(SystemTime::now())?,
        command: format!("scale --network {} --side {}", arguments.network, arguments.side),
    })
}

/// Returns the bytes that each rank sends in a step, and the seconds of a step, both means over a period after the first.
fn step(exchange: &str, period: u64, ranks: usize, arguments: &Arguments) -> Result<(Vec<f64>, f64)> {
    let config: &Config = &exchange.parse()?;
    let world = Simulated::world(ranks, arguments.network.clone(), Compute::Fixed(Duration::from_millis(50)));
    let all = run_ranks(world, |session| {
        rank(config, period, arguments.side, session).map_err(|error| Failed(format!("{error:#}")))
    });
    let all = all.into_iter().collect::<Result<Vec<_>, _>>().map_err(|Failed(why)| Error::msg(why))?;
    let end = |of: fn(&[f64; 3]) -> f64| all.iter().map(of).fold(0.0, f64::max);
    let seconds = (end(|rank| rank[2]) - end(|rank| rank[1])) / period as f64;
    Ok((all.iter().map(|rank| rank[0] / period as f64).collect(), seconds))
}

/// Runs two periods. Returns the bytes of the second, and the seconds at its start and its end.
fn rank(config: &Config, period: u64, side: usize, mut comm: Session) -> Result<[f64; 3]> {
    // Four matrices: a fragment of streaming DiLoCo has at least one.
    let layout = Layout::new([0, 1, 2, 3].map(|index| (format!("layer{index}.weight"), vec![side / 4, side])));
    let mut driver = Driver::new(Key::new(1));
    driver.drive(config.build(&layout, comm.world())?, layout.clone());
    let mut source = Source::Gaussian.values(layout.len())?;
    source.rotate_left(1000 * comm.rank() % layout.len());
    let (mut parameters, mut middle) = (vec![0.0; layout.len()], (0, 0.0));
    driver.strategy_mut().begin(&parameters);
    for step in 0..2 * period {
        if step == period {
            middle = (comm.traffic().sent, comm.now());
        }
        let header = Header { samples: 1, learning_rate: Some(0.1), loss: Some(1.0), ..Header::default() };
        let optimize = |parameters: &mut [f32], gradient: &[f32]| {
            parameters.iter_mut().zip(gradient).for_each(|(parameter, gradient)| *parameter -= 0.1 * gradient);
        };
        let mut gradient = source.clone();
        driver.take_step(header, (&mut gradient, &mut parameters), optimize, &mut comm)?;
        source.rotate_left(1);
    }
    Ok([(comm.traffic().sent - middle.0) as f64, middle.1, comm.now()])
}

fn print(rows: &[Row]) {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header(["exchange", "ranks", "kB a step", "ms a step"]);
    for Row { exchange, ranks, bytes_a_step, seconds_a_step, .. } in rows {
        let (kilobytes, milliseconds) = (bytes_a_step / 1e3, 1e3 * seconds_a_step);
        table.add_row([exchange.clone(), ranks.to_string(), format!("{kilobytes:.1}"), format!("{milliseconds:.1}")]);
    }
    println!("{table}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(exchange: &str, period: u64, ranks: usize) -> (Vec<f64>, f64) {
        briquette::zoo::install();
        step(exchange, period, ranks, &Arguments::parse_from(["scale"])).unwrap()
    }

    /// A ring of four ranks: six parts of a quarter of 65 536 values, and three headers of 106 bytes. Six times a latency, and 393 216 bytes at
    /// 12.5 MB/s, after 50 ms; the headers travel in 1 ms and a little.
    #[test]
    fn a_dense_step_by_hand() {
        let (bytes, seconds) = of("reducer=dense", 1, 4);
        assert_eq!(bytes, [393_216.0 + 3.0 * 106.0; 4]);
        let expected = 0.05 + 0.006 + 393_216.0 / 12.5e6 + 0.001;
        assert!((seconds - expected).abs() < 2e-4, "{seconds}, not {expected}");
    }

    #[test]
    fn pairs_cost_the_same_in_every_world() {
        let (few, many) = (of("strategy=no-loco:8", 8, 4), of("strategy=no-loco:8", 8, 16));
        assert_eq!(few.0[0], 4.0 * 65_536.0 / 8.0);
        assert!(many.0.iter().all(|bytes| *bytes == few.0[0]) && (many.1 - few.1).abs() < 1e-9);
    }

    #[test]
    fn the_committed_rows_are_those_of_the_program() {
        let rows = read(&Arguments::parse_from(["scale"]).csv).unwrap();
        let mut sorted = rows.clone();
        sort(&mut sorted);
        let names = |rows: &[Row]| rows.iter().map(|row| (row.exchange.clone(), row.ranks)).collect::<Vec<_>>();
        assert_eq!(names(&rows), names(&sorted));
        assert!(rows.iter().all(|row| EXCHANGES.contains(&(&row.exchange, row.period))));
        assert!(EXCHANGES.iter().all(|(exchange, _)| rows.iter().any(|row| row.exchange == *exchange)));
    }
}
