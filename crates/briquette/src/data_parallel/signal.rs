//! Control messages between ranks: end of data, end of epoch.

use burn::train::checkpoint::CheckpointingAction;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::synchronizer::Synchronizer;

/// Message of one byte that each rank sends before every exchange.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Signal {
    /// Set if this rank has gradients for this step.
    pub(super) batch: bool,
    /// Set if this rank has another batch after this step.
    pub(super) more: bool,
    /// Set if this rank's interrupter requested a stop.
    pub(super) stop: bool,
    /// Set if this rank's schedule has made this step, which is then repeated.
    pub(super) scheduled: bool,
}

/// The agreed result of all signals.
#[derive(Debug, Clone, Copy)]
pub(super) struct Agreed {
    /// Set if any rank has gradients.
    pub(super) batch: bool,
    /// Set if any rank's schedule has made this step.
    pub(super) scheduled: bool,
    /// The next action.
    pub(super) next: Next,
}

/// The next action after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Next {
    Step,
    EndOfEpoch,
    /// This rank stopped the run.
    Stopped(usize),
}

impl Signal {
    fn to_byte(self) -> u8 {
        u8::from(self.batch) | u8::from(self.more) << 1 | u8::from(self.stop) << 2 | u8::from(self.scheduled) << 3
    }

    /// Sends the signal and receives those of the other ranks.
    pub(super) fn agree(self, sync: &mut Synchronizer) -> Result<Agreed, Error> {
        let heard = sync.gather_bytes("batch count", &[self.to_byte()])?;
        let any = |bit: u8| heard.iter().position(|b| b.first().is_some_and(|byte| byte >> bit & 1 == 1));
        let next = match (any(2), any(1)) {
            (Some(rank), _) => Next::Stopped(rank),
            (None, Some(_)) => Next::Step,
            (None, None) => Next::EndOfEpoch,
        };
        Ok(Agreed { batch: any(0).is_some(), scheduled: any(3).is_some(), next })
    }
}

/// Agreement after every epoch: whether to continue, and rank 0's decision on checkpoints. Each rank sends one byte to each
/// other rank; rank 0, and every rank of an elastic world, also sends eight bytes for each checkpoint to delete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Decision {
    /// The rank whose interrupter requested a stop.
    pub(super) stopped: Option<usize>,
    /// Set if rank 0's early stopping triggered.
    pub(super) early: bool,
    /// Set if this epoch is to be saved.
    pub(super) save: bool,
    /// Epochs that are no longer kept.
    pub(super) delete: Vec<usize>,
}

impl Decision {
    /// Sends this rank's values and agrees on the decision. Only rank 0's `early` and `actions` are used.
    pub(super) fn agree(
        sync: &mut Synchronizer,
        stop: bool,
        early: bool,
        actions: &[CheckpointingAction],
    ) -> Result<Decision, Error> {
        let save = actions.contains(&CheckpointingAction::Save);
        let mut mine = vec![u8::from(stop) | u8::from(early) << 1 | u8::from(save) << 2];
        for action in actions {
            if let CheckpointingAction::Delete(epoch) = action {
                mine.extend((*epoch as u64).to_le_bytes());
            }
        }
        let heard = sync.gather_bytes("end of epoch", &mine)?;
        let first = |bytes: &[u8]| bytes.first().copied().unwrap_or_default();
        let (lead, rest) = (first(&heard[0]), heard[0].get(1..).unwrap_or_default());
        Ok(Decision {
            stopped: heard.iter().position(|bytes| first(bytes) & 1 == 1),
            early: lead >> 1 & 1 == 1,
            save: lead >> 2 & 1 == 1,
            delete: rest.as_chunks().0.iter().map(|b| u64::from_le_bytes(*b) as usize).collect(),
        })
    }
}

/// Checks that all ranks have the same `settings`, and returns rank 0's `leads`.
pub(super) fn compare(sync: &mut Synchronizer, settings: &[(&'static str, u64)], leads: bool) -> Result<bool, Error> {
    let mut mine: Vec<u8> = settings.iter().flat_map(|(_, value)| value.to_le_bytes()).collect();
    mine.push(leads.into());
    let heard = sync.gather_bytes("comparison of settings", &mine)?;
    let this = sync.rank();
    for (rank, theirs) in heard.iter().enumerate() {
        for ((field, ours), theirs) in settings.iter().zip(theirs.as_chunks().0) {
            let theirs = u64::from_le_bytes(*theirs);
            if *ours != theirs {
                let (field, ours, theirs) = (field.to_string(), ours.to_string(), theirs.to_string());
                return Err(Error::Mismatch { this, rank, field, ours, theirs });
            }
        }
    }
    Ok(heard[0].last() == Some(&1))
}

#[cfg(test)]
mod tests {
    use briquette_core::comm::Local;
    use briquette_core::config::Config;

    use super::*;

    fn on_two_ranks<T: Send>(body: impl Fn(usize, &mut Synchronizer) -> Result<T, Error> + Sync) -> Vec<T> {
        let results = Local::run(2, |comm| {
            let mut sync = Synchronizer::new(comm, Config::dense(), 0);
            Ok::<_, briquette_core::error::CommError>(body(sync.rank(), &mut sync).unwrap())
        });
        results.into_iter().map(Result::unwrap).collect()
    }

    #[test]
    fn an_epoch_ends_when_no_rank_has_more_and_any_rank_stops_all() {
        let next =
            |signals: [Signal; 2]| on_two_ranks(|rank, sync| signals[rank].agree(sync).map(|a| (a.batch, a.next)));
        let last = Signal { batch: true, ..Signal::default() };
        let more = Signal { more: true, ..last };
        let stop = Signal { stop: true, ..more };
        assert_eq!(next([last, more]), [(true, Next::Step); 2]);
        assert_eq!(next([last, Signal::default()]), [(true, Next::EndOfEpoch); 2]);
        assert_eq!(next([Signal::default(); 2]), [(false, Next::EndOfEpoch); 2]);
        assert_eq!(next([more, stop]), [(true, Next::Stopped(1)); 2]);
    }

    #[test]
    fn rank_0_decides_on_early_stopping_and_checkpoints() {
        let actions = [CheckpointingAction::Save, CheckpointingAction::Delete(3)];
        let heard = on_two_ranks(|rank, sync| match rank {
            0 => Decision::agree(sync, false, true, &actions),
            _ => Decision::agree(sync, true, false, &[CheckpointingAction::Delete(9)]),
        });
        let expected = Decision { stopped: Some(1), early: true, save: true, delete: vec![3] };
        assert_eq!(heard, [expected.clone(), expected]);
    }

    #[test]
    fn settings_that_differ_are_refused_by_name() {
        let said = on_two_ranks(|rank, sync| {
            Ok(compare(sync, &[("epochs", 5 + rank as u64)], false).unwrap_err().to_string())
        });
        assert_eq!(said[0], "rank 1 cannot join: its epochs is 6, rank 0's is 5");
    }
}
