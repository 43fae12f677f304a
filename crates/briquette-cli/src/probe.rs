//! `briquette probe`: measures the network between machines, and their codecs, for `briquette plan`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use briquette_core::Session;
use briquette_tcp::{Environment, TcpBuilder, names};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use crate::plan::{ON_LINK, RATIOS};
use crate::terminal::{complain, show};

mod links;

use links::Flow;
pub(crate) use links::codec_seconds;

const HELP: &str = "\
Examples:
  Two machines. Once, and copied to both:
    (umask 077; briquette token > token)
  Then on each, with its own --node-rank, 0 on host1 and 1 on host2:
    briquette probe --nodes host1,host2 --node-rank 0 --port 29500 --token-file token --out network.json
  And then, where rank 0 has written the file:
    briquette plan runs/mine --network network.json
  Several ranks on each machine, as a training run would have them:
    briquette launch --nodes host1,host2 --node-rank 0 --ranks 2 --port 29500 --token-file token -- briquette probe

Latency is half of the time in which a frame of one byte comes back. Bandwidth is that of one rank that sends to another
while all are silent, and that of a ring in which all ranks send at once, as in an all-reduce. With more than 8 ranks, only
pairs of neighbors in the ring are measured. Every rank also encodes and decodes 1 048 576 values by itself.";

/// Ranks up to which all pairs are measured.
const ALL_PAIRS: usize = 8;
/// The compressor by which machines are compared: one of those that `plan` measures.
pub(crate) const COMPARED: &str = RATIOS[1];

/// Measures the network between machines, and the speed of their codecs, for `briquette plan`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct Probe {
    /// All machines in the same order everywhere, separated by commas, with one rank each. Without it, the ranks are those of
    /// `briquette launch`, torchrun or a scheduler.
    #[arg(long, value_name = "HOST,HOST", value_delimiter = ',', requires_all = ["node_rank", "port"])]
    pub nodes: Vec<String>,
    /// Index of this machine in --nodes, from 0.
    #[arg(long, value_name = "I", requires = "nodes")]
    pub node_rank: Option<u16>,
    /// The port on which the first of --nodes listens.
    #[arg(long, value_name = "PORT", requires = "nodes", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// With --nodes: a file with the secret that ranks prove to each other that they know (`(umask 077; briquette token > FILE)`).
    #[arg(long, value_name = "FILE", requires = "nodes")]
    pub token_file: Option<PathBuf>,
    /// With --nodes: a directory made by `briquette cert`. Ranks then speak TLS to each other.
    #[arg(long, value_name = "DIR", requires = "nodes")]
    pub tls: Option<PathBuf>,
    /// Time to wait for the other ranks to start.
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = positive)]
    pub wait: Duration,
    /// Time for each measurement of bandwidth.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = positive)]
    pub time: Duration,
    /// File for the result as JSON, for `briquette plan --network FILE`. Rank 0 writes it.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

fn positive(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|e| format!("{e}; a time is written as in 500ms, 10s, 2m"))?;
    // Ranks that wait meanwhile have a deadline of five minutes.
    let is_valid = !time.is_zero() && time <= Duration::from_mins(2);
    if is_valid { Ok(time) } else { Err("from 1ms to 2m".into()) }
}

/// Results of a probe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurements {
    /// Number of ranks.
    pub ranks: usize,
    /// Text form of the network, for simulations: bandwidth with the bytes of TCP and of packet headers, the largest latency, and the
    /// number of ranks on a machine.
    pub network: String,
    /// Payload that each rank of a ring sends, in bytes per second.
    pub ring_bytes_per_second: f64,
    /// Pairs of ranks.
    pub links: Vec<Link>,
    /// Seconds of the slowest rank to encode and decode, per value.
    pub codec_seconds_per_value: f64,
    /// The compressor of these seconds.
    pub compressor: String,
}

/// A pair of ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// The sender.
    pub from: usize,
    /// The receiver.
    pub to: usize,
    /// Seconds in one direction.
    pub latency_seconds: f64,
    /// Payload while no other rank sends, in bytes per second.
    pub bytes_per_second: f64,
}

impl Measurements {
    /// Reads a file that a probe wrote.
    ///
    /// # Errors
    /// If the file cannot be read, or is of another kind.
    pub fn read(path: &Path) -> Result<Measurements> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text)
            .with_context(|| format!("{}: not a file of `briquette probe --out`", path.display()))
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_BORDERS_ONLY).set_header(["ranks", "latency", "bandwidth"]);
        for link in &self.links {
            let ranks = format!("{} to {}", link.from, link.to);
            table.add_row([ranks, milliseconds(link.latency_seconds), megabits(link.bytes_per_second)]);
        }
        table.add_row([format!("ring of {}", self.ranks), String::new(), megabits(self.ring_bytes_per_second)]);
        (1..=2).filter_map(|i| table.column_mut(i).map(|c| c.set_cell_alignment(CellAlignment::Right))).for_each(drop);
        table
    }
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.3} ms", 1e3 * seconds)
}

fn megabits(bytes_per_second: f64) -> String {
    format!("{:.1} Mbit/s", 8e-6 * bytes_per_second)
}

impl Probe {
    /// Measures, and shows the result on rank 0.
    ///
    /// # Errors
    /// If the other ranks cannot be reached, are lost, or there is none; if a file cannot be written.
    pub fn run(&self) -> Result<()> {
        let place = self.place()?;
        let (rank, world) = (place.rank, place.world);
        ensure!(world > 1, "a probe measures the network between ranks, and this world has one: start two or more");
        if rank == 0 {
            complain(format_args!("waiting for {world} ranks at {} ...", place.master));
        }
        let tcp = TcpBuilder::from_environment(&place)?.join_deadline(self.wait).join()?;
        // Ranks of a machine share its link, unless all are on one machine.
        let each = place.local_world;
        let each = if each < world && world.is_multiple_of(each) { each } else { 1 };
        let measured = self.measure(&mut Session::from(tcp), each)?;
        if rank > 0 {
            return Ok(());
        }
        if let Some(path) = &self.out {
            let text = serde_json::to_string_pretty(&measured)?;
            fs::write(path, text + "\n").with_context(|| path.display().to_string())?;
        }
        if self.json {
            return Ok(show(serde_json::to_string_pretty(&measured)?)?);
        }
        show(format_args!("{}\nfor briquette plan: --network {}", measured.table(), measured.network))?;
        Ok(())
    }

    /// Returns this rank's place: that of `--nodes`, or of the environment.
    fn place(&self) -> Result<Environment> {
        if self.nodes.is_empty() {
            let place = Environment::from_env()?;
            return place.context("probe needs other ranks: give --nodes, or start it with `briquette launch`");
        }
        let (rank, nodes) = (usize::from(self.node_rank.unwrap_or_default()), self.nodes.len());
        if rank >= nodes {
            bail!("--node-rank {rank}: --nodes has {nodes} machines, which are counted from 0");
        }
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.to_string_lossy().into_owned());
        let place = Environment::read(|name| match name {
            names::RANK | names::GROUP_RANK => Some(rank.to_string()),
            names::WORLD_SIZE => Some(nodes.to_string()),
            names::MASTER_ADDR => self.nodes.first().cloned(),
            names::MASTER_PORT => self.port.map(|port| port.to_string()),
            names::TOKEN_FILE => path(&self.token_file),
            names::TLS => path(&self.tls),
            names::WORLD => Some("briquette probe".into()),
            _ => None,
        })?;
        place.context("a rank in --nodes")
    }

    fn measure(&self, comm: &mut Session, ranks_per_link: usize) -> Result<Measurements> {
        let (rank, world) = (comm.rank(), comm.world());
        let say = |what: &str| {
            if rank == 0 {
                complain(what);
            }
        };
        say("measuring codecs ...");
        let codec = codec_seconds(&COMPARED.parse()?);
        let codec_seconds_per_value = links::all(comm, codec)?.into_iter().fold(0.0, f64::max);
        let pairs = links::pairs(world, ALL_PAIRS);
        say(&format!("measuring {} pairs of ranks ...", pairs.len()));
        let mut links = Vec::new();
        for (one, other) in pairs {
            let latency_seconds = links::latency(comm, (one, other))?;
            for (from, to) in [(one, other), (other, one)] {
                let bytes_per_second = links::bandwidth(comm, (from, to), self.time)?;
                links.push(Link { from, to, latency_seconds, bytes_per_second });
            }
        }
        say("measuring a ring ...");
        let slowest = links.iter().map(|link| link.bytes_per_second).fold(f64::INFINITY, f64::min);
        let ring_bytes_per_second = Flow::lasting(self.time, slowest).around(comm)?;
        let latency = links.iter().map(|link| link.latency_seconds).fold(0.0, f64::max);
        Ok(Measurements {
            ranks: world,
            network: network(ring_bytes_per_second, latency, ranks_per_link),
            ring_bytes_per_second,
            links,
            codec_seconds_per_value,
            compressor: COMPARED.into(),
        })
    }
}

/// Returns the text form of a network on which the payload of this many bytes takes a second.
fn network(bytes_per_second: f64, latency_seconds: f64, ranks_per_link: usize) -> String {
    let kilobits = (8e-3 * bytes_per_second * ON_LINK).round().max(1.0);
    let microseconds = (1e6 * latency_seconds).round();
    let shared = if ranks_per_link > 1 { format!(",{ranks_per_link}") } else { String::new() };
    format!("{kilobits}kbit,{microseconds}us{shared}")
}

#[cfg(test)]
mod tests {
    use briquette_sim::Network;

    use super::*;

    #[test]
    fn a_network_has_the_bytes_of_packets_and_is_read_by_simulations() {
        let network: Network = network(11.0e6, 0.00125, 2).parse().unwrap();
        let bandwidth = network.bandwidth().unwrap();
        assert!((bandwidth / (8.0 * 11.0e6 * ON_LINK) - 1.0).abs() < 1e-4, "{bandwidth}");
        assert_eq!((network.latency(), network.ranks_per_link()), (Duration::from_micros(1250), 2));
        assert!(super::network(0.1, 0.0, 1).parse::<Network>().is_ok_and(|network| network.ranks_per_link() == 1));
    }

    #[test]
    fn places_of_nodes() {
        let probe = |node_rank, nodes: &[&str]| Probe {
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            node_rank: Some(node_rank),
            port: Some(29500),
            token_file: Some("secret".into()),
            tls: None,
            wait: Duration::from_secs(1),
            time: Duration::from_secs(1),
            out: None,
            json: false,
        };
        let place = probe(1, &["a", "b"]).place().unwrap();
        assert_eq!((place.rank, place.world, &place.master[..], place.port), (1, 2, "a", Some(29500)));
        assert_eq!((place.machine(), place.token_file), (1, Some("secret".into())));
        let error = probe(2, &["a", "b"]).place().unwrap_err();
        assert_eq!(error.to_string(), "--node-rank 2: --nodes has 2 machines, which are counted from 0");
    }
}
