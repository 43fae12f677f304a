//! Text form of a network; the [`Network`] describes it.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use briquette_core::error::ConfigError;

use super::course::{Course, Speed};
use super::trace::Trace;
use super::{Ends, Network, Path, Source};

const FORM: &str = "`unlimited`, or `100mbit,1ms`, or `10gbit,20us,4` (bandwidth in bit, kbit, mbit or gbit; latency in ns, us, ms or s; \
                    ranks per link), and behind it other paths as `;0-3/4-7=100mbit,30ms`; or `trace:FILE`";
const BANDWIDTHS: [(&str, f64); 4] = [("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)];
/// Units in nanoseconds. `s` is last, because the others also end in it.
const LATENCIES: [(&str, f64); 4] = [("ms", 1e6), ("us", 1e3), ("ns", 1.0), ("s", 1e9)];

impl Speed {
    /// Parses the first two of these parts; `None` if they are not a speed.
    fn parse<'a>(parts: &mut impl Iterator<Item = &'a str>) -> Option<Result<Self, ConfigError>> {
        let bandwidth = match parts.next()? {
            "unlimited" => None,
            part => Some(measure(part, &BANDWIDTHS)?),
        };
        let nanoseconds = parts.next().map_or(Some(0.0), |part| measure(part, &LATENCIES))?;
        Some(Speed::new(bandwidth, Duration::try_from_secs_f64(nanoseconds / 1e9).ok()?))
    }

    fn write(self, with_latency: bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bandwidth {
            Some(bits) => f.write_str(&in_largest_unit(bits, &BANDWIDTHS))?,
            None => f.write_str("unlimited")?,
        }
        if !self.latency.is_zero() || with_latency {
            let [ms, us, ns, s] = LATENCIES;
            write!(f, ",{}", in_largest_unit(self.latency.as_nanos() as f64, &[s, ms, us, ns]))?;
        }
        Ok(())
    }
}

impl FromStr for Network {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let wrong = || ConfigError::range("network", FORM, text);
        if let Some(trace) = text.trim().strip_prefix("trace:") {
            let numbered = trace.rsplit_once(',').and_then(|(file, ranks)| Some((file, ranks.trim().parse().ok()?)));
            let (file, ranks_per_link) = numbered.unwrap_or((trace, 1));
            ConfigError::unless(ranks_per_link > 0, "ranks per link", "at least 1", ranks_per_link)?;
            let Trace { links, paths, length } = Trace::read(file)?;
            let trace = Some(Source { file: file.into(), length });
            return Ok(Network { links, ranks_per_link, paths: paths.into(), trace });
        }
        let mut sections = text.split(';');
        let mut parts = sections.next().unwrap_or_default().split(',').map(str::trim);
        let speed = Speed::parse(&mut parts).ok_or_else(wrong)??;
        let ranks_per_link = parts.next().map_or(Ok(1), str::parse).map_err(|_| wrong())?;
        let paths = sections.map(|path| parse_path(path).ok_or_else(wrong)?);
        let paths = paths.collect::<Result<Vec<_>, _>>()?.into();
        if parts.next().is_some() {
            return Err(wrong());
        }
        Ok(Network { paths, ..Network::new(speed.bandwidth, speed.latency, ranks_per_link)? })
    }
}

fn parse_path(text: &str) -> Option<Result<Path, ConfigError>> {
    let (ends, speed) = text.split_once('=')?;
    let ends = parse_ends(ends)?;
    let mut parts = speed.split(',').map(str::trim);
    let speed = Speed::parse(&mut parts)?;
    parts.next().is_none().then(|| speed.map(|speed| Path { ends, course: Course::constant(speed) }))
}

/// Parses the ends of a path: `0-3/4-7`.
pub(super) fn parse_ends(text: &str) -> Option<Ends> {
    let (one, other) = text.split_once('/')?;
    let ranks = |text: &str| match text.trim() {
        "*" => Some(0..=usize::MAX),
        text => {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let ranks: RangeInclusive<usize> = first.parse().ok()?..=last.parse().ok()?;
            (!ranks.is_empty()).then_some(ranks)
        }
    };
    Some([ranks(one)?, ranks(other)?])
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.trace {
            Some(Source { file, .. }) => write!(f, "trace:{file}")?,
            None => self.links.at(0.0).write(self.ranks_per_link > 1, f)?,
        }
        if self.ranks_per_link > 1 {
            write!(f, ",{}", self.ranks_per_link)?;
        }
        // Those of a trace are in its file.
        self.paths.iter().filter(|_| self.trace.is_none()).try_for_each(|path| {
            write!(f, ";{path}=")?;
            path.course.at(0.0).write(false, f)
        })
    }
}

/// Writes the ends of the path.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, other] = self.ends.each_ref().map(|ranks| match (*ranks.start(), *ranks.end()) {
            (_, usize::MAX) => "*".to_owned(),
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}-{last}"),
        });
        write!(f, "{one}/{other}")
    }
}

impl TryFrom<String> for Network {
    type Error = ConfigError;

    fn try_from(text: String) -> Result<Self, ConfigError> {
        text.parse()
    }
}

impl From<Network> for String {
    fn from(network: Network) -> String {
        network.to_string()
    }
}

/// Parses a number with a unit, and returns it in base units.
fn measure(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, scale) = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)))?;
    number.trim_end().parse::<f64>().ok().map(|number| number * scale)
}

/// Formats the value in the largest unit that does not exceed it and represents it exactly.
fn in_largest_unit(value: f64, units: &[(&str, f64)]) -> String {
    let exact = |scale: f64| value >= scale && value / scale * scale == value;
    let (unit, scale) = units.iter().find(|(_, scale)| exact(*scale)).unwrap_or(&units[units.len() - 1]);
    format!("{}{unit}", value / scale)
}
