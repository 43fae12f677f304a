//! Plots of accuracy or loss against bytes and against simulated time, with a point for each row.

use std::path::Path;

use anyhow::Result;

use super::write::Line;
use crate::picture::{self, Panel};

pub(super) fn draw(path: &Path, lines: &[Line]) -> Result<()> {
    let curves = |x: fn(&Line) -> f64| {
        let point = |line: &Line| (line.name(), vec![(x(line), line.test_loss.unwrap_or(line.test_accuracy))]);
        lines.iter().map(point).collect()
    };
    let measure = if lines.iter().any(|line| line.test_loss.is_some()) { "test loss" } else { "test accuracy" };
    let caption = lines.first().map_or("", |line| &line.experiment);
    let bytes = Panel {
        caption,
        axes: ["MB sent by all ranks", measure],
        log: [true, false],
        curves: curves(|line| line.bytes_sent / 1e6),
    };
    let seconds = Panel {
        caption,
        axes: ["simulated seconds", measure],
        log: [false, false],
        curves: curves(|line| line.simulated_seconds),
    };
    picture::draw(path, &[bytes, seconds])
}
