//! Properties that hold for any bytes from other ranks in a step's header, in a sparse all-reduce and to or from a server.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use briquette_core::comm::{Call, Frame, Scope, Session, Transport};
use briquette_core::compress::dense::Dense;
use briquette_core::error::{CommError, ReduceError};
use briquette_core::reduce::{AgreedStep, LastExchange, Reducer, Round};
use briquette_core::report::ResidualEnergy;
use briquette_core::server::{
    Batch, Computed, PolicySettings, Server, Trainer, Uplink, async_sgd::AsyncSgd, serve, work,
};
use briquette_core::sync::{Agreement, Header, StopFlags, agree};
use briquette_core::{CompressionRatio, Key, Layout, Traffic};
use briquette_zoo::reduce::sparse_all_reduce::SparseAllReduce;

use super::asked::asked;
use super::claims::frame_of;

/// Memory that a step may request in addition to what was received: the vectors of these short inputs, error messages, lists of
/// frames, and the session's record of its last transfers.
const OWN: u64 = (64 << 10) + 96_000;

/// One rank of a world in which the other ranks send the frames of a script.
struct Scripted {
    rank: usize,
    world: usize,
    script: Vec<VecDeque<Frame>>,
    last: Arc<Mutex<Frame>>,
}

impl Scripted {
    /// `script[r]` lists the frames that rank `r` sends.
    fn new(rank: usize, script: Vec<VecDeque<Frame>>) -> Scripted {
        let world = script.len();
        Scripted { rank, world, script, last: Arc::default() }
    }
}

impl Transport for Scripted {
    fn rank(&self) -> usize {
        self.rank
    }
    fn world(&self) -> usize {
        self.world
    }
    fn send(&mut self, _to: usize, frame: Frame, _call: &mut Call) -> Result<(), CommError> {
        *self.last.lock().expect("no panic while it is held") = frame;
        Ok(())
    }
    fn recv_any(&mut self, from: &[usize], call: &mut Call) -> Result<(usize, Frame), CommError> {
        let (from, cause) = (from[0], "it says nothing more".to_owned());
        let silent = CommError::Lost { rank: self.rank, other: from, address: None, during: call.scope, cause };
        self.script[from].pop_front().map(|frame| (from, frame)).ok_or(silent)
    }
    fn abort(&mut self, _during: Scope, _reason: &str) {}
}

/// Takes numbers from the front of an input, and zeros after its end.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let (taken, rest) = self.0.split_at(N.min(self.0.len()));
        out[..taken.len()].copy_from_slice(taken);
        self.0 = rest;
        out
    }
    fn byte(&mut self) -> u8 {
        self.bytes::<1>()[0]
    }
    fn word(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }
    fn float(&mut self) -> f64 {
        f64::from_bits(self.word())
    }
    fn take(&mut self, count: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken.to_vec()
    }
}

fn header(numbers: &mut Numbers<'_>, step: u64) -> Header {
    let flags = numbers.byte();
    let given = |bit: u8| flags >> bit & 1 == 1;
    let stop = [(0, StopFlags::INTERRUPTED), (1, StopFlags::EARLY)];
    let stop = stop.into_iter().filter(|(bit, _)| given(*bit)).fold(StopFlags::NONE, |sum, (_, flag)| sum.with(flag));
    let previous = LastExchange {
        compress_seconds: numbers.float(),
        exchange_seconds: numbers.float(),
        traffic: Traffic { sent: numbers.word(), received: numbers.word() },
        residual_energy: ResidualEnergy { entered: numbers.float(), left: numbers.float() },
        ..LastExchange::default()
    };
    let more = numbers.byte();
    Header {
        gave_up: false,
        // Usually the same on all ranks.
        samples_recorded: more & 2 == 0,
        digest: (more & 1 == 1).then_some(u64::from(more >> 2)),
        // The session's number is the top byte of the step's.
        session: u8::from(given(2)),
        step: if given(2) { numbers.word() >> 8 } else { step },
        bad_slot: given(3).then(|| u32::from(numbers.byte())),
        stop,
        samples: numbers.word() >> (numbers.byte() % 64),
        loss: Some(numbers.float()).filter(|loss| given(4) && !loss.is_nan()),
        validation_loss: Some(numbers.float()).filter(|loss| given(7) && !loss.is_nan()),
        learning_rate: given(5).then_some(0.1),
        compute_seconds: numbers.float(),
        previous: given(6).then_some(previous),
    }
}

/// Checks that, whatever numbers ranks send, all ranks agree on the same values, or all find an error. A frame that no rank
/// would send is an error, or is read as numbers like any other.
pub fn check_headers(input: &[u8]) {
    let mut numbers = Numbers(input);
    let (world, slots) = (2 + usize::from(numbers.byte() % 3), usize::from(numbers.byte() % 20));
    let layout = Layout::new((0..slots).map(|slot| (format!("slot {slot}"), vec![1])));
    let step = numbers.word() >> 8;
    let before = AgreedStep { samples: numbers.word(), compute_seconds: numbers.float(), ..AgreedStep::default() };
    let headers: Vec<Header> = (0..world).map(|_| header(&mut numbers, step)).collect();
    let present: Vec<Vec<bool>> = (0..world).map(|_| (0..slots).map(|_| numbers.byte() & 1 == 1).collect()).collect();
    let hear = |rank: usize, script: Vec<VecDeque<Frame>>| {
        let (scripted, mut present) = (Scripted::new(rank, script), present[rank].clone());
        let (last, mut comm) = (Arc::clone(&scripted.last), Session::from(scripted));
        let agreed = agree(&headers[rank], Some(&before), layout.slots(), &mut present, &mut comm);
        (agreed, present, std::mem::take(&mut *last.lock().expect("no panic while it is held")))
    };
    let said: Vec<Frame> = (0..world).map(|rank| hear(rank, vec![VecDeque::new(); world]).2).collect();
    let script = || said.iter().map(|frame| VecDeque::from([frame.clone()])).collect::<Vec<_>>();
    let all: Vec<_> = (0..world).map(|rank| hear(rank, script())).collect();
    for (rank, (agreed, present, _)) in all.iter().enumerate() {
        let (first, slots, _) = &all[0];
        match (agreed, first) {
            (Ok(agreed), Ok(first)) => {
                assert_eq!(
                    format!("{:?}", agreed.agreed_step),
                    format!("{:?}", first.agreed_step),
                    "ranks 0 and {rank} differ"
                );
                assert_eq!((agreed.stop, present), (first.stop, slots), "ranks 0 and {rank} differ");
                check_agreement(agreed, world);
            }
            (Err(one), Err(other)) => assert_eq!(std::mem::discriminant(one), std::mem::discriminant(other)),
            (one, other) => panic!("rank {rank} finds {one:?}, rank 0 {other:?}"),
        }
    }
    let mut noise = script();
    let at = usize::from(numbers.byte());
    let mut frame = numbers.take(input.len());
    if at % 2 == 0 {
        frame.resize(said[0].len(), 0);
    }
    noise[1 + at % (world - 1)] = VecDeque::from([frame]);
    if let Ok(agreed) = hear(0, noise).0 {
        check_agreement(&agreed, world);
    }
}

fn check_agreement(agreed: &Agreement, world: usize) {
    assert!(agreed.weight >= 0.0 && agreed.weight <= world as f32 * 1.001, "weight {}", agreed.weight);
}

/// Checks frames of unexpected length, places outside of the vector, and messages of any kind: an error, or a finite average.
pub fn check_sparse_all_reduce(input: &[u8]) {
    let mut numbers = Numbers(input);
    let (world, len) = (2 + usize::from(numbers.byte() % 3), usize::from(numbers.byte() % 64));
    let ratio = CompressionRatio::new(1.0 + f64::from(numbers.byte()) / 16.0).expect("at least 1");
    let values: Vec<f32> =
        (0..len).map(|i| f32::from(i8::from_le_bytes([numbers.byte()])) * 1.5_f32.powi(i as i32 % 90)).collect();
    let mut script = vec![VecDeque::new(); world];
    let mut received = 0;
    for turn in 0..3 * (world - 1) {
        let (kind, count) = (numbers.byte(), usize::from(numbers.byte()));
        let bytes = numbers.take(count);
        let frame = match kind % 4 {
            // Integer places, small ones: quantiles.
            0 => bytes.iter().flat_map(|byte| u32::from(*byte).to_le_bytes()).collect(),
            1 => bytes,
            _ => frame_of(kind / 4 % 16, &bytes),
        };
        received += frame.len() as u64;
        script[1 + turn % (world - 1)].push_back(frame);
    }
    let layout = Layout::flat(len);
    let (mut average, mut sent) = (vec![f32::NAN; len], vec![f32::NAN; len]);
    let mut comm = Session::from(Scripted::new(0, script));
    let round = Round {
        key: Key::new(1),
        slots: layout.slots(),
        agreed_step: &AgreedStep::default(),
        input: &values,
        average: &mut average,
        sent: Some(&mut sent),
    };
    let begin = asked();
    let reduced = SparseAllReduce::new(ratio).reduce(round, &mut comm);
    let took = asked() - begin;
    assert!(took <= 20 * received + OWN, "{received} bytes took {took} of memory");
    if reduced.is_ok() {
        assert!(average.iter().all(|v| v.is_finite()), "{average:?}");
        assert!(sent.iter().zip(&values).all(|(sent, own)| sent == own || *sent == 0.0), "{sent:?} of {values:?}");
    }
}

/// Reports that it took a batch, whatever is requested.
struct Idle;

impl Trainer for Idle {
    type Error = ReduceError;

    fn gradient(&mut self, x: &[f32], _: Batch, out: &mut Vec<f32>) -> Result<Computed, ReduceError> {
        out.clear();
        out.resize(x.len(), 0.5);
        Ok(Computed { samples: 1, loss: 0.0, batches: 1 })
    }

    fn step(&mut self, x: &mut Vec<f32>, gradient: &[f32], _: u64) -> Result<(), ReduceError> {
        x.iter_mut().zip(gradient).for_each(|(x, g)| *x -= g);
        Ok(())
    }
}

/// Checks contributions to a server of two workers, and assignments to a worker: errors, or a finite model.
pub fn check_server(input: &[u8]) {
    let mut numbers = Numbers(input);
    let (serves, len) = (numbers.byte() % 2 == 0, usize::from(numbers.byte() % 8));
    let mut script = vec![VecDeque::new(); 3];
    let mut received = 0;
    while !numbers.0.is_empty() {
        let (kind, count) = (numbers.byte(), usize::from(numbers.byte()));
        let from = if serves { 1 + usize::from(kind % 2) } else { 0 };
        let mut frame = numbers.take(if serves { 29 } else { 14 });
        // A worker's steps take time, and the worker trusts the server's number of steps.
        if let (false, Some(steps)) = (serves, frame.get_mut(3..6)) {
            steps.fill(0);
        }
        let rest = numbers.take(count);
        match kind / 2 % 3 {
            0 if serves => frame.extend(frame_of(kind / 6, &rest)),
            0 => frame.extend((0..len).flat_map(|i| f32::from(rest.get(i).copied().unwrap_or(1)).to_le_bytes())),
            _ => frame.extend(rest),
        }
        received += frame.len() as u64;
        script[from].push_back(frame);
    }
    let mut x = vec![1.0; len];
    let mut comm = Session::from(Scripted::new(usize::from(!serves), script));
    let begin = asked();
    let done = if serves {
        let mut server = Server::new(AsyncSgd.build(2).expect("two workers"), x.clone(), 2);
        let served = serve(&mut server, &mut Idle, 4, &mut comm);
        x.copy_from_slice(server.model());
        served
    } else {
        let mut uplink = Uplink::new(Dense, true);
        work(&mut uplink, &mut Idle, (0, &mut 0), (Key::new(1), &mut x), &mut comm).map(|_| ())
    };
    let took = asked() - begin;
    assert!(took <= 40 * received + OWN, "{received} bytes took {took} of memory");
    assert!(!serves || done.is_err() || x.iter().all(|v| v.is_finite()), "{x:?}");
}
