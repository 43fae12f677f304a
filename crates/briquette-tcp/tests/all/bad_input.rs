//! Worlds that cannot be formed: every rank reports the reason, names the defect and its remedy, and does not wait for long.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use briquette_tcp::{Certificates, Environment, JoinError, Tcp, TcpBuilder, Token};
use briquette_testkit::alone::passes_alone;
use briquette_testkit::proxy::Proxy;
use tempfile::TempDir;

use crate::common::{PATIENT, VALID, adds_up, logs, nowhere, rank, stranger::Recorder, write_certificates};

/// Rendezvous timeout of these worlds.
const SOON: Duration = Duration::from_millis(1500);
/// Additional time that a rank may take beyond that.
const BEYOND: Duration = Duration::from_secs(8);

#[track_caller]
fn says(result: Result<Tcp, JoinError>, words: &[&str]) {
    let text = result.expect_err("it should not join").to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

/// Creates rank 0 of three, and a relay for its callers.
fn master() -> (TcpBuilder, Recorder) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (rank(0, address).listener(listener).join_deadline(SOON), Recorder::to(address))
}

fn wait_for_welcomes(relay: &Recorder, count: usize) {
    let begin = Instant::now();
    let welcomed = || {
        let heard = relay.heard.lock().unwrap();
        heard.iter().filter(|bytes| String::from_utf8_lossy(bytes).contains("Welcome")).count()
    };
    while welcomed() < count {
        assert!(begin.elapsed() < PATIENT, "rank 0 welcomes nobody");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Starts ranks one after the other, each once the previous one was accepted, and returns their final errors.
fn come_in_vain(ranks: impl FnOnce(SocketAddr) -> Vec<TcpBuilder>) -> Vec<String> {
    let begin = Instant::now();
    let (master, relay) = master();
    let texts = thread::scope(|threads| {
        let mut joining = vec![threads.spawn(|| master.join())];
        for (number, rank) in ranks(relay.address).into_iter().enumerate() {
            wait_for_welcomes(&relay, number);
            joining.push(threads.spawn(|| rank.join_deadline(SOON).join()));
        }
        joining.into_iter().map(|rank| rank.join().unwrap().unwrap_err().to_string()).collect()
    });
    assert!(begin.elapsed() < SOON + BEYOND);
    texts
}

#[test]
fn a_port_in_use_is_named() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    says(
        rank(0, address).join(),
        &["cannot listen at", &address.to_string(), "Another program has this port", "choose"],
    );
    says(rank(1, nowhere()).listen(address.to_string()).join(), &["cannot listen at", &address.to_string()]);
}

#[test]
fn an_unreachable_master_is_named_with_the_time_it_took() {
    let (begin, address) = (Instant::now(), nowhere());
    let words = ["rank 1 could not reach rank 0", &address.to_string(), " s (", "refused", "Is rank 0 running"];
    says(rank(1, address).join_deadline(SOON).join(), &words);
    assert!(begin.elapsed() >= SOON && begin.elapsed() < SOON + BEYOND);
}

#[test]
fn a_name_that_means_nothing_is_named() {
    let secret = || Token::new("a secret of sixteen");
    for number in [0, 1] {
        let builder = |master: &str| TcpBuilder::new(number, 2, master).token(secret()).join_deadline(SOON);
        let begin = Instant::now();
        says(
            builder("no-such-host.invalid:4000").join(),
            &["no-such-host.invalid:4000", "cannot be resolved", "host:port"],
        );
        assert!(begin.elapsed() < SOON + BEYOND);
        // No later attempt would change this: it is said at once.
        says(builder("localhost").join_deadline(PATIENT * 10).join(), &["`localhost`", "cannot be resolved", "a port"]);
    }
    says(
        TcpBuilder::new(1, 2, "no-such-host.invalid:4000").join(),
        &["no-such-host.invalid:4000", "cannot be resolved"],
    );
}

#[test]
fn a_duplicate_is_refused_by_name_and_the_world_goes_on() {
    let (master, relay) = master();
    thread::scope(|threads| {
        let join = |rank: TcpBuilder| threads.spawn(|| rank.join_deadline(PATIENT).join().unwrap());
        let mut joining = vec![join(master), join(rank(1, relay.address))];
        wait_for_welcomes(&relay, 1);
        says(rank(1, relay.address).join(), &["rank 1 was refused", "rank 1 has joined already", "two processes"]);
        says(rank(0, nowhere()).listen(relay.address.to_string()).join(), &["cannot listen"]);
        joining.push(join(rank(2, relay.address)));
        adds_up(joining.into_iter().map(|rank| rank.join().unwrap()).collect());
    });
}

#[test]
fn everyone_says_who_is_missing() {
    let texts = come_in_vain(|master| vec![rank(2, master)]);
    assert!(texts.iter().all(|text| text.contains("for a world of 3 ranks: missing: 1")), "{texts:?}");
    let texts = come_in_vain(|_| Vec::new());
    assert!(texts[0].contains("rank 0 waited 1.5 s") && texts[0].contains("missing: 1, 2"), "{texts:?}");
}

#[test]
fn everyone_says_that_world_sizes_differ() {
    let texts = come_in_vain(|master| vec![rank(1, master), TcpBuilder::new(2, 4, master.to_string())]);
    let words = "world size differs: 3 at rank 0, 4 at rank 2. Start all ranks with the same program and settings";
    assert!(texts.iter().all(|text| text.contains(words)), "{texts:?}");
}

#[test]
fn a_rank_that_dies_before_the_world_is_complete_may_come_again() {
    logs::keep();
    let (master, relay) = master();
    let proxy = Proxy::to(relay.address).unwrap();
    thread::scope(|threads| {
        let join = |rank: TcpBuilder| threads.spawn(|| rank.join_deadline(PATIENT).join());
        let mut joining = vec![join(master)];
        let dying = join(rank(1, proxy.address()));
        wait_for_welcomes(&relay, 1);
        proxy.cut();
        says(dying.join().unwrap(), &["rank 0 disconnected"]);
        // Whoever is quicker than the news of the death is refused as a duplicate.
        logs::wait_for(1, &["rank 1 joined and disconnected again"]);
        joining.push(join(rank(1, relay.address)));
        wait_for_welcomes(&relay, 2);
        joining.push(join(rank(2, relay.address)));
        adds_up(joining.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect());
    });
}

#[test]
fn a_rank_outside_the_world_is_not_even_tried() {
    says(TcpBuilder::new(3, 3, "127.0.0.1:1").join(), &["rank 3 of a world of 3", "counted from 0"]);
}

#[test]
fn heartbeats_that_cannot_work_are_not_even_tried() {
    let pulse = |interval: u64, lost_after: u64| {
        let time = Duration::from_secs;
        TcpBuilder::new(0, 1, "127.0.0.1:0").heartbeat(time(interval), time(lost_after)).join()
    };
    says(pulse(10, 29), &["lost_after ≥ 3 · interval"]);
    says(pulse(0, 1), &["lost_after"]);
    assert!(pulse(10, 30).is_ok());
}

#[test]
fn an_address_of_another_machine_is_named() {
    let builder =
        |number: usize| TcpBuilder::new(number, 2, nowhere().to_string()).token(Token::new("a secret of sixteen"));
    let words = ["cannot listen at 192.0.2.1:0", "not one of this machine's"];
    // On other ranks before rank 0 is even looked for.
    for number in [0, 1] {
        says(builder(number).join_deadline(PATIENT * 10).listen("192.0.2.1:0").join(), &words);
    }
}

/// Sets who may read and change a file, on systems with such permissions.
fn protect(path: &std::path::Path, mode: u32) {
    #[cfg(unix)]
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    #[cfg(not(unix))]
    let _ = (path, mode);
}

/// Threat L1.
#[test]
fn a_token_that_cannot_be_read_or_is_none_is_named() {
    let directory = TempDir::new().unwrap();
    let fails = |token: Option<&str>, token_file: Option<PathBuf>, tls: Option<PathBuf>| {
        let (master, token) = ("localhost".to_owned(), token.map(str::to_owned));
        let place = (1, 2, 0, None, 4000, 0);
        let (rank, world, local_rank, node, port, restart) = place;
        let environment = Environment {
            rank,
            world,
            local_rank,
            local_world: 1,
            node,
            master,
            port: Some(port),
            world_name: None,
            ports: None,
            join_deadline: None,
            deadline: None,
            token,
            token_file,
            tls,
            launch: None,
            restart,
            elastic: None,
        };
        TcpBuilder::from_environment(&environment).unwrap_err().to_string()
    };
    let (missing, empty) = (directory.path().join("missing"), directory.path().join("empty"));
    fs::write(&empty, "\n").unwrap();
    protect(&empty, 0o600);
    let text = fails(None, Some(missing.clone()), None);
    assert!(text.contains(missing.to_str().unwrap()) && text.contains("the secret that all ranks share"), "{text}");
    let text = fails(None, Some(empty.clone()), None);
    assert!(text.contains(empty.to_str().unwrap()) && text.contains("it is empty"), "{text}");
    let short = directory.path().join("short");
    fs::write(&short, "fifteen-letters\n").unwrap();
    protect(&short, 0o600);
    let text = fails(None, Some(short.clone()), None);
    assert!(text.contains("short: the secret in it has 15 bytes, and 16 are the fewest"), "{text}");
    fs::write(&short, "sixteen-letters!\n").unwrap();
    for mode in [0o644, 0o604, 0o602] {
        protect(&short, mode);
        let text = fails(None, Some(short.clone()), None);
        assert!(text.contains(&format!("(mode {mode:o}): `chmod 600 ")), "{text}");
    }
    for mode in [0o600, 0o400, 0o640] {
        protect(&short, mode);
        assert_eq!(Token::read(&short).unwrap(), Token::new("sixteen-letters!"));
    }
    says(rank(1, nowhere()).token(Token::new("x")).join(), &["the token has 1 bytes", "`briquette token`"]);
    let text = fails(Some("fifteen-letters"), None, None);
    assert!(text.contains("BRIQUETTE_TOKEN has 15 bytes"), "{text}");
    let text = fails(Some(" "), None, None);
    assert!(text.contains("BRIQUETTE_TOKEN is blank"), "{text}");
    let text = fails(None, None, Some(missing));
    assert!(text.contains("ca.pem") || text.contains("cert.pem"), "{text}");
}

#[test]
fn certificates_that_are_missing_or_spoilt_are_named() {
    for name in ["ca.pem", "cert.pem", "key.pem"] {
        let directory = TempDir::new().unwrap();
        write_certificates(directory.path(), VALID);
        let path = directory.path().join(name);
        let fails = || Certificates::read(directory.path()).unwrap_err().to_string();
        fs::write(&path, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        assert!(fails().contains(name), "{}", fails());
        fs::write(&path, "").unwrap();
        assert!(fails().contains(name), "{}", fails());
        fs::remove_file(&path).unwrap();
        let text = fails();
        assert!(text.contains(path.to_str().unwrap()) && text.contains("`briquette cert` makes it"), "{text}");
    }
}

/// Returns the threads of this process, by their names.
#[cfg(target_os = "linux")]
fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok()).collect()
}

#[test]
#[cfg(target_os = "linux")]
fn a_join_that_fails_leaves_no_thread_and_no_port() {
    // Beside other tests of this process, the port may be taken meanwhile.
    if passes_alone(&a_join_that_fails_leaves_no_thread_and_no_port) {
        return;
    }
    let has = |rank: usize| threads().iter().any(|name| name.starts_with(&format!("rank {rank} ")));
    let (master, short) = (nowhere(), Duration::from_millis(300));
    let joining = thread::spawn(move || TcpBuilder::new(71, 72, master.to_string()).join_deadline(short).join());
    let begin = Instant::now();
    while !has(71) {
        assert!(begin.elapsed() < PATIENT);
    }
    says(joining.join().unwrap(), &["rank 71 could not reach"]);
    assert!(!has(71), "{:?}", threads());
    says(TcpBuilder::new(0, 72, master.to_string()).join_deadline(short).join(), &["missing: 1, 2, 3"]);
    TcpListener::bind(master).expect("the port is free again");
}
