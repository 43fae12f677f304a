//! Bytes and simulated time of a step for 4 to 1024 ranks, by reducer and strategy.
//!
//! Ranks are threads that exchange random values over the simulated network; nothing is trained. Bytes are all that a rank sends, headers included,
//! divided by the steps of a period. A rank computes for 50 ms a step. Encoding and decoding take no simulated time.
//!
//! In an all-gather of 1024 ranks a million messages are on their way at once. Rows whose messages would then need more memory than `--memory` are
//! left out in that world.

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
use serde::Serialize;

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
    /// Write the table here as CSV too
    #[arg(long)]
    csv: Option<std::path::PathBuf>,
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

#[derive(Debug, Serialize)]
struct Row {
    exchange: &'static str,
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
    let (machine, cores) = machine();
    let mut rows: Vec<Row> = Vec::new();
    for (exchange, period) in EXCHANGES.into_iter().filter(|(text, _)| text.contains(&arguments.only)) {
        // Bytes of one message to another rank in the world before, if all ranks send to all.
        let mut message = 0.0;
        for &ranks in &arguments.world {
            let needed = message * (ranks * ranks) as f64 / 1e9;
            if needed > arguments.memory {
                eprintln!("{exchange}, {ranks} ranks: left out, messages may need {needed:.0} GB");
                continue;
            }
            let (bytes, seconds) =
                step(exchange, period, ranks, arguments).with_context(|| format!("{exchange}, {ranks} ranks"))?;
            let most = bytes.iter().copied().fold(0.0, f64::max);
            let mean = bytes.iter().sum::<f64>() / bytes.len() as f64;
            message = period as f64 * most / (ranks - 1) as f64;
            eprintln!("{exchange}, {ranks} ranks: {mean:.0} bytes and {:.1} ms a step", 1e3 * seconds);
            rows.push(Row {
                exchange,
                period,
                values: arguments.side * arguments.side,
                ranks,
                network: arguments.network.to_string(),
                bytes_a_step: mean,
                most_bytes_a_step: most,
                seconds_a_step: seconds,
                machine: machine.clone(),
                cores,
                date: day(SystemTime::now())?,
                command: format!("scale --network {} --side {}", arguments.network, arguments.side),
            });
        }
    }
    print(&rows);
    write_csv(arguments.csv.as_deref(), &rows)
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
        table.add_row([
            (*exchange).to_owned(),
            ranks.to_string(),
            format!("{kilobytes:.1}"),
            format!("{milliseconds:.1}"),
        ]);
    }
    println!("{table}");
}
