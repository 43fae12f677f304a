//! Training of strategies on a simulated network.
//!
//! ```
//! use std::time::Duration;
//! use briquette_core::laws::train::Sgd;
//! use briquette_core::sync::periodic::Periodic;
//! use briquette_testkit::simulation::{Simulation, simulate};
//!
//! let simulation = Simulation { world: 2, network: "unlimited".parse()?, compute: vec![Duration::from_secs(1)] };
//! let sgd = Sgd { rate: 0.1, momentum: 0.0, steps: 8 };
//! let seconds = simulate(simulation, || Periodic::new(4).expect("a period"), &[1.0], (sgd, &|_, _, x| x.to_vec()));
//! assert_eq!(seconds, 8.0);
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use std::time::Duration;

use briquette_core::laws::train::{Gradient, Sgd, run};
use briquette_core::sync::SyncStrategy;
use briquette_sim::{Compute, Network, Paces, Simulated};

/// Ranks on a simulated network.
#[derive(Debug, Clone)]
pub struct Simulation {
    /// Number of ranks.
    pub world: usize,
    /// Link model.
    pub network: Network,
    /// Compute time of a step for each rank; further ranks use the last entry.
    pub compute: Vec<Duration>,
}

/// Trains as [`run`] does. Returns the simulated seconds of the slowest rank.
///
/// # Panics
/// If a rank fails, or without compute times.
pub fn simulate<S: SyncStrategy>(
    Simulation { world, network, compute }: Simulation,
    strategy: impl Fn() -> S + Sync,
    start: &[f32],
    task: (Sgd, Gradient<'_>),
) -> f64 {
    let paces = Paces::constant(&compute).expect("compute times");
    let world = Simulated::world(world, network, Compute::Paced(paces));
    run(world, strategy, start, task).into_iter().map(|(_, seconds)| seconds).fold(0.0, f64::max)
}
