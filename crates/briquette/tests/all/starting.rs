//! `run`: threads by default, and one process of a world under a launcher.

use std::process::Command;

use briquette::core::error::CommError;
use briquette::{DistributedConfig, DistributedOptimizer, RunError};
use briquette_testkit::alone::name_of;

use crate::common::*;

#[test]
fn threads_are_the_world_where_nobody_launched_this_process_and_their_sessions_have_a_clock() {
    let trained = briquette::run(3, |comm| {
        assert!(comm.has_clock());
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::auto(sgd_with_momentum(), comm, 1);
        let mut model = optim.join(Mlp::new(rank as u64))?;
        for step in 0..4 {
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        assert_eq!((optim.rank(), optim.world()), (rank, 3));
        let (_, sync) = optim.into_parts();
        Ok::<_, briquette::Error>((rank, sync.step()))
    });
    assert_eq!(trained.unwrap(), (0, 4), "rank 0's");
}

#[test]
fn errors_of_any_common_type_are_those_of_the_rank_that_failed_first() {
    let of_text = briquette::run(2, |mut comm| match comm.rank() {
        0 => comm.barrier().map_err(|error| error.to_string()),
        _ => Err("no such file".to_owned()),
    });
    assert!(matches!(of_text, Err(RunError::Rank { rank: 0 | 1, .. })));
    let boxed = briquette::run(2, |mut comm| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        match comm.rank() {
            0 => Ok(comm.barrier()?),
            _ => Err("no such file".into()),
        }
    });
    assert_eq!(format!("{:?}", boxed.unwrap_err()), "rank 1: no such file");
    let own = briquette::run(2, |comm| match comm.rank() {
        0 => DistributedOptimizer::new(sgd(), comm, DistributedConfig::dense(), 1).join(Mlp::new(1)).map(drop),
        _ => Err(briquette::Error::NotJoined { rank: 1 }),
    });
    assert_eq!(own.unwrap_err().to_string(), "rank 1 has not joined: call `join(model)` once before the first step");
    let nobody = briquette::run(0, |_| Ok::<_, CommError>(()));
    assert!(matches!(nobody, Err(RunError::NoRanks)));
}

/// The work of one process of the world; does nothing if no test started it.
#[test]
fn a_rank_of_two_processes() {
    if std::env::var_os("BRIQUETTE_TEST_CHILD").is_none() {
        return;
    }
    let seen = briquette::run(7, |mut comm| {
        let mut sum = [1.0 + comm.rank() as f32];
        comm.all_reduce_sum(&mut sum)?;
        assert!(comm.has_clock() && comm.world() == 2);
        Ok::<_, CommError>((comm.rank(), sum[0]))
    });
    assert_eq!(seen.unwrap().1, 3.0);
}

#[test]
fn a_process_that_a_launcher_started_is_one_rank_of_its_world() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let start = |rank: &str| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", name_of(&a_rank_of_two_processes)]);
        child.envs([("BRIQUETTE_TEST_CHILD", "1"), ("RANK", rank), ("WORLD_SIZE", "2")]);
        child.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port.as_str())]);
        child.spawn().unwrap()
    };
    let children = [start("0"), start("1")];
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
}
