//! Bytes that a rank sends in one exchange of a recorded gradient, by reducer and world size.
//!
//! Worlds of up to 64 ranks run complete exchanges, over threads; for larger ones the bytes are counted from each
//! rank's selection. Where both exist, the count is checked against the exchange. Ranks other than the first have the
//! recorded gradient times `1 + z`, value by value, `z` uniform with mean 0 and variance 1. This models the noise of
//! minibatches: selections overlap in part.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use briquette::core::comm::{Local, all_reduce_traffic};
use briquette::core::compress::{Compressor, top_k::TopK};
use briquette::core::config::{Exchange, ReducerConfig};
use briquette::core::error::ReduceError;
use briquette::core::reduce::{AgreedStep, Round, power_sgd::PowerSgdConfig, shared_random_k::SharedRandomKConfig};
use briquette::core::{CompressionRatio, Key, Layout, Message};
use briquette::zoo::reduce::sparse_all_reduce::{HEADER, SparseAllReduceConfig, count};
use briquette_benches::trainer::machine;
use briquette_cli::file;
use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// Bytes a rank sends in one exchange, by reducer and size of the world
#[derive(Debug, Parser)]
struct Arguments {
    /// A gradient: .safetensors as `--record-gradient` of the trainers writes it
    #[arg(default_value = "benches/data/resnet20.safetensors")]
    file: PathBuf,
    /// Compression ratio of the sparse reducers
    #[arg(long, default_value = "100x")]
    ratio: CompressionRatio,
    /// PowerSGD's rank
    #[arg(long, default_value_t = 2)]
    rank: usize,
    /// Whole exchanges in worlds of up to this many ranks
    #[arg(long, default_value_t = 64)]
    whole: usize,
    /// Write the table here as CSV too
    #[arg(long)]
    csv: Option<PathBuf>,
}

const WORLDS: [usize; 9] = [2, 3, 4, 8, 16, 32, 64, 256, 1024];

/// Length prefix of a frame of `Gather`.
const FRAME: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Dense,
    Gather,
    SharedRandomK,
    SparseAllReduce,
    PowerSgd,
}

const KINDS: [Kind; 5] = [Kind::Dense, Kind::Gather, Kind::SharedRandomK, Kind::SparseAllReduce, Kind::PowerSgd];

#[derive(Debug, Serialize)]
struct Row {
    gradient: String,
    values: usize,
    ranks: usize,
    reducer: String,
    how: &'static str,
    /// Mean over ranks.
    payload_bytes: f64,
    header_bytes: f64,
    fewer_than_dense: f64,
    machine: String,
}

/// A recorded gradient and the settings of its exchange.
struct Setup {
    values: Vec<f32>,
    layout: Layout,
    ratio: CompressionRatio,
    rank: usize,
}

impl Kind {
    /// Returns its name in settings.
    fn name(self) -> &'static str {
        match self {
            Kind::Dense => "dense",
            Kind::Gather => "gather",
            Kind::SharedRandomK => "shared-random-k",
            Kind::SparseAllReduce => "sparse-all-reduce",
            Kind::PowerSgd => "power-sgd",
        }
    }
}

impl Setup {
    fn reducer(&self, kind: Kind) -> ReducerConfig {
        match kind {
            Kind::Dense => ReducerConfig::dense(),
            Kind::Gather => ReducerConfig::gather(TopK::ratio(self.ratio).into()),
            Kind::SharedRandomK => SharedRandomKConfig { ratio: self.ratio, scaled: false }.into(),
            Kind::SparseAllReduce => SparseAllReduceConfig { ratio: self.ratio }.into(),
            Kind::PowerSgd => PowerSgdConfig { rank: self.rank }.into(),
        }
    }

    fn gradient(&self, rank: usize) -> Vec<f32> {
        let mut words = vec![0; self.values.len()];
        Key::new(1).purpose("worlds").rank(rank).lanes(0).fill(&mut words);
        let z = |word: u32| (2.0 * (f64::from(word) + 0.5) / 2_f64.powi(32) - 1.0) * 3_f64.sqrt();
        let value = |(v, word): (&f32, &u32)| if rank == 0 { *v } else { (f64::from(*v) * (1.0 + z(*word))) as f32 };
        self.values.iter().zip(&words).map(value).collect()
    }

    fn selection(&self, rank: usize) -> Message {
        let mut message = Message::default();
        TopK::ratio(self.ratio).compress_into(&self.gradient(rank), Key::new(0), &mut message);
        message
    }

    /// Returns the bytes that every rank sends, by running the exchange.
    fn exchange(&self, kind: Kind, world: usize) -> Result<Vec<u64>> {
        let config = Exchange { reducer: self.reducer(kind), ..Exchange::default() };
        let sent = Local::run(world, |mut comm| {
            let input = self.gradient(comm.rank());
            let mut reducer = config.build_reducer(&self.layout, world).expect("settings that were built before");
            let (mut average, slots, agreed_step) =
                (vec![0.0; input.len()], self.layout.slots(), AgreedStep::default());
            let round = Round {
                key: Key::new(2),
                slots,
                agreed_step: &agreed_step,
                input: &input,
                average: &mut average,
                sent: None,
            };
            Ok::<_, ReduceError>(reducer.exchange(round, &mut comm)?.traffic.sent)
        });
        Ok(sent.into_iter().collect::<Result<_, _>>()?)
    }

    /// Returns the payload and header bytes that every rank sends, without an exchange.
    fn counted(&self, kind: Kind, selections: &[Message]) -> Result<Vec<(u64, u64)>> {
        let (world, len) = (selections.len(), self.values.len());
        let ring = |lens: &[usize]| {
            let sent = |rank| lens.iter().map(|len| all_reduce_traffic(*len, world, rank).sent).sum();
            (0..world).map(|rank| (sent(rank), 0)).collect()
        };
        Ok(match kind {
            Kind::Dense => ring(&[len]),
            Kind::SharedRandomK => ring(&[self.ratio.keep(len)]),
            Kind::PowerSgd => ring(&self.factors()),
            Kind::Gather => {
                let others = world as u64 - 1;
                let header = others * (FRAME + HEADER) as u64;
                let payload = |message: &Message| others * (message.encoded_len() - HEADER) as u64;
                selections.iter().map(|message| (payload(message), header)).collect()
            }
            Kind::SparseAllReduce => {
                let ranks = count(selections, self.ratio)?;
                ranks.iter().map(|bytes| (bytes.payload() as u64, bytes.headers as u64)).collect()
            }
        })
    }

    /// Returns the number of values of PowerSGD's two all-reduces: left factors including everything not worth
    /// factoring, and right factors.
    fn factors(&self) -> [usize; 2] {
        let (mut left, mut right) = (0, 0);
        for slot in self.layout.slots() {
            match slot.matrix().filter(|(rows, columns)| self.rank * (rows + columns) < rows * columns) {
                Some((rows, columns)) => (left, right) = (left + self.rank * rows, right + self.rank * columns),
                None => left += slot.len(),
            }
        }
        [left, right]
    }
}

fn main() -> Result<()> {
    briquette::zoo::install();
    let arguments = Arguments::parse();
    let vector = file::read(&arguments.file)?;
    let layout = Layout::new(vector.tensors);
    let name = arguments.file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let setup = Setup { values: vector.values, layout, ratio: arguments.ratio, rank: arguments.rank };
    let mut rows = Vec::new();
    for world in WORLDS {
        eprintln!("{world} ranks");
        let selections: Vec<Message> = (0..world).map(|rank| setup.selection(rank)).collect();
        let mut dense = 0.0;
        for kind in KINDS {
            let counted = setup.counted(kind, &selections)?;
            let whole = world <= arguments.whole;
            if whole {
                let sent = setup.exchange(kind, world)?;
                let same = counted.iter().map(|(payload, header)| payload + header).eq(sent.iter().copied());
                ensure!(same, "{kind:?}, {world} ranks: counted {counted:?}, sent {sent:?}");
            }
            let mean = |of: fn(&(u64, u64)) -> u64| counted.iter().map(of).sum::<u64>() as f64 / world as f64;
            let (payload, header) = (mean(|b| b.0), mean(|b| b.1));
            dense = if kind == Kind::Dense { payload } else { dense };
            rows.push(Row {
                gradient: name.clone(),
                values: setup.values.len(),
                ranks: world,
                reducer: kind.name().into(),
                how: if whole { "exchanged" } else { "counted" },
                payload_bytes: payload,
                header_bytes: header,
                fewer_than_dense: dense / (payload + header),
                machine: machine().0,
            });
        }
    }
    println!("{}", table(&rows));
    growth(&rows);
    if let Some(path) = &arguments.csv {
        let mut out = csv::Writer::from_path(path).with_context(|| format!("{}", path.display()))?;
        rows.iter().try_for_each(|row| out.serialize(row))?;
        out.flush()?;
    }
    Ok(())
}

/// Computes the growth of each reducer's payload from 16 ranks to the largest world.
fn growth(rows: &[Row]) {
    for kind in KINDS {
        let of = |ranks| rows.iter().find(|row| row.ranks == ranks && row.reducer == kind.name());
        if let (Some(small), Some(large)) = (of(16), of(1024)) {
            println!(
                "{}: payload x{:.3} from 16 to 1024 ranks",
                kind.name(),
                large.payload_bytes / small.payload_bytes
            );
        }
    }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(["ranks", "reducer", "how", "payload", "headers", "fewer than dense"]);
    for row in rows {
        let bytes = |bytes: f64| format!("{:.1} kB", bytes / 1e3);
        table.add_row([
            row.ranks.to_string(),
            row.reducer.clone(),
            row.how.into(),
            bytes(row.payload_bytes),
            bytes(row.header_bytes),
            format!("{:.1}x", row.fewer_than_dense),
        ]);
    }
    for number in [0, 3, 4, 5] {
        table.column_mut(number).expect("six columns").set_cell_alignment(CellAlignment::Right);
    }
    table
}
