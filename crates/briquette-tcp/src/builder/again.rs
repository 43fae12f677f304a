//! Settings of elastic worlds, and of their later generations.

use super::TcpBuilder;
use crate::settings::Settings;

impl TcpBuilder {
    /// Returns the settings with which this process joins a later generation of its world: the same, but for its place and the name of
    /// the world.
    pub(crate) fn again(&self, (rank, world): (usize, usize), master: String, name: &str) -> TcpBuilder {
        let old = &self.settings;
        let settings = Settings {
            listen: None,
            advertise: old.advertise.clone(),
            token: old.token.clone(),
            certificates: old.certificates.clone(),
            join_deadline: old.join_deadline,
            channels: old.channels,
            machine: old.machine,
            ports: old.ports.clone(),
            is_alone: old.is_alone,
            is_elastic: true,
            is_later: true,
            // A request to stop must not keep a generation from forming: it saves.
            cancel: None,
            ..Settings::new(rank, world, master)
        };
        let TcpBuilder { deadline, pulse, limits, .. } = *self;
        let (clock, members, run_name) = (self.clock.clone(), self.members.clone(), self.run_name.clone());
        TcpBuilder { settings, deadline, pulse, limits, clock, members, run_name }.world_name(name)
    }

    /// Sets the addresses at which the members of an [elastic world](Self::join_elastic) accept calls, by the rank with which each
    /// begins: `host:port`. A process that [joins later](Self::join_running) asks them in turn. By default they are any free ports, and
    /// no process can join later.
    pub fn members(mut self, addresses: impl IntoIterator<Item = String>) -> TcpBuilder {
        self.members = addresses.into_iter().collect();
        self
    }

    pub(crate) fn member_address(&self, rank: usize) -> Option<&str> {
        self.members.get(rank).map(String::as_str)
    }
}
