//! Telemetry of a run's steps: the slots' table, the controller's state, and the page for Prometheus.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use briquette_examples::record::StepRecord;
use briquette_examples::task::{Place, Score, Task};
use briquette_examples::train::train;
use burn::nn::Linear;
use burn::tensor::{Device, Tensor};

use super::GRAVAC;
#[cfg(unix)]
use super::processes::processes;
#[cfg(unix)]
use crate::common::{CIFAR, Runs, Toy, launcher, quiet, settings};

#[test]
fn every_slots_part_and_the_controllers_state_come_at_the_interval_that_is_set() {
    let runs = Runs::default();
    for (every, expected) in [(0, vec![]), (2, vec![0, 2, 4]), (5, vec![0, 5])] {
        let out = format!("run-{every}");
        runs.cifar(&out, &format!("{GRAVAC} --slots-every {every}")).succeeds();
        let records = runs.metrics(&out);
        let with_slots = records.iter().filter(|record| !record.slots.is_empty());
        assert_eq!(with_slots.map(|record| record.step).collect::<Vec<_>>(), expected);
        for record in &records {
            let expects_state = record.reason.is_some() || expected.contains(&record.step);
            assert_eq!(record.state.is_some(), expects_state, "{record:?}");
            assert!(record.slots.iter().all(|slot| slot.ratio == record.ratio), "{record:?}");
        }
        // GraVAC begins with a reason.
        let first = &records[0];
        assert!(
            first.reason.is_some() && first.state.as_deref().is_some_and(|state| state.contains("4x")),
            "{first:?}"
        );
    }
}

#[test]
fn slots_add_up_to_the_step_they_are_part_of() {
    let runs = Runs::default();
    runs.cifar("run", "--compressor topk:20x --feedback error --slots-every 1").succeeds();
    for record in runs.metrics("run") {
        let squares = record.slots.iter().filter_map(|slot| slot.residual_norm).map(|norm| norm * norm).sum::<f64>();
        let norm = record.residual_norm.unwrap();
        assert!(norm > 0.0 && (squares.sqrt() - norm).abs() < 1e-9 * norm, "{record:?}");
        let near = |a: Option<f64>, gain: f64| (a.unwrap() - (1.0 - gain).sqrt()).abs() < 1e-12;
        assert!(near(record.relative_error, record.gain.unwrap()), "{record:?}");
        assert!(record.slots.iter().all(|slot| near(slot.relative_error, slot.gain)), "{record:?}");
        assert!(record.delay.unwrap() > 0.0 && record.slots.iter().map(|slot| slot.kept).sum::<u64>() > 0);
        assert!(record.wait_seconds > 0.0 && record.wait_seconds < record.exchange_seconds, "{record:?}");
    }
}

#[test]
fn a_dense_run_has_no_delay_and_no_state() {
    let runs = Runs::default();
    runs.cifar("run", "--reducer dense").succeeds();
    for record in runs.metrics("run") {
        assert!(record.delay.is_none() && record.residual_norm.is_none() && record.state.is_none(), "{record:?}");
        assert_eq!(record.relative_error, Some(0.0));
    }
}

/// Returns an address that was free a moment ago.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Returns the page served there, if any.
fn page(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(10)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: ranks\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

#[track_caller]
fn value(page: &str, name: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
}

/// The toy task; rank 0 reads the page before it computes this step.
struct Watched {
    toy: Toy,
    address: SocketAddr,
    step: u64,
    page: Mutex<Option<String>>,
    /// Connections that send nothing, or no HTTP.
    others: Mutex<Vec<TcpStream>>,
}

impl Task for Watched {
    type Model = Linear;

    fn build(&self, device: &Device) -> Linear {
        self.toy.build(device)
    }
    fn train_labels(&self) -> &[u8] {
        self.toy.train_labels()
    }
    fn test_len(&self) -> usize {
        self.toy.test_len()
    }
    fn fingerprints(&self) -> [String; 2] {
        self.toy.fingerprints()
    }
    fn loss(&self, model: &Linear, indices: &[usize], place: Place, device: &Device) -> Tensor<1> {
        if (place.rank, place.step) == (0, self.step) {
            let mut others = [(); 2].map(|()| TcpStream::connect(self.address).unwrap());
            others[1].write_all(&[0xff; 1000]).unwrap();
            self.others.lock().unwrap().extend(others);
            *self.page.lock().unwrap() = page(self.address);
        }
        self.toy.loss(model, indices, place, device)
    }
    fn score(&self, model: &Linear, indices: &[usize], device: &Device) -> Score {
        self.toy.score(model, indices, device)
    }
}

fn records(out: &Path) -> Vec<StepRecord> {
    let text = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Threat S8.
#[test]
fn a_run_serves_rank_0s_numbers_while_it_trains_and_no_longer() {
    let (runs, address) = (Runs::default(), free_address());
    let toml = format!(
        "ranks = 2\nbatch = 4\nepochs = 1\nclock = 'fixed:50ms'\ncompressor = 'topk:2x'\nfeedback = 'error'\n\
         controller = 'gravac:window=2,epsilon=0.3,min=2x,max=4x,dense_steps=3'\nmetrics-addr = '{address}'"
    );
    let out = runs.path("run");
    let task = Watched { toy: Toy::new(64, None), address, step: 5, page: Mutex::default(), others: Mutex::default() };
    train(&settings(&out, &toml), &task, &quiet()).unwrap();
    let page = task.page.into_inner().unwrap().expect("a page is served during training");
    let records = &records(&out)[..5];
    let last = records.last().unwrap();
    let changes = records.windows(2).filter(|pair| pair[0].ratio != pair[1].ratio).count();
    let reasons = records.iter().filter(|record| record.reason.is_some()).count();
    assert!(changes > 0 && changes < reasons, "{changes} changes of the ratio, {reasons} reasons");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("# HELP briquette_gain Share"), "{page}");
    let served =
        page.split("\r\n\r\n").nth(1).unwrap().lines().filter(|line| line.contains(' ') && !line.starts_with('#'));
    served.for_each(|line| assert!(line.starts_with("briquette_"), "{line}"));
    for (name, expected) in [
        ("briquette_step", 4.0),
        ("briquette_steps_total", 5.0),
        ("briquette_samples_total", 40.0),
        ("briquette_loss", last.loss.unwrap()),
        ("briquette_ratio", last.ratio.unwrap()),
        ("briquette_wire_ratio", last.wire_ratio),
        ("briquette_gain", last.gain.unwrap()),
        ("briquette_relative_error", last.relative_error.unwrap()),
        ("briquette_delay_steps", last.delay.unwrap()),
        ("briquette_residual_norm", last.residual_norm.unwrap()),
        ("briquette_compute_seconds", last.compute_seconds),
        ("briquette_exchange_seconds", last.exchange_seconds),
        ("briquette_wait_seconds", last.wait_seconds),
        ("briquette_overlapped_seconds", last.overlapped_seconds),
        ("briquette_sent_bytes_total", records.iter().map(|record| record.bytes_sent).sum::<u64>() as f64),
        ("briquette_received_bytes_total", records.iter().map(|record| record.bytes_received).sum::<u64>() as f64),
        ("briquette_ratio_changes_total", changes as f64),
    ] {
        assert_eq!(value(&page, name), expected, "{name}");
    }
    assert_eq!(self::page(address), None, "the port is free again");
}

#[test]
fn an_address_that_cannot_be_had_is_refused_before_anything_is_begun() {
    let (runs, listener) = (Runs::default(), TcpListener::bind("127.0.0.1:0").unwrap());
    let taken = listener.local_addr().unwrap().to_string();
    let ended = runs.cifar("run", &format!("--metrics-addr {taken}"));
    ended.refused(&["--metrics-addr", &taken, "a free port", "in use"]);
    drop(listener);
    runs.cifar("run", "--metrics-addr nowhere").refused(&["--metrics-addr", "nowhere", "invalid socket address"]);
    assert!(!runs.path("run").exists());
}

/// With processes on one machine, the second to open the port would fail.
#[cfg(unix)]
#[test]
fn of_ranks_that_are_processes_only_rank_0_opens_the_port() {
    let launcher = launcher();
    let (runs, address) = (Runs::default(), free_address());
    let launch = format!("launch --ranks 3 -- {CIFAR} {} --metrics-addr {address} --out run", processes(3, 6));
    runs.run(&launcher, &launch).succeeds();
}
