//! Buckets that overlap: that they do, and what becomes of errors and panics. That no bit changes, the laws say.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use briquette_core::aggregate::Mean;
use briquette_core::comm::{Clock, Compute, Faulty, FramePool, Local, Network, Scope, Simulated, run_ranks};
use briquette_core::compress::{TernGrad, TopK};
use briquette_core::error::{CommError, ReduceError};
use briquette_core::layer::Bucketed;
use briquette_core::reduce::{
    Dense, Exchanged, Facts, Gather, MultiStep, Reducer, Round, Selection, SharedRandomK, Sketch, SketchedSgd,
    SparseAllReduce, TernaryAllReduce,
};
use briquette_core::state::Stateful;
use briquette_core::{Communicator, CompressionFactor, Key, Layout, Traffic};

/// Longer than anything here takes; where it passes, a test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// Five buckets of two values.
fn layout() -> Layout {
    Layout::new(["a", "b", "c", "d", "e"].map(|name| (name, vec![2])))
}

fn reduce(reducer: &mut dyn Reducer, input: &[f32], comm: &mut dyn Communicator) -> Result<Vec<f32>, ReduceError> {
    let (layout, facts, mut average) = (layout(), Facts::default(), vec![0.0; input.len()]);
    let (key, slots) = (Key::new(1), layout.slots());
    reducer.exchange(Round { key, slots, facts: &facts, input, average: &mut average, sent: None }, comm)?;
    Ok(average)
}

fn local(ranks: usize) -> Vec<Local> {
    Local::builder(ranks).deadline(PATIENCE).build()
}

/// When a bucket does something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Encode,
    Exchange,
    Decode,
}

/// A reducer that calls its `hook` in every phase, and exchanges nothing but a barrier.
struct Phases<F>(usize, F);

impl<F: FnMut(usize, Phase) + Send> Stateful for Phases<F> {}

impl<F: FnMut(usize, Phase) + Send> Reducer for Phases<F> {
    fn reduce(&mut self, _round: Round<'_>, comm: &mut dyn Communicator) -> Result<Exchanged, ReduceError> {
        (self.1)(self.0, Phase::Encode);
        comm.barrier()?;
        (self.1)(self.0, Phase::Exchange);
        comm.barrier()?;
        comm.finished();
        (self.1)(self.0, Phase::Decode);
        Ok(Exchanged { traffic: Traffic::default(), selection: Selection::All })
    }
}

/// Whether bucket `i` began to be encoded while bucket `i - 1` was exchanged, for every `i` but 0, on one rank.
fn overlaps(overlapped: bool, patience: Duration) -> Vec<bool> {
    let (begun, begins): (Vec<Sender<()>>, Vec<Receiver<()>>) = (0..5).map(|_| channel()).unzip();
    let met = Arc::new(Mutex::new(Vec::new()));
    let mut begins = begins.into_iter().skip(1);
    let mut reducer = Bucketed::new(&layout(), 1, |bucket| {
        let (begun, next, met) = (begun[bucket].clone(), begins.next(), Arc::clone(&met));
        Phases(bucket, move |_, phase| match phase {
            Phase::Encode => drop(begun.send(())),
            Phase::Exchange => {
                if let Some(next) = &next {
                    met.lock().unwrap().push(next.recv_timeout(patience).is_ok());
                }
            }
            Phase::Decode => {}
        })
    })
    .overlapped(overlapped);
    reduce(&mut reducer, &[1.0; 10], &mut local(1).remove(0)).unwrap();
    let met = met.lock().unwrap();
    met.clone()
}

#[test]
fn a_bucket_is_encoded_and_the_one_before_decoded_while_one_is_exchanged() {
    // Bucket 2 is encoded on the thread that decodes bucket 0 before that: while bucket 1 is exchanged, both happen.
    assert_eq!(overlaps(true, PATIENCE), [true; 4]);
    assert_eq!(overlaps(false, Duration::from_millis(1)), [false; 4], "one after another");
}

/// Notes the bucket of every call, and how many calls came before each promise that there will be no further one.
struct Noting {
    inner: Local,
    buckets: Vec<Option<usize>>,
    promises: Vec<usize>,
}

impl Noting {
    fn around(inner: Local) -> Self {
        Noting { inner, buckets: Vec::new(), promises: Vec::new() }
    }
}

impl Communicator for Noting {
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn world(&self) -> usize {
        self.inner.world()
    }
    fn send(&mut self, to: usize, frame: Vec<u8>) -> Result<(), CommError> {
        self.buckets.push(self.inner.scope().bucket);
        self.inner.send(to, frame)
    }
    fn recv(&mut self, from: usize) -> Result<Vec<u8>, CommError> {
        self.buckets.push(self.inner.scope().bucket);
        self.inner.recv(from)
    }
    fn abort(&mut self, reason: &str) {
        self.inner.abort(reason);
    }
    fn now(&self) -> f64 {
        self.inner.now()
    }
    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }
    fn scope(&mut self) -> &mut Scope {
        self.inner.scope()
    }
    fn pool(&mut self) -> &mut FramePool {
        self.inner.pool()
    }
    fn finished(&mut self) {
        self.promises.push(self.buckets.len());
    }
}

#[test]
fn every_reducer_for_buckets_says_when_only_decoding_is_left() {
    type Make = fn() -> Box<dyn Reducer>;
    let makes: [(&str, Make); 6] = [
        ("dense", || Box::new(Dense)),
        ("gather", || Box::new(Gather::new(TopK::fraction(0.5).unwrap(), Mean))),
        ("shared random-k", || Box::new(SharedRandomK::new(CompressionFactor::DENSE))),
        ("sparse", || Box::new(SparseAllReduce::new(CompressionFactor::DENSE))),
        ("sketched", || Box::new(SketchedSgd::new(Sketch::default()).unwrap())),
        ("ternary", || Box::new(TernaryAllReduce::new(TernGrad::unclipped()))),
    ];
    for (name, make) in makes {
        let promises = run_ranks(local(2), |comm| {
            let mut comm = Noting::around(comm);
            reduce(&mut *make(), &[1.0; 10], &mut comm)?;
            Ok::<_, ReduceError>((comm.promises, comm.buckets.len()))
        });
        for promises in promises {
            let (promises, calls) = promises.unwrap();
            assert!(promises == [calls] && calls > 0, "{name}: {promises:?} of {calls}");
        }
    }
    // The end of a round is not the end.
    let mut comm = Noting::around(local(1).remove(0));
    let rounds = [(); 2].map(|()| SharedRandomK::new(CompressionFactor::DENSE)).into();
    reduce(&mut MultiStep::contractive(rounds).unwrap(), &[1.0; 10], &mut comm).unwrap();
    assert_eq!(comm.promises, []);
}

#[test]
fn calls_are_made_in_the_order_of_the_buckets_and_name_theirs() {
    let noted = run_ranks(local(2), |comm| {
        let mut comm = Noting::around(comm);
        let gather = |_| Gather::new(TopK::fraction(0.5).unwrap(), Mean);
        reduce(&mut Bucketed::new(&layout(), 1, gather).overlapped(true), &[1.0; 10], &mut comm)?;
        Ok::<_, ReduceError>((comm.scope().bucket, comm.buckets))
    });
    let each_twice: Vec<_> = (0..10).map(|call| Some(call / 2)).collect();
    for noted in noted {
        assert_eq!(noted, Ok((None, each_twice.clone())));
    }
}

#[test]
fn the_first_error_in_the_order_of_buckets_comes_back_and_the_world_goes_on() {
    for bad in [vec![0], vec![1], vec![4], vec![1, 2], vec![3, 1]] {
        let first = *bad.iter().min().unwrap();
        let run = run_ranks(local(3), |comm| {
            let mut comm = Noting::around(comm);
            let mut reducer = Bucketed::new(&layout(), 1, |_| Dense).overlapped(true);
            let mut input = [1.0; 10];
            bad.iter().for_each(|bucket| input[2 * bucket] = f32::MAX);
            let error = reduce(&mut reducer, &input, &mut comm).unwrap_err();
            assert_eq!(comm.scope().bucket, Some(first));
            assert_eq!(comm.buckets.last(), Some(&Some((first + 1).min(4))), "the one after it, and none beyond");
            // All ranks have made the same calls: nothing is left over that the next exchange would take for its own.
            Ok::<_, ReduceError>((error, reduce(&mut reducer, &[2.0; 10], &mut comm)?))
        });
        let slot = layout().slots()[first].path().to_owned();
        for outcome in run {
            assert_eq!(outcome, Ok((ReduceError::Overflow { slot: slot.clone() }, vec![2.0; 10])), "{bad:?}");
        }
    }
}

#[test]
fn a_failure_at_every_call_comes_back_on_every_rank() {
    let run = |mut comm: Faulty<Local>| {
        let mut reducer = Bucketed::new(&layout(), 1, |_| Dense).overlapped(true);
        let result = reduce(&mut reducer, &[1.0; 10], &mut comm).map(drop);
        // A rank may be through before another one fails; its next call then says so.
        result.and_then(|()| Ok(comm.barrier()?)).map(|()| comm.calls())
    };
    let calls = run_ranks(local(3).into_iter().map(Faulty::never).collect(), run);
    assert!(calls.iter().all(|outcome| *outcome == Ok(24)), "{calls:?}");
    for (rank, call) in (0..3).flat_map(|rank| (0..20).map(move |call| (rank, call))) {
        for outcome in run_ranks(Faulty::world(local(3), rank, call), run) {
            let Err(ReduceError::Comm(CommError::Aborted { by, during, reason })) = outcome else {
                panic!("{outcome:?}")
            };
            // Four calls a bucket.
            assert_eq!((by, during.bucket), (rank, Some(call as usize / 4)));
            assert_eq!(reason, format!("injected failure at call {call}"));
        }
    }
}

#[test]
fn a_panic_in_either_thread_ends_both_and_goes_on() {
    for (bad, when) in (0..5).flat_map(|bad| [Phase::Encode, Phase::Exchange, Phase::Decode].map(|when| (bad, when))) {
        let hook = move |bucket, phase| {
            assert!((bucket, phase) != (bad, when), "panic of bucket {bad}");
        };
        let run = || {
            let mut reducer = Bucketed::new(&layout(), 1, |bucket| Phases(bucket, hook)).overlapped(true);
            reduce(&mut reducer, &[1.0; 10], &mut local(1).remove(0))
        };
        let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
        let words = panic.downcast_ref::<String>().expect("the words of the panic");
        assert_eq!(words, &format!("panic of bucket {bad}"), "{when:?}");
    }
}

/// Goes on talking after it said that it would not.
struct Chatty;

impl Stateful for Chatty {}

impl Reducer for Chatty {
    fn reduce(&mut self, _round: Round<'_>, comm: &mut dyn Communicator) -> Result<Exchanged, ReduceError> {
        comm.finished();
        comm.barrier()?;
        Ok(Exchanged { traffic: Traffic::default(), selection: Selection::All })
    }
}

#[test]
fn a_call_after_the_last_one_is_an_error() {
    let mut reducer = Bucketed::new(&layout(), 1, |_| Chatty).overlapped(true);
    let error = reduce(&mut reducer, &[1.0; 10], &mut local(1).remove(0)).unwrap_err().to_string();
    assert!(error.contains("bucket 0") && error.contains("no further call"), "{error}");
}

#[test]
fn buckets_inside_buckets_end_with_their_last_one() {
    let run = run_ranks(local(2), |mut comm| {
        let inner = |overlapped| {
            let gather = |_| Gather::new(TopK::fraction(0.5).unwrap(), Mean);
            Bucketed::new(&Layout::new(["x", "y", "z", "w"].map(|name| (name, vec![1]))), 1, gather)
                .overlapped(overlapped)
        };
        let input: Vec<f32> = (0..10).map(|i| (i + comm.rank()) as f32).collect();
        let mut averages = Vec::new();
        for (outside, inside) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut reducer = Bucketed::new(&Layout::new([("x", vec![4]), ("y", vec![4])]), 4, |_| inner(inside));
            reducer = reducer.overlapped(outside);
            averages.push(reduce(&mut reducer, &input[..8], &mut comm)?);
        }
        Ok::<_, ReduceError>(averages)
    });
    for averages in run {
        let averages = averages.unwrap();
        assert!(averages[0].iter().any(|v| *v != 0.0));
        assert!(averages.iter().all(|average| *average == averages[0]), "{averages:?}");
    }
}

/// A clock that is read by tests alone.
struct Wall(Instant);

impl Clock for Wall {
    fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

#[test]
fn ranks_of_measured_compute_have_one_thread_each() {
    let threads = |compute| {
        let world = Simulated::over(Local::builder(2).deadline(PATIENCE), Network::unlimited(), compute);
        let run = run_ranks(world, |mut comm| {
            comm.begin_step(0);
            let names = Arc::new(Mutex::new(Vec::new()));
            let mut reducer = Bucketed::new(&layout(), 1, |bucket| {
                let names = Arc::clone(&names);
                Phases(bucket, move |_, _| names.lock().unwrap().push(std::thread::current().id()))
            });
            reducer = reducer.overlapped(true);
            reduce(&mut reducer, &[1.0; 10], &mut comm)?;
            let mut names = names.lock().unwrap().clone();
            names.dedup();
            Ok::<_, ReduceError>(names.len())
        });
        run.into_iter().map(Result::unwrap).max().unwrap()
    };
    assert_eq!(threads(Compute::Measured(Arc::new(Wall(Instant::now())))), 1);
    assert!(threads(Compute::Fixed(Duration::ZERO)) > 1);
}
