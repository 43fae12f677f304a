//! The leader that ranks are pulled to.

use super::leader;
use briquette_core::error::CommError;
use briquette_core::state::Staged;
use briquette_core::{Frame, Session};

/// A leader's parameters at the time of its choice.
#[derive(Debug, Default)]
pub(super) struct Followed {
    /// Empty before the first choice.
    pub(super) place: Staged<Vec<f32>>,
    /// Set if the leader is this rank.
    pub(super) is_own: Staged<bool>,
}

impl Followed {
    /// Makes the rank with the lowest loss send its parameters to the others of the session's group. If no rank leads, the
    /// previous leader stays.
    pub(super) fn choose(&mut self, loss: f64, x: &[f32], comm: &mut Session) -> Result<(), CommError> {
        let (rank, mut parts) = (comm.rank(), Vec::new());
        comm.scope().operation = "choice of a leader";
        comm.all_gather(&loss.to_le_bytes(), &mut parts)?;
        let heard = |(other, part): (usize, &Frame)| match part.first_chunk() {
            _ if other == rank => loss,
            Some(bytes) => f64::from_le_bytes(*bytes),
            None => f64::NAN,
        };
        let losses: Vec<f64> = parts.iter().enumerate().map(heard).collect();
        let (before, next) = self.place.both();
        next.clone_from(before);
        *self.is_own.next_mut() = *self.is_own.now();
        if let Some(leader) = leader(&losses) {
            next.clear();
            next.extend_from_slice(x);
            comm.broadcast_values(leader, next)?;
            *self.is_own.next_mut() = leader == rank;
        }
        comm.scope().operation = "";
        self.place.stage();
        self.is_own.stage();
        Ok(())
    }

    /// Pulls `x` towards the newest leader, unless that leader is this rank.
    pub(super) fn pull(&self, x: &mut [f32], share: f32) {
        if !*self.is_own.latest() {
            x.iter_mut().zip(self.place.latest()).for_each(|(x, to)| *x += share * (to - *x));
        }
    }

    pub(super) fn clear(&mut self) {
        self.place.clear();
        self.is_own.set(false);
    }

    pub(super) fn commit(&mut self) {
        self.place.commit();
        self.is_own.commit();
    }

    pub(super) fn discard(&mut self) {
        self.place.discard();
        self.is_own.discard();
    }
}
