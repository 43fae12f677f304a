//! Ranks that know the token and still do wrong, which no honest process of this version does.

use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::VERSION;
use crate::builder::TcpBuilder;
use crate::handshake::{self, HandshakeError, Introduction, Role};
use crate::token::Token;

const SOON: Duration = Duration::from_millis(1500);
/// What a rank may take beyond that.
const BEYOND: Duration = Duration::from_secs(8);

/// An introduction of rank 2 of 3.
fn rank_2() -> Introduction {
    let role = Role::Join { address: "127.0.0.1:1".to_owned() };
    Introduction { rank: 2, to: 0, world: 3, version: VERSION.to_owned(), role }
}

async fn introduce(master: SocketAddr, introduction: &Introduction) -> Result<TcpStream, HandshakeError> {
    let mut stream = TcpStream::connect(master).await?;
    handshake::call(&mut stream, &Token::default(), &[], introduction).await?;
    Ok(stream)
}

/// Ranks 0 and 1 of 3 and an impostor in the place of the last: what the two say in the end.
fn with_impostor<F: Future<Output = ()>>(impostor: impl FnOnce(SocketAddr) -> F) -> [String; 2] {
    let begin = Instant::now();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let master = listener.local_addr().unwrap();
    let rank = |rank: usize| TcpBuilder::new(rank, 3, master.to_string()).join_deadline(SOON);
    let texts = thread::scope(|threads| {
        let first = rank(0).listener(listener);
        let ranks = [first, rank(1)].map(|rank| threads.spawn(|| rank.join().unwrap_err().to_string()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // Rank 1 should be there by then; where it is late, it hears the same.
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
        let data = Role::Data { session: "guessed".to_owned() };
        for (introduction, words) in [
            (Introduction { rank: 3, ..rank_2() }, "ranks are 0 to 2"),
            (Introduction { rank: 0, ..rank_2() }, "two processes were started as rank 0"),
            (Introduction { to: 1, ..rank_2() }, "for rank 1, and this is rank 0"),
            (Introduction { role: data, ..rank_2() }, "has not come together yet"),
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
    assert!(texts.iter().all(|text| text.contains("rank 2 went away")), "{texts:?}");
}

#[test]
fn a_rank_that_makes_no_links_is_named_at_the_deadline() {
    let texts = with_impostor(async |master| {
        let mut stream = introduce(master, &rank_2()).await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    });
    assert!(texts.iter().all(|text| text.contains("rank 2 did not call")), "{texts:?}");
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
