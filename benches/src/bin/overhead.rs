//! What a world of one costs over plain Burn: median step times, taken in turns, and their ratio.

use std::path::PathBuf;

use anyhow::Result;
use briquette_benches::overhead::{BILSTM, RESNET8, compare};
use briquette_benches::trainer::machine;
use clap::Parser;

/// What a world of one costs over plain Burn: median step times, taken in turns, and their ratio
#[derive(Debug, Parser)]
struct Cli {
    /// Steps of each
    #[arg(long, default_value_t = 100)]
    steps: usize,
    /// Write the table here as CSV too
    #[arg(long)]
    csv: Option<PathBuf>,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
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
