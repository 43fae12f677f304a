//! Launcher environment variables, under torchrun's names, read once into a typed struct.

mod job;

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::token::Token;
use crate::world;

briquette_core::debug_by_display!(EnvironmentError);

/// Names of the variables.
pub mod names {
    /// This process's rank, `0..WORLD_SIZE`.
    pub const RANK: &str = "RANK";
    /// Number of ranks.
    pub const WORLD_SIZE: &str = "WORLD_SIZE";
    /// This process's rank on its machine.
    pub const LOCAL_RANK: &str = "LOCAL_RANK";
    /// Number of ranks on the machine.
    pub const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
    /// Number of the machine.
    pub const GROUP_RANK: &str = "GROUP_RANK";
    /// Name or address of rank 0.
    pub const MASTER_ADDR: &str = "MASTER_ADDR";
    /// Port on which rank 0 listens. It is derived from the world's name if torchrun's agent uses this port
    /// (`TORCHELASTIC_USE_AGENT_STORE`), or if `mpirun` or `srun` set none.
    pub const MASTER_PORT: &str = "MASTER_PORT";
    /// Secret that all ranks share.
    pub const TOKEN: &str = "BRIQUETTE_TOKEN";
    /// File with the secret, which keeps it out of process listings.
    pub const TOKEN_FILE: &str = "BRIQUETTE_TOKEN_FILE";
    /// Directory made by `briquette cert`, which enables TLS between ranks.
    pub const TLS: &str = "BRIQUETTE_TLS";
    /// World name, which differs between worlds. By default it is derived from the job id of torchrun, `mpirun` or `srun`.
    pub const WORLD: &str = "BRIQUETTE_WORLD";
    /// Ports on which ranks accept connections, `29600-29699`, for firewalls.
    pub const PORTS: &str = "BRIQUETTE_PORTS";
    /// Rendezvous timeout, as in `90s` or `5m`.
    pub const JOIN_DEADLINE: &str = "BRIQUETTE_JOIN_DEADLINE";
    /// Timeout of a call that waits for a rank that is alive, as in `90s` or `5m`.
    pub const DEADLINE: &str = "BRIQUETTE_DEADLINE";
    /// Unique id of one launch. It stays the same across restarts of the world.
    pub const LAUNCH: &str = "BRIQUETTE_LAUNCH";
    /// Number of times the world was restarted. After a restart, the program resumes from the last checkpoint of this launch.
    pub const RESTART: &str = "BRIQUETTE_RESTART";
    /// Minimum number of ranks of an elastic world, which continues when a rank is lost.
    pub const ELASTIC: &str = "BRIQUETTE_ELASTIC";
    /// Addresses at which the members of an elastic world accept calls, `host:port,host:port`, by the rank with which they began.
    pub const MEMBERS: &str = "BRIQUETTE_MEMBERS";
    /// Set to `1` for a process that joins an elastic world that is running.
    pub const JOIN: &str = "BRIQUETTE_JOIN";
}

/// Place of a process in a world, as set by its launcher (`briquette launch`, `torchrun`, a scheduler's script).
#[derive(Clone, PartialEq, Eq)]
pub struct Environment {
    /// This process's rank.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
    /// This process's rank on its machine; 0 if not set.
    pub local_rank: usize,
    /// Number of ranks on its machine, which share the cores; 1 if not set.
    pub local_world: usize,
    /// The machine's number, if the launcher sets it.
    pub node: Option<usize>,
    /// Rank 0's name or address.
    pub master: String,
    /// Rank 0's port; `None` if it is derived from [`world_name`](Self::world_name).
    pub port: Option<u16>,
    /// World name, which differs between worlds.
    pub world_name: Option<String>,
    /// The ports on which ranks accept connections, if set.
    pub ports: Option<RangeInclusive<u16>>,
    /// Rendezvous timeout, if set.
    pub join_deadline: Option<Duration>,
    /// Timeout of a call that waits for a rank that is alive, if set.
    pub deadline: Option<Duration>,
    /// Secret that all ranks share.
    pub token: Option<String>,
    /// File that holds the secret.
    pub token_file: Option<PathBuf>,
    /// Directory of certificates.
    pub tls: Option<PathBuf>,
    /// Unique id of this launch, by which a restarted program recognizes its own earlier run. If there are several
    /// machines, each launcher has its own id: use rank 0's.
    pub launch: Option<String>,
    /// Number of times the world was restarted.
    pub restart: u32,
    /// Settings of an elastic world.
    pub elastic: Option<Elastic>,
}

/// Settings of an elastic world, as its launcher sets them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elastic {
    /// Minimum number of ranks.
    pub fewest: usize,
    /// Addresses at which members accept calls, by the rank with which they began; empty if no process joins later.
    pub members: Vec<String>,
    /// Set if this process joins the running world.
    pub joins: bool,
}

/// Omits the secret.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Environment {
            rank,
            world,
            local_rank,
            local_world,
            node,
            master,
            port,
            world_name,
            ports,
            join_deadline,
            deadline,
            token,
            token_file,
            tls,
            launch,
            restart,
            elastic,
        } = self;
        f.debug_struct("Environment")
            .field("rank", rank)
            .field("world", world)
            .field("local_rank", local_rank)
            .field("local_world", local_world)
            .field("node", node)
            .field("master", master)
            .field("port", port)
            .field("world_name", world_name)
            .field("ports", ports)
            .field("join_deadline", join_deadline)
            .field("deadline", deadline)
            .field("token", &token.as_ref().map(Token::new))
            .field("token_file", token_file)
            .field("tls", tls)
            .field("launch", launch)
            .field("restart", restart)
            .field("elastic", elastic)
            .finish()
    }
}

/// Errors in the launcher's environment variables.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// This variable is not set although others are.
    #[error(
        "{name} is not set, though RANK is: a launcher sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT together"
    )]
    Missing {
        /// The variable.
        name: &'static str,
    },
    /// `mpirun` or `srun` did not set an address of rank 0.
    #[error(
        "MASTER_ADDR is not set, and the ranks that {launcher} started are not all on this machine: set it to the name or \
         address of rank 0's machine on every rank (`mpirun -x MASTER_ADDR=host1` with Open MPI, `mpirun -genv MASTER_ADDR \
         host1` with MPICH; srun passes its own environment on)"
    )]
    Master {
        /// The launcher's program.
        launcher: &'static str,
    },
    /// The restart count is set without a launch id.
    #[error(
        "BRIQUETTE_RESTART is {restart} and BRIQUETTE_LAUNCH is not set: a launcher that starts the ranks again gives all of \
         its starts the same BRIQUETTE_LAUNCH, which no other launch has"
    )]
    Launch {
        /// Number of times the world was restarted.
        restart: u32,
    },
    /// The launcher gives its job no id.
    #[error(
        "{launcher} gives this job no id that distinguishes its ranks from another job's: start it with BRIQUETTE_WORLD set \
         to a name that no other job has (as in `BRIQUETTE_WORLD=$$ {launcher} ...`)"
    )]
    Unnamed {
        /// The launcher's program.
        launcher: &'static str,
    },
    /// A value cannot be parsed.
    #[error("{name} is `{value}`: {expected}")]
    Value {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// Expected form of the value.
        expected: &'static str,
    },
}

impl Environment {
    /// Returns this process's place as set in its environment, or `None` if no launcher started it as a rank. If
    /// `mpirun` or `srun` started it without torchrun's variables, the place comes from their own:
    /// `OMPI_COMM_WORLD_RANK`, `PMI_RANK` or `SLURM_PROCID` and their companions. The world's name is then derived from
    /// the job id, and so is rank 0's port unless `MASTER_PORT` is set.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn from_env() -> Result<Option<Environment>, EnvironmentError> {
        Environment::read(|name| if name == job::PROXY { job::proxy() } else { std::env::var(name).ok() })
    }

    /// Returns the place as [`from_env`](Self::from_env) does, looking variables up through `lookup`.
    ///
    /// ```
    /// use briquette_tcp::Environment;
    ///
    /// let set = [("RANK", "2"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "29500")];
    /// let lookup = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string());
    /// let environment = Environment::read(lookup)?.expect("RANK is set");
    /// assert_eq!((environment.rank, environment.world, environment.port), (2, 4, Some(29500)));
    /// assert_eq!(Environment::read(|_| None)?, None);
    /// # Ok::<_, briquette_tcp::EnvironmentError>(())
    /// ```
    ///
    /// # Errors
    /// [`EnvironmentError`] if RANK is set and another required variable is not, or a value cannot be parsed.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Environment>, EnvironmentError> {
        let given = lookup;
        let lookup = |name| given(name).or_else(|| job::place(&given, name));
        if lookup(names::RANK).is_none() {
            return Ok(None);
        }
        let needed = |name| lookup(name).ok_or(EnvironmentError::Missing { name });
        let (rank, world) =
            (number(names::RANK, needed(names::RANK)?)?, number(names::WORLD_SIZE, needed(names::WORLD_SIZE)?)?);
        if rank >= world {
            let expected = "a rank is less than WORLD_SIZE";
            return Err(EnvironmentError::Value { name: names::RANK, value: format!("{rank} of {world}"), expected });
        }
        let or_zero = |name| lookup(name).unwrap_or_else(|| "0".to_owned());
        let world_name = job::world_name(&given)?;
        let (launch, restart) = started(&given)?;
        let ports = given(names::PORTS).map(|text| {
            let expected = "a range of ports is written as in 29600-29699";
            world::range(&text).ok_or(EnvironmentError::Value { name: names::PORTS, value: text, expected })
        });
        Ok(Some(Environment {
            rank,
            world,
            local_rank: number(names::LOCAL_RANK, or_zero(names::LOCAL_RANK))?,
            local_world: lookup(names::LOCAL_WORLD_SIZE)
                .map_or(Ok(1), |world| number(names::LOCAL_WORLD_SIZE, world))?,
            node: lookup(names::GROUP_RANK).map(|node| number(names::GROUP_RANK, node)).transpose()?,
            master: master(&given)?,
            port: port(&given, world_name.is_some())?,
            world_name,
            ports: ports.transpose()?,
            join_deadline: time(names::JOIN_DEADLINE, given(names::JOIN_DEADLINE))?,
            deadline: time(names::DEADLINE, given(names::DEADLINE))?,
            token: lookup(names::TOKEN).filter(|token| !token.is_empty()),
            token_file: lookup(names::TOKEN_FILE).map(PathBuf::from),
            tls: lookup(names::TLS).map(PathBuf::from),
            launch,
            restart,
            elastic: elastic(&given)?,
        }))
    }

    /// Returns a number that is equal on all ranks of a machine: the machine's number if set, or else the first rank of
    /// the machine. The latter assumes that the ranks of a machine are consecutive.
    pub fn machine(&self) -> usize {
        self.node.unwrap_or_else(|| self.rank.saturating_sub(self.local_rank))
    }

    /// Returns the variables that describe this place, for a process to be started.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let path = |path: &PathBuf| path.to_string_lossy().into_owned();
        let mut set = vec![
            (names::RANK, self.rank.to_string()),
            (names::WORLD_SIZE, self.world.to_string()),
            (names::LOCAL_RANK, self.local_rank.to_string()),
            (names::LOCAL_WORLD_SIZE, self.local_world.to_string()),
            (names::MASTER_ADDR, self.master.clone()),
        ];
        let time = |time: Duration| humantime::format_duration(time).to_string();
        set.extend(self.port.map(|port| (names::MASTER_PORT, port.to_string())));
        set.push((names::RESTART, self.restart.to_string()));
        set.extend(self.world_name.clone().map(|name| (names::WORLD, name)));
        set.extend(self.ports.as_ref().map(|ports| (names::PORTS, format!("{}-{}", ports.start(), ports.end()))));
        set.extend(self.join_deadline.map(|deadline| (names::JOIN_DEADLINE, time(deadline))));
        set.extend(self.deadline.map(|deadline| (names::DEADLINE, time(deadline))));
        set.extend(self.node.map(|node| (names::GROUP_RANK, node.to_string())));
        set.extend(self.token.clone().map(|token| (names::TOKEN, token)));
        set.extend(self.token_file.as_ref().map(|file| (names::TOKEN_FILE, path(file))));
        set.extend(self.tls.as_ref().map(|directory| (names::TLS, path(directory))));
        set.extend(self.launch.clone().map(|launch| (names::LAUNCH, launch)));
        if let Some(Elastic { fewest, members, joins }) = &self.elastic {
            set.push((names::ELASTIC, fewest.to_string()));
            set.extend((!members.is_empty()).then(|| (names::MEMBERS, members.join(","))));
            set.extend(joins.then(|| (names::JOIN, "1".to_owned())));
        }
        set
    }
}

/// Rank 0's name or address.
fn master(given: &impl Fn(&str) -> Option<String>) -> Result<String, EnvironmentError> {
    let name = names::MASTER_ADDR;
    given(name).or_else(|| job::place(given, name)).ok_or_else(|| match job::launcher(given) {
        Some(launcher) if given(names::RANK).is_none() => EnvironmentError::Master { launcher: launcher.program() },
        _ => EnvironmentError::Missing { name },
    })
}

/// Rank 0's port as set; `None` if it is derived from the world's name.
fn port(given: impl Fn(&str) -> Option<String>, is_named: bool) -> Result<Option<u16>, EnvironmentError> {
    let name = names::MASTER_PORT;
    // Torchrun's agent listens there.
    let is_taken = given("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|used| used.eq_ignore_ascii_case("true"));
    match given(name) {
        None if is_named => Ok(None),
        None => Err(EnvironmentError::Missing { name }),
        Some(_) if is_taken && is_named => Ok(None),
        Some(value) => {
            let port = value.trim().parse().ok().filter(|port| *port != 0);
            let expected = "a port is a number from 1 to 65535";
            port.map(Some).ok_or(EnvironmentError::Value { name, value, expected })
        }
    }
}

/// Settings of an elastic world.
fn elastic(given: &impl Fn(&str) -> Option<String>) -> Result<Option<Elastic>, EnvironmentError> {
    let Some(fewest) = given(names::ELASTIC) else { return Ok(None) };
    let members = given(names::MEMBERS).unwrap_or_default();
    let members = members.split(',').map(str::trim).filter(|member| !member.is_empty()).map(str::to_owned).collect();
    let joins = match given(names::JOIN).as_deref().map(str::trim) {
        None | Some("" | "0") => false,
        Some("1") => true,
        Some(other) => {
            let expected = "`1` joins a running world";
            return Err(EnvironmentError::Value { name: names::JOIN, value: other.to_owned(), expected });
        }
    };
    Ok(Some(Elastic { fewest: number(names::ELASTIC, fewest)?, members, joins }))
}

/// Returns the id of this launch, and the number of restarts of the world.
fn started(given: &impl Fn(&str) -> Option<String>) -> Result<(Option<String>, u32), EnvironmentError> {
    let launch = given(names::LAUNCH).filter(|launch| !launch.is_empty());
    let restart = given(names::RESTART).map_or(Ok(0), |restart| number(names::RESTART, restart))?;
    if restart > 0 && launch.is_none() {
        return Err(EnvironmentError::Launch { restart });
    }
    if launch.is_none()
        && let Some(launch) = job::torchrun_launch(given)
    {
        const COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
        return Ok((Some(launch), given(COUNT).map_or(Ok(0), |count| number(COUNT, count))?));
    }
    Ok((launch, restart))
}

fn time(name: &'static str, text: Option<String>) -> Result<Option<Duration>, EnvironmentError> {
    let Some(value) = text else { return Ok(None) };
    let expected = "a time is more than nothing and at most a week, written as in 500ms, 90s, 5m";
    let bounds = Duration::from_millis(1)..=Duration::from_hours(7 * 24);
    let time = humantime::parse_duration(value.trim()).ok().filter(|time| bounds.contains(time));
    time.map(Some).ok_or(EnvironmentError::Value { name, value, expected })
}

fn number<T: FromStr>(name: &'static str, value: String) -> Result<T, EnvironmentError> {
    let expected = "a whole number is needed";
    value.trim().parse().map_err(|_| EnvironmentError::Value { name, value, expected })
}

#[cfg(test)]
mod tests;
