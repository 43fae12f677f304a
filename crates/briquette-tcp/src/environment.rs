//! The environment of processes that a launcher starts: torchrun's names, read once into a typed struct.

mod job;

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::token::Token;
use crate::world;

briquette_core::debug_by_display!(EnvironmentError);

/// The names of the variables.
pub mod names {
    /// This process's rank, `0..WORLD_SIZE`.
    pub const RANK: &str = "RANK";
    /// How many ranks there are.
    pub const WORLD_SIZE: &str = "WORLD_SIZE";
    /// This process's number on its machine.
    pub const LOCAL_RANK: &str = "LOCAL_RANK";
    /// How many ranks the machine has.
    pub const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
    /// The machine's number.
    pub const GROUP_RANK: &str = "GROUP_RANK";
    /// Where rank 0 is: a name or an address.
    pub const MASTER_ADDR: &str = "MASTER_ADDR";
    /// The port it listens on. Where torchrun's agent has it (`TORCHELASTIC_USE_AGENT_STORE`), and where `mpirun` or `srun` set
    /// none, rank 0 takes a port that follows from the world's name.
    pub const MASTER_PORT: &str = "MASTER_PORT";
    /// The secret that all ranks share.
    pub const TOKEN: &str = "BRIQUETTE_TOKEN";
    /// A file with the secret, so that it stands in no list of processes.
    pub const TOKEN_FILE: &str = "BRIQUETTE_TOKEN_FILE";
    /// A directory made by `briquette cert`: ranks then speak TLS.
    pub const TLS: &str = "BRIQUETTE_TLS";
    /// The world's name, which ranks of another one do not have; if not set, it is made of the job's id by torchrun, `mpirun` or
    /// `srun`.
    pub const WORLD: &str = "BRIQUETTE_WORLD";
    /// The ports on which ranks accept connections, `29600-29699`: for firewalls.
    pub const PORTS: &str = "BRIQUETTE_PORTS";
    /// Time that a rank waits for the others to join, as in `90s` or `5m`.
    pub const JOIN_DEADLINE: &str = "BRIQUETTE_JOIN_DEADLINE";
    /// Longest time that a call waits for a rank that is alive, as in `90s` or `5m`.
    pub const DEADLINE: &str = "BRIQUETTE_DEADLINE";
    /// What one launch has and no other: the same however often it starts the world again.
    pub const LAUNCH: &str = "BRIQUETTE_LAUNCH";
    /// How often the world was started again; the program then continues what this launch began, from its last checkpoint.
    pub const RESTART: &str = "BRIQUETTE_RESTART";
}

/// A process's place in a world, as its launcher says (`briquette launch`, `torchrun`, a scheduler's script).
#[derive(Clone, PartialEq, Eq)]
pub struct Environment {
    /// This process's rank.
    pub rank: usize,
    /// How many ranks there are.
    pub world: usize,
    /// This process's number on its machine; 0 if not set.
    pub local_rank: usize,
    /// Number of ranks on its machine, which share the cores; 1 if not set.
    pub local_world: usize,
    /// The machine's number, where the launcher gives it.
    pub node: Option<usize>,
    /// Rank 0's name or address.
    pub master: String,
    /// Rank 0's port; none where it follows from [`world_name`](Self::world_name).
    pub port: Option<u16>,
    /// The world's name, which ranks of another one do not have.
    pub world_name: Option<String>,
    /// The ports on which ranks accept connections, where they are given.
    pub ports: Option<RangeInclusive<u16>>,
    /// Time that a rank waits for the others to join, where it is given.
    pub join_deadline: Option<Duration>,
    /// Longest time that a call waits for a rank that is alive, where it is given.
    pub deadline: Option<Duration>,
    /// The secret that all ranks share.
    pub token: Option<String>,
    /// A file that holds it.
    pub token_file: Option<PathBuf>,
    /// The directory of certificates.
    pub tls: Option<PathBuf>,
    /// What this launch has and no other, so that a program which is started again knows what it began itself. On several
    /// machines each launcher has its own: let rank 0's count.
    pub launch: Option<String>,
    /// How often the world was started again.
    pub restart: u32,
}

/// Without the secret.
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
            .finish()
    }
}

/// What is wrong with the variables.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// Some are set and this one is not.
    #[error(
        "{name} is not set, though RANK is: a launcher sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT together"
    )]
    Missing {
        /// The variable.
        name: &'static str,
    },
    /// `mpirun` and `srun` set no address of rank 0.
    #[error(
        "MASTER_ADDR is not set, and the ranks that {launcher} started are not all on this machine: set it to the name or \
         address of rank 0's machine on every rank (`mpirun -x MASTER_ADDR=host1` with Open MPI, `mpirun -genv MASTER_ADDR \
         host1` with MPICH; srun passes its own environment on)"
    )]
    Master {
        /// The launcher's program.
        launcher: &'static str,
    },
    /// Started again, but of which launch?
    #[error(
        "BRIQUETTE_RESTART is {restart} and BRIQUETTE_LAUNCH is not set: a launcher that starts the ranks again gives all of \
         its starts the same BRIQUETTE_LAUNCH, which no other launch has"
    )]
    Launch {
        /// How often the world was started again.
        restart: u32,
    },
    /// A launcher that gives its job no id.
    #[error(
        "{launcher} gives this job no id that distinguishes its ranks from another job's: start it with BRIQUETTE_WORLD set \
         to a name that no other job has (as in `BRIQUETTE_WORLD=$$ {launcher} ...`)"
    )]
    Unnamed {
        /// The launcher's program.
        launcher: &'static str,
    },
    /// A value that means nothing.
    #[error("{name} is `{value}`: {expected}")]
    Value {
        /// The variable.
        name: &'static str,
        /// What it is.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
}

impl Environment {
    /// This process's place, as its environment says; `None` where nobody launched it as a rank. A process that `mpirun` or `srun` started
    /// without torchrun's names has its place by theirs: `OMPI_COMM_WORLD_RANK`, `PMI_RANK` or `SLURM_PROCID` and their companions.
    /// The world's name and, without `MASTER_PORT`, rank 0's port are made of the job's id.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn from_env() -> Result<Option<Environment>, EnvironmentError> {
        Environment::read(|name| if name == job::PROXY { job::proxy() } else { std::env::var(name).ok() })
    }

    /// As [`from_env`](Self::from_env), through `lookup`.
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
    /// [`EnvironmentError`] when RANK is set and another needed variable is not, or a value means nothing.
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
        }))
    }

    /// A number that the ranks of a machine share: the machine's own, or else its first rank, as ranks of a machine follow each other.
    pub fn machine(&self) -> usize {
        self.node.unwrap_or_else(|| self.rank.saturating_sub(self.local_rank))
    }

    /// The variables that say this, for a process to be started.
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

/// Rank 0's port, as given; none where it is to be derived from the world's name.
fn port(given: impl Fn(&str) -> Option<String>, is_named: bool) -> Result<Option<u16>, EnvironmentError> {
    let name = names::MASTER_PORT;
    // The agent listens there itself.
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

/// The id of this launch, and how often it started the world again.
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
