//! Predictions as a table, and advice in words.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::predict::{Exchange, Kind, Seconds};
use crate::terminal::Time;

/// Speedup below which the advice is not to compress.
const WORTH: f64 = 1.05;

/// A prediction.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    ranks: usize,
    exchange: String,
    config: String,
    #[serde(skip)]
    kind: Kind,
    /// Steps for each exchange.
    steps_per_exchange: u64,
    compute_seconds: f64,
    codec_seconds: f64,
    network_seconds: f64,
    step_seconds: f64,
    /// Throughput of a rank, relative to one rank alone.
    efficiency: f64,
    total_seconds: f64,
}

impl Row {
    pub(super) fn new(ranks: usize, exchange: &Exchange, seconds: Seconds, steps: u64) -> Row {
        Row {
            ranks,
            exchange: exchange.name.clone(),
            config: exchange.config.clone(),
            kind: exchange.kind,
            steps_per_exchange: seconds.every,
            compute_seconds: seconds.compute,
            codec_seconds: seconds.codec,
            network_seconds: seconds.network,
            step_seconds: seconds.step(),
            efficiency: seconds.compute / seconds.step(),
            total_seconds: seconds.step() * steps as f64,
        }
    }

    /// Writes the step's seconds and their parts.
    fn parts(&self) -> String {
        let Row { compute_seconds, codec_seconds, network_seconds, step_seconds, .. } = *self;
        let [step, compute, codec, network] = [step_seconds, compute_seconds, codec_seconds, network_seconds].map(Time);
        format!("{step} ({compute} compute, {codec} codec, {network} network)")
    }
}

/// Returns a line for each exchange, and a column for each number of ranks.
pub(super) fn table(rows: &[Row], worlds: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY);
    let worlds = worlds.iter().map(|ranks| format!("{ranks} ranks"));
    let columns = worlds.len();
    table.set_header(std::iter::once("time (efficiency)".to_owned()).chain(worlds));
    for first in rows.iter().filter(|row| row.ranks == rows[0].ranks) {
        let cells = rows.iter().filter(|row| row.config == first.config);
        let cells = cells.map(|row| format!("{} ({:.0} %)", Time(row.total_seconds), 100.0 * row.efficiency));
        table.add_row(std::iter::once(first.exchange.clone()).chain(cells));
    }
    (1..=columns)
        .filter_map(|i| table.column_mut(i).map(|c| c.set_cell_alignment(CellAlignment::Right)))
        .for_each(drop);
    table
}

/// Says which exchange to use with this number of ranks.
pub(super) fn advice(rows: &[Row], ranks: usize) -> String {
    let fastest = |kind| {
        let rows = rows.iter().filter(|row| row.ranks == ranks && row.kind == kind);
        rows.min_by(|a, b| a.step_seconds.total_cmp(&b.step_seconds)).expect("exchanges of this kind")
    };
    let [dense, auto, local] = [Kind::Dense, Kind::OfAuto, Kind::LocalSteps].map(fastest);
    let faster = |row: &Row| dense.step_seconds / row.step_seconds;
    let mut text = format!("{ranks} ranks: a dense step takes {}. ", dense.parts());
    if faster(auto) < WORTH {
        let gain = 100.0 * (faster(auto) - 1.0).max(0.0);
        text += &format!("Do not compress: it gains {gain:.0} %, and auto sends dense gradients.");
    } else {
        text += &format!("auto is up to {:.1} times as fast, with {}: {}.", faster(auto), auto.exchange, auto.parts());
    }
    let best = if faster(auto) < 1.0 { dense } else { auto };
    if best.efficiency < 0.5 && local.step_seconds < best.step_seconds {
        let gain = faster(local);
        text +=
            &format!(" {} is {gain:.0} times as fast as dense, and needs a learning rate of its own.", local.exchange);
    }
    if ranks as f64 * best.efficiency < 1.0 {
        text +=
            &format!(" One rank alone processes more samples per second than {ranks} ranks with {}.", best.exchange);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::predict::Every;
    use super::*;

    /// A row with these seconds of compute time and network.
    fn row(kind: Kind, compute: f64, network: f64) -> Row {
        let messages = super::super::predict::Messages::Gather { message: 0 };
        let name = format!("{kind:?}");
        let exchange =
            Exchange { config: name.clone(), name, kind, messages, every: Every::Steps(1), encode: 0.0, decode: 0.0 };
        Row::new(4, &exchange, Seconds { compute, codec: 0.0, network, every: 1 }, 100)
    }

    #[test]
    fn advice_depends_on_gain_and_efficiency() {
        for (dense, auto, local, says, not) in [
            (0.01, 0.002, 0.001, "Do not compress: it gains 1 %", "auto is"),
            (0.01, 0.2, 0.001, "Do not compress: it gains 0 %", "One rank"),
            (
                9.0,
                0.5,
                0.1,
                "auto is up to 6.7 times as fast, with OfAuto: 1.5 s (1.0 s compute, 0 s codec, 500 ms network).",
                "LocalSteps",
            ),
            (9.0, 2.0, 0.1, "LocalSteps is 9 times as fast as dense", "One rank"),
            (9.0, 5.0, 0.1, "One rank alone processes more samples per second than 4 ranks with OfAuto.", "compress:"),
        ] {
            let rows = [row(Kind::Dense, 1.0, dense), row(Kind::OfAuto, 1.0, auto), row(Kind::LocalSteps, 1.0, local)];
            let text = advice(&rows, 4);
            assert!(text.contains(says) && !text.contains(not), "{text}");
        }
    }
}
