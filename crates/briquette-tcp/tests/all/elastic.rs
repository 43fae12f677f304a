//! Elastic worlds over TCP: members are lost, the others form the next generation.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use briquette_core::Session;
use briquette_core::error::CommError;
use briquette_core::membership::{MembershipError, Policy, Regroup, Regrouped, Standing, is_loss};
use briquette_tcp::{Certificates, Members, TcpBuilder, Token};
use briquette_testkit::proxy::Proxy;

use crate::common::{PATIENT, certificates};

const STEPS: u64 = 12;
const POLICY: Policy = Policy { fewest: 1, patience: 20.0 };

/// Steps and generations of a member.
#[derive(Debug, Clone, Default, PartialEq)]
struct Seen {
    /// World and sum of ranks + 1 of each committed step.
    steps: Vec<(usize, f64)>,
    /// Ranks before, by new rank, of each later generation.
    before: Vec<Vec<usize>>,
    stalls: Vec<Duration>,
}

/// A step: a sum over ranks, and a vote on it.
fn step(comm: &mut Session) -> Result<f64, (CommError, bool)> {
    let mut sum = [comm.rank() as f64 + 1.0];
    comm.all_reduce_sum_f64(&mut sum).map_err(|error| (error, false))?;
    comm.barrier().map_err(|error| (error, true))?;
    Ok(sum[0])
}

/// Trains as the member that began as rank `rank`, and is lost before its step `ends`.
fn member((mut comm, mut members): (Session, Members), ends: Option<u64>) -> Result<Seen, MembershipError> {
    let (mut seen, mut committed) = (Seen::default(), 0);
    while committed < STEPS {
        if ends == Some(committed) {
            drop(comm);
            // Its listener is open for a while, as that of a killed process.
            thread::sleep(Duration::from_millis(500));
            return Ok(seen);
        }
        let world = comm.world();
        match step(&mut comm) {
            Ok(sum) => {
                seen.steps.push((world, sum));
                committed += 1;
            }
            Err((error, in_doubt)) => {
                assert!(is_loss(&error), "{error}");
                let begin = Instant::now();
                let Regrouped { session, before, commits, .. } =
                    members.regroup(Standing { step: committed, in_doubt, is_new: false }, false)?;
                comm = session;
                if in_doubt && commits {
                    seen.steps.push((world, (1..=world).sum::<usize>() as f64));
                    committed += 1;
                }
                seen.before.push(before);
                seen.stalls.push(begin.elapsed());
            }
        }
    }
    // A member that is in doubt about the last step needs the others.
    while let Err(error) = comm.barrier() {
        assert!(is_loss(&error), "{error}");
        match members.regroup(Standing { step: committed, in_doubt: false, is_new: false }, false) {
            Ok(next) => comm = next.session,
            Err(_) => break,
        }
    }
    Ok(seen)
}

fn world(
    ends: &[Option<u64>],
    policy: Policy,
    certificates: Option<Certificates>,
) -> Vec<Result<Seen, MembershipError>> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let master = listener.local_addr().unwrap().to_string();
    let mut listener = Some(listener);
    thread::scope(|threads| {
        let start = |(rank, ends): (usize, &Option<u64>)| {
            let mut builder = TcpBuilder::new(rank, 4, &master).deadline(PATIENT);
            builder = certificates.iter().fold(builder, |builder, own| builder.certificates(own.clone()));
            if rank == 0 {
                builder = builder.listener(listener.take().unwrap());
            }
            let ends = *ends;
            threads.spawn(move || member(builder.join_elastic(policy).unwrap(), ends))
        };
        let running: Vec<_> = ends.iter().enumerate().map(start).collect();
        running.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

/// Rank 2 is lost at step 3, then rank 0 at step 7: it was the coordinator.
fn loses_two(certificates: Option<Certificates>) {
    let seen = world(&[Some(7), None, Some(3), None], POLICY, certificates);
    let [Ok(first), Ok(one), Ok(two), Ok(three)] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((first.steps.len(), two.steps.len()), (7, 3));
    assert_eq!(one.steps, three.steps);
    assert_eq!(one.before, [vec![0, 1, 3], vec![1, 2]]);
    let expected = (0..STEPS).map(|step| {
        if step < 3 {
            (4, 10.0)
        } else if step < 7 {
            (3, 6.0)
        } else {
            (2, 3.0)
        }
    });
    assert_eq!(one.steps, expected.collect::<Vec<_>>());
    // A member that was lost is not waited for.
    let longest = Duration::from_secs_f64(POLICY.patience);
    assert!(one.stalls.iter().all(|stall| *stall < longest), "{:?}", one.stalls);
}

/// Rank 1 is reached at the address of a relay, which leads to the port of its first generation only.
#[test]
fn a_member_behind_a_relay_is_reached_at_its_own_port_in_later_generations() {
    let [first, one] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let relay = Proxy::to(one.local_addr().unwrap()).unwrap();
    let (master, between) = (first.local_addr().unwrap().to_string(), relay.address().to_string());
    let mut listeners = [Some(first), Some(one), None, None].into_iter();
    let seen: Vec<_> = thread::scope(|threads| {
        let start = |rank: usize| {
            let builder = TcpBuilder::new(rank, 4, &master).deadline(PATIENT);
            let builder = listeners.next().flatten().into_iter().fold(builder, TcpBuilder::listener);
            let builder = if rank == 1 { builder.advertise(between.clone()) } else { builder };
            threads.spawn(move || member(builder.join_elastic(POLICY).unwrap(), (rank == 3).then_some(3)))
        };
        [0, 1, 2, 3].map(start).into_iter().map(|rank| rank.join().expect("no panic")).collect()
    });
    let [Ok(first), Ok(one), Ok(two), Ok(_)] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((&first.steps, &one.before), (&two.steps, &vec![vec![0, 1, 2]]));
}

#[test]
fn survivors_form_generation_after_generation() {
    loses_two(None);
}

#[test]
fn survivors_form_generation_after_generation_under_tls() {
    loses_two(Some(certificates()));
}

/// Rank 1 is lost, and another process listens at its address before rank 0, which computes for three seconds, looks there.
#[test]
fn a_process_in_the_place_of_a_lost_member_is_not_taken_for_it() {
    let (master, addresses) = (free_addresses(1).remove(0), free_addresses(3));
    let builder = |rank| {
        let builder = TcpBuilder::new(rank, 3, &master).deadline(PATIENT).join_deadline(Duration::from_secs(8));
        builder.world_name("replaced").members(addresses.clone())
    };
    let seen: Vec<_> = thread::scope(|threads| {
        let start = |rank: usize| {
            let builder = &builder;
            threads.spawn(move || {
                let (mut comm, members) = builder(rank).join_elastic(POLICY).unwrap();
                if rank == 1 {
                    drop((comm, members));
                    // No generation admits it.
                    let refused = builder(rank).join_running(POLICY).unwrap_err().to_string();
                    assert!(refused.contains("no member has admitted this process"), "{refused}");
                    return Seen::default();
                }
                if rank == 0 {
                    thread::sleep(Duration::from_secs(3));
                    assert!(step(&mut comm).is_err());
                }
                member((comm, members), None).unwrap()
            })
        };
        [0, 1, 2].map(start).into_iter().map(|rank| rank.join().expect("no panic")).collect()
    });
    assert_eq!(seen[0].before, [[0, 2]]);
    assert_eq!((&seen[0].before, &seen[0].steps), (&seen[2].before, &seen[2].steps));
    let longest = Duration::from_secs_f64(POLICY.patience);
    assert!(seen[0].stalls.iter().all(|stall| *stall < longest), "{:?}", seen[0].stalls);
}

/// Nothing answers at the address of rank 3, as of a process that is suspended, when rank 1 is lost. The others wait for their patience, and go
/// on without it.
#[test]
fn a_member_that_does_not_report_is_left_behind_and_those_that_did_are_not() {
    let (master, addresses) = (free_addresses(1).remove(0), free_addresses(4));
    let policy = Policy { fewest: 1, patience: 4.0 };
    let seen: Vec<_> = thread::scope(|threads| {
        let start = |rank: usize| {
            let builder = TcpBuilder::new(rank, 4, &master).world_name("behind").deadline(PATIENT);
            let (builder, address) = (builder.members(addresses.clone()), &addresses[rank]);
            threads.spawn(move || {
                let (mut comm, members) = builder.join_elastic(policy).unwrap();
                if rank == 3 {
                    drop(members);
                    let _silent = TcpListener::bind(address).unwrap();
                    while step(&mut comm).is_ok() {}
                    thread::sleep(Duration::from_secs(8));
                    return Seen::default();
                }
                member((comm, members), (rank == 1).then_some(3)).unwrap()
            })
        };
        [0, 1, 2, 3].map(start).into_iter().map(|rank| rank.join().expect("no panic")).collect()
    });
    assert_eq!((&seen[0].before, &seen[2].before), (&vec![vec![0, 2]], &vec![vec![0, 2]]));
    assert_eq!(seen[0].steps, seen[2].steps);
}

#[test]
fn a_minority_ends_by_name() {
    let seen = world(&[Some(4), Some(4), Some(4), None], POLICY, None);
    let error = seen[3].as_ref().expect_err("one of four").to_string();
    // Rank 0 may have voted with it before it left, too.
    assert!(["reaches 1 of 4 members", "reaches 1 of 2 members"].iter().any(|said| error.contains(said)), "{error}");
}

/// Returns addresses whose ports are free now.
fn free_addresses(count: usize) -> Vec<String> {
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect()
}

/// Trains until a world of `until` has made five steps. Members agree at every step on whether a candidate waits. Returns the world of
/// each step.
fn until_it_has_grown((mut comm, mut members): (Session, Members), is_new: bool, until: usize) -> Vec<usize> {
    let (mut committed, mut worlds) = ([0.0], Vec::new());
    let mut newcomers = is_new;
    loop {
        if newcomers {
            // New members learn the step from the first.
            if comm.rank() > 0 {
                committed[0] = 0.0;
            }
            comm.all_reduce_sum_f64(&mut committed).unwrap();
        }
        newcomers = false;
        let mut waiting = [f64::from(u8::from(members.has_candidates()))];
        comm.all_reduce_sum_f64(&mut waiting).unwrap();
        comm.barrier().unwrap();
        committed[0] += 1.0;
        worlds.push(comm.world());
        if waiting[0] > 0.0 {
            let standing = Standing { step: committed[0] as u64, in_doubt: false, is_new: false };
            let next = members.regroup(standing, true).unwrap();
            newcomers = next.before.len() < next.generation.members.len();
            comm = next.session;
        }
        if worlds.iter().filter(|world| **world == until).count() == 5 {
            return worlds;
        }
        assert!(worlds.len() < 20_000, "no process joins");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn processes_join_a_running_world() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let master = listener.local_addr().unwrap().to_string();
    let (addresses, mut listener) = (free_addresses(2), Some(listener));
    let builder = |rank| {
        let builder = TcpBuilder::new(rank, 2, &master).deadline(PATIENT).join_deadline(PATIENT);
        builder.world_name("growing").members(addresses.clone())
    };
    let worlds: Vec<_> = thread::scope(|threads| {
        let first: Vec<_> = (0..2)
            .map(|rank| {
                let mut builder = builder(rank);
                if rank == 0 {
                    builder = builder.listener(listener.take().unwrap());
                }
                threads.spawn(move || until_it_has_grown(builder.join_elastic(POLICY).unwrap(), false, 4))
            })
            .collect();
        let later: Vec<_> = (0..2)
            .map(|number| {
                let builder = builder(1);
                threads.spawn(move || {
                    thread::sleep(Duration::from_millis(300 * number));
                    until_it_has_grown(builder.join_running(POLICY).unwrap(), true, 4)
                })
            })
            .collect();
        first.into_iter().chain(later).map(|member| member.join().expect("no panic")).collect()
    });
    assert_eq!(worlds[0], worlds[1]);
    assert!(worlds[0].is_sorted() && worlds[0].contains(&2), "{worlds:?}");
    for late in &worlds[2..] {
        assert!(worlds[0].ends_with(late), "{worlds:?}");
    }
}

#[test]
fn a_candidate_without_a_world_or_its_token_is_refused() {
    let [free] = &free_addresses(1)[..] else { unreachable!() };
    let join = |builder: TcpBuilder| builder.join_running(POLICY).unwrap_err().to_string();
    let alone = TcpBuilder::new(0, 2, "127.0.0.1:1").join_deadline(Duration::from_secs(1)).members([free.clone()]);
    let text = join(alone);
    assert!(text.contains("no member has admitted this process") && text.contains(free), "{text}");
    // A member that waits for candidates, with another token.
    let master = free_addresses(1).remove(0);
    let own = TcpBuilder::new(0, 1, &master).members([free.clone()]).token(Token::new("a secret of sixteen"));
    let (_session, members) = own.join_elastic(POLICY).unwrap();
    let other = TcpBuilder::new(0, 2, &master).join_deadline(Duration::from_secs(2)).members([free.clone()]);
    let text = join(other.token(Token::new("another of sixteen")));
    assert!(text.contains("the token is wrong") && !members.has_candidates(), "{text}");
}
