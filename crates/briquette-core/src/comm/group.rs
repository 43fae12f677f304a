//! Subgroups: collectives over a subset of the ranks.

use std::sync::Arc;

use super::Session;

/// The ranks of a group, by their numbers in the transport's world.
#[derive(Debug, Clone)]
pub(super) struct Group {
    members: Arc<[usize]>,
    /// Position of this rank in the group.
    place: usize,
}

impl Group {
    pub(super) fn rank(&self) -> usize {
        self.place
    }

    pub(super) fn size(&self) -> usize {
        self.members.len()
    }
}

impl Session {
    /// Runs `body` in a world of only these ranks, in this order: rank numbers are positions in `ranks`, and
    /// collectives run among them. Errors name ranks by their numbers in the whole world. Every rank of the group must
    /// make the call, with the same `ranks`. Other groups may exchange at the same time, and groups may be nested.
    ///
    /// ```
    /// use briquette_core::comm::Local;
    /// use briquette_core::error::CommError;
    ///
    /// // Four ranks on two machines: sum inside each machine, between the first ranks of both, then inside again.
    /// let sums = Local::run(4, |mut comm| {
    ///     let mut x = [comm.rank() as f32];
    ///     let machine = if comm.rank() < 2 { [0, 1] } else { [2, 3] };
    ///     comm.within(&machine, |machine| machine.all_reduce_sum(&mut x))?;
    ///     if comm.rank() == machine[0] {
    ///         comm.within(&[0, 2], |leaders| leaders.all_reduce_sum(&mut x))?;
    ///     }
    ///     let mut bytes = x[0].to_le_bytes().to_vec();
    ///     comm.within(&machine, |machine| machine.broadcast(0, &mut bytes))?;
    ///     Ok::<_, CommError>(bytes)
    /// });
    /// assert_eq!(sums, vec![Ok(6.0f32.to_le_bytes().to_vec()); 4]);
    /// ```
    ///
    /// # Panics
    /// If this rank is not among `ranks`, a rank does not exist, or a rank occurs twice.
    pub fn within<T>(&mut self, ranks: &[usize], body: impl FnOnce(&mut Session) -> T) -> T {
        let (own, world) = (self.rank(), self.world());
        let place = ranks.iter().position(|rank| *rank == own);
        let place = place.unwrap_or_else(|| panic!("rank {own} is not in the group {ranks:?}"));
        let are_distinct = ranks.iter().enumerate().all(|(at, rank)| *rank < world && !ranks[..at].contains(rank));
        assert!(are_distinct, "a group has different ranks below {world}, not {ranks:?}");
        let members = ranks.iter().map(|rank| self.number(*rank)).collect();
        let outer = self.group.replace(Group { members, place });
        let out = body(self);
        self.group = outer;
        out
    }

    /// Returns the number in the transport's world of a rank of this world.
    pub(crate) fn number(&self, rank: usize) -> usize {
        self.group.as_ref().map_or(rank, |group| group.members[rank])
    }
}

#[cfg(test)]
mod tests;
