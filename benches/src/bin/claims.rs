//! Tests the claims of the strategies' sources: rows as CSV, a picture for each family, and a table of the claims that
//! hold and those that do not.

use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use briquette_benches::claims::{Claim, Family, Row, panels};
use briquette_benches::picture::draw;
use briquette_benches::ranks::write_csv;
use briquette_benches::trainer::{day, machine};
use clap::{Parser, ValueEnum};
use comfy_table::{Table, presets::ASCII_MARKDOWN};
use serde::Serialize;

/// Tries what the sources of the strategies claim, on small problems and simulated networks
#[derive(Debug, Parser)]
#[command(after_help = "Example:
  cargo run --release --bin claims -- --data datasets --csv benches/results/claims.csv --svg docs/images
Its last line says how many claims hold, the table which.")]
struct Cli {
    /// Families to try; all if none is named
    family: Vec<Family>,
    /// Try only claims of this name; may be given several times
    #[arg(long, value_name = "NAME")]
    claim: Vec<String>,
    /// Seeds of what is random
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Directory with ag_news/, for the claims on texts; they are generated if absent
    #[arg(long)]
    data: Option<PathBuf>,
    /// Write every seed's values here
    #[arg(long)]
    csv: Option<PathBuf>,
    /// Draw a picture of each family into this directory: claims-FAMILY.svg
    #[arg(long)]
    svg: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Line {
    family: &'static str,
    claim: &'static str,
    setting: String,
    over: &'static str,
    x: f64,
    seed: u64,
    quantity: &'static str,
    rate: Option<f64>,
    value: f64,
    command: String,
    machine: String,
    cores: usize,
    date: String,
}

fn main() -> Result<()> {
    briquette::zoo::install();
    let cli = Cli::parse();
    let families = if cli.family.is_empty() { Family::value_variants() } else { &cli.family[..] };
    let (mut all, mut held, mut count) = (Vec::<Row>::new(), 0, 0);
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header(["family", "claim", "seen", "holds"]);
    for family in families {
        let mut of_family = Vec::new();
        let is_tried = |claim: &&Claim| cli.claim.is_empty() || cli.claim.iter().any(|name| name == claim.name);
        for claim in family.claims().iter().filter(is_tried) {
            let begin = Instant::now();
            eprint!("{}: {} … ", family.name(), claim.name);
            let rows = (claim.run)(cli.seeds, cli.data.as_deref())
                .with_context(|| format!("{}, {}", family.name(), claim.name))?;
            let (holds, seen) = (claim.judge)(&rows);
            eprintln!("{:.0} s, {}", begin.elapsed().as_secs_f64(), if holds { "holds" } else { "DOES NOT HOLD" });
            table.add_row([family.name(), claim.says, &seen, if holds { "yes" } else { "no" }]);
            (held, count) = (held + usize::from(holds), count + 1);
            of_family.extend(rows);
        }
        if let Some(directory) = &cli.svg {
            draw(&directory.join(format!("claims-{}.svg", family.name())), &panels(family.claims(), &of_family))?;
        }
        all.extend(of_family);
    }
    ensure!(count > 0, "no claim of these families has such a name");
    println!("{table}");
    let ((machine, cores), date) = (machine(), day(SystemTime::now())?);
    let data = if cli.data.is_some() { " --data datasets" } else { "" };
    let names = families.iter().map(|family| format!(" {}", family.name())).collect::<String>();
    let only = cli.claim.iter().map(|name| format!(" --claim '{name}'")).collect::<String>();
    let command =
        format!("claims{}{only} --seeds {}{data}", if cli.family.is_empty() { "" } else { &names }, cli.seeds);
    let line = |row: Row| {
        let Row { family, claim, setting, over, x, seed, quantity, rate, value } = row;
        let (command, machine, date) = (command.clone(), machine.clone(), date.clone());
        Line {
            family: family.name(),
            claim,
            setting,
            over,
            x,
            seed,
            quantity,
            rate,
            value,
            command,
            machine,
            cores,
            date,
        }
    };
    write_csv(cli.csv.as_deref(), &all.into_iter().map(line).collect::<Vec<_>>())?;
    println!("{held} of {count} claims hold");
    Ok(())
}
