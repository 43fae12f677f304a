//! TCP, plain and under TLS, is held to the facts that hold for every transport.

mod common;

use std::sync::LazyLock;
use std::time::Duration;

use briquette_tcp::{Certificates, Token};
use briquette_testkit::suite::{
    Threads, a_deadline_error_names_both_ranks, a_wait_for_any_rank_in_vain_names_all_of_them,
};
use briquette_testkit::{channel_suite, transport_suite};

use common::{certificates, world};

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
