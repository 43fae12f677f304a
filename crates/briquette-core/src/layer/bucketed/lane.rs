//! Two threads that take buckets in turns and share one communicator.
//!
//! The communicator is one reference, which the lanes hand to each other: who has it may call. A bucket waits for it at
//! its first call and hands it on after its last, so the calls of all buckets are made in the order of the buckets.
//!
//! Nothing waits for ever. The reference is with a lane that calls, whose calls have deadlines, or with one that is about
//! to hand it on. A lane that fails or panics lets go of it and of its ends of the channels: the other one then waits in
//! vain for nothing, and ends too.

use std::cell::RefCell;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Builder};

use super::{Done, Part};
use crate::comm::{FramePool, Scope, Verdict};
use crate::error::CommError;
use crate::reduce::Reducer;
use crate::{Communicator, Frame, Traffic};

/// The communicator that all buckets share.
type Shared<'a> = &'a mut (dyn Communicator + 'a);

/// Where it is, as a lane sees it.
enum Place<'a> {
    /// With a bucket before this one.
    Earlier,
    /// Here, and so much had moved when it came.
    Here(Shared<'a>, Traffic),
    /// Handed on, after so much had moved for this bucket, at this time.
    Later(Traffic, f64),
}

/// One of the two threads, and the communicator of the bucket it is at.
struct Lane<'a> {
    rank: usize,
    world: usize,
    bucket: usize,
    place: RefCell<Place<'a>>,
    from_other: Receiver<Shared<'a>>,
    to_other: Sender<Shared<'a>>,
    /// For whoever writes into a scope or a pool out of turn.
    nobodys: (Scope, FramePool),
}

/// Exchanges all parts, those of even number on this thread, the others on a second one, and returns what came of them in
/// their order. After a part that failed, the one after it may have been exchanged as well, and none beyond that.
///
/// # Panics
/// When the system starts no more threads, or a reducer panics.
pub(super) fn run<'a, R: Reducer + 'a>(
    parts: impl Iterator<Item = Part<'a, R>>,
    comm: &mut dyn Communicator,
) -> Vec<Done> {
    let (odd, even): (Vec<_>, Vec<_>) = parts.partition(|part| part.index % 2 == 1);
    let (rank, world) = (comm.rank(), comm.world());
    let (to_first, from_second) = channel::<Shared<'_>>();
    let (to_second, from_first) = channel();
    to_first.send(comm).unwrap_or_else(|_| unreachable!("the receiver is here"));
    let mut done = thread::scope(|threads| {
        let lane = move || Lane::new((rank, world), from_first, to_first).run(odd);
        let second = Builder::new().name("briquette-lane".to_owned()).spawn_scoped(threads, lane);
        let second = second.expect("the system starts one more thread");
        let mut done = Lane::new((rank, world), from_second, to_second).run(even);
        done.extend(second.join().unwrap_or_else(|panic| resume_unwind(panic)));
        done
    });
    done.sort_by_key(|done| done.index);
    if let Some(failed) = done.iter().find(|done| done.result.is_err()) {
        comm.scope().bucket = Some(failed.index);
    }
    done
}

impl<'a> Lane<'a> {
    fn new((rank, world): (usize, usize), from_other: Receiver<Shared<'a>>, to_other: Sender<Shared<'a>>) -> Self {
        let place = RefCell::new(Place::Earlier);
        Lane { rank, world, bucket: 0, place, from_other, to_other, nobodys: Default::default() }
    }

    fn run<R: Reducer>(mut self, parts: Vec<Part<'_, R>>) -> Vec<Done> {
        let mut all = Vec::with_capacity(parts.len());
        for part in parts {
            (self.bucket, *self.place.get_mut()) = (part.index, Place::Earlier);
            let done = part.reduce(&mut self);
            let failed = done.result.is_err();
            all.push(done);
            if failed {
                break;
            }
            // Whoever did not say that it had finished has now, and whoever said nothing at all had its turn, too.
            self.finished();
        }
        all
    }

    /// Waits for the communicator, unless it is here or handed on. In vain when an earlier bucket failed.
    fn wait(&self) {
        let mut place = self.place.borrow_mut();
        if matches!(*place, Place::Earlier)
            && let Ok(comm) = self.from_other.recv()
        {
            comm.scope().bucket = Some(self.bucket);
            let before = comm.traffic();
            *place = Place::Here(comm, before);
        }
    }

    /// The communicator in this bucket's turn, after waiting for it.
    fn here(&mut self) -> Option<&mut (dyn Communicator + 'a)> {
        self.wait();
        match self.place.get_mut() {
            Place::Here(comm, _) => Some(&mut **comm),
            Place::Earlier | Place::Later(..) => None,
        }
    }

    fn call<T>(
        &mut self,
        call: impl FnOnce(&mut (dyn Communicator + 'a)) -> Result<T, CommError>,
    ) -> Result<T, CommError> {
        if let Some(comm) = self.here() {
            return call(comm);
        }
        let reason = match self.place.get_mut() {
            Place::Later(..) => "a reducer called after it had said that it made no further call",
            Place::Earlier | Place::Here(..) => "a bucket before this one failed",
        };
        let during = Scope { bucket: Some(self.bucket), ..self.nobodys.0 };
        Err(CommError::Aborted { by: self.rank, during, reason: reason.to_owned() })
    }
}

impl Communicator for Lane<'_> {
    fn rank(&self) -> usize {
        self.rank
    }
    fn world(&self) -> usize {
        self.world
    }
    fn send(&mut self, to: usize, frame: Frame) -> Result<(), CommError> {
        self.call(|comm| comm.send(to, frame))
    }
    fn recv(&mut self, from: usize) -> Result<Frame, CommError> {
        self.call(|comm| comm.recv(from))
    }
    fn flush(&mut self) -> Result<(), CommError> {
        self.call(|comm| comm.flush())
    }
    fn abort(&mut self, reason: &str) {
        self.here().into_iter().for_each(|comm| comm.abort(reason));
    }
    fn verdict(&self) -> Verdict {
        self.wait();
        match &*self.place.borrow() {
            Place::Here(comm, _) => comm.verdict(),
            Place::Earlier | Place::Later(..) => Box::new(|| None),
        }
    }
    fn now(&self) -> f64 {
        self.wait();
        match &*self.place.borrow() {
            Place::Here(comm, _) => comm.now(),
            Place::Later(_, at) => *at,
            Place::Earlier => 0.0,
        }
    }
    fn set_clock(&mut self, seconds: f64) {
        self.here().into_iter().for_each(|comm| comm.set_clock(seconds));
    }
    /// This bucket's alone. Asking does not wait: before its turn nothing has moved.
    fn traffic(&self) -> Traffic {
        match &*self.place.borrow() {
            Place::Earlier => Traffic::default(),
            Place::Here(comm, before) => comm.traffic() - *before,
            Place::Later(moved, _) => *moved,
        }
    }
    fn scope(&mut self) -> &mut Scope {
        self.wait();
        match self.place.get_mut() {
            Place::Here(comm, _) => comm.scope(),
            Place::Earlier | Place::Later(..) => &mut self.nobodys.0,
        }
    }
    fn pool(&mut self) -> &mut FramePool {
        self.wait();
        match self.place.get_mut() {
            Place::Here(comm, _) => comm.pool(),
            Place::Earlier | Place::Later(..) => &mut self.nobodys.1,
        }
    }
    fn begin_step(&mut self, step: u64) {
        self.here().into_iter().for_each(|comm| comm.begin_step(step));
    }

    /// Hands the communicator to the other lane, which no longer wants it when it is through or failed.
    fn finished(&mut self) {
        let (moved, at) = (self.traffic(), self.now());
        if let Place::Here(comm, _) = self.place.replace(Place::Later(moved, at)) {
            drop(self.to_other.send(comm));
        }
    }

    fn all_gather(&mut self, mine: &[u8], parts: &mut Vec<Frame>) -> Result<(), CommError> {
        self.call(|comm| comm.all_gather(mine, parts))
    }
    fn all_reduce_sum(&mut self, x: &mut [f32]) -> Result<(), CommError> {
        self.call(|comm| comm.all_reduce_sum(x))
    }
    fn all_reduce_sum_f64(&mut self, x: &mut [f64]) -> Result<(), CommError> {
        self.call(|comm| comm.all_reduce_sum_f64(x))
    }
    fn broadcast(&mut self, root: usize, bytes: &mut Vec<u8>) -> Result<(), CommError> {
        self.call(|comm| comm.broadcast(root, bytes))
    }
    fn barrier(&mut self) -> Result<(), CommError> {
        self.call(|comm| comm.barrier())
    }
}
