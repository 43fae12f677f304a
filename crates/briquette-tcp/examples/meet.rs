//! One rank of any launcher: joins the others, and checks that all of them belong to the same job.
//!
//! ```text
//! mpirun -n 3 meet JOB [--fail-until RESTART]
//! ```
//!
//! Every rank must be started with the same JOB. With `--fail-until N`, rank 1 fails after joining until the launcher
//! has restarted the world N times. Scripts run it under torchrun, `mpirun`, and between network namespaces.

use std::error::Error;
use std::process::ExitCode;

use briquette_core::Session;
use briquette_tcp::{Environment, TcpBuilder};

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let job = arguments.next().ok_or("give the job a name")?;
    let fail_until: u32 = match arguments.next().as_deref() {
        Some("--fail-until") => arguments.next().ok_or("--fail-until needs a number")?.parse()?,
        _ => 0,
    };
    let place = Environment::from_env()?.ok_or("start this with a launcher")?;
    // Tells a rank that meets no other from one that was never started.
    println!("{job}: started");
    let tcp = TcpBuilder::from_environment(&place)?.join()?;
    let master = tcp.address(0).unwrap_or_default().to_owned();
    let mut comm = Session::from(tcp);
    let (mut parts, mut sum) = (Vec::new(), vec![1.0; 10_000]);
    let own = format!("{job}/{}", place.restart);
    comm.all_gather(own.as_bytes(), &mut parts)?;
    parts[place.rank] = own.into_bytes();
    comm.all_reduce_sum(&mut sum)?;
    let met: Vec<_> = parts.iter().map(|part| String::from_utf8_lossy(part)).collect();
    let is_one_job = met.iter().all(|other| other.split('/').next() == Some(&job));
    let is_whole = sum.iter().all(|sum| *sum == place.world as f32);
    println!("{job}: rank {} of {}, rank 0 at {master}, met {}", place.rank, place.world, met.join(" "));
    if !is_one_job || !is_whole {
        eprintln!("error: rank {} of {job} met ranks of another job: {}", place.rank, met.join(" "));
        return Ok(ExitCode::from(3));
    }
    if place.rank == 1 && place.restart < fail_until {
        eprintln!("error: rank 1 fails at restart {}, as it was told", place.restart);
        return Ok(ExitCode::from(7));
    }
    Ok(ExitCode::SUCCESS)
}
