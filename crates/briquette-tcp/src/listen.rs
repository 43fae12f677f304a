//! Listening sockets: those of rank 0 at every address of its name, those of other ranks at the address that leads to
//! rank 0.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::{TcpListener, lookup_host};
use tokio::time::{Instant, timeout_at};

use crate::descriptors::{are_exhausted, exhausted};
use crate::error::JoinError;
use crate::settings::Settings;
use crate::world::CANDIDATES;

/// Binds rank 0's sockets, and returns them with the address that represents them.
pub(crate) async fn lead(settings: &Settings, deadline: Instant) -> Result<(Vec<TcpListener>, String), JoinError> {
    if let Some(listener) = settings.take_listener()? {
        return Ok((vec![listener], settings.master.clone()));
    }
    let mut taken = Vec::new();
    let is_derived = settings.derives_port().is_some();
    for address in settings.masters() {
        let port = address.rsplit_once(':').map_or("", |(_, port)| port);
        let at = match &settings.listen {
            // Port 0 is replaced by the derived port.
            Some(listen) => match listen.strip_suffix(":0").filter(|_| is_derived) {
                Some(host) => format!("{host}:{port}"),
                None => listen.clone(),
            },
            None => address.clone(),
        };
        match everywhere(settings, &at, deadline).await {
            Ok(listeners) => return Ok((listeners, address)),
            // The port may belong to another job's rank 0. The other ranks detect that, and also try the next port.
            Err(JoinError::Listen { source, .. }) if is_derived && source.kind() == io::ErrorKind::AddrInUse => {
                tracing::debug!("{at} is taken: {source}");
                taken.push(at);
            }
            Err(error) => return Err(error),
        }
    }
    let source = io::Error::new(io::ErrorKind::AddrInUse, "all of them are taken");
    let address = if taken.len() > CANDIDATES { settings.whereabouts() } else { taken.join(", ") };
    Err(JoinError::Listen { address, source })
}

/// Binds listeners at all addresses of a name that this machine has, because ranks on other machines may resolve the name to any
/// of them.
async fn everywhere(settings: &Settings, address: &str, deadline: Instant) -> Result<Vec<TcpListener>, JoinError> {
    let places = places(settings, address, deadline).await?;
    if let Some(place) = places.first()
        && settings.listen.is_none()
        && places.iter().all(|place| settings.is_misnamed(place.ip()))
    {
        tracing::warn!(
            "{address} is {} on this machine, where no other one reaches it: rank 0 listens at all addresses of this machine",
            place.ip()
        );
        return Ok(vec![anywhere(settings, place.port(), address).await?]);
    }
    let (mut listeners, mut causes) = (Vec::new(), Vec::new());
    let mut kind = io::ErrorKind::NotFound;
    for place in &places {
        match TcpListener::bind(place).await {
            Ok(listener) => listeners.push(listener),
            Err(error) if are_exhausted(&error) => {
                return Err(exhausted(settings.rank, settings.world, error.to_string()));
            }
            // Otherwise, ranks that try this address first would reach another process.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse || places.len() == 1 => {
                let source =
                    if places.len() == 1 { error } else { io::Error::new(error.kind(), format!("{place}: {error}")) };
                return Err(JoinError::Listen { address: address.to_owned(), source });
            }
            Err(error) => {
                kind = error.kind();
                causes.push(format!("{place}: {error}"));
            }
        }
    }
    if listeners.is_empty() {
        return Err(JoinError::Listen { address: address.to_owned(), source: io::Error::new(kind, causes.join("; ")) });
    }
    Ok(listeners)
}

/// Binds a listener at all addresses of this machine, of both families if it has both.
async fn anywhere(settings: &Settings, port: u16, address: &str) -> Result<TcpListener, JoinError> {
    let bound = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        bound => bound,
    };
    bound.map_err(|source| match are_exhausted(&source) {
        true => exhausted(settings.rank, settings.world, source.to_string()),
        false => JoinError::Listen { address: address.to_owned(), source },
    })
}

/// Binds the socket of a rank that reached rank 0 from this local address.
pub(crate) async fn follow(settings: &Settings, here: IpAddr) -> Result<TcpListener, JoinError> {
    let is_misnamed = settings.is_misnamed(here);
    let at = async |port: u16| match is_misnamed {
        true => anywhere(settings, port, &SocketAddr::new(here, port).to_string()).await,
        false => one(settings, SocketAddr::new(here, port)).await,
    };
    let Some(ports) = &settings.ports else { return at(0).await };
    let (first, width) = (usize::from(*ports.start()), ports.len());
    // Ranks of a machine begin at different ports, so that few of them find a port in use.
    let order = (0..width).map(|i| u16::try_from(first + (settings.rank + i) % width).unwrap_or(*ports.end()));
    for port in order {
        match at(port).await {
            Err(JoinError::Listen { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => {}
            done => return done,
        }
    }
    let source = io::Error::new(io::ErrorKind::AddrInUse, "every port of the range is taken");
    Err(JoinError::Listen { address: format!("{here}:{}-{}", ports.start(), ports.end()), source })
}

async fn one(settings: &Settings, place: SocketAddr) -> Result<TcpListener, JoinError> {
    TcpListener::bind(place).await.map_err(|source| match are_exhausted(&source) {
        true => exhausted(settings.rank, settings.world, source.to_string()),
        false => JoinError::Listen { address: place.to_string(), source },
    })
}

/// Binds the socket of a rank whose address is given, to the first usable address of the name. If there is none, the error names all.
pub(crate) async fn at_given_address(
    settings: &Settings,
    address: &str,
    deadline: Instant,
) -> Result<TcpListener, JoinError> {
    let (mut causes, mut kind) = (Vec::new(), io::ErrorKind::NotFound);
    let places = places(settings, address, deadline).await?;
    for place in &places {
        match one(settings, *place).await {
            Err(JoinError::Listen { source, .. }) if places.len() > 1 => {
                kind = source.kind();
                causes.push(format!("{place}: {source}"));
            }
            Err(JoinError::Listen { source, .. }) => {
                return Err(JoinError::Listen { address: address.to_owned(), source });
            }
            done => return done,
        }
    }
    Err(JoinError::Listen { address: address.to_owned(), source: io::Error::new(kind, causes.join("; ")) })
}

async fn places(settings: &Settings, address: &str, deadline: Instant) -> Result<Vec<SocketAddr>, JoinError> {
    resolve(address, deadline).await.map_err(|source| match are_exhausted(&source) {
        true => exhausted(settings.rank, settings.world, source.to_string()),
        false => JoinError::Resolve { address: address.to_owned(), source },
    })
}

/// Resolves a name to all its addresses, in the system's order.
pub(crate) async fn resolve(address: &str, until: Instant) -> io::Result<Vec<SocketAddr>> {
    let found = timeout_at(until, lookup_host(address)).await;
    let mut found: Vec<_> = found.map_err(|_| io::Error::other("no name server answered in time"))??.collect();
    // A hosts file may list an address twice.
    let mut seen = std::collections::HashSet::new();
    found.retain(|place| seen.insert(*place));
    if found.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(found) }
}
