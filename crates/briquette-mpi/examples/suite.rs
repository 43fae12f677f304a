//! Transport suite over MPI processes: every fact, in worlds of up to as many ranks as were started.
//!
//! `scripts/mpi-suite.sh` runs it; with arguments, only the facts whose names contain one of them. The first fact that
//! does not hold ends the job with an error.

use briquette_core::comm::{Session, Transport};
use briquette_core::error::CommError;
use briquette_mpi::{Mpi, MpiError};
use briquette_testkit::suite::{
    Fact, Launch, Results, a_deadline_error_names_both_ranks, a_wait_for_any_rank_in_vain_names_all_of_them, facts,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Duration;

/// Worlds of the first ranks of this one.
struct Parts {
    mpi: Mutex<Mpi>,
    deadline: Duration,
}

impl Launch for Parts {
    fn run<T: Send>(
        &self,
        ranks: usize,
        body: impl Fn(&mut Session) -> Result<T, CommError> + Sync,
    ) -> Option<Results<T>> {
        let mut mpi = self.mpi.lock().expect("panics are caught inside");
        let rank = mpi.rank();
        if ranks > mpi.world() {
            return None;
        }
        let result = mpi.part(ranks, self.deadline, |comm| {
            catch_unwind(AssertUnwindSafe(|| body(comm))).unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<&str>().copied();
                let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or_default();
                let reason = format!("panicked: {text}");
                comm.abort(&reason);
                Err(CommError::Aborted { by: rank, during: *comm.scope(), reason })
            })
        });
        let result = result.expect("the world around the part goes on");
        Some(result.into_iter().map(|result| (rank, result)).collect())
    }
}

fn main() -> Result<(), MpiError> {
    let mpi = Mpi::builder().deadline(Duration::from_secs(60)).init()?;
    let (rank, world) = (mpi.rank(), mpi.world());
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let mut launch = Parts { mpi: Mutex::new(mpi), deadline: Duration::from_secs(20) };
    let mut held = 0;
    let mut run = |launch: &Parts, fact: Fact<Parts>| {
        if wanted.is_empty() || wanted.iter().any(|part| fact.name.contains(part.as_str())) {
            prove(launch, &fact, rank);
            held += 1;
        }
    };
    for fact in facts::<Parts>() {
        run(&launch, fact);
    }
    launch.deadline = Duration::from_secs(1);
    let name = "a_deadline_error_names_both_ranks";
    run(&launch, Fact { name, stops: true, check: a_deadline_error_names_both_ranks });
    let name = "a_wait_for_any_rank_in_vain_names_all_of_them";
    run(&launch, Fact { name, stops: true, check: a_wait_for_any_rank_in_vain_names_all_of_them });
    if rank == 0 {
        println!("{held} facts hold in worlds of up to {world} ranks");
    }
    Ok(())
}

/// Checks a fact, and that it holds on every rank. A rank on which it does not could not continue in step with the others.
fn prove(launch: &Parts, fact: &Fact<Parts>, rank: usize) {
    if catch_unwind(AssertUnwindSafe(|| (fact.check)(launch))).is_err() {
        eprintln!("rank {rank}: {} does not hold", fact.name);
        // Without finalizing MPI, so that the launcher ends the others.
        std::process::exit(1);
    }
    let agreed = launch.mpi.lock().expect("panics are caught inside").barrier();
    agreed.expect("every rank has come through the fact");
    if rank == 0 {
        println!("{} ... holds", fact.name);
    }
}
