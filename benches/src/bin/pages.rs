//! Tables of pages from the CSVs of the results.

use std::path::{Path, PathBuf};

use anyhow::Result;
use briquette_benches::pages::{pages, update};
use clap::Parser;

/// Regenerates the tables of the pages in docs from the CSVs in benches/results
#[derive(Debug, Parser)]
#[command(after_help = "A table stands between a comment that names a CSV, its columns and its rows, and an end:
  <!-- results
  csv = \"experiments/resnet8.csv\"
  columns = [\"row: strategy\", \"lr\", \"test_accuracy\", \"to_dense\"]
  -->
  <!-- end of results -->")]
struct Cli {
    /// Pages, instead of all
    pages: Vec<PathBuf>,
    /// Fail if a page is not up to date, and write nothing
    #[arg(long)]
    check: bool,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let benches = Path::new(env!("CARGO_MANIFEST_DIR"));
    let all = if cli.pages.is_empty() { pages(&benches.join("../docs"))? } else { cli.pages };
    update(&all, &benches.join("results"), cli.check)
}
