//! Settings of a rank in use: its place, rank 0's address, and the values that all ranks must agree on.

use std::net::{IpAddr, TcpListener};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::error::JoinError;
use crate::handshake::Terms;
use crate::secure::Certificates;
use crate::token::Token;
use crate::world::{self, TAG};

/// Interval at which a rank that joins checks its cancellation flag. A signal handler can only set a flag.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// Settings with which a rank joins.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) rank: usize,
    pub(crate) world: usize,
    pub(crate) master: String,
    pub(crate) listener: Mutex<Option<TcpListener>>,
    pub(crate) listen: Option<String>,
    pub(crate) advertise: Option<String>,
    pub(crate) token: Token,
    pub(crate) certificates: Option<Certificates>,
    pub(crate) join_deadline: Duration,
    pub(crate) channels: usize,
    pub(crate) machine: usize,
    pub(crate) name: Option<String>,
    /// Digest of the name.
    pub(crate) tag: [u8; TAG],
    /// Ports on which connections may be accepted.
    pub(crate) ports: Option<RangeInclusive<u16>>,
    /// Set if all ranks are known to be on this machine.
    pub(crate) is_alone: bool,
    /// Set if the world goes on when a rank is lost.
    pub(crate) is_elastic: bool,
    /// Set for a later generation of an elastic world: rank 0's socket may still be in use for the election before.
    pub(crate) is_later: bool,
    pub(crate) cancel: Option<Arc<AtomicBool>>,
}

impl Settings {
    pub(crate) fn new(rank: usize, world: usize, master: String) -> Settings {
        Settings {
            rank,
            world,
            master,
            listener: Mutex::new(None),
            listen: None,
            advertise: None,
            token: Token::default(),
            certificates: None,
            join_deadline: Duration::from_secs(120),
            channels: 0,
            machine: rank,
            name: None,
            tag: world::tag(None),
            ports: None,
            is_alone: false,
            is_elastic: false,
            is_later: false,
            cancel: None,
        }
    }

    /// Returns the result of `work`, or an error if this rank is cancelled first.
    pub(crate) async fn unless_cancelled<T>(
        &self,
        work: impl Future<Output = Result<T, JoinError>>,
    ) -> Result<T, JoinError> {
        tokio::select! {
            biased;
            result = work => result,
            () = self.cancelled() => Err(JoinError::Cancelled { rank: self.rank }),
        }
    }

    async fn cancelled(&self) {
        match &self.cancel {
            Some(cancel) => {
                while !cancel.load(Ordering::Relaxed) {
                    tokio::time::sleep(LOOK).await;
                }
            }
            None => std::future::pending().await,
        }
    }

    /// Returns the socket that is already listening, if any.
    pub(crate) fn take_listener(&self) -> Result<Option<tokio::net::TcpListener>, JoinError> {
        let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        let adopt = |listener: TcpListener| {
            let address = listener.local_addr().map_or_else(|_| self.master.clone(), |address| address.to_string());
            let adopted = listener.set_nonblocking(true).and_then(|()| tokio::net::TcpListener::from_std(listener));
            adopted.map_err(|source| JoinError::Listen { address, source })
        };
        listener.map(adopt).transpose()
    }

    pub(crate) fn terms<'a>(&'a self, binding: &'a [u8]) -> Terms<'a> {
        Terms { token: &self.token, world: &self.tag, binding }
    }

    /// Returns rank 0's host, if rank 0's port is derived from the world's name.
    pub(crate) fn derives_port(&self) -> Option<&str> {
        self.name.as_ref().and_then(|_| self.master.strip_suffix(":0"))
    }

    /// Returns the ports that rank 0 tries in turn, if its port is derived from the world's name.
    pub(crate) fn derived_ports(&self) -> Vec<u16> {
        match (&self.name, self.derives_port()) {
            (Some(name), Some(_)) => world::ports(name, self.ports.as_ref()),
            _ => Vec::new(),
        }
    }

    /// Returns the possible addresses of rank 0, likeliest first.
    pub(crate) fn masters(&self) -> Vec<String> {
        match self.derives_port() {
            Some(host) => self.derived_ports().into_iter().map(|port| format!("{host}:{port}")).collect(),
            None => vec![self.master.clone()],
        }
    }

    /// Returns the same addresses as text.
    pub(crate) fn whereabouts(&self) -> String {
        match (self.derives_port(), &self.ports) {
            (Some(host), Some(ports)) => format!("{host}, on one of the ports {} to {}", ports.start(), ports.end()),
            (Some(host), None) => {
                format!("{host}, on one of the ports {:?} of its world's name", self.derived_ports())
            }
            (None, _) => self.master.clone(),
        }
    }

    /// Returns whether a loopback address of rank 0's host name is unintended: on rank 0's machine alone the name
    /// resolves to loopback (Debian's 127.0.1.1), while ranks of other machines may call.
    pub(crate) fn is_misnamed(&self, found: IpAddr) -> bool {
        let host = self.master.rsplit_once(':').map_or(self.master.as_str(), |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
        let is_meant = host.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost");
        // Without a token no rank of another machine may join, so all ranks are on this one.
        found.is_loopback() && !is_meant && !self.is_alone && !self.token.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_means_loopback_is_misleading_only_where_others_may_call() {
        let found = "127.0.1.1".parse().unwrap();
        let misnamed = |master: &str, token: &str, is_alone| {
            let mut settings = Settings::new(0, 4, master.to_owned());
            (settings.token, settings.is_alone) = (Token::new(token), is_alone);
            settings.is_misnamed(found)
        };
        let secret = "a secret of sixteen";
        assert!(misnamed("host0:29500", secret, false));
        assert!(!misnamed("host0:29500", "", false), "without a token nobody else may come in");
        assert!(!misnamed("host0:29500", secret, true), "all ranks are here");
        for meant in ["127.0.1.1:29500", "localhost:29500", "[::1]:29500", "LOCALHOST.:0"] {
            assert!(!misnamed(meant, secret, false), "{meant}");
        }
        let settings = Settings::new(0, 4, "host0:29500".to_owned());
        assert!(!settings.is_misnamed("10.0.0.1".parse().unwrap()));
    }
}
