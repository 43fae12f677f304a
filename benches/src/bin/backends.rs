//! Step time of each model on each backend: plain Burn against one wrapped rank (dense, top-k, 8-bit), in turn, and
//! several ranks sharing the device. A backend that finds no device here leaves rows that say so.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use briquette::Backend;
use briquette_benches::backends::{Exchange, Plan, Row, alone, together};
use briquette_benches::overhead::{Case, Image, Text};
use briquette_benches::ranks::write_csv;
use briquette_benches::trainer::machine;
use briquette_examples::record::BURN_VERSION;
use clap::Parser;
use comfy_table::{Table, presets::UTF8_BORDERS_ONLY};

/// A step of each model on each backend: plain Burn beside wrapped ranks, and where their time goes
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  backends --backend flex,tch --model resnet8,resnet20,bilstm
  backends --backend cuda --model resnet18,vgg16 --batch 128 --steps 100 --csv gpu.csv")]
struct Cli {
    /// Backends of this build, with commas
    #[arg(long, value_delimiter = ',', default_value = "flex")]
    backend: Vec<Backend>,
    /// Models, with commas: those of `cifar`, and bilstm
    #[arg(long, value_delimiter = ',', default_value = "resnet8,bilstm")]
    model: Vec<String>,
    /// Samples a rank and step
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// Steps measured, after three that are not
    #[arg(long, default_value_t = 20)]
    steps: usize,
    /// Also this many ranks on the one device; 1 for none
    #[arg(long, default_value_t = 4)]
    ranks: usize,
    /// The device's number among those of its backend
    #[arg(long, default_value_t = 0)]
    device: usize,
    /// Measure GPUs only; a backend that would run on a CPU counts as not measured
    #[arg(long)]
    gpu: bool,
    /// Additional facts for a reader: driver, build profile
    #[arg(long, default_value = "")]
    note: String,
    /// Write the table here as CSV too
    #[arg(long)]
    csv: Option<PathBuf>,
}

fn main() -> Result<()> {
    briquette::zoo::install();
    let cli = Cli::parse();
    let mut rows = Vec::new();
    for &backend in &cli.backend {
        for model in &cli.model {
            eprintln!("{backend} {model} ...");
            rows.extend(measure(&cli, backend, model).with_context(|| format!("{model} on {backend}"))?);
            // As far as it is: a long table may be cut short.
            write_csv(cli.csv.as_deref(), &rows)?;
        }
    }
    print(&rows);
    Ok(())
}

fn measure(cli: &Cli, backend: Backend, model: &str) -> Result<Vec<Row>> {
    let (name, cores) = machine();
    let profile = if cfg!(debug_assertions) { "debug build" } else { "" };
    let notes: Vec<&str> = [profile, cli.note.as_str()].into_iter().filter(|note| !note.is_empty()).collect();
    let mut base = Row {
        backend: backend.name().into(),
        model: model.into(),
        batch: cli.batch,
        machine: format!("{name}, {cores} cores"),
        versions: format!("Burn {BURN_VERSION}"),
        note: notes.join("; "),
        ..Row::default()
    };
    let found = backend.device(cli.device).and_then(|device| Ok((device, backend.devices()?.swap_remove(cli.device))));
    let device = match found {
        Ok((_, found)) if cli.gpu && found.is_cpu => return Ok(not_measured(cli, &base, "no GPU here")),
        Ok((device, found)) => {
            base.device = found.name;
            device
        }
        Err(error) => return Ok(not_measured(cli, &base, &error.to_string())),
    };
    match model {
        "bilstm" => rows_of(cli.ranks, &Plan { case: Text { batch: cli.batch }, device, steps: cli.steps, base }),
        _ => match model.parse() {
            Ok(kind) => {
                let case = Image { kind, batch: cli.batch };
                rows_of(cli.ranks, &Plan { case, device, steps: cli.steps, base })
            }
            Err(error) => bail!("--model: {error}, bilstm"),
        },
    }
}

/// Returns the rows that a measurement would have given.
fn not_measured(cli: &Cli, base: &Row, why: &str) -> Vec<Row> {
    let note = format!("not measured: {why}");
    let row =
        |exchange: Exchange, ranks| Row { exchange: exchange.name().into(), ranks, note: note.clone(), ..base.clone() };
    let alone = Exchange::ALL.into_iter().map(|exchange| row(exchange, 1));
    let together = Exchange::ALL.into_iter().skip(1).filter(|_| cli.ranks > 1).map(|exchange| row(exchange, cli.ranks));
    alone.chain(together).collect()
}

fn rows_of<C: Case + Sync>(ranks: usize, plan: &Plan<C>) -> Result<Vec<Row>> {
    let mut rows = alone(plan)?;
    for exchange in Exchange::ALL.into_iter().filter(|e| *e != Exchange::Plain && ranks > 1) {
        rows.push(together(plan, ranks, exchange)?);
    }
    Ok(rows)
}

fn print(rows: &[Row]) {
    let mut table = Table::new();
    table.load_preset(UTF8_BORDERS_ONLY);
    table.set_header([
        "backend",
        "model",
        "ranks",
        "exchange",
        "ms/step",
        "samples/s",
        "overhead",
        "read",
        "encode",
        "exchange",
        "decode",
        "write",
    ]);
    let number = |value: Option<f64>, digits: usize| value.map_or(String::new(), |v| format!("{v:.digits$}"));
    for row in rows {
        let mut cells = vec![row.backend.clone(), row.model.clone(), row.ranks.to_string(), row.exchange.clone()];
        cells.push(row.ms_per_step.map_or_else(|| row.note.clone(), |ms| format!("{ms:.1}")));
        cells.push(number(row.samples_per_second, 0));
        cells.push(row.overhead_percent.map_or(String::new(), |percent| format!("{percent:+.1} %")));
        let parts = [row.read_ms, row.encode_ms, row.exchange_ms, row.decode_ms, row.write_ms];
        // Of a step, as the milliseconds are in the CSV.
        cells.extend(parts.map(|part| number(part.zip(row.ms_per_step).map(|(part, step)| 100.0 * part / step), 1)));
        table.add_row(cells);
    }
    println!("{table}");
}
