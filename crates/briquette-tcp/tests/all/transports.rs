//! TCP, plain and under TLS, checked against the facts that hold for every transport.

use std::net::TcpListener;
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use briquette_core::Session;
use briquette_tcp::{Certificates, TcpBuilder, Token, loopback};
use briquette_testkit::suite::{
    Running, Threads, a_deadline_error_names_both_ranks, a_limited_wait_ends_without_a_frame,
    a_wait_for_any_rank_in_vain_names_all_of_them,
};
use briquette_testkit::{channel_suite, transport_suite};

use crate::common::{certificates, world};

static CERTIFICATES: LazyLock<Certificates> = LazyLock::new(certificates);

transport_suite!(tcp, Threads(|ranks| world(ranks, |rank| rank)));
transport_suite!(tcp_with_a_token, Threads(|ranks| world(ranks, |rank| rank.token(Token::new("sesame-opens-all-47")))));
transport_suite!(tcp_without_checksums, Threads(|ranks| world(ranks, |rank| rank.checksums(false))));
transport_suite!(tls, Threads(|ranks| world(ranks, |rank| rank.certificates(CERTIFICATES.clone()))));

channel_suite!(channels, Threads(|ranks| world(ranks, |rank| rank.channels(2))));
channel_suite!(
    channels_under_tls,
    Threads(|ranks| world(ranks, |rank| rank.channels(2).certificates(CERTIFICATES.clone())))
);

#[test]
fn deadline_errors_name_both_ranks() {
    a_deadline_error_names_both_ranks(&Threads(|ranks| world(ranks, |rank| rank.deadline(Duration::from_millis(100)))));
    a_wait_for_any_rank_in_vain_names_all_of_them(&Threads(|ranks| {
        world(ranks, |rank| rank.deadline(Duration::from_millis(100)))
    }));
}

#[test]
fn limited_waits_end_without_a_frame() {
    a_limited_wait_ends_without_a_frame(&Threads(|ranks| world(ranks, |rank| rank.clock(Running::start()))));
}

#[test]
fn ranks_agree_on_their_machines_when_they_join() {
    let ranks = loopback(4, |rank| rank).unwrap();
    let alone: Vec<_> = ranks.into_iter().map(|rank| Session::from(rank).machine_map().machines().len()).collect();
    assert_eq!(alone, [4; 4], "nothing is known");
    // Of machine 7 are ranks 0 and 2, of machine 1 the others.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let master = listener.local_addr().unwrap().to_string();
    let mut listener = Some(listener);
    let places = thread::scope(|threads| {
        let join = |rank: usize| {
            let builder = TcpBuilder::new(rank, 4, &master).machine([7, 1][rank % 2]);
            let builder = match listener.take() {
                Some(listener) => builder.listener(listener),
                None => builder,
            };
            threads.spawn(move || Session::from(builder.join().unwrap()).machine_map())
        };
        let joining: Vec<_> = (0..4).map(join).collect();
        joining.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
    });
    for (rank, places) in places.iter().enumerate() {
        assert_eq!(places.machines(), [[0, 2], [1, 3]]);
        assert_eq!((places.machine()[0], places.leads()), (rank % 2, rank < 2));
    }
}
