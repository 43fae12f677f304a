//! Codec times of every row of the tables, measured once and committed: they are parts of simulated times.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::Result;
use briquette_benches::ranks::write_csv;
use briquette_benches::tables::codecs::{at_ratios, exchange, layout, measure};
use briquette_benches::tables::results::Codec;
use briquette_benches::tables::{Model, dq_sgd, gravac, never_slower};
use briquette_benches::trainer::{day, machine};
use clap::Parser;
use clap::builder::TypedValueParser;

/// Measures the codec seconds of every row of the tables
#[derive(Debug, Parser)]
struct Cli {
    /// Steps that count; the median is taken
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(30..).map(|n| n as usize))]
    steps: usize,
    /// CSV file to write
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/results/codec-seconds.csv"))]
    csv: PathBuf,
}

fn main() -> Result<()> {
    briquette::zoo::install();
    let cli = Cli::parse();
    let ((machine, cores), date) = (machine(), day(SystemTime::now())?);
    let mut codecs: Vec<Codec> = Vec::new();
    for model in Model::ALL {
        let layout = layout(model)?;
        let tables = [never_slower::TABLE, dq_sgd::TABLE, gravac::TABLE];
        let tables = tables.iter().filter(|table| table.models.contains(&model));
        let mut seen = BTreeSet::new();
        for row in tables.flat_map(|table| (table.rows)(model)) {
            for fixed in at_ratios(&exchange(model, &row)?)? {
                let reducer = fixed.reducer.to_string();
                if !seen.insert((reducer.clone(), fixed.controller.to_string())) {
                    continue;
                }
                let (seconds, ratio) = measure(&fixed, &layout, cli.steps)?;
                let same = |codec: &Codec| (codec.reducer.as_str(), codec.values) == (&reducer, layout.len());
                if codecs.iter().any(|codec| same(codec) && codec.ratio == ratio) {
                    continue;
                }
                println!("{:10} {reducer:36} {ratio:8.2}x {:8.3} ms", model.name(), 1e3 * seconds.all);
                codecs.push(Codec {
                    reducer,
                    ratio,
                    values: layout.len(),
                    seconds: seconds.all,
                    compress_seconds: seconds.compress,
                    memory: fixed.feedback.to_string(),
                    machine: machine.clone(),
                    cores,
                    date: date.clone(),
                    command: format!("calibrate --steps {}", cli.steps),
                });
            }
        }
    }
    write_csv(Some(&cli.csv), &codecs)
}
