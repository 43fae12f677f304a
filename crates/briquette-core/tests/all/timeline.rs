//! Reports of a session to its timeline.

use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use briquette_core::comm::{JobStart, Local, Sender, Session, Timeline};

type Lines = Arc<Mutex<Vec<String>>>;

/// A timeline that writes down what is reported to it, and gives every frame the departure 7.5.
#[derive(Clone)]
struct Log(&'static str, Lines);

impl Log {
    fn note(&self, line: impl std::fmt::Display) {
        self.1.lock().unwrap().push(format!("{}: {line}", self.0));
    }
}

impl Timeline for Log {
    fn now(&self) -> f64 {
        3.0
    }
    fn share(&mut self) -> Box<dyn Timeline> {
        Box::new(Log("shared", Arc::clone(&self.1)))
    }
    fn of_channel(&self, _channel: usize) -> Box<dyn Timeline> {
        Box::new(Log("channel", Arc::clone(&self.1)))
    }
    fn machine(&self, rank: usize) -> Option<usize> {
        Some(10 * rank)
    }
    fn begin_step(&mut self, step: u64, _samples: Option<u64>) {
        self.note(format_args!("step {step}"));
    }
    fn sends(&mut self, to: usize, bytes: usize) -> f64 {
        self.note(format_args!("sends {bytes} bytes to {to}"));
        7.5
    }
    fn receives(&mut self, from: usize) {
        self.note(format_args!("receives from {from}"));
    }
    fn receives_any(&mut self, from: &[usize], until: f64) -> Result<Sender, Duration> {
        self.note(format_args!("receives from any of {from:?}, until {until}"));
        Ok(Sender::Any)
    }
    fn received(&mut self, from: usize, bytes: usize, departure: f64) {
        self.note(format_args!("received {bytes} bytes from {from}, departed at {departure}"));
    }
    fn stop(&mut self) {
        self.note("stop");
    }
    fn leave(&mut self) {
        self.note("leave");
    }
    fn start_job(&mut self, channel: usize, shares: usize) -> JobStart {
        self.note(format_args!("starts on channel {channel} with one of {shares} shares"));
        let own = self.clone();
        JobStart { data: Some(Box::new("data")), awaited: Some(Box::new(move || own.note("awaits the job"))) }
    }
    fn begin_job(&mut self, data: Box<dyn Any + Send>) {
        self.note(format_args!("begins with {}", data.downcast::<&str>().unwrap()));
    }
    fn end_job(&mut self) {
        self.note("ends the job");
    }
    fn finish_job(&mut self, at: f64) {
        self.note(format_args!("finishes the job of {at} s"));
    }
}

/// Returns the sessions of a world of two ranks, and the lines that their timelines write.
fn world() -> (Session, Session, Lines) {
    let (mut endpoints, lines) = (Local::builder(2).endpoints(), Lines::default());
    let mut session = |name| {
        let endpoint = Box::new(endpoints.remove(0));
        Session::with_timeline(endpoint, Box::new(Log(name, Arc::clone(&lines))))
    };
    (session("first"), session("second"), lines)
}

fn taken(lines: &Lines) -> Vec<String> {
    std::mem::take(&mut *lines.lock().unwrap())
}

#[test]
fn a_session_reports_steps_and_frames_in_order_and_asks_for_machines() {
    let (mut first, mut second, lines) = world();
    first.begin_step(4);
    second.begin_step(4);
    first.send(1, vec![0; 3]).unwrap();
    first.send(1, vec![0; 5]).unwrap();
    second.recv(0).unwrap();
    second.recv_any(&[0]).unwrap();
    let expected = [
        "first: step 4",
        "second: step 4",
        "first: sends 3 bytes to 1",
        "first: sends 5 bytes to 1",
        "second: receives from 0",
        "second: received 3 bytes from 0, departed at 7.5",
        "second: receives from any of [0], until inf",
        "second: received 5 bytes from 0, departed at 7.5",
    ];
    assert_eq!(taken(&lines), expected);
    assert_eq!((first.now(), first.has_clock(), first.machine_map().machines()), (3.0, true, &[vec![0], vec![1]][..]));
    first.abort("enough");
    drop(first);
    assert_eq!(taken(&lines), ["first: stop", "first: leave"]);
}

#[test]
fn a_job_takes_data_of_its_session_to_the_channel() {
    let (mut first, _second, lines) = world();
    first.start(1, |_| ()).finish(&mut first).1.unwrap();
    let mut got = taken(&lines);
    // The job runs while its session begins to wait.
    got.sort();
    let expected = [
        "channel: begins with data",
        "channel: ends the job",
        "first: awaits the job",
        "first: finishes the job of 3 s",
        "first: starts on channel 1 with one of 2 shares",
    ];
    assert_eq!(got, expected);
    first.share().begin_step(0);
    assert_eq!(taken(&lines), ["shared: step 0", "shared: leave"]);
}
