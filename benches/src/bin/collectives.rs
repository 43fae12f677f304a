//! Times of an all-reduce over TCP, compared with the same bytes over raw sockets and, on request, with MPI.
//!
//! Every rank is a process, pinned to a separate core if there are enough. `algbw` is the vector's bytes divided by
//! seconds, `busbw` that times `2(W-1)/W`, as nccl-tests define them. All times of a row come from one run, in turn: an
//! all-reduce, the same bytes raw, the next all-reduce, …; medians are shown.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use briquette::core::Session;
use briquette::core::comm::all_reduce_traffic;
use briquette_benches::methods::Method;
use briquette_benches::ranks::{here, pin, run, slowest, write_csv};
use briquette_benches::raw::RawRing;
use briquette_benches::trainer::machine;
use briquette_cli::measure::median;
use briquette_tcp::{Environment, TcpBuilder};
use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

/// Times of an all-reduce over TCP
#[derive(Debug, Parser)]
struct Arguments {
    /// Sizes of worlds
    #[arg(long, value_delimiter = ',', default_value = "2,3,4")]
    ranks: Vec<usize>,
    /// Smallest vector, in bytes
    #[arg(long, default_value_t = 4 << 10)]
    from: usize,
    /// Largest vector, in bytes
    #[arg(long, default_value_t = 256 << 20)]
    to: usize,
    /// Compare ways to sum short vectors instead: a gather, recursive doubling, a ring
    #[arg(long, conflicts_with_all = ["mpi", "no_checksums"])]
    methods: bool,
    /// Leave the frames' checksums off
    #[arg(long)]
    no_checksums: bool,
    /// An MPI to compare with, as NAME=PYTHON: a Python with mpi4py and numpy whose directory has mpiexec; may be given
    /// several times
    #[arg(long, value_name = "NAME=PYTHON")]
    mpi: Vec<String>,
    /// Write the table here as CSV too
    #[arg(long)]
    csv: Option<PathBuf>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    transport: String,
    ranks: usize,
    bytes: usize,
    repeats: usize,
    seconds: f64,
    algbw_gb_s: f64,
    busbw_gb_s: f64,
    /// Time of the same bytes over raw sockets between the same processes.
    raw_seconds: Option<f64>,
    raw_over_this: Option<f64>,
    round_trip_seconds: Option<f64>,
    machine: String,
}

fn main() -> Result<()> {
    briquette::zoo::install();
    let arguments = Arguments::parse();
    match Environment::read(|name| std::env::var(name).ok())? {
        Some(environment) => rank(&arguments, &environment),
        None => launch(&arguments),
    }
}

fn sizes(arguments: &Arguments) -> impl Iterator<Item = usize> + use<> {
    let to = arguments.to;
    std::iter::successors(Some(arguments.from), |bytes| Some(4 * bytes)).take_while(move |bytes| *bytes <= to)
}

/// Starts the ranks and reads rank 0's output.
fn launch(arguments: &Arguments) -> Result<()> {
    let mut rows = Vec::new();
    for &ranks in &arguments.ranks {
        rows.extend(tcp(ranks)?);
        for mpi in &arguments.mpi {
            let (name, python) = mpi.split_once('=').context("--mpi: NAME=PYTHON")?;
            rows.extend(under_mpi(arguments, name, python, ranks)?);
        }
    }
    print(&rows);
    write_csv(arguments.csv.as_deref(), &rows)
}

fn tcp(ranks: usize) -> Result<Vec<Row>> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    run(&(0..ranks).map(|rank| here(rank, ranks, port)).collect::<Vec<_>>())
}

/// Runs one rank's part; rank 0 prints.
fn rank(arguments: &Arguments, environment: &Environment) -> Result<()> {
    let cores = pin(environment.rank, 1)?;
    let checksums = !arguments.no_checksums;
    let mut comm = Session::from(TcpBuilder::from_environment(environment)?.checksums(checksums).join()?);
    if arguments.methods {
        return methods(arguments, &mut comm);
    }
    let mut raw = RawRing::connect(&mut comm)?;
    let mut csv = csv::Writer::from_writer(std::io::stdout());
    let (rank, ranks) = (comm.rank(), comm.world());
    let round_trip = (ranks == 2 && cores >= 2).then(|| round_trip(&mut comm, &mut raw)).transpose()?;
    for bytes in sizes(arguments) {
        let mut vector = vec![0.5f32; bytes / 4];
        let traffic = all_reduce_traffic(vector.len(), ranks, rank);
        let out = vec![1u8; traffic.sent as usize];
        let mut into = vec![0u8; traffic.received as usize];
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        // The first two of each warm up. Every rank must do as many, so the size alone says how many.
        let repeats = (2_000_000_000 / (bytes * ranks)).clamp(9, 1001);
        for _ in 0..repeats + 2 {
            comm.barrier()?;
            let begin = Instant::now();
            comm.all_reduce_sum(&mut vector)?;
            ours.push(begin.elapsed());
            vector.fill(0.5);
            comm.barrier()?;
            let begin = Instant::now();
            raw.exchange(&out, &mut into)?;
            theirs.push(begin.elapsed());
        }
        let (seconds, raw_seconds) = (slowest(&mut comm, &ours[2..])?, slowest(&mut comm, &theirs[2..])?);
        if rank == 0 {
            let transport = if checksums { "tcp" } else { "tcp, no checksums" };
            let row = row(transport, ranks, bytes, repeats, seconds);
            let raw_over_this = Some(raw_seconds / seconds);
            csv.serialize(Row {
                raw_seconds: Some(raw_seconds),
                raw_over_this,
                round_trip_seconds: round_trip,
                ..row
            })?;
            csv.flush()?;
        }
    }
    Ok(())
}

/// Runs one rank's part of comparing [`Method`]s, alternating between them for each size.
fn methods(arguments: &Arguments, comm: &mut Session) -> Result<()> {
    let mut csv = csv::Writer::from_writer(std::io::stdout());
    let usable: Vec<_> = Method::ALL.into_iter().filter(|(_, method)| method.works(comm.world())).collect();
    let mut parts = Vec::new();
    for bytes in sizes(arguments) {
        let mut vector = vec![0.0f32; bytes / 4];
        let mut times = vec![Vec::new(); usable.len()];
        let repeats = 1001;
        for _ in 0..repeats + 2 {
            for ((_, method), times) in usable.iter().zip(&mut times) {
                comm.barrier()?;
                let begin = Instant::now();
                method.sum(comm, &mut vector, &mut parts)?;
                times.push(begin.elapsed());
            }
        }
        for ((name, _), times) in usable.iter().zip(&times) {
            let seconds = slowest(comm, &times[2..])?;
            if comm.rank() == 0 {
                csv.serialize(row(name, comm.world(), bytes, repeats, seconds))?;
                csv.flush()?;
            }
        }
    }
    Ok(())
}

fn round_trip(comm: &mut Session, raw: &mut RawRing) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..2000 {
        comm.barrier()?;
        let begin = Instant::now();
        raw.round_trip(comm.rank() == 0)?;
        times.push(begin.elapsed().as_secs_f64());
    }
    let mine = median(times);
    let mut first = [if comm.rank() == 0 { mine } else { 0.0 }];
    comm.all_reduce_sum_f64(&mut first)?;
    Ok(first[0])
}

fn row(transport: &str, ranks: usize, bytes: usize, repeats: usize, seconds: f64) -> Row {
    let algbw = bytes as f64 / seconds / 1e9;
    Row {
        transport: transport.to_owned(),
        ranks,
        bytes,
        repeats,
        seconds,
        algbw_gb_s: algbw,
        busbw_gb_s: algbw * 2.0 * (ranks as f64 - 1.0) / ranks as f64,
        raw_seconds: None,
        raw_over_this: None,
        round_trip_seconds: None,
        machine: machine().0,
    }
}

/// Runs the same all-reduces with an MPI of the system, driven by mpi4py.
fn under_mpi(arguments: &Arguments, name: &str, python: &str, ranks: usize) -> Result<Vec<Row>> {
    let mpiexec = PathBuf::from(python).with_file_name("mpiexec");
    let mut command = Command::new(mpiexec);
    command.args(["-n", &ranks.to_string()]);
    if name.starts_with("openmpi") {
        let flags = ["--allow-run-as-root", "--oversubscribe", "--mca", "btl", "tcp,self", "--mca", "pml", "ob1"];
        command.args(flags).args(["--bind-to", "none"]);
    }
    command.arg(python).arg("benches/mpi_all_reduce.py");
    command.args(sizes(arguments).map(|bytes| bytes.to_string()));
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    let lines = String::from_utf8(output.stdout)?;
    let parse = |line: &str| -> Result<Row> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [bytes, repeats, seconds] = fields[..] else { anyhow::bail!("{name} printed `{line}`") };
        Ok(row(name, ranks, bytes.parse()?, repeats.parse()?, seconds.parse()?))
    };
    lines.lines().map(parse).collect()
}

fn print(rows: &[Row]) {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["ranks", "bytes", "transport", "time", "algbw GB/s", "busbw GB/s", "raw / this", "this / tcp"]);
    let tcp: BTreeMap<(usize, usize), f64> = rows
        .iter()
        .filter(|row| row.transport.starts_with("tcp"))
        .map(|row| ((row.ranks, row.bytes), row.seconds))
        .collect();
    for row in rows {
        let time = if row.seconds < 1e-3 {
            format!("{:.1} µs", row.seconds * 1e6)
        } else {
            format!("{:.2} ms", row.seconds * 1e3)
        };
        let ratio = |ratio: Option<f64>| ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
        table.add_row([
            row.ranks.to_string(),
            row.bytes.to_string(),
            row.transport.clone(),
            time,
            format!("{:.2}", row.algbw_gb_s),
            format!("{:.2}", row.busbw_gb_s),
            ratio(row.raw_over_this),
            ratio(tcp.get(&(row.ranks, row.bytes)).map(|tcp| row.seconds / tcp)),
        ]);
    }
    for column in table.column_iter_mut().filter(|column| column.index != 2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
    if let Some(round_trip) = rows.iter().find_map(|row| row.round_trip_seconds) {
        println!("a byte there and back over a raw socket: {:.1} µs", round_trip * 1e6);
    }
}
