//! Two jobs on one machine: every connection compares the names of the worlds and thereby separates their ranks.

use std::net::TcpListener;
use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use briquette_core::comm::run_ranks;
use briquette_core::error::CommError;
use briquette_tcp::{Environment, JoinError, Tcp, TcpBuilder, Token};

use crate::common::{PATIENT, adds_up, certificates, logs};

/// Joins the ranks, and returns them in rank order.
fn meet(ranks: Vec<TcpBuilder>) -> Vec<Result<Tcp, JoinError>> {
    thread::scope(|threads| {
        let joining: Vec<_> = ranks.into_iter().map(|rank| threads.spawn(|| rank.join())).collect();
        joining.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Returns a name that no other test has.
fn job(name: &str) -> String {
    format!("{name} of process {}", std::process::id())
}

fn derived(name: &str, rank: usize, world: usize) -> TcpBuilder {
    TcpBuilder::new(rank, world, "127.0.0.1:0").world_name(name).join_deadline(PATIENT).deadline(PATIENT)
}

/// Returns a range of free ports that no other test takes while this program runs: the port below it is held. They are
/// below the system's ephemeral ports, which any connection may take at any time.
fn free_range(width: u16) -> RangeInclusive<u16> {
    static HELD: Mutex<Vec<TcpListener>> = Mutex::new(Vec::new());
    const BLOCKS: u16 = 100;
    const BLOCK: u16 = 40;
    assert!(width < BLOCK);
    let bind = |port: u16| TcpListener::bind(("127.0.0.1", port));
    let start = (std::process::id() % u32::from(BLOCKS)) as u16;
    let firsts = (0..BLOCKS).map(|i| 28_000 + (start + i) % BLOCKS * BLOCK);
    let (held, range) = firsts
        .filter_map(|first| Some((bind(first).ok()?, first + 1..=first + width)))
        .find(|(_, range)| range.clone().all(|port| bind(port).is_ok()))
        .unwrap();
    HELD.lock().unwrap().push(held);
    range
}

/// Checks that every rank of a world has the same job.
fn same_job(world: Vec<Tcp>, name: &str) {
    let ranks = run_ranks(world, |mut comm| {
        let mut parts = Vec::new();
        comm.all_gather(name.as_bytes(), &mut parts)?;
        // Its own is left out.
        parts[comm.rank()] = name.as_bytes().to_vec();
        Ok::<_, CommError>(parts)
    });
    for parts in ranks {
        assert!(parts.unwrap().iter().all(|part| part == name.as_bytes()), "{name} met another job");
    }
}

/// Threat R6. As the ranks of two `mpirun` see it, which come in any order.
#[test]
fn two_jobs_that_share_a_range_of_ports_do_not_exchange_ranks() {
    let ports = free_range(6);
    for round in 0..6 {
        let names = ["a", "b"].map(|name| job(&format!("{name} {round}")));
        thread::scope(|threads| {
            for (number, name) in names.iter().enumerate() {
                let ports = ports.clone();
                threads.spawn(move || {
                    // The ranks of one job come before or between the other's.
                    thread::sleep(Duration::from_millis(30 * ((number as u64 + round) % 2)));
                    let ranks = [1, 0].map(|rank| derived(name, rank, 2).ports(ports.clone()));
                    let mut world: Vec<Tcp> = meet(ranks.into()).into_iter().map(Result::unwrap).collect();
                    world.reverse();
                    same_job(world, name);
                });
            }
        });
    }
}

/// The listener of a job that never becomes complete occupies the port that would be the first.
#[test]
fn a_port_that_another_job_has_is_passed_over_by_every_rank() {
    let name = job("passed over");
    // One for the other job, one for the program that is no rank, one for each of the two.
    let ports = free_range(4);
    for certificates in [None, Some(certificates())] {
        let secure = |rank: TcpBuilder| match &certificates {
            Some(certificates) => rank.certificates(certificates.clone()),
            None => rank,
        };
        thread::scope(|threads| {
            // It takes one of the three, and waits for a rank that does not come; so does a program that is no rank.
            let other =
                secure(derived(&job("another"), 0, 2).ports(ports.clone())).join_deadline(Duration::from_secs(3));
            let other = threads.spawn(|| other.join());
            let taken = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_err();
            let begin = Instant::now();
            while !ports.clone().any(|port| taken(&port)) {
                assert!(begin.elapsed() < PATIENT);
                thread::sleep(Duration::from_millis(5));
            }
            let mut bound = ports.clone().filter_map(|port| TcpListener::bind(("127.0.0.1", port)).ok());
            let stranger = bound.next().unwrap();
            let answering = threads.spawn(move || {
                // As a server does that rejects its input.
                stranger.set_nonblocking(true).unwrap();
                let until = Instant::now() + Duration::from_secs(4);
                while Instant::now() < until {
                    drop(stranger.accept());
                    thread::sleep(Duration::from_millis(5));
                }
            });
            let ranks = [0, 1].map(|rank| secure(derived(&name, rank, 2).ports(ports.clone())));
            let world: Vec<Tcp> = meet(ranks.into()).into_iter().map(Result::unwrap).collect();
            same_job(world, &name);
            assert!(matches!(other.join().unwrap(), Err(JoinError::Incomplete { .. })));
            answering.join().unwrap();
        });
    }
}

/// With a given port of rank 0 there is no other port to try, so the refusal is reported at once.
#[test]
fn a_rank_of_another_job_is_refused_by_rank_0_at_once_and_the_world_comes_together_without_it() {
    logs::keep();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let master = listener.local_addr().unwrap().to_string();
    for certificates in [None, Some(certificates())] {
        let rank = |number: usize, name: Option<&str>| {
            let rank = TcpBuilder::new(number, 2, &master).join_deadline(PATIENT * 3).deadline(PATIENT);
            let rank = certificates.iter().fold(rank, |rank, ours| rank.certificates(ours.clone()));
            name.into_iter().fold(rank.token(Token::new("a secret of both jobs")), TcpBuilder::world_name)
        };
        let listener = listener.try_clone().unwrap();
        thread::scope(|threads| {
            let zero = threads.spawn(|| rank(0, Some("a")).listener(listener).join());
            for name in [Some("b"), None, Some("")] {
                let begin = Instant::now();
                let text = rank(1, name).join().unwrap_err().to_string();
                assert!(text.contains("rank 1 was refused by rank 0") && text.contains("another job"), "{text}");
                assert!(begin.elapsed() < PATIENT, "{:?}", begin.elapsed());
            }
            let one = threads.spawn(|| rank(1, Some("a")).join());
            adds_up([zero, one].map(|rank| rank.join().unwrap().unwrap()).into());
        });
    }
    logs::wait_for(1, &["refused a connection", "another job"]);
}

/// Threat R6. The link between two ranks above 0 leads to a rank of another job: as where a port was closed and given away, or forwarded.
#[test]
fn a_link_to_another_jobs_rank_is_refused_by_its_name() {
    for certificates in [None, Some(certificates())] {
        let doors = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let [own, others] = doors.each_ref().map(|door| door.local_addr().unwrap());
        let secure = |rank: TcpBuilder| certificates.iter().fold(rank, |rank, ours| rank.certificates(ours.clone()));
        let rank = |number: usize, world: usize, at: String, name: &str| {
            secure(TcpBuilder::new(number, world, at).world_name(name).join_deadline(Duration::from_secs(4)))
        };
        let [first, second] = doors;
        let results = thread::scope(|threads| {
            // Rank 0 of another job waits where this job's rank 1 says that it is.
            let other = rank(0, 2, others.to_string(), "b").listener(second);
            let waiting = threads.spawn(|| other.join());
            let ranks = vec![
                rank(0, 3, own.to_string(), "a").listener(first),
                rank(1, 3, own.to_string(), "a").advertise(others.to_string()),
                rank(2, 3, own.to_string(), "a"),
            ];
            let results = meet(ranks);
            assert!(waiting.join().unwrap().is_err());
            results
        });
        for result in results {
            let text = result.unwrap_err().to_string();
            let words = format!("rank 2 could not reach rank 1 at {others}: the peer belongs to another job");
            assert!(text.contains(&words), "{text}");
        }
    }
}

#[test]
fn every_port_that_a_rank_listens_on_is_in_the_range_that_was_given() {
    let (name, ports) = (job("in range"), free_range(8));
    let ranks = (0..3).map(|rank| derived(&name, rank, 3).ports(ports.clone())).collect();
    let world: Vec<Tcp> = meet(ranks).into_iter().map(Result::unwrap).collect();
    for rank in 0..3 {
        let port = world[2].address(rank).unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
        assert!(ports.contains(&port), "rank {rank} listens on {port}");
    }
    adds_up(world);
}

/// Rank 0 takes the last port that its world's name leads to.
#[test]
fn ranks_meet_on_the_one_port_of_a_wide_range_that_is_free() {
    let (name, ports) = (job("nearly full"), free_range(30));
    let mut taken: Vec<_> = ports.clone().map(|port| TcpListener::bind(("127.0.0.1", port)).unwrap()).collect();
    let zero = derived(&name, 0, 2).ports(ports.clone());
    let text = zero.join().unwrap_err().to_string();
    assert!(text.contains("all of them are taken") && text.contains(&ports.end().to_string()), "{text}");
    taken.remove(17);
    taken.iter().for_each(|stranger| stranger.set_nonblocking(true).unwrap());
    let (ended, end) = std::sync::mpsc::channel::<()>();
    // The others hang up, or their callers would wait for an answer.
    let strangers = thread::spawn(move || {
        while end.recv_timeout(Duration::from_millis(1)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            taken.iter().for_each(|stranger| drop(stranger.accept()));
        }
    });
    // Its own socket is outside of the range.
    let ranks =
        vec![derived(&name, 0, 2).ports(ports.clone()), derived(&name, 1, 2).ports(ports).listen("127.0.0.1:0")];
    let world = meet(ranks).into_iter().map(Result::unwrap).collect();
    drop(ended);
    strangers.join().unwrap();
    adds_up(world);
}

#[test]
fn a_range_without_a_free_port_is_named() {
    let name = job("nowhere");
    let ports = free_range(1);
    let taken = TcpListener::bind(("127.0.0.1", *ports.start())).unwrap();
    let text = derived(&name, 0, 2).ports(ports.clone()).join().unwrap_err().to_string();
    let port = taken.local_addr().unwrap().to_string();
    assert!(text.contains(&port) && text.contains("all of them are taken"), "{text}");
}

#[test]
fn a_port_that_follows_from_no_name_is_refused_before_anything_is_tried() {
    let text = TcpBuilder::new(1, 2, "127.0.0.1:0").join().unwrap_err().to_string();
    assert!(text.contains("port is 0") && text.contains("world_name"), "{text}");
}

/// A launcher's settings reach the world: torchrun's agent listens at rank 0's port.
#[test]
fn ranks_of_torchrun_meet_beside_its_agent() {
    let agent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = agent.local_addr().unwrap().port().to_string();
    let rank = |number: usize| {
        let rank = number.to_string();
        let set = [
            ("RANK", rank.as_str()),
            ("WORLD_SIZE", "3"),
            ("LOCAL_WORLD_SIZE", "3"),
            ("MASTER_ADDR", "localhost"),
            ("MASTER_PORT", port.as_str()),
            ("TORCHELASTIC_RUN_ID", "none"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("BRIQUETTE_JOIN_DEADLINE", "20s"),
        ];
        let lookup = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        let place = Environment::read(lookup).unwrap().unwrap();
        TcpBuilder::from_environment(&place).unwrap()
    };
    let world: Vec<Tcp> = meet((0..3).map(rank).collect()).into_iter().map(Result::unwrap).collect();
    assert!(!world[1].address(0).unwrap().ends_with(&format!(":{port}")));
    adds_up(world);
}
