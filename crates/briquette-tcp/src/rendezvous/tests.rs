//! Faulty ranks that know the token: behavior that no correct process of this version shows.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use briquette_core::comm::{Scope, Session};

use super::VERSION;
use crate::builder::TcpBuilder;
use crate::frame::{Header, Kind};
use crate::handshake::{self, HandshakeError, Introduction, MAGIC, Role, Terms};
use crate::lines::{Event, Lines, Message};
use crate::secure::Secure;
use crate::token::{PROOF, Token};
use crate::world::{self, TAG};

const SOON: Duration = Duration::from_millis(1500);
/// Additional time that a rank may take beyond that.
const BEYOND: Duration = Duration::from_secs(8);

/// Longer than any successful operation takes.
const PATIENT: Duration = Duration::from_secs(20);

/// Introduction of rank 2 of 3.
fn rank_2() -> Introduction {
    let role = Role::Join { address: "127.0.0.1:1".to_owned(), channels: 0, machine: 2 };
    Introduction { rank: 2, to: 0, world: 3, version: VERSION.to_owned(), role }
}

/// Terms of a world without a name, without TLS.
fn open(token: &Token) -> Terms<'_> {
    Terms { token, world: &[0; TAG], binding: &[] }
}

async fn introduce(master: SocketAddr, introduction: &Introduction) -> Result<TcpStream, HandshakeError> {
    let mut stream = TcpStream::connect(master).await?;
    handshake::call(&mut stream, open(&Token::default()), introduction).await?;
    Ok(stream)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs ranks 0 and 1 of 3 with an impostor as the last rank, and returns the final errors of the two.
fn with_impostor<F: Future<Output = ()>>(impostor: impl FnOnce(SocketAddr) -> F) -> [String; 2] {
    let begin = Instant::now();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let master = listener.local_addr().unwrap();
    let rank = |rank: usize| TcpBuilder::new(rank, 3, master.to_string()).join_deadline(SOON);
    let texts = thread::scope(|threads| {
        let first = rank(0).listener(listener);
        let ranks = [first, rank(1)].map(|rank| threads.spawn(|| rank.join().unwrap_err().to_string()));
        let runtime = runtime();
        // Rank 1 should have joined by then; if it is late, it receives the same.
        thread::sleep(SOON / 5);
        runtime.block_on(impostor(master));
        ranks.map(|rank| rank.join().unwrap())
    });
    assert!(begin.elapsed() < SOON + BEYOND);
    texts
}

#[test]
fn everyone_says_that_versions_differ() {
    let texts = with_impostor(async |master| {
        let other = Introduction { version: "9.8.7".to_owned(), ..rank_2() };
        let refusal = introduce(master, &other).await.unwrap_err().to_string();
        assert!(refusal.contains("version of briquette differs") && refusal.contains("9.8.7 at rank 2"), "{refusal}");
    });
    let words =
        format!("version of briquette differs: {VERSION} at rank 0, 9.8.7 at rank 2. Start all ranks with the same");
    assert!(texts.iter().all(|text| text.contains(&words)), "{texts:?}");
}

#[test]
fn ranks_that_cannot_be_are_refused_and_missed() {
    let texts = with_impostor(async |master| {
        let data = Role::Data { session: "guessed".to_owned(), channel: 0 };
        for (introduction, words) in [
            (Introduction { rank: 3, ..rank_2() }, "ranks are 0 to 2"),
            (Introduction { rank: 0, ..rank_2() }, "two processes were started as rank 0"),
            (Introduction { to: 1, ..rank_2() }, "for rank 1, and this is rank 0"),
            (Introduction { role: data, ..rank_2() }, "is not initialized yet"),
        ] {
            let refusal = introduce(master, &introduction).await.unwrap_err().to_string();
            assert!(refusal.contains(words), "{refusal}");
        }
    });
    assert!(texts.iter().all(|text| text.contains("missing: 2")), "{texts:?}");
}

#[test]
fn a_rank_that_dies_while_links_are_made_is_named() {
    let texts = with_impostor(async |master| {
        let mut stream = introduce(master, &rank_2()).await.unwrap();
        // The roster.
        stream.read_u32_le().await.unwrap();
    });
    assert!(texts.iter().all(|text| text.contains("rank 2 disconnected")), "{texts:?}");
}

#[test]
fn a_rank_that_makes_no_links_is_named_at_the_deadline() {
    let texts = with_impostor(async |master| {
        let mut stream = introduce(master, &rank_2()).await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    });
    assert!(texts.iter().all(|text| text.contains("rank 2 did not call")), "{texts:?}");
}

/// A link that was made late does not cause the failure.
#[test]
fn a_rank_that_reached_the_other_one_late_is_not_blamed_at_the_deadline() {
    for news in [Message::Reached { other: 1 }, Message::Ready] {
        let texts = with_impostor(async |master| {
            let mut lines = Lines::new();
            lines.add(0, Secure::Plain(introduce(master, &rank_2()).await.unwrap()));
            let (_, Event::Said(Message::Roster { .. })) = lines.next().await else { panic!("no roster") };
            let stuck = Message::Stuck { other: 1, address: "127.0.0.1:1".to_owned(), cause: "no answer".to_owned() };
            lines.send(0, &stuck).await;
            lines.send(0, &news).await;
            // It calls neither of the others.
            while !matches!(lines.next().await.1, Event::Closed(_)) {}
        });
        assert!(texts.iter().all(|text| text.contains("rank 2 did not call")), "{news:?}: {texts:?}");
    }
}

#[test]
fn a_rank_says_that_it_has_reached_one_that_it_had_not() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let master = listener.local_addr().unwrap().to_string();
    let joining = TcpBuilder::new(2, 3, master.clone()).join_deadline(PATIENT);
    let joining = thread::spawn(|| joining.join().unwrap_err().to_string());
    runtime().block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let call = async |listener: &tokio::net::TcpListener| {
            let (stream, _) = timeout(PATIENT, listener.accept()).await.unwrap().unwrap();
            let caller = handshake::listen(stream, open(&Token::default())).await.unwrap();
            Secure::Plain(caller.welcome().await.unwrap())
        };
        let mut lines = Lines::new();
        lines.add(2, call(&listener).await);
        // Rank 1 hangs up at first.
        let one = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = vec![master, one.local_addr().unwrap().to_string(), "127.0.0.1:1".to_owned()];
        lines.send(2, &Message::Roster { session: "a run".to_owned(), addresses, machines: vec![0, 1, 2] }).await;
        let _zero = call(&listener).await;
        drop(one.accept().await.unwrap());
        let stuck = timeout(PATIENT, lines.next()).await.unwrap();
        assert!(matches!(stuck, (2, Event::Said(Message::Stuck { other: 1, .. }))), "{stuck:?}");
        let _one = call(&one).await;
        let reached = timeout(PATIENT, lines.next()).await.unwrap();
        assert!(matches!(reached, (2, Event::Said(Message::Reached { other: 1 }))), "{reached:?}");
        lines.send(2, &Message::Fail("enough".to_owned())).await;
    });
    assert!(joining.join().unwrap().contains("enough"));
}

#[test]
fn a_rank_that_talks_nonsense_is_named() {
    let texts = with_impostor(async |master| {
        let mut stream = introduce(master, &rank_2()).await.unwrap();
        stream.read_u32_le().await.unwrap();
        // A control message of 4 GiB.
        stream.write_all(&[0xff; 64]).await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    });
    assert!(texts.iter().all(|text| text.contains("rank 2") && text.contains("4294967295 bytes")), "{texts:?}");
}

/// A rank that calls again has lost the earlier link, so the new one replaces it.
#[test]
fn a_second_link_of_a_rank_takes_the_place_of_the_first() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let master = listener.local_addr().unwrap();
    let rank = |rank: usize| TcpBuilder::new(rank, 3, master.to_string()).join_deadline(PATIENT).deadline(PATIENT);
    let frames = thread::scope(|threads| {
        let first = rank(0).listener(listener);
        let ranks = [first, rank(1)].map(|rank| threads.spawn(|| Session::from(rank.join().unwrap()).recv(2)));
        let runtime = runtime();
        // Held until both have their frames.
        let _links = runtime.block_on(links_made_twice(master));
        ranks.map(|rank| rank.join().unwrap())
    });
    assert_eq!(frames, [Ok(vec![7]), Ok(vec![7])]);
}

/// Rank 2 makes each of its links twice, drops the first one, and sends a frame over the second.
async fn links_made_twice(master: SocketAddr) -> (Lines, Vec<TcpStream>) {
    let mut lines = Lines::new();
    lines.add(0, Secure::Plain(introduce(master, &rank_2()).await.unwrap()));
    let (_, Event::Said(Message::Roster { session, addresses, .. })) = lines.next().await else { panic!("no roster") };
    let mut links = Vec::new();
    for (to, address) in addresses.iter().enumerate().take(2) {
        let call = Introduction { to, role: Role::Data { session: session.clone(), channel: 0 }, ..rank_2() };
        drop(introduce(address.parse().unwrap(), &call).await.unwrap());
        links.push(introduce(address.parse().unwrap(), &call).await.unwrap());
    }
    lines.send(0, &Message::Ready).await;
    let (body, tag) = ([7], Scope::default().into());
    let header = Header { kind: Kind::Data, len: 1, number: 0, tag, checksum: crc32fast::hash(&body) };
    for link in &mut links {
        link.write_all(&[&header.encode()[..], &body].concat()).await.unwrap();
    }
    (lines, links)
}

/// Checks only the minimum duration, so that a slow machine does not affect the result.
#[test]
fn a_rank_that_is_refused_a_link_waits_for_a_better_reason_from_rank_0() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let master = listener.local_addr().unwrap().to_string();
    let joining = TcpBuilder::new(1, 2, master.clone()).join_deadline(PATIENT);
    let joining = thread::spawn(|| (joining.join().unwrap_err().to_string(), Instant::now()));
    // The line stays open until the end: closing it would be an answer, too.
    let runtime = runtime();
    let (_lines, refused) = runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let call = async || {
            let (stream, _) = timeout(PATIENT, listener.accept()).await.unwrap().unwrap();
            handshake::listen(stream, open(&Token::default())).await.unwrap()
        };
        let mut lines = Lines::new();
        lines.add(1, Secure::Plain(call().await.welcome().await.unwrap()));
        let addresses = vec![master, "127.0.0.1:1".to_owned()];
        lines.send(1, &Message::Roster { session: "a run".to_owned(), addresses, machines: vec![0, 1] }).await;
        let link = call().await;
        let refused = Instant::now();
        link.refuse("not today").await.unwrap();
        (lines, refused)
    });
    let (text, failed) = joining.join().unwrap();
    assert!(text.contains("rank 1 could not reach rank 0") && text.contains("not today"), "{text}");
    assert!(failed - refused >= Duration::from_millis(500), "{:?}", failed - refused);
}

/// Two strangers occupy the first port that a world's name leads to: a program that echoes its input, and one that
/// accepts without a proof.
#[test]
fn a_stranger_on_the_first_port_is_passed_over() {
    for is_echo in [true, false] {
        // A name whose first port is free.
        let (name, stranger) = (0..100)
            .map(|number| format!("strangers of {} {number}", std::process::id()))
            .find_map(|name| {
                let first = world::ports(&name, None)[0];
                TcpListener::bind(("127.0.0.1", first)).ok().map(|stranger| (name, stranger))
            })
            .unwrap();
        thread::spawn(move || {
            for caller in stranger.incoming() {
                let _ = if is_echo { repeat(caller.unwrap()) } else { agree(caller.unwrap()) };
            }
        });
        let rank = |rank: usize| TcpBuilder::new(rank, 2, "127.0.0.1:0").world_name(&name).join_deadline(PATIENT);
        let ranks = thread::scope(|threads| {
            [1, 0].map(|number| threads.spawn(move || rank(number).join().map(drop))).map(|rank| rank.join().unwrap())
        });
        assert!(ranks.iter().all(Result::is_ok), "{ranks:?}");
    }
}

fn repeat(mut caller: std::net::TcpStream) -> io::Result<()> {
    let mut bytes = [0; 1024];
    loop {
        let count = caller.read(&mut bytes)?;
        if count == 0 {
            return Ok(());
        }
        caller.write_all(&bytes[..count])?;
    }
}

fn agree(mut caller: std::net::TcpStream) -> io::Result<()> {
    let mut opening = [0; MAGIC.len() + PROOF + TAG];
    caller.read_exact(&mut opening)?;
    // A number of its own.
    opening[MAGIC.len()] ^= 1;
    caller.write_all(&opening)?;
    let yes = b"\"Welcome\"";
    caller.write_all(&[&(yes.len() as u32).to_le_bytes()[..], yes, &[0; PROOF]].concat())?;
    caller.read_to_end(&mut Vec::new()).map(drop)
}

#[test]
fn an_address_of_loopback_is_one_of_the_machine_where_rank_0_was_found() {
    let master: SocketAddr = "10.78.0.1:29500".parse().unwrap();
    for (said, meant) in [
        ("127.0.0.1:4000", "10.78.0.1:4000"),
        ("127.0.1.1:4000", "10.78.0.1:4000"),
        ("[::1]:4000", "10.78.0.1:4000"),
        ("10.78.0.2:4000", "10.78.0.2:4000"),
        ("relay:4000", "relay:4000"),
    ] {
        assert_eq!(super::as_seen_from_elsewhere(said, master), meant);
    }
    let here: SocketAddr = "127.0.0.1:29500".parse().unwrap();
    assert_eq!(super::as_seen_from_elsewhere("127.0.1.1:4000", here), "127.0.1.1:4000");
}
