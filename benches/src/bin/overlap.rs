//! Time hidden by overlapping buckets: an exchange over TCP with sequential and with overlapped buckets.
//!
//! Two ranks, each a process pinned to separate cores if there are enough. Each rank has two threads, so on a single
//! core little can be overlapped. Between the ranks is a relay that limits the rate and adds latency, on each
//! connection separately. Overlapped exchanges use two connections and thus twice the rate, which flatters dense
//! exchanges. The relay needs cores, too, to sustain the rate. Exchanges with and without overlap alternate; medians of
//! the slower rank are shown. `hidden` is `1 − overlapped/sequential`, and `hideable` its value if the shorter of
//! computing and exchanging were free. Both give the same bits, which is checked.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use briquette::WallClock;
use briquette::core::config::{CompressorConfig, Exchange, Feedback, ReducerConfig};
use briquette::core::reduce::{AgreedStep, Reducer, Round};
use briquette::core::report::Report;
use briquette::core::{Key, Layout, Session};
use briquette_benches::ranks::{here, pin, run, slowest, write_csv};
use briquette_benches::trainer::machine;
use briquette_benches::vectors::Source;
use briquette_cli::measure::median;
use briquette_tcp::{Environment, TcpBuilder};
use briquette_testkit::proxy::{Harm, Proxy};
use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

/// Time hidden by overlapping buckets
#[derive(Debug, Parser)]
struct Arguments {
    /// Compressors; none for a dense all-reduce
    #[arg(long, value_delimiter = ',', default_value = "none,qsgd:4,topk:0.01,topk:0.1")]
    compressors: Vec<String>,
    /// Values of the gradient
    #[arg(long, default_value_t = 16 << 20)]
    values: usize,
    /// Buckets it is cut into
    #[arg(long, default_value_t = 16)]
    buckets: usize,
    /// Rates of the link, in Mbit/s each way; 0 for no relay at all
    #[arg(long, value_delimiter = ',', default_value = "1000,0")]
    mbit: Vec<u64>,
    /// Additional latency of a relay, in microseconds
    #[arg(long, default_value_t = 100)]
    latency: u64,
    /// Cores of a rank
    #[arg(long, default_value_t = 2)]
    cores: usize,
    /// Exchanges of each kind
    #[arg(long, default_value_t = 9)]
    repeats: usize,
    /// Write the table here as CSV too
    #[arg(long)]
    csv: Option<PathBuf>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    compressor: String,
    values: usize,
    buckets: usize,
    /// 0 without a relay.
    mbit: u64,
    latency_us: u64,
    repeats: usize,
    /// Encoding and decoding of sequential buckets: rank 0's median.
    compress_seconds: f64,
    /// Session calls of sequential buckets: rank 0's median.
    exchange_seconds: f64,
    sequential_seconds: f64,
    overlapped_seconds: f64,
    hideable: f64,
    hidden: f64,
    rank_cores: usize,
    machine: String,
    cores: usize,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match Environment::read(|name| std::env::var(name).ok())? {
        Some(environment) => rank(&arguments, &environment),
        None => launch(&arguments),
    }
}

/// Starts the ranks and reads rank 0's output.
fn launch(arguments: &Arguments) -> Result<()> {
    let mut rows: Vec<Row> = Vec::new();
    for &mbit in &arguments.mbit {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let relay = (mbit > 0).then(|| Proxy::to(port)).transpose()?;
        let latency = Duration::from_micros(arguments.latency);
        relay.iter().for_each(|relay| relay.set(Harm { latency, ..Harm::rate(mbit * 1_000_000 / 8) }));
        let through = relay.as_ref().map_or(port, Proxy::address);
        let ranks: Vec<Row> = run(&[here(0, 2, port.port()), here(1, 2, through.port())])?;
        let latency_us = if mbit > 0 { arguments.latency } else { 0 };
        rows.extend(ranks.into_iter().map(|row| Row { mbit, latency_us, ..row }));
    }
    print(&rows);
    write_csv(arguments.csv.as_deref(), &rows)
}

/// Runs one rank's part; rank 0 prints.
fn rank(arguments: &Arguments, environment: &Environment) -> Result<()> {
    pin(environment.rank, arguments.cores)?;
    let join = || -> Result<Session> {
        Ok(TcpBuilder::from_environment(environment)?.channels(1).clock(Arc::new(WallClock::start())).join()?.into())
    };
    // Where rank 0 does not listen yet, a relay hangs up, which is no reason to call again, as a refusal would be.
    let mut comm = join().or_else(|_| {
        std::thread::sleep(Duration::from_secs(1));
        join()
    })?;
    let mut csv = csv::Writer::from_writer(std::io::stdout());
    for compressor in &arguments.compressors {
        let row = compare(arguments, compressor, &mut comm)?;
        if environment.rank == 0 {
            csv.serialize(row)?;
            csv.flush()?;
        }
    }
    Ok(())
}

/// A reducer and the result of its last exchange.
struct Kind {
    reducer: Box<dyn Reducer>,
    average: Vec<f32>,
    times: Vec<Duration>,
}

fn compare(arguments: &Arguments, compressor: &str, comm: &mut Session) -> Result<Row> {
    let (values, buckets) = (arguments.values, arguments.buckets);
    ensure!(buckets > 0 && values.is_multiple_of(buckets), "--values must be a multiple of --buckets");
    let layout = Layout::new((0..buckets).map(|slot| (slot.to_string(), vec![values / buckets])));
    let kind = |overlap| -> Result<Kind> {
        let reducer = exchange(compressor, values / buckets, overlap)?.build_reducer(&layout, comm.world())?;
        Ok(Kind { reducer, average: vec![0.0; values], times: Vec::new() })
    };
    let mut kinds = [kind(false)?, kind(true)?];
    let mut input = Source::Gaussian.values(values)?;
    // Other ranks have other values.
    input.rotate_left(comm.rank() * values / 2);
    let (mut compress, mut wire) = (Vec::new(), Vec::new());
    // The first two of each warm up.
    for step in 0..arguments.repeats as u64 + 2 {
        comm.begin_step(step);
        for Kind { reducer, average, times } in &mut kinds {
            comm.barrier()?;
            let (key, slots, agreed_step) =
                (Key::new(7).step(step), layout.slots(), AgreedStep { step, ..AgreedStep::default() });
            let begin = Instant::now();
            reducer
                .exchange(Round { key, slots, agreed_step: &agreed_step, input: &input, average, sent: None }, comm)?;
            times.push(begin.elapsed());
        }
        ensure!(kinds[0].average == kinds[1].average, "{compressor}: overlap changed the average of step {step}");
        let mut report = Report::default();
        kinds[0].reducer.report(&mut report);
        let seconds = report.seconds.context("seconds of an exchange")?;
        compress.push(seconds.compress);
        wire.push(seconds.exchange);
    }
    let [sequential_seconds, overlapped_seconds] = {
        let [a, b] = &kinds;
        [slowest(comm, &a.times[2..])?, slowest(comm, &b.times[2..])?]
    };
    let (compress_seconds, exchange_seconds) = (median(compress.split_off(2)), median(wire.split_off(2)));
    let (machine, cores) = machine();
    Ok(Row {
        compressor: compressor.to_owned(),
        values,
        buckets,
        mbit: 0,
        latency_us: 0,
        repeats: arguments.repeats,
        compress_seconds,
        exchange_seconds,
        sequential_seconds,
        overlapped_seconds,
        hideable: compress_seconds.min(exchange_seconds) / sequential_seconds,
        hidden: 1.0 - overlapped_seconds / sequential_seconds,
        rank_cores: arguments.cores,
        machine,
        cores,
    })
}

/// Returns the exchange with a compressor in its usual configuration, with feedback if it needs it.
fn exchange(compressor: &str, bucket_values: usize, overlap: bool) -> Result<Exchange> {
    let (reducer, feedback) = if compressor == "none" {
        (ReducerConfig::Dense, Feedback::None)
    } else {
        let compressor: CompressorConfig = compressor.parse()?;
        let feedback = if compressor.needs_feedback() { Feedback::Error } else { Feedback::None };
        (ReducerConfig::gather(compressor), feedback)
    };
    Ok(Exchange { reducer, feedback, bucket_values: Some(bucket_values), overlap, ..Exchange::default() })
}

fn print(rows: &[Row]) {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    let header =
        ["compressor", "Mbit/s", "compress ms", "exchange ms", "sequential ms", "overlapped ms", "hideable", "hidden"];
    table.set_header(header);
    for row in rows {
        let ms = |seconds: f64| format!("{:.1}", seconds * 1e3);
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        table.add_row([
            row.compressor.clone(),
            if row.mbit == 0 { "no relay".to_owned() } else { row.mbit.to_string() },
            ms(row.compress_seconds),
            ms(row.exchange_seconds),
            ms(row.sequential_seconds),
            ms(row.overlapped_seconds),
            percent(row.hideable),
            percent(row.hidden),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
}
