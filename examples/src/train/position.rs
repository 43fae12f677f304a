//! Position of a run in its data and its schedule, which a change of the number of ranks keeps.

use serde::{Deserialize, Serialize};

/// Number of steps from the beginning of a run, and their size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Position {
    /// Number of steps of `samples` from the run's beginning to here, counting an epoch's last one as a whole step.
    pub(super) step: u64,
    /// Samples of a step, over all ranks.
    pub(super) samples: u64,
}

impl Position {
    /// Converts the position to a run whose steps have `samples`, with `epoch` samples per epoch. It is rounded down to
    /// whole steps: some samples are seen again, so that none is left out.
    pub(super) fn in_steps_of(self, samples: u64, epoch: u64) -> Position {
        let [before, after] = [self.samples, samples].map(|samples| epoch.div_ceil(samples));
        let (epochs, seen) = (self.step / before, self.step % before * self.samples);
        Position { step: epochs.saturating_mul(after).saturating_add(seen / samples), samples }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_the_same_samples_in_steps_of_another_size() {
        // 100 samples: 4 steps of 32, 7 of 16, 3 of 40.
        for (step, samples, to, expected) in [
            (0, 32, 16, 0),
            (2, 32, 16, 4),  // 64 samples
            (4, 32, 16, 7),  // an epoch
            (6, 32, 16, 11), // an epoch and 64 samples
            (11, 16, 32, 6), // back
            (3, 32, 40, 2),  // 96 samples, of which 80 are whole steps
            (10, 16, 40, 4), // an epoch and 48
            (7, 32, 32, 7),
        ] {
            let position = Position { step, samples }.in_steps_of(to, 100);
            assert_eq!(
                position,
                Position { step: expected, samples: to },
                "{step} steps of {samples}, in steps of {to}"
            );
        }
    }
}
