//! How fast the links of a simulated network are.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::ConfigError;
use crate::text::serde_as_text;

/// Bandwidth, latency, and how many ranks share a link.
///
/// As text: `unlimited`, or `BANDWIDTH[,LATENCY[,RANKS PER LINK]]`. The bandwidth is `unlimited` or a number with one
/// of `bit`, `kbit`, `mbit`, `gbit` (per second, powers of ten); the latency a number with one of `ns`, `us`, `ms`,
/// `s`, 0 if not given; the ranks per link a whole number, 1 if not given: `100mbit,1ms`, `10gbit,20us,4`.
///
/// With `k` ranks per link, ranks `0..k` are one machine, ranks `k..2k` the next. Frames inside a machine take no
/// time; the others get `1/k` of the machine's bandwidth, as if all its ranks always talked at once. That is what
/// all-gathers of similar messages come to; rings, which cross each link once, are faster in truth.
///
/// ```
/// use briquette_core::comm::Network;
///
/// let network: Network = "100mbit,1ms".parse()?;
/// assert_eq!(network.transfer_seconds(1_000_000), 0.08);
/// assert_eq!(network.to_string(), "100mbit,1ms");
/// # Ok::<_, briquette_core::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    bandwidth: Option<f64>,
    latency: Duration,
    ranks_per_link: usize,
}

const FORM: &str = "`unlimited`, or `100mbit,1ms`, or `10gbit,20us,4` (bandwidth in bit, kbit, mbit or gbit; \
                    latency in ns, us, ms or s; ranks per link)";
const BANDWIDTHS: [(&str, f64); 4] = [("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)];
/// In nanoseconds. `s` is last, as the others end in it too.
const LATENCIES: [(&str, f64); 4] = [("ms", 1e6), ("us", 1e3), ("ns", 1.0), ("s", 1e9)];

impl Network {
    /// Frames take no time.
    pub fn unlimited() -> Self {
        Network { bandwidth: None, latency: Duration::ZERO, ranks_per_link: 1 }
    }

    /// A network of the given bandwidth (bits per second; `None` for unlimited), latency, and ranks per link.
    ///
    /// # Errors
    /// [`ConfigError::Range`] for a bandwidth that is not a positive number, or zero ranks per link.
    pub fn new(bandwidth: Option<f64>, latency: Duration, ranks_per_link: usize) -> Result<Self, ConfigError> {
        if let Some(bits) = bandwidth.filter(|bits| !(bits.is_finite() && *bits > 0.0)) {
            return Err(ConfigError::range("bandwidth", "a positive number of bits per second", bits));
        }
        if ranks_per_link == 0 {
            return Err(ConfigError::range("ranks per link", "at least 1", ranks_per_link));
        }
        Ok(Network { bandwidth, latency, ranks_per_link })
    }

    /// Bits per second of a link; `None` is unlimited.
    pub fn bandwidth(&self) -> Option<f64> {
        self.bandwidth
    }

    /// Time a frame is under way besides the time its bytes take.
    pub fn latency(&self) -> Duration {
        self.latency
    }

    /// Consecutive ranks that share a machine and its link.
    pub fn ranks_per_link(&self) -> usize {
        self.ranks_per_link
    }

    /// Seconds that `bytes` bytes occupy a rank's share of its link.
    pub fn transfer_seconds(&self, bytes: usize) -> f64 {
        self.bandwidth.map_or(0.0, |bits| (8 * bytes * self.ranks_per_link) as f64 / bits)
    }

    /// Whether two ranks are on one machine.
    pub fn same_machine(&self, a: usize, b: usize) -> bool {
        a / self.ranks_per_link == b / self.ranks_per_link
    }
}

impl FromStr for Network {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let wrong = || ConfigError::range("network", FORM, text);
        let mut parts = text.split(',').map(str::trim);
        let bandwidth = match parts.next() {
            Some("unlimited") => None,
            Some(part) => Some(measure(part, &BANDWIDTHS).ok_or_else(wrong)?),
            None => return Err(wrong()),
        };
        let nanoseconds = parts.next().map_or(Some(0.0), |part| measure(part, &LATENCIES)).ok_or_else(wrong)?;
        let latency = Duration::try_from_secs_f64(nanoseconds / 1e9).map_err(|_| wrong())?;
        let ranks_per_link = parts.next().map_or(Ok(1), str::parse).map_err(|_| wrong())?;
        if parts.next().is_some() {
            return Err(wrong());
        }
        Network::new(bandwidth, latency, ranks_per_link)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bandwidth {
            Some(bits) => f.write_str(&in_largest_unit(bits, &BANDWIDTHS))?,
            None => f.write_str("unlimited")?,
        }
        if !self.latency.is_zero() || self.ranks_per_link > 1 {
            let [ms, us, ns, s] = LATENCIES;
            write!(f, ",{}", in_largest_unit(self.latency.as_nanos() as f64, &[s, ms, us, ns]))?;
        }
        if self.ranks_per_link > 1 {
            write!(f, ",{}", self.ranks_per_link)?;
        }
        Ok(())
    }
}

serde_as_text!(Network);

/// The number before a unit, times the unit.
fn measure(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, scale) = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)))?;
    number.trim_end().parse::<f64>().ok().map(|number| number * scale)
}

/// In the largest unit that is not larger than the value and loses nothing.
fn in_largest_unit(value: f64, units: &[(&str, f64)]) -> String {
    let exact = |scale: f64| value >= scale && value / scale * scale == value;
    let (unit, scale) = units.iter().find(|(_, scale)| exact(*scale)).unwrap_or(&units[units.len() - 1]);
    format!("{}{unit}", value / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_text_goes_back_and_forth() {
        let same =
            ["unlimited", "unlimited,1ms", "100mbit,1ms", "1gbit,50us", "10gbit,20us,4", "1.5mbit", "9bit,0ns,2"];
        for text in same {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), text);
        }
        let network: Network = " 1000 mbit , 0.5ms ".parse().unwrap();
        assert_eq!(network, Network::new(Some(1e9), Duration::from_micros(500), 1).unwrap());
        assert_eq!(network.to_string(), "1gbit,500us");
    }

    #[test]
    fn unusable_networks_are_refused() {
        for text in ["", "fast", "100", "0mbit", "-1mbit", "1mbit,1", "1mbit,-1ms", "1mbit,1ms,0", "1mbit,1ms,2,3"] {
            let error = text.parse::<Network>().unwrap_err().to_string();
            assert!(error.contains(" must be "), "{text}: {error}");
        }
        let error = "1mbps".parse::<Network>().unwrap_err().to_string();
        assert!(error.contains("100mbit,1ms") && error.ends_with("got 1mbps"), "{error}");
        assert!(Network::new(Some(f64::NAN), Duration::ZERO, 1).is_err());
    }

    #[test]
    fn ranks_on_one_link_share_it() {
        let network: Network = "1mbit,0s,4".parse().unwrap();
        assert_eq!(network.transfer_seconds(125), 0.004);
        assert!(network.same_machine(0, 3) && !network.same_machine(3, 4));
    }
}
