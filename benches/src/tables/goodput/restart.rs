//! Restarts of a fixed world from its last checkpoint, with the same failures as an elastic world.

use briquette::sim::membership::{Change, Incident, Schedule};

/// A fixed world that saves checkpoints and restarts after every failure. Times are in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Restart {
    /// Time for which a checkpoint blocks training.
    pub(super) checkpoint: f64,
    /// Training time between two checkpoints.
    pub(super) interval: f64,
    /// Time from the start of the processes to the first step.
    pub(super) restart: f64,
    /// Time until a killed process, and a vanished machine, are noticed.
    pub(super) detection: [f64; 2],
    /// Set if the world waits until all lost machines are back; otherwise a spare machine is there at once.
    pub(super) waits: bool,
}

impl Restart {
    /// Returns the share of `seconds` whose work is not lost. Spare machines are not counted.
    pub(super) fn goodput(&self, schedule: &Schedule, seconds: f64) -> f64 {
        let cycle = self.interval + self.checkpoint;
        let saved = |from: f64, to: f64| ((to - from).max(0.0) / cycle).floor() * self.interval;
        // The first step after the last failure, and the time at which the failure is noticed.
        let (mut begin, mut noticed, mut away, mut useful) = (0.0, 0.0_f64, 0_usize, 0.0);
        for Incident { seconds: now, change } in schedule.incidents() {
            let detection = match change {
                Change::Lost(_) => self.detection[0],
                Change::Vanished(_) => self.detection[1],
                Change::Joins(_) => {
                    away -= 1;
                    if self.waits && away == 0 {
                        begin = now.max(noticed) + self.restart;
                    }
                    continue;
                }
                _ => continue,
            };
            useful += saved(begin, *now);
            away += 1;
            noticed = noticed.max(now + detection);
            begin = if self.waits { f64::INFINITY } else { noticed + self.restart };
        }
        let rest = (seconds - begin).max(0.0) % cycle;
        (useful + saved(begin, seconds) + rest.min(self.interval)) / seconds
    }

    /// Returns this world with the interval of the highest mean goodput, and the goodput of each schedule.
    pub(super) fn best(&self, schedules: &[Schedule], seconds: f64) -> (Restart, Vec<f64>) {
        let of = |interval: f64| {
            let restart = Restart { interval, ..*self };
            let goodput = schedules.iter().map(|schedule| restart.goodput(schedule, seconds)).collect::<Vec<_>>();
            (restart, goodput)
        };
        // From 0.1 s to 7 h in steps of 9 %.
        let grid = (0..145).map(|at| of(0.1 * 2.0_f64.powf(f64::from(at) / 8.0)));
        let mean = |goodput: &[f64]| goodput.iter().sum::<f64>();
        grid.max_by(|one, other| mean(&one.1).total_cmp(&mean(&other.1))).unwrap_or_else(|| of(self.interval))
    }
}

#[cfg(test)]
mod tests {
    use briquette::sim::membership::Failures;

    use super::*;

    fn restart(waits: bool) -> Restart {
        Restart { checkpoint: 1.0, interval: 9.0, restart: 5.0, detection: [0.0, 2.0], waits }
    }

    /// Two checkpoints are complete at 20 s, and the work since then is lost at 25 s. A spare begins at 30 s and saves 9 s each at
    /// 40 s, ..., 100 s. The world that waits begins at 60 s, and saves at 70 s, ..., 100 s.
    #[test]
    fn a_failure_costs_the_work_since_the_checkpoint_and_the_restart() {
        let schedule: Schedule = "25s lost 1;55s joins 1".parse().unwrap();
        assert_eq!(restart(false).goodput(&schedule, 100.0), (18.0 + 63.0) / 100.0);
        assert_eq!(restart(true).goodput(&schedule, 100.0), (18.0 + 36.0) / 100.0);
        // Noticed 2 s later: 6 checkpoints, and 8 s of a seventh interval.
        let vanished: Schedule = "25s vanished 1;55s joins 1".parse().unwrap();
        assert_eq!(restart(false).goodput(&vanished, 100.0), (18.0 + 54.0 + 8.0) / 100.0);
    }

    /// The optimum of J. W. Young (1974) is the square root of 2 · 1 s · 600 s = 34.6 s. J. T. Daly's goodput (2006) with a restart of 5 s
    /// is exp(-5/600) (34.6/600) / (exp(35.6/600) - 1) = 0.936.
    #[test]
    fn the_best_interval_is_that_of_young_and_daly() {
        let failures = |seed| Failures {
            ranks: 64,
            mean_seconds: 600.0,
            back_after: 0.0,
            vanished_share: 0.0,
            seconds: 1e6,
            seed,
        };
        let schedules: Vec<Schedule> = (0..5).map(|seed| Schedule::drawn(&failures(seed)).unwrap()).collect();
        let (best, goodput) = restart(false).best(&schedules, 1e6);
        assert!((25.0..48.0).contains(&best.interval), "{}", best.interval);
        let mean = goodput.iter().sum::<f64>() / 5.0;
        assert!((mean - 0.936).abs() < 0.004, "{mean}");
    }
}
