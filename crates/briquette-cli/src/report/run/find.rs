//! Search for runs below a folder.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::METRICS;

/// Folders below which runs are searched.
const DEPTH: usize = 5;

/// Returns the folders of runs that `path` is or contains, sorted.
///
/// # Errors
/// If there is no such folder, or no run in it.
pub(in crate::report) fn find(path: &Path) -> Result<Vec<PathBuf>> {
    let here = path.display();
    if !path.is_dir() {
        let is_metrics = path.file_name().is_some_and(|name| name == METRICS);
        if let (true, Some(folder)) = (is_metrics && path.is_file(), path.parent()) {
            return Ok(vec![folder.to_owned()]);
        }
        bail!("{here}: there is no such folder; a run's folder is the trainers' --out, by default below runs/");
    }
    let mut found = Vec::new();
    search(path, DEPTH, &mut found).with_context(|| format!("cannot read {here}"))?;
    if found.is_empty() {
        bail!("{here}: no run is in this folder: it has no {METRICS}, and neither has a folder below it");
    }
    found.sort();
    Ok(found)
}

fn search(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if folder.join(METRICS).is_file() {
        found.push(folder.to_owned());
        return Ok(());
    }
    if depth == 0 {
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // Links may lead around in circles.
        if entry.file_type()?.is_dir() && !entry.file_name().to_string_lossy().starts_with('.') {
            search(&entry.path(), depth - 1, found)?;
        }
    }
    Ok(())
}
