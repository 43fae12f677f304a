//! `briquette plan`: predicts the time of training on a network, for exchanges and numbers of ranks.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use briquette_core::Key;
use briquette_core::config::CompressorConfig;
use briquette_core::error::ConfigError;
use briquette_core::sync::pace;
use briquette_core::sync::rounds::period_of;
use briquette_sim::Network;
use clap::Args;
use indicatif::ProgressIterator;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::file;
use crate::measure::{Measured, measure, on_threads};
use crate::probe::{Measurements, codec_seconds};
use crate::terminal::{complain, printable, progress, show, show_records};

mod predict;
mod report;

pub(crate) use predict::ON_LINK;
use predict::{Every, Exchange, Kind, Messages};
use report::{Row, advice, table};

const HELP: &str = "\
Examples:
  briquette plan --values 11.2M --compute 120ms --network 100mbit,1ms --world 4..64 --steps 20k
  briquette plan runs/mine --network 1gbit,200us --world 2,4,8

The prediction sends the frames of each exchange through the trainers' simulated network, with 12 % more bytes for TCP
and the headers of packets, and with the encode and decode times of this machine. It has no packet loss, and does not
overlap communication with the backward pass. Compute time is that of one rank for its own batch, so that more ranks
process more samples per step; it does not grow with the number of ranks.

The period of diloco:adapt=true is the one that it would choose for these times and this number of steps, with messages
of topk:20x:q8. A run with few exchanges may stay at lower ratios, and takes longer.

It predicts times, not losses: whether a ratio costs accuracy depends on the model. `auto` reads the loss and
the staleness of the residual, and may choose a lower ratio than the fastest one, which is shown for it.";

/// Values of the vector that codecs are measured with, at most; times and bytes of longer vectors are proportional.
const MEASURED: usize = 1 << 22;
/// Formats between which `auto` chooses, apart from rings.
pub(crate) const RATIOS: [&str; 3] = ["topk:10x:q8", "topk:20x:q8", "topk:50x:q8"];
/// Assumed messages of the adaptive strategy, for which `auto` chooses the ratio.
const ADAPTIVE: &str = RATIOS[1];

/// Predicts the time of training on a network, for several exchanges and numbers of ranks.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct Plan {
    /// The directory of a trainer's run, from which values, compute time and steps are taken unless given.
    pub run: Option<PathBuf>,
    /// The network between ranks, such as 100mbit,1ms (bandwidth and latency) or 1gbit,50us,4 (four ranks on each link), or a file of
    /// `briquette probe --out`.
    #[arg(long)]
    pub network: Link,
    /// Numbers of ranks: 4, or 2,4,8, or 4..64 for 4, 8, 16, 32, 64.
    #[arg(long, default_value = "2..16")]
    pub world: Worlds,
    /// The number of the model's parameters, such as 1400000, 11.2M or 1.1B.
    #[arg(long)]
    pub values: Option<Count>,
    /// Seconds that a rank computes for its batch: forward, backward and optimizer, such as 120ms.
    #[arg(long, value_parser = humantime::parse_duration)]
    pub compute: Option<Duration>,
    /// The number of steps of the run, such as 20k. Steps with local steps count as steps.
    #[arg(long)]
    pub steps: Option<Count>,
    /// A further compressor, such as qsgd:4, whose messages are gathered at every step; may be given several times.
    #[arg(long = "compressor", value_name = "SPEC")]
    pub compressors: Vec<CompressorConfig>,
    /// A gradient with which codecs are measured, in a format of `briquette inspect`. Normally distributed values if not given.
    #[arg(long, value_name = "FILE")]
    pub gradient: Option<PathBuf>,
    /// Threads that encode and decode.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Print CSV instead of a table.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// A network, with the codecs of its machines if a probe measured them.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// The network.
    pub network: Network,
    /// The measurements of a probe.
    pub probe: Option<Measurements>,
}

impl FromStr for Link {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !Path::new(text).is_file() {
            return text
                .parse()
                .map(|network| Link { network, probe: None })
                .map_err(|error: ConfigError| error.to_string());
        }
        let probe = Measurements::read(Path::new(text)).map_err(|error| format!("{error:#}"))?;
        let network = probe.network.parse().map_err(|error: ConfigError| format!("{text}: {error}"))?;
        Ok(Link { network, probe: Some(probe) })
    }
}

/// A number with an optional suffix: k, M or B.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count(pub u64);

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, scale) = match text.strip_suffix(['k', 'M', 'B']) {
            Some(number) if text.ends_with('k') => (number, 1e3),
            Some(number) if text.ends_with('M') => (number, 1e6),
            Some(number) => (number, 1e9),
            None => (text, 1.0),
        };
        let value = number.parse::<f64>().ok().map(|value| (value * scale).round());
        let value = value.filter(|value| (1.0..=1e15).contains(value));
        value.map(|value| Count(value as u64)).ok_or_else(|| "valid are: 20000, 20k, 11.2M, 1.1B".to_owned())
    }
}

/// Numbers of ranks, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worlds(pub Vec<usize>);

impl FromStr for Worlds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "valid are: 4, or 2,4,8, or 4..64, with 2 to 256 ranks".to_owned();
        let number = |text: &str| text.trim().parse().ok().filter(|ranks| (2..=256).contains(ranks)).ok_or_else(wrong);
        let mut worlds = match text.split_once("..") {
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                std::iter::successors(Some(first), |ranks| Some(2 * ranks)).take_while(|ranks| *ranks <= last).collect()
            }
            None => text.split(',').map(number).collect::<Result<Vec<usize>, _>>()?,
        };
        worlds.sort_unstable();
        worlds.dedup();
        if worlds.is_empty() { Err(wrong()) } else { Ok(Worlds(worlds)) }
    }
}

/// Numbers in a run's files.
#[derive(Debug, Default, PartialEq)]
struct Known {
    values: Option<u64>,
    compute: Option<Duration>,
    steps: Option<u64>,
    note: Option<String>,
}

impl Plan {
    /// Prints the prediction.
    ///
    /// # Errors
    /// If a file cannot be read, a number is not known, or the network has traces or does not fit a world.
    pub fn run(&self) -> Result<()> {
        let known = self.run.as_deref().map(read).transpose()?.unwrap_or_default();
        known.note.iter().for_each(|note| complain(format_args!("note: {}", printable(note))));
        let network = &self.network.network;
        ensure!(
            network.repeats_after().is_none(),
            "plan needs a network that does not change: give one bandwidth and latency"
        );
        for world in &self.world.0 {
            network.check(*world).with_context(|| format!("network `{network}` in a world of {world} ranks"))?;
        }
        let vector = self.gradient.as_deref().map(file::read).transpose()?.map(|vector| vector.values);
        let values = self.values.map(|count| count.0).or(known.values).or(vector.as_ref().map(|x| x.len() as u64));
        let values =
            values.context("the number of parameters is not known: give --values, or the directory of a run")?;
        ensure!(values < 1 << 32, "--values {values}: a vector has fewer than 4294967296 values");
        let compute = self.compute.or(known.compute);
        let compute =
            compute.context("the compute time of a step is not known: give --compute, or the directory of a run")?;
        let steps = self.steps.map(|count| count.0).or(known.steps).unwrap_or(1000);
        let exchanges = self.exchanges(values, vector, steps)?;
        let mut rows = Vec::new();
        let cells: Vec<_> = self.world.0.iter().flat_map(|world| exchanges.iter().map(|one| (*world, one))).collect();
        for (ranks, exchange) in cells.into_iter().progress_with(progress("predicting")) {
            let seconds = exchange.predict(usize::try_from(values)?, compute, network, ranks)?;
            rows.push(Row::new(ranks, exchange, seconds, steps));
        }
        if self.json || self.csv {
            show_records(&rows, self.json)?;
        } else {
            let compute = humantime::format_duration(compute);
            show(format_args!(
                "{steps} steps of {values} values, {compute} of compute time each, network {network}\n{}",
                table(&rows, &self.world.0)
            ))?;
            self.world.0.iter().try_for_each(|ranks| show(advice(&rows, *ranks)))?;
        }
        Ok(())
    }

    /// Measures the codecs on this machine, and returns the exchanges to compare, dense first.
    fn exchanges(&self, values: u64, vector: Option<Vec<f32>>, steps: u64) -> Result<Vec<Exchange>> {
        let vector = vector.unwrap_or_else(|| normal(MEASURED.min(usize::try_from(values).unwrap_or(MEASURED))));
        let vector = &vector[..vector.len().min(MEASURED)];
        ensure!(!vector.is_empty(), "the gradient is empty");
        let scale = values as f64 / vector.len() as f64;
        let measured = |config: &CompressorConfig| -> Result<Measured> {
            let mut one = on_threads(usize::from(self.threads), || measure(config, vector, Key::new(0), 3))?;
            (one.encode_seconds, one.decode_seconds) = (one.encode_seconds * scale, one.decode_seconds * scale);
            one.bytes = (one.bytes as f64 * scale) as usize;
            Ok(one)
        };
        let rings = [
            ("dense", "dense", "dense", 4.0),
            ("16-bit ring", "bf16", "ring:bf16", 2.0),
            ("8-bit ring", "minmax", "ring:int8", 1.0 + 4.0 / 256.0),
        ];
        let gathers = RATIOS.iter().map(|text| text.parse()).collect::<Result<Vec<CompressorConfig>, _>>()?;
        let others = self.compressors.iter().filter(|other| !gathers.contains(other));
        let gathers: Vec<_> = gathers.iter().chain(others).collect();
        let bar = progress("measuring codecs");
        bar.set_length((rings.len() + gathers.len() + 1) as u64);
        let mut exchanges = Vec::new();
        for (name, compressor, config, value) in rings {
            let one = measured(&compressor.parse()?)?;
            let (encode, decode) = (one.encode_seconds, one.decode_seconds);
            let messages = Messages::Ring { value };
            let kind = if name == "dense" { Kind::Dense } else { Kind::OfAuto };
            exchanges.push(Exchange {
                name: name.into(),
                config: format!("reducer={config}"),
                kind,
                messages,
                every: Every::Steps(1),
                encode,
                decode,
            });
            bar.inc(1);
        }
        let gather = |one: Measured, every: Every| Exchange {
            name: one.compressor.clone(),
            config: format!("reducer=gather:{}", one.compressor),
            kind: Kind::Other,
            messages: Messages::Gather { message: one.bytes },
            every,
            encode: one.encode_seconds,
            decode: one.decode_seconds,
        };
        for (number, compressor) in gathers.into_iter().enumerate() {
            let kind = if number < RATIOS.len() { Kind::OfAuto } else { Kind::Other };
            exchanges.push(Exchange { kind, ..gather(measured(compressor)?, Every::Steps(1)) });
            bar.inc(1);
        }
        let strategy = |name: &str, every, from: &Exchange| Exchange {
            name: name.into(),
            config: format!("strategy={name}"),
            kind: Kind::LocalSteps,
            every,
            ..from.clone()
        };
        let assumed = exchanges.iter().find(|one| one.name == ADAPTIVE).context("one of the ratios")?;
        let longest = period_of(pace::LONGEST, Some(steps));
        let sparse = gather(measured(&"chunk-topk:64x+bins:2".parse()?)?, Every::Steps(1));
        exchanges.extend([
            strategy("diloco:adapt=true", Every::Adaptive { longest }, assumed),
            strategy("diloco:50", Every::Steps(50), &exchanges[0]),
            strategy("sparse-loco:30", Every::Steps(30), &sparse),
        ]);
        bar.finish_and_clear();
        self.slow_down(&mut exchanges)?;
        Ok(exchanges)
    }

    /// Multiplies the seconds of codecs, if a rank of the probe is slower than this machine.
    fn slow_down(&self, exchanges: &mut [Exchange]) -> Result<()> {
        let Some(probe) = &self.network.probe else { return Ok(()) };
        let slower = probe.codec_seconds_per_value / codec_seconds(&probe.compressor.parse()?);
        if slower > 1.0 {
            for one in exchanges {
                (one.encode, one.decode) = (one.encode * slower, one.decode * slower);
            }
        }
        Ok(())
    }
}

/// Reads what a trainer's run says of itself.
fn read(run: &Path) -> Result<Known> {
    #[derive(Deserialize)]
    struct Summary {
        steps: u64,
        bytes_dense: u64,
        compute_seconds: f64,
        seconds_are: Option<String>,
        elastic: Option<IgnoredAny>,
    }
    #[derive(Deserialize)]
    struct Settings {
        ranks: Option<u64>,
        server: Option<IgnoredAny>,
    }
    let text = |name: &str| {
        let path = run.join(name);
        std::fs::read_to_string(&path)
            .with_context(|| format!("{}: not the directory of a finished run", path.display()))
    };
    let summary: Summary = serde_json::from_str(&text("summary.json")?)
        .with_context(|| format!("{}: not a summary of this version", run.join("summary.json").display()))?;
    let settings: Settings = toml::from_str(&text("config.toml")?)
        .with_context(|| format!("{}: no settings of a run", run.join("config.toml").display()))?;
    if summary.steps == 0 {
        bail!("{}: the run has no steps", run.display());
    }
    // All ranks together send 2·(W−1)·4 bytes for each value, unless they have a server or their number has changed.
    let is_fixed = summary.elastic.is_none() && settings.server.is_none();
    let others = settings.ranks.filter(|_| is_fixed).unwrap_or(1).saturating_sub(1);
    let values = (summary.bytes_dense / summary.steps).checked_div(8 * others).filter(|values| *values > 0);
    let compute = summary.compute_seconds / summary.steps as f64;
    let is_simulated = summary.seconds_are.as_deref() == Some("simulated");
    let note = format!("{}: its compute time is simulated; --compute replaces it", run.display());
    Ok(Known {
        values,
        compute: Duration::try_from_secs_f64(compute).ok().filter(|time| !time.is_zero()),
        steps: Some(summary.steps),
        note: is_simulated.then_some(note),
    })
}

/// Returns values that are about normally distributed.
pub(crate) fn normal(count: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1_u32 << 24) as f32 - 0.5
    };
    (0..count).map(|_| (0..4).map(|_| uniform()).sum()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_worlds() {
        assert_eq!(
            ["20000", "20k", "11.2M", "1.1B"].map(|text| text.parse::<Count>().unwrap().0),
            [20_000, 20_000, 11_200_000, 1_100_000_000]
        );
        assert!(["", "0", "-3", "k", "1e99", "NaN"].iter().all(|text| text.parse::<Count>().is_err()));
        let worlds = |text: &str| text.parse::<Worlds>().map(|worlds| worlds.0);
        assert_eq!(worlds("4..64"), Ok(vec![4, 8, 16, 32, 64]));
        assert_eq!(worlds("3..13"), Ok(vec![3, 6, 12]));
        assert_eq!(worlds("8,2,8"), Ok(vec![2, 8]));
        assert!(["", "1", "4..2", "257", "2..x"].iter().all(|text| worlds(text).is_err()));
    }
}
