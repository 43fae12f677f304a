use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;
use crate::comm::{Clock, Local, run_ranks};

fn local(ranks: usize) -> Vec<Local> {
    Local::builder(ranks).deadline(Duration::from_secs(20)).endpoints()
}

/// A clock that advances by a second at every frame.
#[derive(Default)]
struct Frames(AtomicU64);

impl Clock for Frames {
    fn seconds(&self) -> f64 {
        self.0.load(Ordering::Relaxed) as f64
    }
}

/// Buffers frames until a flush, as sockets may.
struct Queued {
    inner: Local,
    queue: Vec<(usize, Frame)>,
    frames: Arc<Frames>,
}

impl Queued {
    fn world(ranks: usize) -> Vec<Queued> {
        let around = |inner| Queued { inner, queue: Vec::new(), frames: Arc::default() };
        local(ranks).into_iter().map(around).collect()
    }
}

impl Transport for Queued {
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn world(&self) -> usize {
        self.inner.world()
    }
    fn send(&mut self, to: usize, frame: Frame, _call: &mut Call) -> Result<(), CommError> {
        self.frames.0.fetch_add(1, Ordering::Relaxed);
        self.queue.push((to, frame));
        Ok(())
    }
    fn recv_any(&mut self, from: &[usize], call: &mut Call) -> Result<(usize, Frame), CommError> {
        self.frames.0.fetch_add(1, Ordering::Relaxed);
        self.inner.recv_any(from, call)
    }
    fn flush(&mut self, call: &mut Call) -> Result<(), CommError> {
        self.queue.drain(..).try_for_each(|(to, frame)| self.inner.send(to, frame, call))
    }
    fn abort(&mut self, during: Scope, reason: &str) {
        self.inner.abort(during, reason);
    }
    fn clock(&self) -> Option<Arc<dyn Clock + Sync>> {
        Some(Arc::clone(&self.frames) as _)
    }
}

#[test]
fn what_is_sent_leaves_at_the_end_of_every_collective() {
    type Exchange = fn(&mut Session) -> Result<(), CommError>;
    let calls: [(&'static str, Exchange); 4] = [
        ("all_to_all", |comm| comm.all_to_all(&mut vec![vec![1]; comm.world()])),
        ("", |comm| comm.send(1, vec![1]).and_then(|()| comm.flush())),
        ("all_gather", |comm| comm.all_gather(&[1], &mut Vec::new())),
        ("broadcast", |comm| comm.broadcast(0, &mut vec![1])),
    ];
    for (operation, exchange) in calls {
        let mut other = local(2);
        let inner = other.remove(0);
        let mut other = Session::from(other.remove(0));
        let mut comm = Session::from(Queued { inner, queue: Vec::new(), frames: Arc::default() });
        // The other rank has sent its part and waits for this rank's part.
        other.scope().operation = operation;
        other.send(0, vec![2]).unwrap();
        comm.spent_in(exchange).0.unwrap();
        assert_eq!(other.recv(0), Ok(vec![1]), "{operation}");
    }
}

#[test]
fn seconds_inside_calls_are_counted_once_and_by_every_measurement_around_them() {
    // Four frames per gather in a world of three, whose frames leave before any is needed.
    let spent = run_ranks(Queued::world(3), |mut comm| {
        let gather = |comm: &mut Session| {
            (1..3).try_for_each(|ahead| comm.send((comm.rank() + ahead) % 3, vec![]))?;
            comm.flush()?;
            (1..3).try_for_each(|behind| comm.recv((comm.rank() + 3 - behind) % 3).map(drop))
        };
        gather(&mut comm)?;
        let ((first, second), outer) = comm.spent_in(|comm| {
            let first = comm.spent_in(gather).1;
            (first, comm.spent_in(gather).1)
        });
        Ok::<_, CommError>([first, second, outer])
    });
    for spent in spent {
        let [first, second, outer] = spent.unwrap();
        assert_eq!(first, Spent { inside: 4.0, first: Some(4.0), idle: 0.0 });
        assert_eq!(second, Spent { inside: 4.0, first: Some(8.0), idle: 0.0 });
        assert_eq!(outer, Spent { inside: 8.0, first: Some(4.0), idle: 0.0 });
    }
}

#[test]
fn the_first_error_is_that_of_all_later_calls() {
    let mut world = Local::builder(2).deadline(Duration::from_millis(30)).build();
    let error = world[0].recv(1).unwrap_err();
    assert!(matches!(&error, CommError::Deadline { rank: 0, others, .. } if **others == [1]), "{error}");
    assert_eq!(world[0].send(1, vec![]).unwrap_err(), error);
    assert_eq!(world[0].barrier().unwrap_err(), error);
}

#[test]
fn calls_are_those_of_send_and_recv() {
    let calls = Local::run(3, |mut comm| {
        comm.barrier()?;
        comm.flush()?;
        Ok::<_, CommError>(comm.calls())
    });
    assert_eq!(calls, vec![Ok(4); 3]);
}
