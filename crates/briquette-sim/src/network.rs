//! Link model of the simulated network: bandwidth, latency, topology, and their changes over time.

mod course;
mod text;
mod trace;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use briquette_core::error::ConfigError;

use self::course::{Course, Speed};

/// Link model: bandwidth, latency, number of ranks per link, and separate paths between pairs of ranks.
///
/// As text it is `unlimited`, or `BANDWIDTH[,LATENCY[,RANKS PER LINK]]`, such as `100mbit,1ms` or `10gbit,20us,4`. The
/// bandwidth is `unlimited` or a number with one of `bit`, `kbit`, `mbit`, `gbit` (per second, powers of ten). The
/// latency is a number with one of `ns`, `us`, `ms`, `s`, by default 0. The number of ranks per link is 1 by default.
///
/// With `k` ranks per link, ranks `0..k` are on one machine, ranks `k..2k` on the next. Frames inside a machine take no
/// time. Other frames get `1/k` of the machine's bandwidth, as if all its ranks were always communicating. This is
/// accurate for all-gathers of similar messages. Rings, which cross each link once, are faster in reality.
///
/// Paths with another speed follow, each after a `;`, as `RANKS/RANKS=BANDWIDTH[,LATENCY]`, for both directions.
/// `RANKS` is a rank, a range, or `*` for all. If several paths match a pair, the last one applies. For example, two
/// sites of four ranks are `10gbit,20us;0-3/4-7=100mbit,30ms`, and a rank far from all others is
/// `1gbit;*/5=20mbit,50ms`. A slow path delays the frames on it, not the links at its ends. Each pair of ranks has its
/// own path. With `k` ranks per link, a pair has `1/k` of the path's bandwidth, as for a link: on
/// `10gbit,20us,4;0-3/4-7=100mbit` ranks 0 and 4 have 25 Mbit/s. Paths have no effect inside a machine.
///
/// ```
/// use briquette_sim::Network;
///
/// let network: Network = "100mbit,1ms".parse()?;
/// assert_eq!(network.transfer_seconds(1_000_000), 0.08);
/// assert_eq!(network.to_string(), "100mbit,1ms");
/// # Ok::<_, briquette_core::error::ConfigError>(())
/// ```
///
/// # Traces
/// `trace:FILE[,RANKS PER LINK]` is a network whose speeds change over time. The file is CSV with the columns `seconds`, `mbit`, `ms`, and
/// `path` if paths differ from the links. A row changes the speed of the links, or of a path such as `0-3/4-7`, from that second of the
/// simulation on, with a bandwidth in Mbit/s (0 for a link that is down, `inf` for an unlimited one) and a latency. The last row has only
/// seconds: there the trace starts over. Lines that begin with `#` are remarks.
///
/// ```csv
/// seconds,mbit,ms
/// 0,1000,1
/// 120,10,5
/// 240,,
/// ```
///
/// A transfer takes the bandwidth of every second that it lasts. Its latency is that of its departure. While a link is down, its frames
/// wait in simulated time, without a deadline.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    links: Course,
    ranks_per_link: usize,
    paths: Arc<[Path]>,
    trace: Option<Source>,
}

/// File of a trace, and the second at which the trace starts over.
#[derive(Debug, Clone, PartialEq)]
struct Source {
    file: Arc<str>,
    length: f64,
}

/// A path between ranks whose speed differs from the links'.
#[derive(Debug, Clone, PartialEq)]
struct Path {
    ends: Ends,
    course: Course,
}

type Ends = [RangeInclusive<usize>; 2];

impl Network {
    /// Creates a network on which frames take no time.
    pub fn unlimited() -> Self {
        let speed = Speed { bandwidth: None, latency: Duration::ZERO };
        Network { links: Course::constant(speed), ranks_per_link: 1, paths: Arc::default(), trace: None }
    }

    /// Creates a network of the given bandwidth (bits per second; `None` for unlimited), latency, and ranks per link.
    ///
    /// # Errors
    /// [`ConfigError::Range`] for a bandwidth that is not a positive number, or zero ranks per link.
    pub fn new(bandwidth: Option<f64>, latency: Duration, ranks_per_link: usize) -> Result<Self, ConfigError> {
        let speed = Speed::new(bandwidth, latency)?;
        ConfigError::unless(ranks_per_link > 0, "ranks per link", "at least 1", ranks_per_link)?;
        Ok(Network { links: Course::constant(speed), ranks_per_link, paths: Arc::default(), trace: None })
    }

    /// Returns the bits per second of a link; `None` is unlimited. Those of a trace are at its start.
    pub fn bandwidth(&self) -> Option<f64> {
        self.links.at(0.0).bandwidth
    }

    /// Returns the latency of a frame, in addition to the transfer time of its bytes. That of a trace is at its start.
    pub fn latency(&self) -> Duration {
        self.links.at(0.0).latency
    }

    /// Returns the seconds after which a trace starts over; `None` for a network that does not change.
    pub fn repeats_after(&self) -> Option<f64> {
        self.trace.as_ref().map(|trace| trace.length)
    }

    /// Returns the seconds at which a trace changes a speed, in order, from 0 on; only 0 for a network that does not change.
    pub fn changes(&self) -> Vec<f64> {
        let courses = [&self.links].into_iter().chain(self.paths.iter().map(|path| &path.course));
        let mut seconds: Vec<f64> = courses.flat_map(Course::seconds).collect();
        seconds.sort_by(f64::total_cmp);
        seconds.dedup();
        seconds
    }

    /// Returns the network as it is at a second of the simulation, without later changes.
    ///
    /// ```
    /// use briquette_sim::Network;
    /// let network: Network = "100mbit,1ms".parse()?;
    /// assert_eq!(network.at(7.0), network);
    /// # Ok::<_, briquette_core::error::ConfigError>(())
    /// ```
    #[must_use]
    pub fn at(&self, second: f64) -> Network {
        let constant = |course: &Course| Course::constant(course.at(second));
        let path = |path: &Path| Path { ends: path.ends.clone(), course: constant(&path.course) };
        let (links, paths) = (constant(&self.links), self.paths.iter().map(path).collect());
        Network { links, ranks_per_link: self.ranks_per_link, paths, trace: None }
    }

    /// Returns the number of consecutive ranks that share a machine and its link.
    pub fn ranks_per_link(&self) -> usize {
        self.ranks_per_link
    }

    /// Returns the seconds for which `bytes` bytes occupy a rank's share of its link, at the start of a trace.
    pub fn transfer_seconds(&self, bytes: usize) -> f64 {
        self.links.end(0.0, self.bits(bytes), 1.0)
    }

    /// Returns whether two ranks are on one machine.
    pub fn same_machine(&self, a: usize, b: usize) -> bool {
        a / self.ranks_per_link == b / self.ranks_per_link
    }

    /// Checks that every path joins ranks of different machines in a world of this size, and names no rank outside it.
    ///
    /// # Errors
    /// [`ConfigError`] names the invalid path.
    ///
    /// ```
    /// use briquette_sim::Network;
    /// let network: Network = "1gbit;0-3/4-7=100mbit".parse()?;
    /// assert_eq!(network.check(8), Ok(()));
    /// assert!(network.check(6).unwrap_err().to_string().contains("names rank 7"));
    /// # Ok::<_, briquette_core::error::ConfigError>(())
    /// ```
    pub fn check(&self, world: usize) -> Result<(), ConfigError> {
        for path in self.paths.iter() {
            let named = path.ends.iter().map(|ranks| *ranks.end()).filter(|rank| *rank != usize::MAX);
            if let Some(rank) = named.max().filter(|rank| *rank >= world) {
                return Err(ConfigError::conflict(
                    format!("path {path} of the network"),
                    format!("a world of {world} rank{}", if world == 1 { "" } else { "s" }),
                    format!("it names rank {rank}, and ranks are counted from 0"),
                    "name ranks that exist",
                ));
            }
            let [one, other] = path.ends.clone().map(|ranks| *ranks.start()..world.min(ranks.end().saturating_add(1)));
            let joins = |a: usize| other.clone().any(|b| a != b && !self.same_machine(a, b));
            // A world of one rank has no paths. Its network may still define some.
            if world > 1 && !one.into_iter().any(joins) {
                let per_link = self.ranks_per_link;
                return Err(ConfigError::conflict(
                    format!("path {path} of the network"),
                    format!("{per_link} ranks on each machine"),
                    "it joins no ranks of different machines",
                    "leave it out",
                ));
            }
        }
        Ok(())
    }

    /// Returns the passage of a frame of `bytes` bytes between two ranks that get one of `shares` parts of the link.
    pub(super) fn between(&self, a: usize, b: usize, bytes: usize, shares: usize) -> Passage<'_> {
        let on = |ranks: &RangeInclusive<usize>, rank| ranks.contains(&rank);
        let joins = |path: &&Path| {
            let [one, other] = &path.ends;
            (on(one, a) && on(other, b)) || (on(one, b) && on(other, a))
        };
        let path = self.paths.iter().rev().find(joins).map(|path| &path.course);
        Passage { links: &self.links, path, bits: self.bits(bytes), shares: shares as f64 }
    }

    /// Returns the bits that a link carries while a rank's share of it carries `bytes` bytes.
    fn bits(&self, bytes: usize) -> f64 {
        (8 * bytes * self.ranks_per_link) as f64
    }
}

/// Passage of a frame between two ranks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passage<'a> {
    links: &'a Course,
    /// Course of these two ranks' separate path, if they have one.
    path: Option<&'a Course>,
    bits: f64,
    shares: f64,
}

impl Passage<'_> {
    pub(super) fn is_on_a_path(&self) -> bool {
        self.path.is_some()
    }

    /// Returns the latency of a frame that departs at this second.
    pub(super) fn latency(&self, departure: f64) -> f64 {
        self.path.unwrap_or(self.links).at(departure).latency.as_secs_f64()
    }

    /// Returns the second at which the transfer ends if it starts at this second.
    pub(super) fn end(&self, start: f64) -> f64 {
        self.path.unwrap_or(self.links).end(start, self.bits, self.shares)
    }

    /// Returns the second until which the links at both ends are busy.
    pub(super) fn link_end(&self, start: f64) -> f64 {
        let end = self.links.end(start, self.bits, self.shares);
        if self.is_on_a_path() { end.min(self.end(start)) } else { end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_text_goes_back_and_forth() {
        let same =
            ["unlimited", "unlimited,1ms", "100mbit,1ms", "1gbit,50us", "10gbit,20us,4", "1.5mbit", "9bit,0ns,2"];
        let paths = ["10gbit,20us;0-3/4-7=100mbit,30ms", "1gbit;*/5=20mbit;0/1=unlimited"];
        for text in same.into_iter().chain(paths) {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), text);
        }
        let network: Network = " 1000 mbit , 0.5ms ".parse().unwrap();
        assert_eq!(network, Network::new(Some(1e9), Duration::from_micros(500), 1).unwrap());
        assert_eq!(network.to_string(), "1gbit,500us");
    }

    #[test]
    fn unusable_networks_are_refused() {
        for text in ["", "fast", "100", "0mbit", "-1mbit", "1mbit,1", "1mbit,-1ms", "1mbit,1ms,0", "1mbit,1ms,2,3"]
            .into_iter()
            .chain(["1mbit;", "1mbit;0-1=1mbit", "1mbit;1-0/2=1mbit", "1mbit;a/2=1mbit", "1mbit;0/1=1mbit,1ms,2"])
        {
            let error = text.parse::<Network>().unwrap_err().to_string();
            assert!(error.contains(" must be "), "{text}: {error}");
        }
        let error = "1mbps".parse::<Network>().unwrap_err().to_string();
        assert!(error.contains("100mbit,1ms") && error.ends_with("got 1mbps"), "{error}");
        let error = "1mbit;0/1=0mbit".parse::<Network>().unwrap_err().to_string();
        assert!(error.contains("bandwidth must be a positive number"), "{error}");
        assert!(Network::new(Some(f64::NAN), Duration::ZERO, 1).is_err());
    }

    #[test]
    fn ranks_on_one_link_share_it() {
        let network: Network = "1mbit,0s,4".parse().unwrap();
        assert_eq!(network.transfer_seconds(125), 0.004);
        assert!(network.same_machine(0, 3) && !network.same_machine(3, 4));
    }

    #[test]
    fn a_path_has_its_own_speed_in_both_directions_and_the_last_that_fits_counts() {
        let network: Network = "8mbit,1ms;0-1/2-3=4mbit,30ms;*/3=80mbit".parse().unwrap();
        let passage = |a, b| {
            let passage = network.between(a, b, 1_000_000, 1);
            (passage.latency(0.0), passage.end(0.0), passage.link_end(0.0), passage.is_on_a_path())
        };
        assert_eq!(passage(0, 1), (0.001, 1.0, 1.0, false));
        assert_eq!((passage(0, 2), passage(2, 1)), ((0.03, 2.0, 1.0, true), (0.03, 2.0, 1.0, true)));
        assert_eq!((passage(0, 3), passage(3, 2)), ((0.0, 0.1, 0.1, true), (0.0, 0.1, 0.1, true)));
    }

    #[test]
    fn ranks_that_share_a_link_share_paths_too() {
        let network: Network = "8mbit,0s,4;0-3/4-7=4mbit".parse().unwrap();
        // A quarter of 4 Mbit/s, while a quarter of the link's 8 Mbit/s is busy.
        let passage = network.between(0, 4, 1_000_000, 1);
        assert_eq!((passage.end(0.0), passage.link_end(0.0)), (8.0, 4.0));
    }

    #[test]
    fn paths_that_mean_nothing_in_a_world_are_named() {
        let check =
            |text: &str, world| text.parse::<Network>().unwrap().check(world).map_err(|error| error.to_string());
        for text in ["1gbit;0-3/4-7=100mbit", "1gbit,0s,4;0-3/4-7=100mbit;*/5=1mbit", "1gbit;*/*=1mbit", "1gbit"] {
            assert_eq!(check(text, 8), Ok(()), "{text}");
        }
        assert_eq!(check("1gbit;*/0=1mbit", 1), Ok(()), "alone");
        for (text, world, words) in [
            (
                "1gbit;0-3/4-7=100mbit",
                6,
                "path 0-3/4-7 of the network does not go with a world of 6 ranks: it names rank 7",
            ),
            (
                "1gbit,0s,4;0/1=100mbit",
                8,
                "path 0/1 of the network does not go with 4 ranks on each machine: it joins no ranks of different machines",
            ),
            ("1gbit;2/2=1mbit", 8, "path 2/2 of the network"),
            ("1gbit,0s,4;*/*=1mbit", 4, "path */* of the network does not go with 4 ranks on each machine"),
        ] {
            let error = check(text, world).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
