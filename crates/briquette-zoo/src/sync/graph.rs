//! Communication graphs: determine the ranks to which a rank sends at a step.

use std::fmt;
use std::str::FromStr;

use briquette_core::error::{ConfigError, world_of};
use briquette_core::serde_as_text;

/// A directed graph over ranks, which may change with the step. As text: `exponential`, or `exponential+2` for two peers, `ring`, `complete`,
/// or the edges of a fixed graph, `0>1;1>2;2>0`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum Graph {
    /// At step `k`, rank `i` sends to the ranks `i + 2^j` for this many consecutive `j`, starting at `k mod ⌈log₂ W⌉`.
    Exponential {
        /// Number of out-neighbors of a rank, at least 1.
        peers: usize,
    },
    /// Each rank sends to the next rank.
    Ring,
    /// Each rank sends to all other ranks.
    Complete,
    /// The same edges at every step: pairs of a sending and a receiving rank.
    Edges(Vec<(usize, usize)>),
}

impl Default for Graph {
    fn default() -> Self {
        Graph::Exponential { peers: 1 }
    }
}

impl Graph {
    /// Returns the ranks that `rank` sends to at `step`, in ascending order, without `rank` itself.
    pub fn peers(&self, step: u64, rank: usize, world: usize) -> Vec<usize> {
        let mut peers: Vec<usize> = match self {
            Graph::Exponential { peers } => {
                let hops = u64::from(world.next_power_of_two().trailing_zeros());
                let hop = |j: u64| 1 << ((step + j) % hops.max(1));
                (0..hops.min(*peers as u64)).map(|j| (rank + hop(j)) % world).collect()
            }
            Graph::Ring => vec![(rank + 1) % world],
            Graph::Complete => (0..world).collect(),
            Graph::Edges(edges) => edges.iter().filter(|edge| edge.0 == rank).map(|edge| edge.1).collect(),
        };
        peers.retain(|peer| *peer != rank);
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// Checks that the graph fits a world size, and connects every rank to every other.
    ///
    /// # Errors
    /// [`ConfigError`] names the violation.
    pub fn check(&self, world: usize) -> Result<(), ConfigError> {
        let Graph::Edges(edges) = self else {
            let is_alone = *self == Graph::Exponential { peers: 0 };
            return if is_alone { Err(ConfigError::range("peers of sgp", "at least 1", 0)) } else { Ok(()) };
        };
        if let Some((rank, _)) = edges.iter().find(|edge| edge.0 == edge.1) {
            let edge = format!("edge {rank}>{rank} of sgp");
            let why = format!("it leads from rank {rank} to itself, which keeps its share anyway");
            return Err(ConfigError::conflict(edge, "the graph", why, format!("omit {rank}>{rank}")));
        }
        if let Some(rank) = edges.iter().flat_map(|edge| [edge.0, edge.1]).find(|rank| *rank >= world) {
            let why = format!("edges of sgp name rank {rank}, and there are ranks 0 to {} only", world - 1);
            return Err(ConfigError::conflict("strategy sgp", world_of(world), why, "name ranks that exist"));
        }
        for from in 0..world {
            let mut reached = vec![false; world];
            reached[from] = true;
            let mut open = vec![from];
            while let Some(rank) = open.pop() {
                for peer in self.peers(0, rank, world) {
                    if !std::mem::replace(&mut reached[peer], true) {
                        open.push(peer);
                    }
                }
            }
            if let Some(missed) = reached.iter().position(|reached| !reached) {
                let why = format!("edges of sgp lead from rank {from} never to rank {missed}");
                return Err(ConfigError::conflict(
                    "strategy sgp",
                    world_of(world),
                    why,
                    "add edges, or use graph exponential",
                ));
            }
        }
        Ok(())
    }
}

impl FromStr for Graph {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        const FORM: &str = "exponential, exponential+2 (peers), ring, complete, or edges such as 0>1;1>2;2>0";
        let wrong = || ConfigError::range("graph", FORM, text);
        if let Some(peers) = text.strip_prefix("exponential") {
            let number = |peers: &str| peers.strip_prefix('+')?.parse().ok().filter(|peers| *peers > 0);
            let peers = if peers.is_empty() { Some(1) } else { number(peers) };
            return peers.map(|peers| Graph::Exponential { peers }).ok_or_else(wrong);
        }
        match text {
            "ring" => return Ok(Graph::Ring),
            "complete" => return Ok(Graph::Complete),
            _ => {}
        }
        let edge = |edge: &str| {
            let (from, to) = edge.split_once('>')?;
            Some((from.trim().parse().ok()?, to.trim().parse().ok()?))
        };
        let edges = text.split(';').map(edge).collect::<Option<Vec<_>>>();
        edges.map(Graph::Edges).ok_or_else(wrong)
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Graph::Exponential { peers: 1 } => f.write_str("exponential"),
            Graph::Exponential { peers } => write!(f, "exponential+{peers}"),
            Graph::Ring => f.write_str("ring"),
            Graph::Complete => f.write_str("complete"),
            Graph::Edges(edges) => {
                let edges: Vec<String> = edges.iter().map(|(from, to)| format!("{from}>{to}")).collect();
                f.write_str(&edges.join(";"))
            }
        }
    }
}

serde_as_text!(Graph);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_graph_by_hand() {
        let graph = Graph::default();
        // Five ranks: hops 1, 2, 4, then 1 again.
        let of = |rank| (0..4).map(|step| graph.peers(step, rank, 5)[0]).collect::<Vec<_>>();
        assert_eq!((of(0), of(3)), (vec![1, 2, 4, 1], vec![4, 0, 2, 4]));
        assert_eq!(Graph::Exponential { peers: 2 }.peers(2, 0, 5), [1, 4]);
        assert_eq!(Graph::Exponential { peers: 9 }.peers(0, 0, 3), [1, 2], "as many as there are");
        assert!(graph.peers(7, 0, 1).is_empty(), "alone");
        assert_eq!(graph.peers(7, 1, 2), [0]);
        assert_eq!((Graph::Ring.peers(3, 4, 5), Graph::Complete.peers(3, 1, 4)), (vec![0], vec![0, 2, 3]));
        assert!(Graph::Ring.peers(0, 0, 1).is_empty());
    }

    #[test]
    fn texts_go_back_and_forth_and_say_what_is_wrong() {
        for text in ["exponential", "exponential+3", "ring", "complete", "0>1;1>0", "0>1;0>2;1>0;2>0"] {
            assert_eq!(text.parse::<Graph>().unwrap().to_string(), text);
        }
        for text in ["", "exponential+0", "exponential2", "0-1", "0>1;", "0>x"] {
            let error = text.parse::<Graph>().unwrap_err().to_string();
            assert!(error.contains("0>1;1>2;2>0"), "{text}: {error}");
        }
    }

    #[test]
    fn graphs_that_do_not_connect_are_refused_by_name() {
        let check = |text: &str, world| text.parse::<Graph>().unwrap().check(world).map_err(|error| error.to_string());
        assert_eq!(check("0>1;1>2;2>0", 3), Ok(()));
        let error = check("0>1;1>0;2>0", 3).unwrap_err();
        assert!(error.contains("from rank 0 never to rank 2"), "{error}");
        let error = check("0>3;3>0", 3).unwrap_err();
        assert!(error.contains("rank 3") && error.contains("0 to 2"), "{error}");
        assert_eq!(check("exponential", 7), Ok(()));
        assert!(Graph::Exponential { peers: 0 }.check(3).is_err());
        let error = check("0>1;1>0;1>1", 2).unwrap_err();
        assert!(error.contains("from rank 1 to itself"), "{error}");
    }
}
