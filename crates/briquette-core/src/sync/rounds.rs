//! Default periods derived from the number of steps of a run, if that is known and no period is set.

use crate::settings::StrategyConfig;

/// Minimum number of exchanges between local steps in a run. With fewer, the ranks' local progress is hardly combined.
pub const FEWEST_EXCHANGES: u64 = 20;

/// Returns the default period, or a shorter one with which a run of `steps` steps has [`FEWEST_EXCHANGES`] exchanges.
pub fn period_of(usual: u64, steps: Option<u64>) -> u64 {
    steps.map_or(usual, |steps| usual.min((steps / FEWEST_EXCHANGES).max(1)))
}

/// Returns the settings with a period if none is set, and the reason for its length.
pub fn in_rounds(
    named: Option<u64>,
    (usual, period): (u64, u64),
    steps: Option<u64>,
    with: impl FnOnce(u64) -> StrategyConfig,
) -> Option<(StrategyConfig, String)> {
    if named.is_some() {
        return None;
    }
    let why = match steps {
        None => format!("its usual period is {usual} steps"),
        Some(steps) if period == usual => format!("a run of {steps} steps has {} of its usual periods", steps / usual),
        Some(steps) => format!(
            "a run of {steps} steps has {} periods of {period} steps, and would have {} of the usual {usual}",
            steps / period,
            steps / usual
        ),
    };
    Some((with(period), why))
}
