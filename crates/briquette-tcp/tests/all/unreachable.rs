//! A rank that cannot reach another one: every rank names it with the other rank and the address, rather than the rank
//! that waits for it.

use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{PATIENT, logs, nowhere, rank};

/// Returns the errors of three ranks when rank 1 advertises a wrong address, that address, and the time taken.
fn misled(deadline: Duration) -> (Vec<String>, SocketAddr, Duration) {
    let (listener, wrong) = (TcpListener::bind("127.0.0.1:0").unwrap(), nowhere());
    let master = listener.local_addr().unwrap();
    let builder = |number: usize| rank(number, master).join_deadline(deadline);
    let ranks = [builder(0).listener(listener), builder(1).advertise(wrong.to_string()), builder(2)];
    let begin = Instant::now();
    let texts = thread::scope(|threads| {
        let joining = ranks.map(|rank| threads.spawn(|| rank.join().unwrap_err().to_string()));
        joining.map(|rank| rank.join().unwrap()).into()
    });
    (texts, wrong, begin.elapsed())
}

#[test]
fn every_rank_names_the_one_that_tried_whom_it_tried_and_where() {
    logs::keep();
    // Rank 0's deadline is the first to pass.
    let (texts, wrong, _) = misled(Duration::from_secs(3));
    let words = format!("rank 2 could not reach rank 1 at {wrong}: {wrong}: Connection refused");
    assert!(texts.iter().all(|text| text.contains(&words)), "{texts:?}");
    // It was said long before, too.
    logs::wait_for(1, &[&words, "; retrying"]);
}

#[test]
fn it_is_not_tried_until_a_deadline_that_is_far_away() {
    let (texts, wrong, took) = misled(PATIENT * 30);
    let words = format!("rank 2 could not reach rank 1 at {wrong}");
    assert!(texts.iter().all(|text| text.contains(&words)), "{texts:?}");
    assert!(took < PATIENT * 5, "{took:?}");
}
