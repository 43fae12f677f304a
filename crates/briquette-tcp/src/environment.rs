//! The environment of processes that a launcher starts: torchrun's names, read once into a typed struct.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::token::Token;

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
    /// The port it listens on.
    pub const MASTER_PORT: &str = "MASTER_PORT";
    /// The secret that all ranks share.
    pub const TOKEN: &str = "BRIQUETTE_TOKEN";
    /// A file with the secret, so that it stands in no list of processes.
    pub const TOKEN_FILE: &str = "BRIQUETTE_TOKEN_FILE";
    /// A directory made by `briquette cert`: ranks then speak TLS.
    pub const TLS: &str = "BRIQUETTE_TLS";
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
    /// How many ranks share its cores; 1 if not set.
    pub local_world: usize,
    /// The machine's number, where the launcher gives it.
    pub node: Option<usize>,
    /// Rank 0's name or address.
    pub master: String,
    /// Rank 0's port.
    pub port: u16,
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
    /// Started again, but of which launch?
    #[error(
        "BRIQUETTE_RESTART is {restart} and BRIQUETTE_LAUNCH is not set: a launcher that starts the ranks again gives all of \
         its starts the same BRIQUETTE_LAUNCH, which no other launch has"
    )]
    Launch {
        /// How often the world was started again.
        restart: u32,
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
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn from_env() -> Result<Option<Environment>, EnvironmentError> {
        Environment::read(|name| std::env::var(name).ok())
    }

    /// As [`from_env`](Self::from_env), through `lookup`.
    ///
    /// ```
    /// use briquette_tcp::Environment;
    ///
    /// let set = [("RANK", "2"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "29500")];
    /// let lookup = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string());
    /// let environment = Environment::read(lookup)?.expect("RANK is set");
    /// assert_eq!((environment.rank, environment.world, environment.port), (2, 4, 29500));
    /// assert_eq!(Environment::read(|_| None)?, None);
    /// # Ok::<_, briquette_tcp::EnvironmentError>(())
    /// ```
    ///
    /// # Errors
    /// [`EnvironmentError`] when RANK is set and another needed variable is not, or a value means nothing.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Environment>, EnvironmentError> {
        let lookup = |name| lookup(name).or_else(|| of_mpi(&lookup, name));
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
        let port = needed(names::MASTER_PORT)?;
        let expected = "a port is a number from 1 to 65535";
        let port = port.trim().parse().ok().filter(|port| *port != 0).ok_or(EnvironmentError::Value {
            name: names::MASTER_PORT,
            value: port,
            expected,
        })?;
        let restart = number(names::RESTART, or_zero(names::RESTART))?;
        let launch = lookup(names::LAUNCH).filter(|launch| !launch.is_empty());
        if restart > 0 && launch.is_none() {
            return Err(EnvironmentError::Launch { restart });
        }
        Ok(Some(Environment {
            rank,
            world,
            local_rank: number(names::LOCAL_RANK, or_zero(names::LOCAL_RANK))?,
            local_world: lookup(names::LOCAL_WORLD_SIZE)
                .map_or(Ok(1), |world| number(names::LOCAL_WORLD_SIZE, world))?,
            node: lookup(names::GROUP_RANK).map(|node| number(names::GROUP_RANK, node)).transpose()?,
            master: needed(names::MASTER_ADDR)?,
            port,
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
            (names::MASTER_PORT, self.port.to_string()),
            (names::RESTART, self.restart.to_string()),
        ];
        set.extend(self.node.map(|node| (names::GROUP_RANK, node.to_string())));
        set.extend(self.token.clone().map(|token| (names::TOKEN, token)));
        set.extend(self.token_file.as_ref().map(|file| (names::TOKEN_FILE, path(file))));
        set.extend(self.tls.as_ref().map(|directory| (names::TLS, path(directory))));
        set.extend(self.launch.clone().map(|launch| (names::LAUNCH, launch)));
        set
    }
}

/// Names under which `mpirun` (Open MPI; those of PMI) and `srun` say the same, in the order of the four below. A job's own shell has those of
/// Slurm too, but for the number of tasks of a step; and a world of one is none.
const MPI: [[&str; 4]; 3] = [
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
    ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"],
];

/// A variable of torchrun's that is not set, by what `mpirun` or `srun` set.
fn of_mpi(lookup: impl Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    let family = MPI.iter().find(|family| lookup(family[0]).is_some())?;
    let world = lookup(family[1]).filter(|world| world != "1")?;
    match name {
        names::RANK => lookup(family[0]),
        names::WORLD_SIZE => Some(world),
        names::LOCAL_RANK => lookup(family[2]),
        names::LOCAL_WORLD_SIZE => lookup(family[3]).filter(|world| world.parse::<usize>().is_ok()),
        // All on one machine: there is no need to say where rank 0 is.
        names::MASTER_ADDR if lookup(family[3]).as_ref() == Some(&world) => Some("127.0.0.1".to_owned()),
        names::MASTER_PORT => Some("29500".to_owned()),
        _ => None,
    }
}

fn number<T: FromStr>(name: &'static str, value: String) -> Result<T, EnvironmentError> {
    let expected = "a whole number is needed";
    value.trim().parse().map_err(|_| EnvironmentError::Value { name, value, expected })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &[(&str, &str)]) -> Result<Option<Environment>, EnvironmentError> {
        Environment::read(|name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn what_is_written_is_read_again() {
        let written = Environment {
            rank: 1,
            world: 3,
            local_rank: 1,
            local_world: 2,
            node: Some(3),
            master: "node-a".into(),
            port: 4000,
            token: Some("secret".into()),
            token_file: Some("token".into()),
            tls: Some("certs".into()),
            launch: Some("7d1f".into()),
            restart: 2,
        };
        let set = written.variables();
        let set: Vec<_> = set.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(read(&set), Ok(Some(written)));
    }

    #[test]
    fn ranks_of_a_machine_have_its_number_or_that_of_its_first_rank() {
        let rest = [("WORLD_SIZE", "8"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "7000"), ("RANK", "5")];
        let machine = |more: &[(&str, &str)]| read(&[&rest[..], more].concat()).unwrap().unwrap().machine();
        assert_eq!(machine(&[("LOCAL_RANK", "1"), ("GROUP_RANK", "2")]), 2);
        assert_eq!((machine(&[("LOCAL_RANK", "1")]), machine(&[])), (4, 5));
        let error = read(&[&rest[..], &[("GROUP_RANK", "x")]].concat()).unwrap_err().to_string();
        assert_eq!(error, "GROUP_RANK is `x`: a whole number is needed");
    }

    #[test]
    fn a_rank_of_mpirun_has_its_place_and_must_be_told_where_rank_0_is_only_on_several_machines() {
        let set = [("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_LOCAL_RANK", "0")];
        let here = read(&[&set[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "4")]].concat()).unwrap().unwrap();
        assert_eq!((here.rank, here.world, here.master.as_str(), here.port), (2, 4, "127.0.0.1", 29500));
        let spread = [&set[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]].concat();
        assert!(read(&spread).unwrap_err().to_string().contains("MASTER_ADDR is not set"));
        let told = read(&[&spread[..], &[("MASTER_ADDR", "a"), ("MASTER_PORT", "7000")]].concat()).unwrap().unwrap();
        assert_eq!((told.rank, told.machine(), told.port), (2, 2, 7000));
        assert_eq!(read(&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")]), Ok(None));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let says = |set: &[(&str, &str)], words: &[&str]| {
            let text = read(set).unwrap_err().to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        };
        says(&[("RANK", "0")], &["WORLD_SIZE", "not set"]);
        says(&[("RANK", "x"), ("WORLD_SIZE", "2")], &["RANK", "`x`"]);
        says(&[("RANK", "2"), ("WORLD_SIZE", "2")], &["RANK", "2 of 2"]);
        let rest = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "70000")];
        says(&rest, &["MASTER_PORT", "70000", "65535"]);
        let again = [&rest[..3], &[("MASTER_PORT", "7000"), ("BRIQUETTE_RESTART", "1")]].concat();
        says(&again, &["BRIQUETTE_RESTART is 1", "BRIQUETTE_LAUNCH is not set"]);
    }
}
