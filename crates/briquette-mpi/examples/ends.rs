//! Ways in which jobs end, with and without errors; `scripts/mpi-suite.sh` runs each of them and checks the outcome.
//!
//! The argument names the way: `well`, `late`, `threads`, `long`, `error`, `panic`, `stuck` or `exit`.

use briquette_core::Session;
use briquette_core::error::CommError;
use briquette_mpi::{Mpi, MpiError};
use std::error::Error;
use std::thread;
use std::time::Duration;

/// Longer than anything here may take: a rank that sleeps this long is stuck.
const FOR_EVER: Duration = Duration::from_secs(600);

fn main() -> Result<(), Box<dyn Error>> {
    let way = std::env::args().nth(1).unwrap_or_default();
    // In the world that gets stuck, the timeout is short.
    let patience = Duration::from_secs(if matches!(way.as_str(), "stuck" | "late") { 1 } else { 60 });
    let mut comm = Session::from(Mpi::builder().deadline(patience).init()?);
    assert_eq!(Mpi::init().unwrap_err(), MpiError::InitializedBefore);
    comm.begin_step(5);
    let last = comm.rank() + 1 == comm.world();
    match way.as_str() {
        "well" => {}
        // Longer than the timeout, without a rank waiting for a frame: that is no failure.
        "late" if last => thread::sleep(Duration::from_secs(2)),
        "late" => {}
        "threads" => drop(elsewhere(comm)?),
        "long" => too_long(&mut comm)?,
        "error" if last => {
            comm.abort("no disk");
            return Err("no disk".into());
        }
        "panic" if last => panic!("out of luck"),
        "exit" if last => std::process::exit(3),
        // Printed before this rank leaves MPI: afterwards the launcher may end it before it prints.
        "error" | "panic" | "exit" => drop(comm.recv(comm.world() - 1).inspect_err(|error| eprintln!("{error}"))?),
        // All but one are notified, and that one never asks.
        "stuck" if last => thread::sleep(FOR_EVER),
        "stuck" => drop(comm.recv(comm.world() - 1)?),
        other => return Err(format!("no such way to end: {other}").into()),
    }
    Ok(())
}

/// Communicates from another thread than the one that initialized MPI.
fn elsewhere(mut comm: Session) -> Result<Session, CommError> {
    let exchange = move || {
        let mut x = vec![1.0; 5000];
        comm.all_reduce_sum(&mut x)?;
        assert_eq!(x, vec![comm.world() as f32; 5000]);
        Ok(comm)
    };
    thread::scope(|threads| threads.spawn(exchange).join().expect("no panic"))
}

/// Checks that a frame that MPI cannot count is refused, and that every rank receives the reason. Its memory is never touched.
fn too_long(comm: &mut Session) -> Result<(), Box<dyn Error>> {
    let last = comm.world() - 1;
    let result = if comm.rank() == last { comm.send(0, vec![0; 1 << 31]) } else { comm.recv(last).map(drop) };
    let error = result.expect_err("too long").to_string();
    let expected =
        format!("rank {last} stopped the run during idle at step 5: a frame of 2147483648 bytes is too long");
    if error.starts_with(&expected) { Ok(()) } else { Err(error.into()) }
}
