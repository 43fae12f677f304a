//! Addresses of every kind, and frames that exceed every limit.

use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::thread;

use briquette_core::comm::{Scope, run_ranks};
use briquette_tcp::{Environment, Tcp, TcpBuilder, Token};

use crate::common::{PATIENT, adds_up, world};

/// Starts a world of three whose rank 0 is found at this address and listens at this one.
fn meet(master: &str, listener: TcpListener, edit: impl Fn(TcpBuilder) -> TcpBuilder) -> Vec<Tcp> {
    let rank = |rank: usize| edit(TcpBuilder::new(rank, 3, master).join_deadline(PATIENT).deadline(PATIENT));
    thread::scope(|threads| {
        let ranks = [rank(0).listener(listener), rank(1), rank(2)];
        let joining = ranks.map(|rank| threads.spawn(|| rank.join().unwrap()));
        joining.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn ranks_meet_over_ipv6() {
    let Ok(listener) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) else {
        return assert!(!std::path::Path::new("/proc/net/if_inet6").exists(), "there is IPv6, and no loopback of it");
    };
    let address = listener.local_addr().unwrap();
    let comms = meet(&address.to_string(), listener, |rank| rank);
    let places: Vec<SocketAddr> = (0..3).map(|rank| comms[2].address(rank).unwrap().parse().unwrap()).collect();
    assert!(places.iter().all(SocketAddr::is_ipv6), "{places:?}");
    adds_up(comms);
}

#[test]
fn every_address_of_a_name_is_tried() {
    // If `localhost` has an IPv6 address, that may be tried first, and no process listens there.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    adds_up(meet(&format!("localhost:{port}"), listener, |rank| rank));
}

#[test]
fn a_rank_that_listens_everywhere_tells_an_address_that_is_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let master = listener.local_addr().unwrap().to_string();
    let comms = meet(&master, listener, |rank| rank.token(Token::new("a secret of sixteen")).listen("0.0.0.0:0"));
    let places: Vec<SocketAddr> = (0..3).map(|rank| comms[2].address(rank).unwrap().parse().unwrap()).collect();
    assert!(places.iter().all(|place| place.ip().is_loopback() && place.port() != 0), "{places:?}");
    adds_up(comms);
}

#[test]
fn addresses_of_ipv6_are_read_with_and_without_brackets() {
    for master in ["::1", "[::1]"] {
        let set = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", master), ("MASTER_PORT", "4000")];
        let environment = Environment::read(|name| set.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()));
        let builder = TcpBuilder::from_environment(&environment.unwrap().unwrap()).unwrap();
        assert!(format!("{builder:?}").contains("\"[::1]:4000\""), "{builder:?}");
    }
}

#[test]
fn a_frame_that_is_too_long_is_refused_where_it_is_sent() {
    let results = run_ranks(world(2, |rank| rank.longest_frame(1000)), |mut comm| {
        *comm.scope() = Scope { operation: "exchange", step: 2, bucket: None };
        if comm.rank() == 1 {
            return comm.recv(0).and_then(|_| comm.recv(0)).map(drop);
        }
        comm.send(1, vec![0; 1000])?;
        comm.send(1, vec![0; 1001])
    });
    for result in results {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("a frame of 1001 bytes") && text.contains("1000 at most"), "{text}");
        assert!(text.contains("exchange at step 2"), "{text}");
    }
}
