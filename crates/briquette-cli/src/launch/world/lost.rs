//! Ranks that an elastic world has lost, and their new start.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::{Running, Stage, World, ranks};
use crate::launch::failure::End;

/// Time from the loss of a rank to its new start.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
/// The most new starts of a rank.
const MOST_JOINS: u32 = 1000;

impl World<'_> {
    /// Handles the ranks that an elastic world has lost; returns whether it goes on.
    pub(super) fn goes_on(&mut self, now: Instant, grace: Duration) -> bool {
        let Some(most) = self.expendable else { return false };
        let failed: Vec<_> =
            self.ranks.iter().filter(|rank| rank.end.is_some_and(|(end, _)| self.is_failure(end))).collect();
        if failed.len() > most || !failed.iter().all(|rank| rank.is_lost()) {
            return false;
        }
        let known = |rank: usize| self.lost.iter().any(|(lost, _)| *lost == rank);
        let new: Vec<_> = failed.iter().filter(|rank| !known(rank.rank)).collect();
        let new: Vec<_> = new.iter().filter_map(|rank| Some((rank.rank, rank.joins, rank.end?.0))).collect();
        let (living, is_over) =
            (self.living(), self.ranks.iter().any(|rank| rank.end.is_some_and(|(end, _)| !end.failed())));
        for (rank, joins, end) in new {
            // A rank that could not join a running world at all has no place in it.
            let has_joined = joins > 0 || !self.plan.joins() || matches!(end, End::Signal(_));
            let again = self.plan.rejoins() && has_joined && self.stop.is_none() && !is_over && joins < MOST_JOINS;
            let then = if again { ", and it is started again" } else { "" };
            self.output.say(format!("rank {rank} {end}; {} go on{then}", ranks(living)));
            self.lost.push((rank, again.then(|| now + PAUSE)));
        }
        if is_over {
            // No member is left that could admit a rank.
            self.lost.iter_mut().for_each(|(_, again)| *again = None);
            if self.ranks.iter().all(|rank| rank.end.is_some() || rank.joins > 0) && living > 0 {
                self.stage = Stage::Grace(now + grace);
            }
        }
        let is_due = |again: Option<Instant>| self.stop.is_none() && again.is_some_and(|at| now >= at);
        let due: Vec<usize> = self.lost.iter().filter(|(_, again)| is_due(*again)).map(|(rank, _)| *rank).collect();
        due.into_iter().for_each(|rank| self.start_again(rank));
        true
    }

    /// Returns whether a rank is to be started again.
    pub(super) fn starts_again(&self) -> bool {
        self.plan.joins() && self.stop.is_none() && self.lost.iter().any(|(_, again)| again.is_some())
    }

    fn start_again(&mut self, rank: usize) {
        let Some(place) = self.ranks.iter().position(|running| running.rank == rank) else { return };
        match self.spawn(rank, self.ranks[place].joins + 1) {
            Ok(running) => {
                let mut old = std::mem::replace(&mut self.ranks[place], running);
                old.signal(Signal::SIGKILL);
                // Fails only if it was reaped already.
                let _ = old.child.wait();
                old.pipes.drain();
                self.lost.retain(|(lost, _)| *lost != rank);
            }
            Err(error) => {
                self.output.say(format!("rank {rank} cannot be started again: {error}"));
                self.lost.iter_mut().filter(|(lost, _)| *lost == rank).for_each(|(_, again)| *again = None);
            }
        }
    }
}

impl Running {
    /// Returns whether it was lost: it was killed, or could not join the running world.
    pub(super) fn is_lost(&self) -> bool {
        self.end.is_some_and(|(end, _)| matches!(end, End::Signal(_)) || self.enters && !end.refused())
    }
}
