//! Every disturbance of the proxy, seen from both ends of a connection to an echo server.

use crate::proxy::{Direction, Harm, Proxy};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything here takes: a wait of this length is a failure.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time for which a test checks that nothing arrives.
const LOOK: Duration = Duration::from_millis(150);

/// Starts a server that echoes its input, one connection after another. Its thread lives as long as the tests.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for connection in listener.incoming() {
            let mut out = connection.unwrap();
            thread::spawn(move || {
                let mut back = out.try_clone().unwrap();
                let _ = io::copy(&mut out, &mut back);
                let _ = back.shutdown(Shutdown::Write);
            });
        }
    });
    address
}

fn through(harm: Harm) -> (Proxy, TcpStream) {
    let proxy = Proxy::to(echo()).unwrap();
    proxy.set(harm);
    let client = connect(&proxy);
    (proxy, client)
}

fn connect(proxy: &Proxy) -> TcpStream {
    let client = TcpStream::connect(proxy.address()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.set_write_timeout(Some(PATIENCE)).unwrap();
    client
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 2_654_435_761) >> 11) as u8).collect()
}

/// Sends all bytes and reads the echo to its end.
fn round_trip(client: &TcpStream, bytes: &[u8]) -> io::Result<Vec<u8>> {
    thread::scope(|threads| {
        threads.spawn(|| {
            let mut client = client;
            // An error shows at the reading side too.
            let _ = client.write_all(bytes).and_then(|()| client.shutdown(Shutdown::Write));
        });
        let mut client = client;
        let mut back = Vec::new();
        client.read_to_end(&mut back).map(|_| back)
    })
}

/// Asserts that for a moment nothing arrives and nothing ends.
fn assert_silent(mut client: &TcpStream) {
    client.set_read_timeout(Some(LOOK)).unwrap();
    let got = client.read(&mut [0; 16]);
    assert!(matches!(&got, Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)), "{got:?}");
    client.set_read_timeout(Some(PATIENCE)).unwrap();
}

fn assert_reset(result: io::Result<impl std::fmt::Debug>) {
    assert!(matches!(&result, Err(error) if error.kind() == ErrorKind::ConnectionReset), "{result:?}");
}

#[test]
fn without_harm_every_byte_and_both_ends_of_stream_pass() {
    let (proxy, client) = through(Harm::none());
    let bytes = pattern(1_000_000);
    assert!(round_trip(&client, &bytes).unwrap() == bytes);
    assert!(round_trip(&connect(&proxy), &[]).unwrap().is_empty());
    assert_eq!(proxy.accepted(), 2);
}

#[test]
fn a_rate_is_not_exceeded_and_loses_nothing() {
    let (_proxy, client) = through(Harm::rate(100_000));
    let start = Instant::now();
    let bytes = pattern(20_000);
    assert!(round_trip(&client, &bytes).unwrap() == bytes);
    // The last piece of 10 ms is not waited for.
    assert!(start.elapsed() >= Duration::from_millis(190), "{:?}", start.elapsed());
}

#[test]
fn latency_is_paid_once_per_direction() {
    let (_proxy, client) = through(Harm::latency(Duration::from_millis(100)));
    let start = Instant::now();
    let bytes = pattern(100_000);
    assert!(round_trip(&client, &bytes).unwrap() == bytes);
    assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
}

#[test]
fn a_connection_is_reset_after_exactly_so_many_bytes() {
    let (proxy, mut client) = through(Harm::reset_after(1000));
    client.write_all(&pattern(999)).unwrap();
    let mut back = vec![0; 999];
    client.read_exact(&mut back).unwrap();
    assert!(back == pattern(999));
    client.write_all(b"!").unwrap();
    assert_reset(client.read(&mut [0; 16]).and_then(|_| client.read(&mut [0; 16])));
    // So is the next one, until the harm is lifted.
    assert_reset(round_trip(&connect(&proxy), &pattern(5000)));
    proxy.set(Harm::none());
    assert!(round_trip(&connect(&proxy), &pattern(5000)).unwrap() == pattern(5000));
}

#[test]
fn resets_by_chance_come_always_never_or_now_and_then() {
    let survivors = |probability, seed| {
        let (proxy, _first) = through(Harm::reset_by_chance(probability, seed));
        (0..40).filter(|_| round_trip(&connect(&proxy), b"small").is_ok()).count()
    };
    assert_eq!(survivors(0.0, 1), 40);
    assert_eq!(survivors(1.0, 1), 0);
    // One piece each way: half a chance twice.
    let some = survivors(0.5, 7);
    assert!((1..40).contains(&some), "{some} of 40");
    assert_eq!(survivors(0.5, 7), some);
}

#[test]
fn a_half_open_connection_swallows_everything_and_ends_nothing() {
    let (proxy, mut client) = through(Harm::none());
    client.write_all(b"a").unwrap();
    client.read_exact(&mut [0]).unwrap();
    proxy.set(Harm::half_open());
    client.write_all(&pattern(10_000)).unwrap();
    assert_silent(&client);
    let start = Instant::now();
    while proxy.swallowed() < 10_000 {
        assert!(start.elapsed() < PATIENCE, "{proxy:?}");
        thread::yield_now();
    }
    proxy.set(Harm::none());
    client.write_all(b"z").unwrap();
    let mut back = [0];
    client.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"z");
    // The end of a stream is withheld, and passed on when there is another side again.
    proxy.set(Harm::half_open());
    client.shutdown(Shutdown::Write).unwrap();
    assert_silent(&client);
    proxy.set(Harm::none());
    assert_eq!(client.read(&mut [0; 16]).unwrap(), 0);
}

#[test]
fn one_bit_of_one_byte_of_one_direction_is_turned_over() {
    for direction in [Direction::ToServer, Direction::ToClient] {
        let (_proxy, client) = through(Harm::flip(direction, 70_000));
        let mut expected = pattern(100_000);
        expected[70_000] ^= 1;
        // An echo shows a change on either way, once.
        assert!(round_trip(&client, &pattern(100_000)).unwrap() == expected, "{direction:?}");
    }
}

#[test]
fn a_flip_of_the_way_back_leaves_the_way_there_alone() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::to(server.local_addr().unwrap()).unwrap();
    proxy.set(Harm::flip(Direction::ToClient, 1));
    let mut client = connect(&proxy);
    let (mut serving, _) = server.accept().unwrap();
    serving.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut got = [0; 3];
    client.write_all(b"abc").unwrap();
    serving.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"abc");
    serving.write_all(b"abc").unwrap();
    client.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"acc");
}

#[test]
fn what_is_written_a_few_bytes_at_a_time_arrives_whole() {
    let (_proxy, mut client) = through(Harm::split_writes());
    let bytes = pattern(20_000);
    assert!(round_trip(&client.try_clone().unwrap(), &bytes).unwrap() == bytes);
    assert_eq!(client.read(&mut [0; 16]).unwrap(), 0);
}

#[test]
fn coalesced_writes_hold_small_ones_back_and_lose_nothing() {
    let (_proxy, mut client) = through(Harm::coalesced_writes());
    let start = Instant::now();
    client.write_all(b"x").unwrap();
    client.read_exact(&mut [0]).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(40), "{:?}", start.elapsed());
    let bytes = pattern(500_000);
    assert!(round_trip(&client, &bytes).unwrap() == bytes);
}

#[test]
fn a_frozen_connection_goes_on_where_it_was() {
    let (proxy, mut client) = through(Harm::frozen());
    client.write_all(b"held").unwrap();
    assert_silent(&client);
    proxy.set(Harm::none());
    let mut back = [0; 4];
    client.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"held");
    // A new connection is frozen too, its end included.
    proxy.set(Harm::frozen());
    let other = connect(&proxy);
    other.shutdown(Shutdown::Write).unwrap();
    assert_silent(&other);
    proxy.set(Harm::none());
    assert!(round_trip(&other, &[]).unwrap().is_empty());
}

#[test]
fn harms_go_together() {
    let harm = Harm { latency: Duration::from_millis(30), ..Harm::split_writes() };
    let (_proxy, client) = through(Harm { rate: Harm::rate(1_000_000).rate, ..harm });
    assert!(round_trip(&client, &pattern(5000)).unwrap() == pattern(5000));
}

#[test]
fn cut_resets_present_connections_and_not_the_next() {
    let (proxy, mut client) = through(Harm::none());
    client.write_all(b"a").unwrap();
    client.read_exact(&mut [0]).unwrap();
    proxy.cut();
    assert_reset(client.read(&mut [0; 16]));
    assert!(round_trip(&connect(&proxy), b"again").unwrap() == b"again");
}

#[test]
fn a_dropped_proxy_resets_connections_in_any_state() {
    for harm in [Harm::none(), Harm::frozen(), Harm::half_open(), Harm::rate(1), Harm::latency(PATIENCE)] {
        let (proxy, mut client) = through(harm);
        client.write_all(b"some bytes").unwrap();
        // Until the proxy has a connection to reset.
        while proxy.accepted() == 0 {
            thread::yield_now();
        }
        drop(proxy);
        let mut back = Vec::new();
        assert_reset(client.read_to_end(&mut back));
    }
}

#[test]
fn a_connection_to_nobody_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = listener.local_addr().unwrap();
    drop(listener);
    let proxy = Proxy::to(nobody).unwrap();
    assert_reset(connect(&proxy).read(&mut [0; 16]));
}
