//! Launch plan: validates the command line before anything starts, and builds each rank's environment.

use std::ffi::{OsStr, OsString};
use std::net::Ipv4Addr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use briquette_tcp::{Elastic, Environment, Token, names};
use sha2::{Digest, Sha256};

use super::{Launch, LaunchError};

/// Files made by `briquette cert`.
const CERTIFICATES: [&str; 3] = ["ca.pem", "cert.pem", "key.pem"];

/// A validated command line.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Number of ranks on each machine.
    local: usize,
    /// Number of machines.
    nodes: usize,
    /// Index of this machine.
    node: usize,
    master: String,
    port: Option<u16>,
    token_file: Option<PathBuf>,
    tls: Option<PathBuf>,
    command: Vec<OsString>,
    world_name: String,
    /// Unique id of this launch.
    launch: String,
    /// Minimum number of ranks of an elastic world.
    elastic: Option<usize>,
    /// Set if lost ranks are started again.
    rejoin: bool,
    /// All machines.
    hosts: Vec<String>,
    /// Members of the running world that this machine joins; empty if it begins one.
    join: Vec<String>,
    /// Number of ranks with which the world begins, or began.
    world: usize,
}

/// Values that are new at each start of the world.
#[derive(Debug, Clone)]
pub(super) struct Start {
    port: u16,
    token: Option<String>,
    restart: u32,
    members: Vec<String>,
}

impl Plan {
    pub(super) fn new(launch: &Launch) -> Result<Plan, LaunchError> {
        let (local, nodes) = (usize::from(launch.ranks), launch.nodes.len().max(1));
        let node = usize::from(launch.node_rank.unwrap_or(0));
        if launch.nodes.iter().any(|name| name.trim().is_empty()) {
            return usage("--nodes has an empty name: give one name or address for each machine, as in host1,host2");
        }
        if node >= nodes {
            let last = nodes - 1;
            return usage(format!("--node-rank {node} is not one of the {nodes} in --nodes: the last one is {last}"));
        }
        if let Some(only) = launch.only_rank.filter(|only| *only >= nodes * local) {
            return usage(format!("--only-rank {only}: the world has {} ranks, numbered from 0", nodes * local));
        }
        let elastic = launch.elastic.map(usize::from);
        let join: Vec<String> = launch.join.iter().map(|address| address.trim().to_owned()).collect();
        let is_address = |text: &&String| {
            text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        if let Some(address) = join.iter().find(|text| !is_address(text)) {
            return usage(format!("--join `{address}`: an address is written as host1:29501"));
        }
        if let Some(fewest) = elastic.filter(|fewest| join.is_empty() && *fewest > nodes * local) {
            return usage(format!("--elastic {fewest}: the world has {} ranks at its start", nodes * local));
        }
        let last = usize::from(launch.port.unwrap_or(0)) + nodes * local;
        if launch.rejoin && launch.port.is_some() && last > usize::from(u16::MAX) {
            return usage(format!("--rejoin needs the ports after --port up to {last}, and the last port is 65535"));
        }
        if nodes > 1 && launch.token_file.is_none() {
            return usage(
                "more than one node needs --token-file FILE, a secret that all ranks share: make it once with `(umask \
                 077; briquette token > FILE)`, readable by you alone, and copy it to every node",
            );
        }
        let token_file = launch.token_file.as_deref().map(token_file).transpose()?;
        let tls = launch.tls.as_deref().map(certificates).transpose()?;
        executable(&launch.command[0])?;
        let id = launch_id()?;
        let world_name = launch.world.clone().unwrap_or_else(|| match launch.nodes.is_empty() {
            true => format!("launch/{id}"),
            false => nodes_name(launch),
        });
        let seed = join.first().and_then(|address| address.rsplit_once(':'));
        let named = launch.nodes.first().map(|name| name.trim()).or(seed.map(|(host, _)| host));
        Ok(Plan {
            local,
            nodes,
            node,
            master: named.map_or_else(|| Ipv4Addr::LOCALHOST.to_string(), str::to_owned),
            port: launch.port.or(seed.and_then(|(_, port)| port.parse().ok())),
            token_file,
            tls,
            command: launch.command.clone(),
            world_name,
            launch: id,
            elastic,
            rejoin: launch.rejoin,
            hosts: launch.nodes.iter().map(|name| name.trim().to_owned()).collect(),
            join,
            world: launch.world_size.map_or(nodes * local, usize::from),
        })
    }

    /// Returns whether lost ranks are started again.
    #[cfg(unix)]
    pub(super) fn rejoins(&self) -> bool {
        self.rejoin
    }

    /// Returns whether the ranks join a running world.
    #[cfg(unix)]
    pub(super) fn joins(&self) -> bool {
        !self.join.is_empty()
    }

    /// Returns the addresses at which members accept calls: the ports after a given port of rank 0, or free ports of this machine.
    #[cfg(unix)]
    fn members(&self, port: u16) -> Result<Vec<String>, LaunchError> {
        if self.joins() || !self.rejoin {
            return Ok(self.join.clone());
        }
        if self.port.is_some() {
            let host = |rank: usize| self.hosts.get(rank / self.local).map_or(&self.master, |host| host);
            let address = |rank: usize| format!("{}:{}", host(rank), usize::from(port) + 1 + rank);
            return Ok((0..self.nodes * self.local).map(address).collect());
        }
        let system = |source| LaunchError::System { what: "no port of this machine can be listened on", source };
        let listeners = (0..self.local).map(|_| std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let listeners: Vec<_> = listeners.collect::<Result<_, _>>().map_err(system)?;
        let addresses = listeners.iter().map(|listener| Ok(listener.local_addr()?.to_string()));
        addresses.collect::<std::io::Result<_>>().map_err(system)
    }

    /// Returns the options with which another machine joins this world, if its ports and its token are known beforehand.
    #[cfg(unix)]
    pub(super) fn invitation(&self, start: &Start) -> Option<String> {
        let is_open =
            self.rejoin && !self.joins() && self.port.is_some() && self.token_file.is_some() && self.node == 0;
        let (world, size, fewest) = (&self.world_name, self.world, self.elastic.filter(|_| is_open)?);
        let members = start.members.join(",");
        let who = if self.hosts.is_empty() { "more ranks on this machine" } else { "other machines" };
        let tls = if self.tls.is_some() { ", --tls" } else { "" };
        let options = format!("--join {members} --world {world} --world-size {size} --elastic {fewest}");
        Some(format!("{who} join with {options}, and the same --token-file{tls} and program"))
    }

    /// Returns the number of ranks of this machine that may be lost without ending the world; `None` if the world is not elastic. With
    /// several machines, the ranks decide.
    #[cfg(unix)]
    pub(super) fn expendable(&self) -> Option<usize> {
        let here = if self.nodes > 1 || self.joins() { self.local } else { self.local.saturating_sub(self.elastic?) };
        self.elastic.map(|_| here)
    }

    /// Returns the ranks on this machine.
    pub(super) fn ranks(&self) -> Range<usize> {
        self.node * self.local..(self.node + 1) * self.local
    }

    /// Returns the program and its arguments.
    #[cfg(unix)]
    pub(super) fn command(&self) -> (&OsStr, &[OsString]) {
        (&self.command[0], &self.command[1..])
    }

    /// Creates the values of restart number `restart`: a free port unless one was given, and a secret unless a file holds it.
    #[cfg(unix)]
    pub(super) fn start(&self, restart: u32) -> Result<Start, LaunchError> {
        let what = "no token can be made";
        let token = match self.token_file {
            Some(_) => None,
            None => Some(crate::token::new().map_err(|source| LaunchError::System { what, source })?),
        };
        let port = self.free_port()?;
        Ok(Start { port, token, restart, members: self.members(port)? })
    }

    /// Returns the given port, which must be free at rank 0's listening address, or one that is free now. Another
    /// program may take it before rank 0 does; then rank 0 fails and reports it.
    #[cfg(unix)]
    fn free_port(&self) -> Result<u16, LaunchError> {
        let all = if self.hosts.is_empty() { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
        match self.port {
            Some(port) if self.node > 0 || self.joins() => Ok(port),
            Some(port) => match std::net::TcpListener::bind((all, port)) {
                Ok(_) => Ok(port),
                Err(source) => Err(LaunchError::Port { port, nodes: self.nodes, source }),
            },
            None => std::net::TcpListener::bind((all, 0))
                .and_then(|listener| listener.local_addr())
                .map(|address| address.port())
                .map_err(|source| LaunchError::System { what: "no port of this machine can be listened on", source }),
        }
    }

    /// Returns the environment of `rank`; with `joins`, that of a process that takes its place in the running world.
    pub(super) fn environment(&self, rank: usize, start: &Start, joins: bool) -> Environment {
        Environment {
            // A new member receives its rank from the others.
            rank: if self.join.is_empty() { rank } else { rank % self.world },
            world: self.world,
            local_rank: rank - self.ranks().start,
            local_world: self.ranks().len(),
            node: Some(self.machine()),
            master: self.master.clone(),
            port: Some(start.port),
            world_name: Some(self.world_name.clone()),
            ports: None,
            join_deadline: None,
            deadline: None,
            token: start.token.clone(),
            token_file: self.token_file.clone(),
            tls: self.tls.clone(),
            launch: Some(self.launch.clone()),
            restart: start.restart,
            elastic: self.elastic.map(|fewest| Elastic { fewest, members: start.members.clone(), joins }),
        }
    }

    /// Returns the number of this machine. One that joins a running world has a number that no other has.
    fn machine(&self) -> usize {
        let id = || u32::from_str_radix(self.launch.get(..7).unwrap_or_default(), 16).unwrap_or_default();
        if self.join.is_empty() { self.node } else { (1 << 30) + id() as usize }
    }

    /// Returns one shell command line per rank, except for the values that only a start determines.
    pub(super) fn commands(&self) -> Vec<String> {
        let token = self.token_file.is_none().then(String::new);
        let start = Start { port: self.port.unwrap_or(0), token, restart: 0, members: self.join.clone() };
        let quoted = |text: &OsStr| {
            let text = text.to_string_lossy();
            shlex::try_quote(&text).map_or_else(|_| text.to_string(), |quoted| quoted.into_owned())
        };
        let variable = |(name, value): (&'static str, String)| match name {
            names::MASTER_PORT if self.port.is_none() => format!("{name}=<a free port>"),
            names::TOKEN => format!("{name}=<32 random bytes>"),
            _ => format!("{name}={}", quoted(OsStr::new(&value))),
        };
        let command: Vec<String> = self.command.iter().map(|part| quoted(part)).collect();
        self.ranks()
            .map(|rank| {
                let mut parts: Vec<_> = self
                    .environment(rank, &start, !self.join.is_empty())
                    .variables()
                    .into_iter()
                    .map(variable)
                    .collect();
                parts.extend(command.iter().cloned());
                parts.join(" ")
            })
            .collect()
    }
}

/// Returns the name of a world on --nodes, whose launchers have separate ids: a digest of the options that all of them
/// share. Arguments and directories may differ between machines. The token is left out: a name's digest is sent to
/// strangers, who could test tokens against it.
fn nodes_name(launch: &Launch) -> String {
    let program = Path::new(&launch.command[0]).file_name().unwrap_or_default().to_string_lossy();
    let nodes: Vec<&str> = launch.nodes.iter().map(|name| name.trim()).collect();
    let port = launch.port.unwrap_or_default();
    let digest = Sha256::digest(format!("{}\n{}\n{port}\n{program}", nodes.join(","), launch.ranks));
    format!("nodes/{}", hex::encode(&digest[..16]))
}

fn launch_id() -> Result<String, LaunchError> {
    let id = getrandom::u64().map_err(|error| LaunchError::System {
        what: "no random numbers for this launch's id",
        source: error.into(),
    })?;
    Ok(format!("{id:016x}"))
}

fn usage<T>(text: impl Into<String>) -> Result<T, LaunchError> {
    Err(LaunchError::Usage(text.into()))
}

/// Returns an absolute path, which stays valid if the program changes its directory.
fn absolute(option: &str, path: &Path) -> Result<PathBuf, LaunchError> {
    let path = std::path::absolute(path)
        .map_err(|source| LaunchError::Usage(format!("{option} {}: {source}", path.display())))?;
    match path.to_str() {
        Some(_) => Ok(path),
        None => usage(format!("{option} {}: the name is not UTF-8, as it must be to be passed on", path.display())),
    }
}

fn token_file(path: &Path) -> Result<PathBuf, LaunchError> {
    match Token::read(path) {
        Ok(_) => absolute("--token-file", path),
        Err(error) => usage(format!("--token-file {error}")),
    }
}

fn certificates(directory: &Path) -> Result<PathBuf, LaunchError> {
    let shown = directory.display();
    match CERTIFICATES.iter().find(|name| !directory.join(name).is_file()) {
        Some(name) => usage(format!(
            "--tls {shown}: there is no {name}; make the directory once with `briquette cert --out {shown}` and copy it to \
             every node"
        )),
        None => absolute("--tls", directory),
    }
}

/// Checks that `program` can be started, to the extent that this can be determined beforehand.
fn executable(program: &OsStr) -> Result<(), LaunchError> {
    if which::which(program).is_ok() {
        return Ok(());
    }
    let (shown, path) = (program.to_string_lossy(), Path::new(program));
    let has_directory = path.components().count() > 1 || path.has_root();
    if has_directory && path.is_dir() {
        usage(format!("`{shown}` is a directory: name the program in it"))
    } else if has_directory && path.exists() {
        usage(format!("`{shown}` is not executable: `chmod +x {shown}`, or name the program that runs it first"))
    } else if has_directory {
        usage(format!("`{shown}` does not exist: build it, or see that the path is right"))
    } else {
        let hint = if path.is_file() { format!("; the one in this directory is `./{shown}`") } else { String::new() };
        usage(format!("`{shown}` is not found in PATH{hint}"))
    }
}
