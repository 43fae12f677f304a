//! A probe's message is the message that is sent, and it is created once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use briquette_core::aggregate::mean::Mean;
use briquette_core::comm::Local;
use briquette_core::compress::{Compressor, ErrorBound, Tunable, random_k::RandomK, top_k::TopK};
use briquette_core::control::{Agreed, Controller, Decision, Needs};
use briquette_core::reduce::{
    AgreedStep, Energies, Knob, Probe, ProbeInput, Ratios, Reducer, Round,
    gather::{Gather, Grain},
};
use briquette_core::state::Stateful;
use briquette_core::wrapper::{adaptive::Adaptive, bucketed::Bucketed};
use briquette_core::{CompressionRatio, Key, Layout, Message};

/// Numbers of calls of `compress_into` and `refine_into`.
#[derive(Debug, Clone, Default)]
struct Calls(Arc<[AtomicUsize; 2]>);

impl Calls {
    /// Returns the numbers since the last call of this function.
    fn take(&self) -> [usize; 2] {
        [&self.0[0], &self.0[1]].map(|calls| calls.swap(0, Relaxed))
    }
}

/// A compressor that counts calls and, if it draws coordinates, draws different ones at every call.
#[derive(Debug)]
struct Counting<C> {
    inner: C,
    /// Set if a message is refined from the previous one.
    refines: bool,
    calls: Calls,
    draws: u64,
}

impl<C> Counting<C> {
    fn new(inner: C, refines: bool) -> (Self, Calls) {
        let calls = Calls::default();
        (Counting { inner, refines, calls: calls.clone(), draws: 0 }, calls)
    }

    fn draw(&mut self, key: Key) -> Key {
        self.draws += 1;
        key.step(self.draws)
    }
}

impl<C: Compressor> Compressor for Counting<C> {
    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        self.calls.0[0].fetch_add(1, Relaxed);
        let key = self.draw(key);
        self.inner.compress_into(x, key, out);
    }
    fn refine_into(&mut self, x: &[f32], coarse: &Message, key: Key, out: &mut Message) {
        if !self.refines {
            return self.compress_into(x, key, out);
        }
        self.calls.0[1].fetch_add(1, Relaxed);
        self.inner.refine_into(x, coarse, key, out);
    }
    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        self.inner.error_bound(x)
    }
    fn nominal(&self) -> CompressionRatio {
        self.inner.nominal()
    }
    fn selects(&self) -> bool {
        self.inner.selects()
    }
    fn knob(&mut self) -> Option<&mut dyn Tunable> {
        self.inner.knob()
    }
}

fn ratio(value: f64) -> CompressionRatio {
    CompressionRatio::new(value).unwrap()
}

/// Requests the gains at 2x and 4x, and decides for the given ratio.
struct Scripted([CompressionRatio; 2], CompressionRatio);

impl Stateful for Scripted {}

impl Controller for Scripted {
    fn needs(&self) -> Needs<'_> {
        Needs { gains: &self.0, ..Needs::default() }
    }
    fn decide(&mut self, agreed: &Agreed<'_>) -> Decision<'_> {
        assert!(agreed.gains.len() == 2 && agreed.gains[0] > agreed.gains[1], "{agreed:?}");
        Decision::all(self.1, None)
    }
}

fn scripted(value: f64) -> Scripted {
    Scripted([ratio(2.0), ratio(4.0)], ratio(value))
}

/// 48 values in three slots.
fn layout() -> Layout {
    Layout::new([("a", vec![4, 4]), ("b", vec![16]), ("c", vec![2, 8])])
}

fn vector(step: u64) -> Vec<f32> {
    (0..48).map(|i| ((i * 37 + step as usize * 11) % 101) as f32 - 50.0).collect()
}

/// Exchanges once on a single rank, and returns what it sent.
fn send(reducer: &mut dyn Reducer, step: u64) -> Vec<f32> {
    let (layout, input, agreed_step) = (layout(), vector(step), AgreedStep { step, ..AgreedStep::default() });
    let (mut average, mut sent) = (vec![0.0; 48], vec![0.0; 48]);
    let (key, slots) = (Key::new(7).step(step), layout.slots());
    let round =
        Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: Some(&mut sent) };
    reducer.exchange(round, &mut Local::world(1).remove(0)).unwrap();
    assert_eq!(average, sent);
    sent
}

fn decoded(compressor: &mut impl Compressor, x: &[f32], key: Key) -> Vec<f32> {
    let (mut message, mut out) = (Message::default(), vec![0.0; x.len()]);
    compressor.compress_into(x, key, &mut message);
    message.decode_into(&mut out).unwrap();
    out
}

#[test]
fn top_k_is_compressed_once_refined_once_and_never_again() {
    let (counting, calls) = Counting::new(TopK::ratio(ratio(2.0)), true);
    let mut reducer = Adaptive::new(Gather::new(counting, Mean), scripted(4.0)).unwrap();
    for step in 0..3 {
        let sent = send(&mut reducer, step);
        assert_eq!(calls.take(), [1, 1], "step {step}");
        assert_eq!(sent, decoded(&mut TopK::ratio(ratio(4.0)), &vector(step), Key::new(0)));
    }
}

#[test]
fn whatever_ratio_is_chosen_nothing_more_is_compressed() {
    for (chosen, kept) in [(2.0, 24), (4.0, 12), (1.0, 48)] {
        for refines in [true, false] {
            let (counting, calls) = Counting::new(TopK::ratio(ratio(8.0)), refines);
            let mut reducer = Adaptive::new(Gather::new(counting, Mean), scripted(chosen)).unwrap();
            for step in 0..3 {
                let sent = send(&mut reducer, step);
                // A compressor that cannot refine starts over for every probe, but not to send.
                assert_eq!(calls.take(), if refines { [1, 1] } else { [2, 0] }, "{chosen}x, step {step}");
                let zeros = vector(step).iter().filter(|v| **v == 0.0).count();
                let count = sent.iter().filter(|v| **v != 0.0).count();
                assert!(count == kept || (chosen == 1.0 && count + zeros == kept), "{chosen}x, step {step}: {count}");
            }
        }
    }
}

#[test]
fn slots_and_buckets_stage_each_their_own() {
    for chosen in [2.0, 4.0] {
        let (counting, calls) = Counting::new(TopK::ratio(ratio(2.0)), true);
        let gather = Gather::new(counting, Mean).grain(Grain::PerSlot);
        let mut per_slot = Adaptive::new(gather, scripted(chosen)).unwrap();
        let (mut parts, counts): (Vec<_>, Vec<_>) =
            (0..3).map(|_| Counting::new(TopK::ratio(ratio(2.0)), true)).unzip();
        let bucketed = Bucketed::new(&layout(), 16, |_| Gather::new(parts.remove(0), Mean));
        let mut bucketed = Adaptive::new(bucketed, scripted(chosen)).unwrap();
        for step in 0..3 {
            let expected: Vec<f32> = layout()
                .slots()
                .iter()
                .flat_map(|slot| decoded(&mut TopK::ratio(ratio(chosen)), &vector(step)[slot.range()], Key::new(0)))
                .collect();
            assert_eq!(send(&mut per_slot, step), expected);
            assert_eq!(calls.take(), [3, 3]);
            assert_eq!(send(&mut bucketed, step), expected);
            assert!(counts.iter().all(|calls| calls.take() == [1, 1]));
        }
    }
}

static TWO: std::sync::LazyLock<[CompressionRatio; 2]> = std::sync::LazyLock::new(|| [ratio(2.0), ratio(4.0)]);

/// A probe at 2x and 4x.
fn probe_of(layout: &Layout, key: Key) -> Probe<'_> {
    Probe { slots: layout.slots(), key, rank: 0, ratios: &*TWO, per_slot: false }
}

#[test]
fn the_message_sent_is_the_very_one_that_was_probed() {
    // It draws again at every call, so a second compression would choose other coordinates. The message with the reported energy
    // is sent.
    let (counting, calls) = Counting::new(RandomK::ratio(ratio(2.0)), false);
    let mut gather = Gather::new(counting, Mean);
    for (step, chosen) in [(0, 0), (1, 1), (2, 0)] {
        let (layout, x, key) = (layout(), vector(step), Key::new(7).step(step));
        let mut energies = Energies::new();
        gather.probe(&probe_of(&layout, key), ProbeInput::Host(&x), &mut energies).unwrap();
        gather.set(Ratios::All(ratio([2.0, 4.0][chosen])));
        let sent = send(&mut gather, step);
        let energy: f64 = sent.iter().map(|v| f64::from(*v).powi(2)).sum();
        assert_eq!(energy, energies.kept(0)[chosen], "step {step}");
        assert_eq!(calls.take(), [2, 0]);
        // The staged message is used up: the same exchange, once more, compresses and draws again.
        assert_ne!(send(&mut gather, step), sent);
        assert_eq!(calls.take(), [1, 0]);
    }
}

#[test]
fn what_was_probed_for_another_key_or_ratio_is_not_sent() {
    let (counting, calls) = Counting::new(TopK::ratio(ratio(2.0)), true);
    let mut gather = Gather::new(counting, Mean);
    let probe = |gather: &mut Gather<_, _>, step| {
        let layout = layout();
        let key = Key::new(7).step(step);
        gather.probe(&probe_of(&layout, key), ProbeInput::Host(&vector(step)), &mut Energies::new()).unwrap();
        assert_eq!(calls.take(), [1, 1]);
    };
    probe(&mut gather, 0);
    gather.set(Ratios::All(ratio(4.0)));
    assert_eq!(send(&mut gather, 1), decoded(&mut TopK::ratio(ratio(4.0)), &vector(1), Key::new(0)));
    assert_eq!(calls.take(), [1, 0]);
    probe(&mut gather, 2);
    gather.set(Ratios::All(ratio(3.0)));
    assert_eq!(send(&mut gather, 2), decoded(&mut TopK::ratio(ratio(3.0)), &vector(2), Key::new(0)));
    assert_eq!(calls.take(), [1, 0]);
}

#[test]
fn slots_send_messages_of_different_probes_and_nothing_is_compressed_again() {
    // It draws again at every call, so the sent values identify the message.
    let (counting, calls) = Counting::new(RandomK::ratio(ratio(2.0)), false);
    let mut gather = Gather::new(counting, Mean).grain(Grain::PerSlot);
    for (step, chosen) in [(0, [0, 1, 0]), (1, [1, 0, 0]), (2, [1, 1, 1])] {
        let (layout, x, key) = (layout(), vector(step), Key::new(7).step(step));
        let mut energies = Energies::new();
        let probe = Probe { per_slot: true, ..probe_of(&layout, key) };
        gather.probe(&probe, ProbeInput::Host(&x), &mut energies).unwrap();
        gather.set(Ratios::PerSlot(&chosen.map(|index| TWO[index])));
        assert_eq!(calls.take(), [6, 0]);
        let sent = send(&mut gather, step);
        assert_eq!(calls.take(), [0, 0]);
        for (row, (slot, index)) in layout.slots().iter().zip(chosen).enumerate() {
            let energy: f64 = sent[slot.range()].iter().map(|v| f64::from(*v).powi(2)).sum();
            assert_eq!(energy, energies.kept(row)[index], "step {step}, slot {row}");
        }
    }
}

/// A step that is rejected after its probe is repeated under the same key, with other values.
#[test]
fn what_a_refused_step_staged_is_sent_by_no_other() {
    let layout = Layout::flat(64);
    let [refused, values] = [1.0_f32, -3.0].map(|by| (0..64).map(|i| by * (i as f32 - 20.5)).collect::<Vec<_>>());
    let (key, two) = (Key::new(1).step(4), CompressionRatio::new(2.0).unwrap());
    let average = |staged: Option<&[f32]>| {
        let found = Local::run(1, |mut comm| {
            let mut gather = Gather::new(TopK::ratio(two), Mean);
            let knob = gather.knob().expect("top-k has one");
            knob.set(Ratios::All(two));
            if let Some(input) = staged {
                let probe = Probe { slots: layout.slots(), ratios: &[two], per_slot: false, key, rank: 0 };
                knob.probe(&probe, ProbeInput::Host(input), &mut Energies::default()).unwrap();
                gather.discard();
            }
            let (mut average, agreed_step) = (vec![0.0; 64], AgreedStep::default());
            let round = Round {
                key,
                slots: layout.slots(),
                agreed_step: &agreed_step,
                input: &values,
                average: &mut average,
                sent: None,
            };
            gather.reduce(round, &mut comm).map(|_| average)
        });
        found.into_iter().next().expect("one rank").unwrap()
    };
    assert_eq!(average(Some(&refused)), average(None));
}
