//! Overlapped buckets: overlap takes place, and errors and panics are handled. The laws check that the bits are the same.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use briquette_core::aggregate::Mean;
use briquette_core::comm::{Call, Faulty, Frame, Local, Scope, Session, Transport, run_ranks};
use briquette_core::compress::TopK;
use briquette_core::error::{CommError, ReduceError};
use briquette_core::reduce::{AgreedStep, Dense, Exchanged, Gather, Reducer, Round, Selection};
use briquette_core::state::Stateful;
use briquette_core::wrapper::Bucketed;
use briquette_core::{Key, Layout, Traffic};

/// Longer than anything here takes; a test fails when it elapses.
const PATIENCE: Duration = Duration::from_secs(20);

/// Five buckets of two values.
fn layout() -> Layout {
    Layout::new(["a", "b", "c", "d", "e"].map(|name| (name, vec![2])))
}

fn reduce(reducer: &mut dyn Reducer, input: &[f32], comm: &mut Session) -> Result<Vec<f32>, ReduceError> {
    let (layout, agreed_step, mut average) = (layout(), AgreedStep::default(), vec![0.0; input.len()]);
    let (key, slots) = (Key::new(1), layout.slots());
    reducer
        .exchange(Round { key, slots, agreed_step: &agreed_step, input, average: &mut average, sent: None }, comm)?;
    Ok(average)
}

fn local(ranks: usize) -> Vec<Local> {
    Local::builder(ranks).deadline(PATIENCE).endpoints()
}

/// Phase of a bucket.
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
    fn reduce(&mut self, _round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        (self.1)(self.0, Phase::Encode);
        comm.barrier()?;
        (self.1)(self.0, Phase::Exchange);
        comm.barrier()?;
        (self.1)(self.0, Phase::Decode);
        Ok(Exchanged { traffic: Traffic::default(), selection: Selection::All })
    }
}

/// Returns whether bucket `2i + 1` started to be encoded while bucket `2i` was exchanged, on one rank.
fn overlaps(overlapped: bool, patience: Duration) -> Vec<bool> {
    let (begun, begins): (Vec<Sender<()>>, Vec<Receiver<()>>) = (0..5).map(|_| channel()).unzip();
    let met = Arc::new(Mutex::new(Vec::new()));
    let mut begins = begins.into_iter();
    let mut reducer = Bucketed::new(&layout(), 1, |bucket| {
        // The channel of the bucket after this one is the next in line.
        let next = if bucket == 0 { begins.nth(1) } else { begins.next() };
        let (begun, met) = (begun[bucket].clone(), Arc::clone(&met));
        Phases(bucket, move |_, phase| match phase {
            Phase::Encode => drop(begun.send(())),
            Phase::Exchange => {
                if let Some(next) = next.as_ref().filter(|_| bucket % 2 == 0) {
                    met.lock().unwrap().push(next.recv_timeout(patience).is_ok());
                }
            }
            Phase::Decode => {}
        })
    })
    .overlapped(overlapped);
    reduce(&mut reducer, &[1.0; 10], &mut Local::world(1).remove(0)).unwrap();
    let met = met.lock().unwrap();
    met.clone()
}

#[test]
fn a_bucket_is_encoded_while_the_one_before_it_is_exchanged() {
    assert_eq!(overlaps(true, PATIENCE), [true; 2]);
    assert_eq!(overlaps(false, Duration::from_millis(1)), [false; 2], "one after another");
}

/// Channel and bucket of every call.
type Buckets = Arc<Mutex<Vec<(usize, Option<usize>)>>>;

/// Records the bucket of every call.
struct Noting {
    inner: Box<dyn Transport>,
    channel: usize,
    buckets: Buckets,
}

impl Noting {
    fn world(ranks: usize) -> (Vec<Session>, Vec<Buckets>) {
        let around = |inner| {
            let buckets = Buckets::default();
            let noting = Noting { inner: Box::new(inner), channel: 0, buckets: Arc::clone(&buckets) };
            (Session::from(noting), buckets)
        };
        local(ranks).into_iter().map(around).unzip()
    }
}

impl Transport for Noting {
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn world(&self) -> usize {
        self.inner.world()
    }
    fn send(&mut self, to: usize, frame: Frame, call: &mut Call) -> Result<(), CommError> {
        self.buckets.lock().unwrap().push((self.channel, call.scope.bucket));
        self.inner.send(to, frame, call)
    }
    fn recv_any(&mut self, from: &[usize], call: &mut Call) -> Result<(usize, Frame), CommError> {
        self.buckets.lock().unwrap().push((self.channel, call.scope.bucket));
        self.inner.recv_any(from, call)
    }
    fn abort(&mut self, during: Scope, reason: &str) {
        self.inner.abort(during, reason);
    }
    fn open(&mut self, channel: usize) -> Result<Box<dyn Transport>, CommError> {
        let inner = self.inner.open(channel)?;
        Ok(Box::new(Noting { inner, channel, buckets: Arc::clone(&self.buckets) }))
    }
}

#[test]
fn calls_of_a_channel_are_made_in_the_order_of_its_buckets_and_name_theirs() {
    let (world, noted) = Noting::world(2);
    let scopes = run_ranks(world, |mut comm| {
        let gather = |_| Gather::new(TopK::fraction(0.5).unwrap(), Mean);
        reduce(&mut Bucketed::new(&layout(), 1, gather).overlapped(true), &[1.0; 10], &mut comm)?;
        Ok::<_, ReduceError>(comm.scope().bucket)
    });
    assert_eq!(scopes, [Ok(None), Ok(None)]);
    for noted in noted {
        let noted = noted.lock().unwrap();
        for (channel, expected) in [vec![0, 0, 2, 2, 4, 4], vec![1, 1, 3, 3]].into_iter().enumerate() {
            let buckets = noted.iter().filter(|(at, _)| *at == channel).map(|(_, bucket)| bucket.unwrap());
            assert_eq!(buckets.collect::<Vec<_>>(), expected, "channel {channel}");
        }
    }
}

#[test]
fn the_first_error_in_the_order_of_buckets_comes_back_and_the_world_goes_on() {
    for bad in [vec![0], vec![1], vec![4], vec![1, 2], vec![3, 1]] {
        let first = *bad.iter().min().unwrap();
        let (world, _) = Noting::world(3);
        let run = run_ranks(world, |mut comm| {
            let mut reducer = Bucketed::new(&layout(), 1, |_| Dense).overlapped(true);
            let mut input = [1.0; 10];
            bad.iter().for_each(|bucket| input[2 * bucket] = f32::MAX);
            let error = reduce(&mut reducer, &input, &mut comm).unwrap_err();
            assert_eq!(comm.scope().bucket, Some(first));
            // All ranks have made the same calls, so the next exchange finds no leftover messages.
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
    let run = |mut comm: Session| {
        let mut reducer = Bucketed::new(&layout(), 1, |_| Dense).overlapped(true);
        let result = reduce(&mut reducer, &[1.0; 10], &mut comm).map(drop);
        // A rank may finish before another one fails; its next call then reports the failure.
        result.and_then(|()| Ok(comm.barrier()?)).map(|()| comm.calls())
    };
    let calls = run_ranks(local(3), run);
    assert!(calls.iter().all(|outcome| *outcome == Ok(24)), "{calls:?}");
    for (rank, call) in (0..3).flat_map(|rank| (0..20).map(move |call| (rank, call))) {
        for outcome in run_ranks(Faulty::world(local(3), rank, call), run) {
            let Err(ReduceError::Comm(CommError::Aborted { by, during, reason })) = outcome else {
                panic!("{outcome:?}")
            };
            assert_eq!((by, during.bucket.is_some()), (rank, true));
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
            reduce(&mut reducer, &[1.0; 10], &mut Local::world(1).remove(0))
        };
        let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
        let words = panic.downcast_ref::<String>().expect("the words of the panic");
        assert_eq!(words, &format!("panic of bucket {bad}"), "{when:?}");
    }
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

#[test]
fn without_channels_buckets_are_exchanged_one_after_another() {
    /// A transport without background channels.
    struct Bare(Local);
    impl Transport for Bare {
        fn rank(&self) -> usize {
            self.0.rank()
        }
        fn world(&self) -> usize {
            self.0.world()
        }
        fn send(&mut self, to: usize, frame: Frame, call: &mut Call) -> Result<(), CommError> {
            self.0.send(to, frame, call)
        }
        fn recv_any(&mut self, from: &[usize], call: &mut Call) -> Result<(usize, Frame), CommError> {
            self.0.recv_any(from, call)
        }
        fn abort(&mut self, during: Scope, reason: &str) {
            self.0.abort(during, reason);
        }
    }
    let averages = run_ranks(local(2).into_iter().map(Bare).collect(), |mut comm| {
        let input = [comm.rank() as f32; 10];
        reduce(&mut Bucketed::new(&layout(), 1, |_| Dense).overlapped(true), &input, &mut comm)
    });
    assert_eq!(averages, vec![Ok(vec![0.5; 10]); 2]);
}
