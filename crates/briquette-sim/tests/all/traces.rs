//! Worlds on links whose speed changes over time.

use std::time::Duration;

use briquette_core::comm::{Local, Session, run_ranks};
use briquette_core::error::CommError;
use briquette_sim::{Compute, Event, Network, SessionExt, Simulated, replay};

const COMPUTE: Compute = Compute::Fixed(Duration::from_millis(50));

/// Writes a trace, and returns its network and its directory.
fn trace(rows: &str, ranks_per_link: &str) -> (Network, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("link, of a trace.csv");
    std::fs::write(&file, format!("# A remark.\nseconds,mbit,ms,path\n{rows}")).unwrap();
    (format!("trace:{}{ranks_per_link}", file.display()).parse().unwrap(), directory)
}

/// Returns each rank's seconds after every step of an all-reduce of 400 kB, and its recording.
fn steps(network: &Network, ranks: usize, steps: u64) -> (Vec<Vec<f64>>, Vec<Vec<Event>>) {
    let body = |mut comm: Session| {
        comm.record();
        let mut ends = Vec::new();
        for step in 0..steps {
            comm.begin_step(step);
            comm.all_reduce_sum(&mut vec![1.0; 100_000])?;
            ends.push(comm.now());
        }
        Ok::<_, CommError>((ends, comm.take_recording()))
    };
    let world = Simulated::over(Local::builder(ranks).deadline(Duration::from_secs(20)), network.clone(), COMPUTE);
    run_ranks(world, body).into_iter().map(Result::unwrap).unzip()
}

#[test]
fn a_step_takes_the_speed_of_its_seconds() {
    // 400 kB in 2 rounds of half of it at 32 Mbit/s take 0.1 s, at 3.2 Mbit/s 1 s.
    let (network, _directory) = trace("0,32,0,\n0.3,3.2,0,\n2.4,,,\n", "");
    let (ends, _) = steps(&network, 2, 4);
    for ends in ends {
        // The second step ends when the slow seconds begin, and the third one crosses into the second round: 1.05 s from 0.3 s on is
        // 1.35 s, and the fourth's exchange begins at 1.4 s and ends at 2.4 s.
        for (got, expected) in ends.iter().zip([0.15, 0.3, 1.35, 2.4]) {
            assert!((got - expected).abs() < 1e-9, "{ends:?}");
        }
    }
}

#[test]
fn a_trace_of_one_speed_has_the_bits_of_that_network() {
    for (rows, ranks_per_link, constant) in [
        ("0,100,1,\n7,,,\n", "", "100mbit,1ms"),
        ("0,100,1,\n0.01,100,1,\n0.3,100,1,\n7,,,\n", "", "100mbit,1ms"),
        ("0,1000,0,\n0,50,30,0-1/2-3\n7,,,\n", "", "1gbit;0-1/2-3=50mbit,30ms"),
        ("0,10000,0.02,\n7,,,\n", ",2", "10gbit,20us,2"),
    ] {
        let (network, _directory) = trace(rows, ranks_per_link);
        let (got, expected) = (steps(&network, 4, 3).0, steps(&constant.parse().unwrap(), 4, 3).0);
        let is_one_row = rows.lines().count() == 2;
        for (got, expected) in got.iter().flatten().zip(expected.iter().flatten()) {
            // A transfer that is cut by a change is summed in parts.
            assert!(
                if is_one_row { got == expected } else { (got - expected).abs() < 1e-9 },
                "{rows}: {got}, {expected}"
            );
        }
    }
}

#[test]
fn frames_wait_while_a_link_is_down() {
    let (network, _directory) = trace("0,32,0,\n0.1,0,0,\n60,32,0,\n100,,,\n", "");
    let (ends, _) = steps(&network, 2, 1);
    // 0.05 s of the exchange before the link is down, and 0.05 s after.
    assert!(ends.iter().all(|ends| (ends[0] - 60.05).abs() < 1e-9), "{ends:?}");
}

#[test]
fn a_slow_path_changes_by_itself() {
    let (network, _directory) = trace("0,32,0,\n0,32,0,*/1\n0.2,3.2,0,*/1\n100,,,\n", "");
    let pair = |a: usize, b: usize| {
        let body = |mut comm: Session| {
            comm.begin_step(0);
            comm.set_clock(0.2);
            if comm.rank() == a {
                comm.send(b, vec![0; 40_000])?;
            } else if comm.rank() == b {
                comm.recv(a)?;
            }
            Ok::<_, CommError>(comm.now())
        };
        run_ranks(Simulated::world(3, network.clone(), COMPUTE), body).swap_remove(b).unwrap()
    };
    for (a, b, end) in [(0, 2, 0.21), (0, 1, 0.3), (1, 2, 0.3)] {
        assert!((pair(a, b) - end).abs() < 1e-9, "{a} to {b}: {}", pair(a, b));
    }
}

#[test]
fn a_recording_is_replayed_on_a_trace() {
    let (network, _directory) = trace("0,32,1,\n0.3,3.2,20,\n1.7,0,0,\n2.4,,,\n", "");
    let (_, recordings) = steps(&"unlimited".parse().unwrap(), 3, 5);
    assert_eq!(replay(&recordings, network.clone(), &COMPUTE).unwrap(), steps(&network, 3, 5).0);
}

#[test]
fn a_trace_is_a_network_at_every_second() {
    let (network, _directory) = trace("0,32,1,\n0,8,0,0/1\n0.3,3.2,20,\n1.7,inf,0,0/1\n2.4,,,\n", ",2");
    assert_eq!(network.changes(), [0.0, 0.3, 1.7]);
    let texts = [0.1, 0.3, 2.0, 2.5].map(|second| network.at(second).to_string());
    let expected = ["32mbit,1ms,2;0/1=8mbit", "3.2mbit,20ms,2;0/1=8mbit", "3.2mbit,20ms,2;0/1=unlimited"];
    assert_eq!(texts, [expected[0], expected[1], expected[2], expected[0]]);
}

#[test]
fn texts_of_traces_go_back_and_forth() {
    for ranks_per_link in ["", ",4"] {
        let (network, _directory) = trace("0,32,1,\n2.4,,,\n", ranks_per_link);
        assert_eq!(network.to_string().parse::<Network>().unwrap(), network);
        assert_eq!((network.repeats_after(), network.bandwidth()), (Some(2.4), Some(32e6)));
        assert_eq!(network.ranks_per_link(), if ranks_per_link.is_empty() { 1 } else { 4 });
    }
    let (network, _directory) = trace("0,32,1,\n0,1,1,0/9\n2,,,\n", "");
    assert!(network.check(8).unwrap_err().to_string().contains("it names rank 9"));
}
