//! Strangers that connect during rendezvous: they are refused, logged once, and change nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use briquette_tcp::{Certificates, Environment, JoinError, Tcp, TcpBuilder, Token, names};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tempfile::TempDir;

use crate::common::{
    EXPIRED, PATIENT, VALID, certificates, logs, meddle, rank,
    stranger::{Recorder, Source},
    write_certificates,
};

const SECRET: &str = "sesame-opens-all-47";

fn secret(rank: TcpBuilder) -> TcpBuilder {
    rank.token(Token::new(SECRET))
}

/// Runs `attack` against rank 0, which gathers the others, and against rank 1, which waits for links: twice each from
/// the same source. Each rank logs it once, with these words.
fn refused(edit: impl Fn(TcpBuilder) -> TcpBuilder + Sync, words: &str, attack: impl Fn(Source, SocketAddr)) {
    logs::keep();
    let source = Source::new();
    meddle(edit, |doors| {
        for _ in 0..2 {
            doors.into_iter().for_each(|door| attack(source, door));
        }
        logs::wait_for(2, &[&source.logged(), words]);
    });
    assert_eq!(logs::with(&[&source.logged()]).len(), 2);
}

/// Checks that a process that tries to join as the last rank through a relay fails with an error containing these words.
fn refused_as_rank(
    edit: impl Fn(TcpBuilder) -> TcpBuilder + Sync,
    wrong: impl Fn(TcpBuilder) -> TcpBuilder,
    (theirs, ours): (&[&str], &str),
) {
    logs::keep();
    meddle(edit, |doors| {
        for door in doors {
            let relay = Recorder::to(door);
            for _ in 0..2 {
                says(wrong(rank(2, relay.address)).join(), theirs);
            }
            logs::wait_for(1, &[&relay.source.logged(), ours]);
            assert_eq!(logs::with(&[&relay.source.logged()]).len(), 1);
        }
    });
}

#[track_caller]
fn says(result: Result<Tcp, JoinError>, words: &[&str]) {
    let text = result.expect_err("it should not join").to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
    assert!(!text.contains(SECRET), "{text}");
}

#[test]
fn every_reason_for_which_a_source_is_refused_is_named_once_and_counted() {
    logs::keep();
    let source = Source::new();
    meddle(secret, |[door, _]| {
        for words in ["GET / HTTP/1.1\r\n\r\n", "SSH-2.0-a-client\r\n", "GET / HTTP/1.1\r\n\r\n"] {
            source.say(door, words.as_bytes());
        }
        for words in ["GET / HT", "SSH-2.0-"] {
            logs::wait_for(1, &[&source.logged(), words]);
        }
    });
    assert_eq!(logs::with(&[&source.logged()]).len(), 2);
    logs::wait_for(1, &["refused 2 connections from", &source.0.to_string(), "GET / HT"]);
}

/// Threat S1.
#[test]
fn a_wrong_token_is_refused_with_advice() {
    let words =
        (&["rank 2 was refused by rank 0", "token is wrong or missing", "give every rank the same"][..], "token");
    refused_as_rank(secret, |rank| rank.token(Token::new("another secret-47")), words);
}

/// Threat S1.
#[test]
fn no_token_is_refused_with_advice() {
    let words = (&["rank 2 was refused by rank 0", "token is wrong or missing"][..], "token");
    refused_as_rank(secret, |rank| rank, words);
}

/// Threat S1.
#[test]
fn a_token_where_the_others_have_none_is_refused_with_advice() {
    refused_as_rank(|rank| rank, secret, (&["token is wrong or missing"], "token"));
}

/// Threat S1.
#[test]
fn a_token_is_needed_where_others_could_call() {
    // No process listens there: an attempt to connect would last longer than the deadline of this test.
    let begin = std::time::Instant::now();
    for edit in [
        |rank: TcpBuilder| rank,
        |rank: TcpBuilder| rank.token(Token::new(" \n")),
        |rank: TcpBuilder| rank.certificates(certificates()),
    ] {
        says(
            edit(TcpBuilder::new(1, 2, "192.0.2.1:4000")).join(),
            &["a token is needed", "192.0.2.1", "BRIQUETTE_TOKEN_FILE"],
        );
    }
    says(TcpBuilder::new(1, 2, "127.0.0.1:4000").listen("0.0.0.0:0").join(), &["a token is needed", "0.0.0.0"]);
    let open = TcpListener::bind("0.0.0.0:0").unwrap();
    says(TcpBuilder::new(0, 2, "127.0.0.1:4000").listener(open).join(), &["a token is needed", "0.0.0.0"]);
    assert!(begin.elapsed() < Duration::from_secs(60));
}

/// Threat S3.
#[test]
fn what_was_said_once_opens_nothing_later() {
    logs::keep();
    let (caller, listener) = recorded();
    meddle(secret, |doors| {
        for door in doors {
            let source = Source::new();
            let answer = source.say(door, &caller);
            assert!(
                String::from_utf8_lossy(&answer).contains("token is wrong"),
                "{:?}",
                String::from_utf8_lossy(&answer)
            );
            logs::wait_for(1, &[&source.logged(), "token"]);
        }
    });
    // And a rank does not believe a rank 0 that knows old answers only.
    let fake = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = fake.local_addr().unwrap();
    let playing = thread::spawn(move || {
        let (mut stream, _) = fake.accept().unwrap();
        stream.write_all(&listener).unwrap();
        stream.set_read_timeout(Some(PATIENT)).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    says(secret(rank(2, address)).join(), &["rank 2 was refused by", "the peer has another token"]);
    playing.join().unwrap();
}

/// Returns the bytes that rank 1 sends and receives in a successful handshake.
fn recorded() -> (Vec<u8>, Vec<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let relay = Recorder::to(listener.local_addr().unwrap());
    let short = Duration::from_secs(1);
    thread::scope(|threads| {
        threads.spawn(|| secret(rank(0, relay.address)).listener(listener).join_deadline(short).join().unwrap_err());
        threads.spawn(|| secret(rank(1, relay.address)).join_deadline(short).join().unwrap_err());
    });
    let of = |record: &std::sync::Mutex<Vec<Vec<u8>>>| record.lock().unwrap()[0].clone();
    let (said, heard) = (of(&relay.said), of(&relay.heard));
    assert!(String::from_utf8_lossy(&heard).contains("Welcome"));
    (said, heard)
}

/// Threat S3.
#[test]
fn a_call_that_was_led_to_another_rank_is_refused() {
    logs::keep();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let master = listener.local_addr().unwrap();
    let relay = Recorder::to(master);
    let soon = Duration::from_secs(3);
    let world = thread::scope(|threads| {
        let join =
            |rank: TcpBuilder| threads.spawn(move || secret(rank).join_deadline(soon).join().unwrap_err().to_string());
        let ranks = [
            join(rank(0, master).listener(listener)),
            // As if an intermediary between the ranks redirected calls for rank 1 to rank 0.
            join(rank(1, master).advertise(relay.address.to_string())),
            join(rank(2, master)),
        ];
        ranks.map(|rank| rank.join().unwrap())
    });
    let words = "that call is for rank 1, and this is rank 0";
    assert!(
        world.iter().all(|text| text.contains("rank 2 could not reach rank 1") && text.contains(words)),
        "{world:?}"
    );
}

/// Threat S2.
#[test]
fn the_token_is_seen_nowhere() {
    logs::keep();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let relay = Recorder::to(listener.local_addr().unwrap());
    thread::scope(|threads| {
        let join = |rank: TcpBuilder| threads.spawn(move || secret(rank).join().unwrap());
        let master = join(rank(0, relay.address).listener(listener));
        says(rank(1, relay.address).token(Token::new("a wrong secret-47")).join(), &["token"]);
        let others = [1, 2].map(|number| join(rank(number, relay.address)));
        let world: Vec<Tcp> = [master].into_iter().chain(others).map(|rank| rank.join().unwrap()).collect();
        assert!(!format!("{world:?}").contains(SECRET));
        crate::common::adds_up(world);
    });
    let wire = relay.everything();
    let has = |bytes: &[u8]| wire.windows(bytes.len()).any(|window| window == bytes);
    assert!(has(b"Roster"), "this is what went over the wire");
    assert!(!has(SECRET.as_bytes()) && !has(hex::encode(SECRET).as_bytes()));
    assert!(logs::with(&[SECRET]).is_empty());
    let builder = secret(TcpBuilder::new(0, 2, "localhost:1"));
    let set = [
        (names::RANK, "0"),
        (names::WORLD_SIZE, "1"),
        (names::MASTER_ADDR, "a"),
        (names::MASTER_PORT, "1"),
        (names::TOKEN, SECRET),
    ];
    let environment = Environment::read(|name| set.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()));
    let debugged = format!(
        "{builder:?} {environment:?} {:?}",
        TcpBuilder::from_environment(&environment.clone().unwrap().unwrap())
    );
    assert!(debugged.contains("Token(…)") && !debugged.contains(SECRET), "{debugged}");
}

/// Threat S4.
#[test]
fn a_plain_rank_is_told_of_tls() {
    let certificates = certificates();
    let words = (&["rank 2 was refused by rank 0", "speaks TLS and this one does not"][..], "does not speak TLS");
    refused_as_rank(|rank| rank.certificates(certificates.clone()), |rank| rank, words);
}

/// Threat S4.
#[test]
fn a_tls_rank_is_told_of_plain_ones() {
    let certificates = certificates();
    let words = (&["rank 2 was refused by rank 0", "give every rank the certificates, or none"][..], "speaks TLS");
    refused_as_rank(|rank| rank, |rank| rank.certificates(certificates.clone()), words);
}

/// Threat S4.
#[test]
fn certificates_of_another_authority_are_refused() {
    let (ours, theirs) = (certificates(), certificates());
    let words = (&["not of the same `briquette cert`"][..], "not of the same `briquette cert`");
    refused_as_rank(|rank| rank.certificates(ours.clone()), |rank| rank.certificates(theirs.clone()), words);
}

/// Threat S4.
#[test]
fn expired_certificates_are_refused() {
    let directory = TempDir::new().unwrap();
    let (ours, theirs) = write_pair(directory.path());
    // Of the same authority: only the listener detects the defect, and the caller is notified.
    let words = (&["expired", "make new ones"][..], "expired");
    refused_as_rank(|rank| rank.certificates(ours.clone()), |rank| rank.certificates(theirs.clone()), words);
}

/// Writes valid certificates, and expired ones of the same authority.
fn write_pair(directory: &std::path::Path) -> (Certificates, Certificates) {
    write_certificates(directory, VALID);
    let ours = Certificates::read(directory).unwrap();
    crate::common::renew(directory, EXPIRED);
    (ours, Certificates::read(directory).unwrap())
}

/// Threat S4.
#[test]
fn a_caller_without_a_certificate_is_refused() {
    let directory = TempDir::new().unwrap();
    write_certificates(directory.path(), VALID);
    let ours = Certificates::read(directory.path()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(directory.path().join("ca.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
    let config = Arc::new(builder.unwrap().with_root_certificates(roots).with_no_client_auth());
    let attack = |source: Source, door| {
        let mut connection = ClientConnection::new(Arc::clone(&config), "briquette".try_into().unwrap()).unwrap();
        let mut stream = source.connect(door);
        let mut tls = rustls::Stream::new(&mut connection, &mut stream);
        let _ = tls.write_all(b"BRIQTCP2");
        let text = tls.read_to_end(&mut Vec::new()).unwrap_err().to_string();
        assert!(text.to_lowercase().contains("certificate") && text.to_lowercase().contains("required"), "{text}");
    };
    refused(|rank| rank.certificates(ours.clone()), "has no certificate", attack);
}

/// Threat S5.
#[test]
fn web_browsers_are_refused() {
    refused(secret, "not a rank", |source, door| drop(source.say(door, b"GET / HTTP/1.1\r\nHost: briquette\r\n\r\n")));
}

/// Threat S5.
#[test]
fn random_bytes_are_refused() {
    let bytes: Vec<u8> = (0..100_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    refused(secret, "not a rank", |source, door| drop(source.say(door, &bytes)));
    let certificates = certificates();
    refused(|rank| rank.certificates(certificates.clone()), "TLS", |source, door| drop(source.say(door, &bytes)));
}

/// Threat S5.
#[test]
fn lengths_that_lie_are_refused() {
    let introduction = |len: u32| [b"BRIQTCP2", &[7; 32][..], &[0; 32], &len.to_le_bytes(), b"{}"].concat();
    refused(secret, "a handshake message of 4294967295 bytes", |source, door| {
        drop(source.say(door, &introduction(u32::MAX)))
    });
    refused(secret, "a handshake message of 4097 bytes", |source, door| drop(source.say(door, &introduction(4097))));
}

/// Threat S6.
#[test]
fn a_port_scanner_changes_nothing() {
    refused(secret, "end of file", |source, door| (0..200).for_each(|_| drop(source.connect(door))));
}

/// Threat S6.
#[test]
fn silent_connections_change_nothing() {
    logs::keep();
    let mut silent: Vec<TcpStream> = Vec::new();
    meddle(secret, |doors| {
        for door in doors {
            silent.extend((0..100).map(|_| Source::new().connect(door)));
        }
    });
    // They were open all the time.
    assert_eq!(silent.len(), 200);
    briquette_testkit::held!(
        "connections that never send anything",
        silent.len(),
        "nothing changes",
        silent_connections_change_nothing
    );
}

/// Threat S6.
#[test]
fn a_crowd_of_silent_connections_makes_room_for_ranks() {
    logs::keep();
    let source = Source::new();
    let mut crowd: Vec<TcpStream> = Vec::new();
    meddle(secret, |doors| {
        for door in doors {
            // Some say a little, and no more.
            crowd.extend((0..400).map(|number| {
                let mut stream = source.connect(door);
                stream.write_all(&b"BRIQTCP2"[..number % 9]).unwrap();
                stream
            }));
        }
        logs::wait_for(2, &[&source.logged(), "did not end its handshake"]);
    });
    assert_eq!(crowd.len(), 800);
    briquette_testkit::held!(
        "silent connections at the ports of a world that comes together",
        crowd.len(),
        "the ranks get in",
        a_crowd_of_silent_connections_makes_room_for_ranks
    );
}
