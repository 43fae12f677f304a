//! `briquette launch`: starts the ranks of a world as processes, forwards their output, and ends them together.
//!
//! | module | contents |
//! |---|---|
//! | `plan` | checks the command line; makes each rank's environment |
//! | `world` | one start of the world: processes, signals, termination |
//! | `signals` | signals to the launcher |
//! | `output` | the ranks' lines: terminal, log files, the last ones for an error |
//! | `failure` | first failed rank, and the cause of its failure |
//! | `child` | the process between launcher and rank that ties the rank's life to the launcher's |

mod error;
mod plan;

#[cfg(unix)]
pub mod child;
#[cfg(unix)]
mod failure;
#[cfg(unix)]
mod output;
#[cfg(unix)]
mod signals;
#[cfg(unix)]
mod world;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

pub use error::LaunchError;
use plan::Plan;
#[cfg(unix)]
pub use signals::Listening;

const HELP: &str = "\
Examples:
  Four ranks on this machine, over loopback; a port and a secret are chosen:
    briquette launch --ranks 4 -- target/release/cifar --epochs 5
  Only rank 0 on the terminal, all of them in files, and up to 3 new starts after failures:
    briquette launch --ranks 4 --only-rank 0 --log-dir logs --restart 3 -- ./train
  Two machines with two ranks each. Once, and copied to both:
    (umask 077; briquette token > token)
  Then on each, with its own --node-rank, 0 on host1 and 1 on host2:
    briquette launch --nodes host1,host2 --node-rank 0 --ranks 2 \\
        --port 29500 --token-file token -- ./train
  The same with TLS: once `briquette cert --out certs`, copied to both, then add --tls certs.
  Four ranks, of which two may be lost while the others go on:
    briquette launch --ranks 4 --elastic 2 -- target/release/cifar --epochs 5
  A world that other machines may join, and one that joins it while it runs:
    briquette launch --nodes host1 --node-rank 0 --ranks 2 --port 29500 --token-file token \\
        --world run1 --elastic 1 --rejoin -- ./train
    briquette launch --join host1:29501,host1:29502 --world-size 2 --ranks 2 --token-file token \\
        --world run1 --elastic 1 --rejoin -- ./train
  What would be started, without starting it:
    briquette launch --ranks 2 --dry-run -- ./train

Each rank receives RANK, WORLD_SIZE, LOCAL_RANK, GROUP_RANK, MASTER_ADDR and MASTER_PORT, as by torchrun; BRIQUETTE_WORLD, the name \
that separates its world from others; BRIQUETTE_LAUNCH, an id of this launch and all its restarts; BRIQUETTE_RESTART, how often the world was started again; BRIQUETTE_TOKEN or BRIQUETTE_TOKEN_FILE; with --tls, BRIQUETTE_TLS.

Ctrl-C (SIGINT), SIGTERM and SIGHUP are passed on to every rank once: programs save and end by themselves. A second one kills \
all ranks; so does Ctrl-\\ (SIGQUIT) at once. When a rank fails, the others have --grace to end, then get SIGTERM, and after as \
long again SIGKILL.

Exit codes:
  0            all ranks ended well, or with --elastic those that were not lost
  a rank's     that of the rank that failed first; 128 + signal if a signal killed it
  128 + signal the launcher was told to stop (130: Ctrl-C), and ranks did not all end with 0
  2            the command line asks for something impossible; nothing was started
  1            the launcher could not go on

docs/launching.md says more.";

/// Starts the ranks of a world as processes, prefixes their output, and ends them together.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct Launch {
    /// Number of ranks on this machine, and on each of --nodes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub ranks: u16,
    /// All machines in the same order everywhere, separated by commas; rank 0 runs on the first. Without it, this machine
    /// alone.
    #[arg(long, value_name = "HOST,HOST", value_delimiter = ',', requires_all = ["node_rank", "port"])]
    pub nodes: Vec<String>,
    /// Index of this machine in --nodes, from 0.
    #[arg(long, value_name = "I", requires = "nodes")]
    pub node_rank: Option<u16>,
    /// The port rank 0 listens on. Without --nodes a free one is chosen if it is not given.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// The world's name, the same on every node: ranks of a world with another name are refused, and two worlds on the same
    /// machines stay separate. If not given, each launch chooses a new name; with --nodes it follows from the nodes, --ranks, --port
    /// and the program's name.
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub world: Option<String>,
    /// A file with the secret that ranks prove to each other that they know (`(umask 077; briquette token > FILE)`), readable by you alone. Needed with more
    /// than one node; without it each start makes a new one.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// A directory made by `briquette cert`: ranks then speak TLS to each other.
    #[arg(long, value_name = "DIR")]
    pub tls: Option<PathBuf>,
    /// Show only this rank's lines on the terminal. The error of the rank that failed first is shown in any case.
    #[arg(long, value_name = "RANK")]
    pub only_rank: Option<usize>,
    /// Also append each rank's lines, stdout and stderr together, to rank-N.log in this directory.
    #[arg(long, value_name = "DIR")]
    pub log_dir: Option<PathBuf>,
    /// Time for the other ranks to end by themselves after one failed, and again between SIGTERM and SIGKILL.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = grace)]
    pub grace: Duration,
    /// After a failure, end all ranks and start the world again, at most this often. Never after Ctrl-C.
    #[arg(long, value_name = "TIMES", default_value_t = 0)]
    pub restart: u32,
    /// Go on without a rank that is lost, as long as at least this many are left, for programs that support it (the trainers do). Without
    /// it, one lost rank ends all.
    #[arg(long, value_name = "MIN", value_parser = clap::value_parser!(u16).range(1..))]
    pub elastic: Option<u16>,
    /// With --elastic: start a lost rank again, as a new member of the running world. With --port it needs as many free ports after it as
    /// there are ranks.
    #[arg(long, requires = "elastic")]
    pub rejoin: bool,
    /// Start the ranks of this machine as new members of a world that is running with --elastic and --rejoin. Lists addresses of its
    /// members: the ports after its --port. Give that world's --world, --elastic and --token-file.
    #[arg(long, value_name = "HOST:PORT,HOST:PORT", value_delimiter = ',',
        requires_all = ["world", "world_size", "elastic", "token_file"],
        conflicts_with_all = ["nodes", "port", "restart"])]
    pub join: Vec<String>,
    /// With --join: the number of ranks with which the running world began.
    #[arg(long, value_name = "N", requires = "join", value_parser = clap::value_parser!(u16).range(1..))]
    pub world_size: Option<u16>,
    /// Print the commands with their variables and start nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// The program each rank runs, and its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "PROGRAM [ARGUMENTS]")]
    pub command: Vec<OsString>,
}

/// Parses a valid time for `--grace`.
fn grace(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|e| format!("{e}; a time is written as in 500ms, 10s, 2m"))?;
    if time > Duration::from_hours(24) { Err("at most 24h".into()) } else { Ok(time) }
}

/// Prints the commands of a dry run.
fn print(plan: &Plan) -> Result<u8, LaunchError> {
    let shown = crate::terminal::show(plan.commands().join("\n"));
    shown.map(|()| 0).map_err(|source| LaunchError::System { what: "--dry-run", source })
}

impl Launch {
    /// Starts the ranks and waits for all of them. Returns the launcher's exit code, unless a rank failed.
    ///
    /// On Linux it starts ranks through its own program file. It is meant to be called once, by the command, which must
    /// have listened to signals from its start.
    ///
    /// # Errors
    /// [`LaunchError`] if a rank cannot be started, and for the rank that failed first. Its
    /// [`exit_code`](LaunchError::exit_code) is the exit code that the command should return.
    #[cfg(unix)]
    pub fn run(&self, signals: &Listening) -> Result<u8, LaunchError> {
        let plan = Plan::new(self)?;
        if self.dry_run {
            return print(&plan);
        }
        let output = output::Output::new(self.only_rank);
        let result = self.worlds(&plan, signals, &output);
        // Pending output is written here.
        signals.while_idle(|| drop(output));
        result
    }

    /// Starts the world repeatedly, until it ends successfully or may not be restarted.
    #[cfg(unix)]
    fn worlds(&self, plan: &Plan, signals: &Listening, output: &output::Output) -> Result<u8, LaunchError> {
        let logs = output::open_logs(self.log_dir.as_deref(), plan.ranks())?;
        let mut restart = 0;
        loop {
            let start = plan.start(restart)?;
            plan.invitation(&start).into_iter().for_each(|invitation| output.say(invitation));
            // From here on, signals are also for the ranks.
            signals.end_idleness();
            if let Some(signal) = signals.asked_to_stop() {
                return Ok(signals::exit_code(signal));
            }
            let mut world = world::World::start(plan, &start, (output, &logs))?;
            let outcome = world.watch(signals, self.grace);
            drop(world);
            let failure = match outcome {
                world::Outcome::Ended(code) => return Ok(code),
                world::Outcome::Failed { failure, again } if again && restart < self.restart => failure,
                world::Outcome::Failed { failure, .. } => return Err(LaunchError::Rank(failure)),
            };
            restart += 1;
            output.say(format!("restarting ({restart} of {}): {failure}", self.restart));
        }
    }

    /// Prints the commands of a dry run. Starting ranks requires a Unix system.
    ///
    /// # Errors
    /// [`LaunchError::Usage`].
    #[cfg(not(unix))]
    pub fn run(&self) -> Result<u8, LaunchError> {
        let plan = Plan::new(self)?;
        if self.dry_run {
            return print(&plan);
        }
        Err(LaunchError::Usage(
            "briquette launch needs a Unix system (process groups and signals); start each rank by hand with the variables \
             that --dry-run prints"
                .into(),
        ))
    }
}
