//! One rank: repeats one operation until it may end.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::thread::sleep;
use std::time::Duration;

use briquette_core::Session;
use briquette_core::error::CommError;
use briquette_core::membership::{Policy, Regroup, Standing, is_loss};
use briquette_tcp::{Environment, TcpBuilder};

use crate::Operation;

/// Variable with the settings of a rank, in addition to its place.
pub(crate) const SETTINGS: &str = "FAULTS";

/// Files that each rank writes before it joins and once it is working; the rank's number is appended.
pub(crate) const JOINING: &str = "joining-";
pub(crate) const RUNNING: &str = "running-";
/// File written by the harness: the ranks may end after working for a while longer.
pub(crate) const GO: &str = "go";
/// File written by a rank in a new generation of an elastic world.
pub(crate) const REGROUPED: &str = "regrouped";

/// Settings that the harness passes to a rank in one variable: fields end in `;`.
#[derive(Debug, Clone)]
pub(crate) struct RankSettings {
    pub(crate) directory: PathBuf,
    pub(crate) operation: Operation,
    /// Exits without a goodbye in the middle of the operation.
    pub(crate) exits: bool,
    pub(crate) deadline: Duration,
    pub(crate) lost_after: Duration,
    /// Listening address, and the address to advertise instead.
    pub(crate) listen: Option<(String, String)>,
    /// In an elastic world, how long survivors wait for a rank that can be reached.
    pub(crate) patience: Option<Duration>,
}

impl RankSettings {
    pub(crate) fn to_text(&self) -> String {
        let RankSettings { directory, operation, exits, deadline, lost_after, listen, patience } = self;
        let (listen, advertise) = listen.clone().unwrap_or_default();
        let operation = Operation::ALL.iter().position(|o| o == operation).unwrap();
        let (deadline, lost_after) = (deadline.as_millis(), lost_after.as_millis());
        let patience = patience.map_or(0, |patience| patience.as_millis());
        format!("{};{operation};{exits};{deadline};{lost_after};{listen};{advertise};{patience}", directory.display())
    }

    fn from_text(text: &str) -> RankSettings {
        let fields: Vec<&str> = text.split(';').collect();
        let millis = |field: &str| Duration::from_millis(field.parse().unwrap());
        RankSettings {
            directory: fields[0].into(),
            operation: Operation::ALL[fields[1].parse::<usize>().unwrap()],
            exits: fields[2] == "true",
            deadline: millis(fields[3]),
            lost_after: millis(fields[4]),
            listen: (!fields[5].is_empty()).then(|| (fields[5].to_owned(), fields[6].to_owned())),
            patience: Some(millis(fields[7])).filter(|patience| !patience.is_zero()),
        }
    }
}

pub(crate) fn run(settings: &str) {
    let place = Environment::read(|name| env::var(name).ok()).unwrap().expect("a place in a world");
    let settings = RankSettings::from_text(settings);
    let mut builder = TcpBuilder::from_environment(&place)
        .unwrap()
        .deadline(settings.deadline)
        .join_deadline(settings.deadline)
        .heartbeat(Duration::from_millis(100), settings.lost_after);
    if let Some((listen, advertise)) = &settings.listen {
        builder = builder.listen(listen).advertise(advertise);
    }
    if settings.exits && settings.operation == Operation::Rendezvous {
        // Joining, it ends before the world is complete.
        let mark = settings.directory.join(GO);
        std::thread::spawn(move || {
            while !mark.exists() {
                sleep(Duration::from_millis(1));
            }
            exit(9);
        });
    }
    fs::write(settings.directory.join(format!("{JOINING}{}", place.rank)), "").unwrap();
    let joined = match settings.patience {
        None => builder.join().map(|tcp| (Session::from(tcp), None)),
        Some(patience) => {
            let policy = Policy { fewest: 1, patience: patience.as_secs_f64() };
            builder.join_elastic(policy).map(|(comm, members)| (comm, Some(members)))
        }
    };
    let (mut comm, members) = joined.unwrap_or_else(|error| fail(&error.to_string()));
    let worked = match members {
        None => work(&mut comm, &settings).map_err(|error| error.to_string()),
        Some(members) => work_on(&mut comm, members, &settings),
    };
    if let Err(error) = worked {
        drop(comm);
        fail(&error);
    }
}

fn fail(error: &str) -> ! {
    eprintln!("error: {error}");
    exit(1);
}

/// Repeats the operation; after the go file appears, forty times more.
fn work(comm: &mut Session, settings: &RankSettings) -> Result<(), CommError> {
    let mut end = None;
    let mut step = 0;
    while end.is_none_or(|end| step <= end) {
        end = repetition(comm, settings, step, end)?;
        step += 1;
        sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Does the same in an elastic world: ranks vote on every repetition, and survivors of a lost rank repeat the one that failed.
fn work_on(comm: &mut Session, mut members: impl Regroup, settings: &RankSettings) -> Result<(), String> {
    let (mut end, mut step) = (None, 0);
    while end.is_none_or(|end| step <= end) {
        let (error, in_doubt) = match repetition(comm, settings, step, end) {
            Ok(next) => match comm.barrier() {
                Ok(()) => {
                    (end, step) = (next, step + 1);
                    sleep(Duration::from_millis(2));
                    continue;
                }
                Err(error) => (error, Some(next)),
            },
            Err(error) => (error, None),
        };
        if !is_loss(&error) {
            return Err(error.to_string());
        }
        let standing = Standing { step, in_doubt: in_doubt.is_some(), is_new: false };
        let next = members.regroup(standing, false).map_err(|error| error.to_string())?;
        *comm = next.session;
        fs::write(settings.directory.join(REGROUPED), "").unwrap();
        if let (Some(next), true) = (in_doubt, next.commits) {
            (end, step) = (next, step + 1);
        }
    }
    Ok(())
}

/// Runs the operation once. Returns the last step, once all ranks have seen the go file.
fn repetition(
    comm: &mut Session,
    settings: &RankSettings,
    step: u64,
    end: Option<u64>,
) -> Result<Option<u64>, CommError> {
    comm.begin_step(step);
    comm.scope().operation = settings.operation.name();
    once(comm, settings, step)?;
    if step == 10 {
        fs::write(settings.directory.join(format!("{RUNNING}{}", comm.rank())), "").unwrap();
    }
    if settings.exits && end.is_some() {
        exit(9);
    }
    if !step.is_multiple_of(5) || end.is_some() {
        return Ok(end);
    }
    let mut seen = [f64::from(settings.directory.join(GO).exists())];
    comm.all_reduce_sum_f64(&mut seen)?;
    Ok((seen[0] == comm.world() as f64).then_some(step + 40))
}

fn once(comm: &mut Session, settings: &RankSettings, step: u64) -> Result<(), CommError> {
    let rank = comm.rank();
    match settings.operation {
        Operation::AllGather => comm.all_gather(&vec![rank as u8; 2000], &mut Vec::new()),
        Operation::AllReduce => {
            let mut x = vec![1.0; 2000];
            comm.all_reduce_sum(&mut x)?;
            assert!(x.iter().all(|sum| *sum == comm.world() as f32));
            Ok(())
        }
        Operation::Broadcast => {
            // As leaders do: first one rank, then another.
            let root = step as usize % comm.world();
            let mut bytes = vec![root as u8; if rank == root { 2000 } else { 0 }];
            comm.broadcast(root, &mut bytes)?;
            assert_eq!(bytes, vec![root as u8; 2000]);
            Ok(())
        }
        Operation::Rendezvous | Operation::Barrier => comm.barrier(),
        Operation::CheckpointSave => {
            let file = settings.directory.join(format!("rank-{rank}.bin"));
            write_whole(&file, &[7; 2000]);
            let mut sums = Vec::new();
            comm.all_gather(&7_u32.to_le_bytes(), &mut sums)?;
            if rank == 0 {
                write_whole(&settings.directory.join("manifest"), &sums.concat());
            }
            comm.barrier()
        }
    }
}

fn write_whole(path: &Path, bytes: &[u8]) {
    let partial = path.with_extension("partial");
    fs::write(&partial, bytes).unwrap();
    fs::rename(&partial, path).unwrap();
}
