//! Subscribers of `tracing`: warnings go to standard error, and with `--trace` the timed operations of a rank go to a file.

use std::fs::File;
use std::io::{BufWriter, IsTerminal};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use briquette::core::trace::TARGET;
use tracing_chrome::{ChromeLayerBuilder, FlushGuard};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::output::Output;
use crate::settings::Settings;

/// Shows warnings of the libraries on standard error, except those of graphics drivers that are probed for availability.
pub fn show_warnings(output: &Output) {
    show_and_write(output, None);
}

/// Does the same, and writes a trace in Chrome's format, which is complete when the returned guard is dropped.
///
/// # Errors
/// If the file cannot be created, or `settings` simulate time, about which wall time says nothing.
pub(crate) fn trace(output: &Output, file: &Path, rank: Option<usize>, settings: &Settings) -> Result<FlushGuard> {
    if settings.simulated() {
        bail!(
            "--trace {}: it shows wall time, which says nothing of a simulated one: omit --network and --clock",
            file.display()
        );
    }
    let path = of_rank(file, rank);
    let file = File::create(&path).with_context(|| format!("--trace: cannot write {}", path.display()))?;
    show_and_write(output, Some(file)).context("--trace: this process has another subscriber of tracing")
}

/// Returns the file of a rank: rank 0 writes the requested file, and other processes write next to it.
fn of_rank(file: &Path, rank: Option<usize>) -> PathBuf {
    let Some(rank) = rank.filter(|rank| *rank > 0) else { return file.to_owned() };
    let mut name = file.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".rank{rank}"));
    if let Some(extension) = file.extension() {
        name.push(".");
        name.push(extension);
    }
    file.with_file_name(name)
}

fn show_and_write(output: &Output, file: Option<File>) -> Option<FlushGuard> {
    let filter = Targets::new().with_default(LevelFilter::WARN).with_target("wgpu_hal", LevelFilter::OFF);
    let output = output.clone();
    let stderr = fmt::layer().with_writer(move || output.errors()).with_ansi(std::io::stderr().is_terminal());
    let (trace, guard) = file
        .map(|file| {
            let writer = BufWriter::new(file);
            let (layer, guard) =
                ChromeLayerBuilder::new().writer(writer).include_args(true).include_locations(false).build();
            (layer.with_filter(Targets::new().with_target(TARGET, LevelFilter::TRACE)), guard)
        })
        .unzip();
    let registry = tracing_subscriber::registry().with(stderr.without_time().with_target(false).with_filter(filter));
    // Fails only if there is a subscriber already, which then receives them.
    registry.with(trace).try_init().ok().and(guard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_write_files_of_their_own() {
        let name = |file: &str, rank| of_rank(Path::new(file), rank).display().to_string();
        assert_eq!(name("a/trace.json", None), "a/trace.json");
        assert_eq!(name("a/trace.json", Some(0)), "a/trace.json");
        assert_eq!(name("a/trace.json", Some(3)), "a/trace.rank3.json");
        assert_eq!(name("trace", Some(1)), "trace.rank1");
    }
}
