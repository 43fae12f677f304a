//! Recordings and their replay.

use std::time::Duration;

use briquette_core::comm::{Local, Session, run_ranks};
use briquette_core::config::Exchange;
use briquette_core::error::CommError;
use briquette_core::reduce::{AgreedStep, Reducer, Round};
use briquette_core::{Key, Layout};
use briquette_sim::{CompressSeconds, Compute, Event, Network, SessionExt, Simulated, replay};

const STEPS: u64 = 7;
const COMPUTE: Compute = Compute::Fixed(Duration::from_millis(3));

/// Runs exchanges without training in a world of `ranks`, with a header before each exchange and an evaluation after
/// some steps. Returns each rank's recording, and its seconds after every step.
fn run(exchange: &Exchange, ranks: usize, network: &str) -> (Vec<Vec<Event>>, Vec<Vec<f64>>) {
    run_compressing(exchange, ranks, network, None)
}

fn run_compressing(
    exchange: &Exchange,
    ranks: usize,
    network: &str,
    seconds: Option<&CompressSeconds>,
) -> (Vec<Vec<Event>>, Vec<Vec<f64>>) {
    let layout = Layout::new([("a", vec![40, 50]), ("b", vec![33])]);
    let body = |mut comm: Session| {
        let mut reducer = exchange.build_reducer(&layout, comm.world()).unwrap();
        seconds.cloned().into_iter().for_each(|seconds| comm.set_compress_seconds(seconds));
        // Rendezvous is outside of simulated time.
        comm.barrier()?;
        comm.set_clock(0.0);
        comm.record();
        let ends =
            (0..STEPS).map(|step| steps(&mut comm, &layout, &mut reducer, step)).collect::<Result<Vec<_>, _>>()?;
        Ok::<_, CommError>((comm.take_recording(), ends))
    };
    let world = Simulated::world(ranks, network.parse().unwrap(), COMPUTE);
    run_ranks(world, body).into_iter().map(Result::unwrap).unzip()
}

fn steps(comm: &mut Session, layout: &Layout, reducer: &mut dyn Reducer, step: u64) -> Result<f64, CommError> {
    comm.begin_step(step);
    comm.all_gather(&[1; 105], &mut Vec::new())?;
    let input: Vec<f32> = (0..layout.len() as u64).map(|i| ((i * 37 + step * 11) % 101) as f32 - 50.0).collect();
    let mut average = vec![0.0; input.len()];
    let agreed_step = AgreedStep { step, ..AgreedStep::default() };
    let key = Key::new(3).step(step);
    let slots = layout.slots();
    let round = Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None };
    reducer.exchange(round, comm).unwrap();
    let end = comm.now();
    if step % 3 == 1 {
        let clock = comm.hold_clock();
        comm.all_reduce_sum(&mut vec![1.0; 5000])?;
        comm.set_clock(clock);
    }
    Ok(end)
}

fn exchanges() -> impl Iterator<Item = Exchange> {
    let reducers = ["dense", "gather:topk:10x", "gather:sign", "ring:int8", "ring:bf16", "power-sgd:2"];
    reducers.into_iter().map(|reducer| Exchange {
        reducer: reducer.parse().unwrap(),
        feedback: if reducer == "dense" { "none" } else { "error" }.parse().unwrap(),
        ..Exchange::default()
    })
}

fn assert_near(got: &[Vec<f64>], expected: &[Vec<f64>], what: &str) {
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().flatten().zip(expected.iter().flatten()) {
        assert!((got - expected).abs() <= 1e-9 * expected, "{what}: {got} simulated seconds, expected {expected}");
    }
}

#[test]
fn a_recording_replays_to_the_seconds_of_its_run_and_of_a_run_on_another_network() {
    let networks = ["100mbit,1ms", "7mbit,130us,2", "unlimited", "1gbit"];
    for exchange in exchanges() {
        for ranks in [1, 2, 4] {
            let (recordings, _) = run(&exchange, ranks, "100mbit,1ms");
            for network in networks {
                let (_, expected) = run(&exchange, ranks, network);
                let got = replay(&recordings, network.parse().unwrap(), &COMPUTE).unwrap();
                assert!(got.iter().all(|ends| ends.len() == STEPS as usize));
                assert_near(&got, &expected, &format!("{exchange:?} of {ranks} on {network}"));
            }
        }
    }
}

#[test]
fn a_recording_is_short_as_text_and_reads_back() {
    let (recordings, _) = run(&exchanges().next().unwrap(), 2, "unlimited");
    let text = serde_json::to_string(&recordings).unwrap();
    assert_eq!(serde_json::from_str::<Vec<Vec<Event>>>(&text).unwrap(), recordings);
    let events: usize = recordings.iter().map(Vec::len).sum();
    assert!(text.len() < 14 * events, "{} bytes for {events} events", text.len());
    assert_eq!(serde_json::to_string(&recordings[0][..3]).unwrap(), r#"["c",{"s":[1,105]},{"r":1}]"#);
}

#[test]
fn what_another_network_would_order_otherwise_is_refused() {
    let refused = |body: fn(&mut Session) -> Result<(), CommError>| {
        let world = Simulated::world(2, Network::unlimited(), COMPUTE);
        let record = |mut comm: Session| {
            comm.record();
            comm.begin_step(0);
            body(&mut comm)?;
            Ok::<_, CommError>(comm.take_recording())
        };
        let recordings: Vec<_> = run_ranks(world, record).into_iter().map(Result::unwrap).collect();
        let error = replay(&recordings, Network::unlimited(), &COMPUTE).unwrap_err().to_string();
        assert!(error.contains("another order"), "{error}");
    };
    refused(|comm| if comm.rank() == 0 { comm.send(1, vec![1]) } else { comm.recv_any(&[0]).map(drop) });
    refused(|comm| comm.start(1, |comm| comm.barrier()).finish(comm).0);
    refused(|comm| {
        comm.set_clock(3.0);
        Ok(())
    });
}

#[test]
fn what_is_sent_while_the_clock_is_held_is_not_recorded() {
    let mut comm = Local::world(1).remove(0);
    comm.record();
    comm.begin_step(0);
    let clock = comm.hold_clock();
    comm.begin_step(1);
    comm.set_clock(clock);
    comm.begin_step(2);
    assert_eq!(comm.take_recording(), [Event::BeginStep, Event::Idle, Event::BeginStep]);
    assert_eq!(comm.take_recording(), []);
}

#[test]
fn a_clock_is_held_until_the_outermost_hold_ends() {
    let mut comm = Local::world(1).remove(0);
    comm.record();
    comm.begin_step(0);
    let outer = comm.hold_clock();
    let inner = comm.hold_clock();
    comm.begin_step(1);
    comm.set_clock(inner);
    comm.begin_step(2);
    comm.set_clock(outer);
    comm.begin_step(3);
    assert_eq!(comm.take_recording(), [Event::BeginStep, Event::Idle, Event::BeginStep]);
}

#[test]
fn given_seconds_of_compressing_are_replayed_where_they_were_spent() {
    let seconds = CompressSeconds::new(&[(1.0, 0.004), (10.0, 0.009)]).unwrap();
    let exchange = exchanges().nth(1).unwrap();
    let (network, other) = ("100mbit,1ms", "7mbit,130us,2");
    let (recordings, expected) = run_compressing(&exchange, 3, network, Some(&seconds));
    let (_, free) = run(&exchange, 3, network);
    let added = STEPS as f64 * 0.009;
    assert!(expected[0][6] > free[0][6] + 0.9 * added, "{} of {added} s", expected[0][6] - free[0][6]);
    assert_near(&replay(&recordings, network.parse().unwrap(), &COMPUTE).unwrap(), &expected, network);
    let (_, expected) = run_compressing(&exchange, 3, other, Some(&seconds));
    assert_near(&replay(&recordings, other.parse().unwrap(), &COMPUTE).unwrap(), &expected, other);
}

#[test]
fn a_network_that_is_set_in_the_middle_is_refused_also_while_the_clock_is_held() {
    let recording = |body: fn(&mut Session)| {
        let mut comm = Simulated::world(1, Network::unlimited(), COMPUTE).remove(0);
        comm.record();
        comm.begin_step(0);
        body(&mut comm);
        comm.take_recording()
    };
    let free = recording(|comm| comm.set_network(Network::unlimited()));
    let held = recording(|comm| {
        let clock = comm.hold_clock();
        comm.set_network(Network::unlimited());
        comm.set_clock(clock);
    });
    assert_eq!(held, [Event::BeginStep, Event::Unrepeatable, Event::Idle]);
    for recording in [free, held] {
        let error = replay(&[recording], Network::unlimited(), &COMPUTE).unwrap_err().to_string();
        assert!(error.contains("another order or other seconds"), "{error}");
    }
    // A link that is not simulated is unchanged.
    let mut comm = Local::world(1).remove(0);
    comm.record();
    comm.set_network(Network::unlimited());
    assert_eq!(comm.take_recording(), []);
}

#[test]
fn a_link_is_idle_after_work_outside_of_simulated_time() {
    let network: Network = "100mbit,1ms".parse().unwrap();
    let body = |mut comm: Session| {
        comm.record();
        comm.begin_step(0);
        match comm.rank() {
            // 8 ms, of which the next step waits for at most 3.
            0 => comm.send(1, vec![0; 100_000])?,
            1 => drop(comm.recv(0)?),
            _ => {}
        }
        let clock = comm.hold_clock();
        comm.set_clock(clock);
        comm.begin_step(1);
        match comm.rank() {
            0 => comm.send(2, vec![0; 1000])?,
            2 => drop(comm.recv(0)?),
            _ => {}
        }
        Ok::<_, CommError>((comm.take_recording(), comm.now()))
    };
    let world = Simulated::world(3, network.clone(), COMPUTE);
    let (recordings, expected): (Vec<_>, Vec<_>) = run_ranks(world, body).into_iter().map(Result::unwrap).unzip();
    // Two steps of 3 ms, 1 ms of latency, 1000 bytes.
    assert!((expected[2] - 0.00708).abs() < 1e-9, "{}", expected[2]);
    let got = replay(&recordings, network, &COMPUTE).unwrap();
    let expected: Vec<_> = expected.into_iter().map(|end| vec![end]).collect();
    assert_near(&got.iter().map(|ends| vec![ends[1]]).collect::<Vec<_>>(), &expected, "of 3");
}
