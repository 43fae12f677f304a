//! Placement of ranks on machines.

use super::Session;
use crate::error::{Conflict, world_of};

/// The machines of a world and the ranks on each, for exchanges inside a machine and between machines with the
/// subgroups of [`within`](Session::within).
///
/// ```
/// use briquette_core::comm::{Local, run_ranks};
/// use briquette_core::error::CommError;
///
/// // Two machines of two ranks: sum inside each, between the first ranks of both, then inside again.
/// let world = Local::builder(4).machines_of(2.try_into()?).build();
/// let sums = run_ranks(world, |mut comm| {
///     let mut x = [comm.rank() as f32];
///     let places = comm.machine_map();
///     assert_eq!((places.machine(), places.leaders()), (&[[0, 1], [2, 3]][comm.rank() / 2][..], vec![0, 2]));
///     comm.within(places.machine(), |machine| machine.all_reduce_sum(&mut x))?;
///     if places.leads() {
///         comm.within(&places.leaders(), |leaders| leaders.all_reduce_sum(&mut x))?;
///     }
///     let mut bytes = x[0].to_le_bytes().to_vec();
///     comm.within(places.machine(), |machine| machine.broadcast(0, &mut bytes))?;
///     Ok::<_, CommError>(bytes)
/// });
/// assert_eq!(sums, vec![Ok(6.0f32.to_le_bytes().to_vec()); 4]);
/// # Ok::<_, std::num::TryFromIntError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineMap {
    rank: usize,
    machines: Vec<Vec<usize>>,
}

impl MachineMap {
    /// Returns the ranks on each machine, ascending; machines in the order of their first ranks.
    pub fn machines(&self) -> &[Vec<usize>] {
        &self.machines
    }

    /// Returns the ranks on this rank's machine.
    pub fn machine(&self) -> &[usize] {
        let own = self.machines.iter().find(|machine| machine.contains(&self.rank));
        own.expect("every rank is on a machine")
    }

    /// Returns the first rank of every machine.
    pub fn leaders(&self) -> Vec<usize> {
        self.machines.iter().map(|machine| machine[0]).collect()
    }

    /// Returns whether this rank is the first of its machine.
    pub fn leads(&self) -> bool {
        self.machine()[0] == self.rank
    }

    /// Checks that groups of this size, if given in the settings of `what`, tile a world.
    pub fn check_groups(what: &str, group: Option<usize>, world: usize) -> Result<(), Conflict> {
        match group {
            Some(size) if !world.is_multiple_of(size) => Err(Conflict::new(
                format!("group={size} of {what}"),
                world_of(world),
                format!("groups of {size} ranks do not tile it"),
                format!("set group to a divisor of {world}, or leave it out"),
            )),
            _ => Ok(()),
        }
    }
}

impl Session {
    /// Returns a placement with this many consecutive ranks per machine, if given, or else [`machine_map`](Self::machine_map).
    pub fn machine_map_in(&self, group: Option<usize>) -> MachineMap {
        let Some(size) = group else { return self.machine_map() };
        let ranks: Vec<usize> = (0..self.world()).collect();
        MachineMap { rank: self.rank(), machines: ranks.chunks(size).map(<[usize]>::to_vec).collect() }
    }

    /// Returns the placement of this world's ranks on machines; the same on every rank. A transport gets it from the
    /// launcher. On a simulated network, the ranks of a link are a machine. Without any information, every rank is on a
    /// separate machine.
    pub fn machine_map(&self) -> MachineMap {
        let machine = |rank: usize| {
            let number = self.number(rank);
            self.call.timeline.machine(number).unwrap_or_else(|| self.transport.machine(number))
        };
        let mut machines: Vec<Vec<usize>> = Vec::new();
        for rank in 0..self.world() {
            match machines.iter_mut().find(|ranks| machine(ranks[0]) == machine(rank)) {
                Some(ranks) => ranks.push(rank),
                None => machines.push(vec![rank]),
            }
        }
        MachineMap { rank: self.rank(), machines }
    }
}

#[cfg(test)]
mod tests {
    use super::MachineMap;
    use crate::comm::{Faulty, Local, Session};

    fn pairs(ranks: usize) -> Vec<Session> {
        Local::builder(ranks).machines_of(2.try_into().unwrap()).build()
    }

    #[test]
    fn threads_share_a_machine_or_those_that_are_said() {
        let machines = |world: &[Session]| world[0].machine_map().machines().to_vec();
        assert_eq!(machines(&Local::world(3)), [[0, 1, 2]]);
        assert_eq!(machines(&Faulty::world(Local::builder(3).endpoints(), 0, 9)), [[0, 1, 2]]);
        let world = pairs(5);
        assert_eq!(machines(&world), [vec![0, 1], vec![2, 3], vec![4]]);
        let leads: Vec<_> = world.iter().map(|comm| comm.machine_map().leads()).collect();
        assert_eq!(leads, [true, false, true, false, true]);
        assert_eq!(world[3].machine_map().machine(), [2, 3]);
    }

    #[test]
    fn groups_of_a_size_take_the_place_of_machines_and_must_tile() {
        let world = pairs(6);
        assert_eq!(world[4].machine_map_in(Some(3)).machines(), [[0, 1, 2], [3, 4, 5]]);
        assert_eq!(
            (world[4].machine_map_in(Some(3)).machine(), world[4].machine_map_in(None).machine()),
            (&[3, 4, 5][..], &[4, 5][..])
        );
        assert_eq!(
            (MachineMap::check_groups("it", Some(3), 6), MachineMap::check_groups("it", None, 6)),
            (Ok(()), Ok(()))
        );
        let error = MachineMap::check_groups("it", Some(4), 6).unwrap_err().to_string();
        assert!(
            error.contains("group=4 of it does not go with a world of 6 ranks: groups of 4 ranks do not tile it"),
            "{error}"
        );
    }

    #[test]
    fn in_a_group_machines_have_the_groups_numbers() {
        let mut world = pairs(6);
        // Ranks 5, 1, 4 and 0 are ranks 0 to 3 of the group.
        let places = world[4].within(&[5, 1, 4, 0], |group| group.machine_map());
        assert_eq!(places.machines(), [[0, 2], [1, 3]]);
        assert_eq!((places.machine(), places.leaders(), places.leads()), (&[0, 2][..], vec![0, 1], false));
    }
}
