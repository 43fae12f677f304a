//! Measurements for controllers are agreed, unneeded ones cost nothing, and slots get the ratios decided for them.

use briquette_core::aggregate::mean::Mean;
use briquette_core::comm::{Local, Session};
use briquette_core::compress::{
    Compressor, Norm, dense::Dense as Identity, qsgd::Qsgd, random_k::RandomK, top_k::TopK,
};
use briquette_core::control::{Agreed, Controller, Decision, Moments, Needs};
use briquette_core::error::ReduceError;
use briquette_core::reduce::{
    AgreedStep, Ratios, Reducer, Round,
    gather::{Gather, Grain},
    shared_random_k::SharedRandomK,
};
use briquette_core::report::Report;
use briquette_core::state::Stateful;
use briquette_core::wrapper::{adaptive::Adaptive, bucketed::Bucketed};
use briquette_core::{CompressionRatio, Key, Layout, Message, Traffic};

fn ratio(value: f64) -> CompressionRatio {
    CompressionRatio::new(value).unwrap()
}

fn ratios(values: &[f64]) -> Vec<CompressionRatio> {
    values.iter().map(|value| ratio(*value)).collect()
}

/// Agreed values, by name.
#[derive(Debug, Clone, Default, PartialEq)]
struct Seen {
    norm2: f64,
    moments: Moments,
    gains: Vec<f64>,
    rows: Vec<(f64, Vec<f64>)>,
}

/// Requests and decides the given values, and records what it saw.
#[derive(Debug, Default)]
struct Given {
    gains: Vec<CompressionRatio>,
    slots: bool,
    norm: bool,
    moments: bool,
    decided: Option<Vec<CompressionRatio>>,
    seen: Seen,
}

impl Stateful for Given {}

impl Controller for &mut Given {
    fn per_slot(&self) -> bool {
        self.slots && !self.gains.is_empty() || self.decided.as_ref().is_some_and(|decided| decided.len() > 1)
    }
    fn needs(&self) -> Needs<'_> {
        Needs { gains: &self.gains, slots: self.slots, norm: self.norm, moments: self.moments }
    }
    fn decide(&mut self, agreed: &Agreed<'_>) -> Decision<'_> {
        let rows = (0..agreed.energies.rows()).map(|r| (agreed.energies.norm2(r), agreed.energies.kept(r).to_vec()));
        let (norm2, moments, gains) = (agreed.norm2, agreed.moments, agreed.gains.to_vec());
        self.seen = Seen { norm2, moments, gains, rows: rows.collect() };
        let ratios = match &self.decided {
            None => Ratios::Own,
            Some(decided) if decided.len() == 1 => Ratios::All(decided[0]),
            Some(decided) => Ratios::PerSlot(decided),
        };
        Decision { ratios, reason: None }
    }
}

/// 48 values in three slots.
fn layout() -> Layout {
    Layout::new([("a", vec![4, 4]), ("b", vec![24]), ("c", vec![2, 4])])
}

fn vector(rank: usize) -> Vec<f32> {
    (0..48).map(|i| ((i * 37 + rank * 11) % 101) as f32 - 50.0).collect()
}

/// Exchanges once. Returns the average, the bytes, and the reported ratio.
fn reduce(reducer: &mut dyn Reducer, comm: &mut Session) -> Result<(Vec<f32>, Traffic, f64), ReduceError> {
    let (layout, input, agreed_step) = (layout(), vector(comm.rank()), AgreedStep::default());
    let (mut average, slots, before) = (vec![0.0; 48], layout.slots(), comm.traffic());
    let round =
        Round { key: Key::new(7), slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None };
    let exchanged = reducer.reduce(round, comm)?;
    assert_eq!(exchanged.traffic, comm.traffic() - before);
    let mut report = Report::default();
    reducer.report(&mut report);
    Ok((average, exchanged.traffic, report.ratio.unwrap().get()))
}

/// Returns what every rank's controller saw, and the number of additional bytes that it sent to each other rank.
fn measured(needs: impl Fn() -> Given + Sync, grain: Grain) -> (Seen, u64) {
    measured_in_buckets(needs, grain, 1000)
}

fn measured_in_buckets(needs: impl Fn() -> Given + Sync, grain: Grain, min_values: usize) -> (Seen, u64) {
    let ranks = Local::run(3, |mut comm| {
        let gather =
            || Bucketed::new(&layout(), min_values, |_| Gather::new(TopK::ratio(ratio(4.0)), Mean).grain(grain));
        let mut given = needs();
        let (_, alone, _) = reduce(&mut gather(), &mut comm)?;
        let (_, controlled, _) = reduce(&mut Adaptive::new(gather(), &mut given).unwrap(), &mut comm)?;
        assert_eq!(controlled.sent - alone.sent, controlled.received - alone.received);
        Ok::<_, ReduceError>((given.seen, (controlled.sent - alone.sent) / 2))
    });
    let ranks: Vec<_> = ranks.into_iter().map(Result::unwrap).collect();
    assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{ranks:?}");
    ranks[0].clone()
}

fn sum(x: impl Iterator<Item = f32>, term: fn(f64) -> f64) -> f64 {
    x.map(|x| term(f64::from(x))).sum()
}

/// Returns the energy that top-k keeps of the values in this range, over the three ranks.
fn kept(range: std::ops::Range<usize>, ratio: CompressionRatio) -> f64 {
    (0..3)
        .map(|rank| {
            let (x, mut message) = (&vector(rank)[range.clone()], Message::default());
            TopK::ratio(ratio).compress_into(x, Key::new(0), &mut message);
            message.kept_energy(x)
        })
        .sum()
}

#[test]
fn what_is_not_needed_is_neither_measured_nor_sent() {
    for grain in [Grain::Whole, Grain::PerSlot] {
        assert_eq!(measured(Given::default, grain), (Seen::default(), 0));
    }
}

#[test]
fn a_norm_is_one_number_and_needs_no_probe() {
    let (seen, bytes) = measured(|| Given { norm: true, ..Given::default() }, Grain::Whole);
    let norm2 = sum((0..3).flat_map(vector), |x| x * x);
    assert_eq!((seen.norm2, seen.gains, bytes), (norm2, vec![], 8));
}

#[test]
fn moments_are_those_of_all_values_of_all_ranks() {
    let (seen, bytes) = measured(|| Given { moments: true, ..Given::default() }, Grain::Whole);
    let values: Vec<f64> = (0..3).flat_map(vector).map(f64::from).collect();
    let mean = values.iter().sum::<f64>() / 144.0;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 144.0;
    assert!((seen.moments.mean - mean).abs() < 1e-12 && (seen.moments.deviation - variance.sqrt()).abs() < 1e-9);
    assert_eq!(bytes, 16);
}

#[test]
fn gains_of_the_whole_vector_are_agreed() {
    let (seen, bytes) = measured(|| Given { gains: ratios(&[2.0, 8.0]), ..Given::default() }, Grain::Whole);
    let expected = [2.0, 8.0].map(|f| kept(0..48, ratio(f)) / seen.norm2);
    assert_eq!((seen.gains, bytes), (expected.to_vec(), 24));
}

#[test]
fn norms_of_slots_need_no_message_of_their_own() {
    for grain in [Grain::Whole, Grain::PerSlot] {
        let (seen, bytes) = measured(|| Given { slots: true, ..Given::default() }, grain);
        let norm2 =
            |range: std::ops::Range<usize>| sum((0..3).flat_map(|r| vector(r)[range.clone()].to_vec()), |x| x * x);
        let expected = [0..16, 16..40, 40..48].map(|range| (norm2(range), vec![]));
        assert_eq!((seen.rows, seen.norm2, bytes), (expected.to_vec(), norm2(0..48), 24));
    }
}

#[test]
fn gains_of_slots_add_up_to_those_of_the_vector() {
    let needs = || Given { gains: ratios(&[2.0, 8.0]), slots: true, ..Given::default() };
    let (seen, bytes) = measured(needs, Grain::PerSlot);
    for (row, range) in seen.rows.iter().zip([0..16, 16..40, 40..48]) {
        assert_eq!(row.1, [2.0, 8.0].map(|f| kept(range.clone(), ratio(f))));
    }
    let whole = |index: usize| seen.rows.iter().map(|row| row.1[index]).sum::<f64>() / seen.norm2;
    assert_eq!((seen.gains.clone(), bytes), (vec![whole(0), whole(1)], 3 * 3 * 8));
    for min_values in [1, 20] {
        assert_eq!(measured_in_buckets(needs, Grain::PerSlot, min_values), (seen.clone(), bytes));
    }
}

#[test]
fn every_slot_is_compressed_as_decided_for_it_in_buckets_or_not() {
    // 16 values at 2x, 24 at 3x, 8 at 8x: 8, 8 and 1 kept.
    let decided = ratios(&[2.0, 3.0, 8.0]);
    let expected: Vec<f32> = [0..16, 16..40, 40..48]
        .into_iter()
        .zip(&decided)
        .flat_map(|(range, ratio)| {
            let (x, mut message) = (&vector(0)[range], Message::default());
            TopK::ratio(*ratio).compress_into(x, Key::new(0), &mut message);
            let mut out = vec![0.0; x.len()];
            message.decode_into(&mut out).unwrap();
            out
        })
        .collect();
    for probed in [vec![], ratios(&[2.0, 8.0])] {
        for min_values in [1, 20, 1000] {
            let mut given = Given { gains: probed.clone(), decided: Some(decided.clone()), ..Given::default() };
            let make = |_| Gather::new(TopK::ratio(ratio(5.0)), Mean).grain(Grain::PerSlot);
            let mut adaptive = Adaptive::new(Bucketed::new(&layout(), min_values, make), &mut given).unwrap();
            let (average, _, ratio) = reduce(&mut adaptive, &mut Local::world(1).remove(0)).unwrap();
            assert_eq!(average, expected, "{probed:?}, buckets of {min_values}");
            assert!((ratio - 48.0 / 17.0).abs() < 1e-12, "{ratio}");
        }
    }
}

#[test]
fn its_own_setting_comes_back_after_others() {
    for own in [4.0, 6.0] {
        let mut comm = Local::world(1).remove(0);
        let mut gather = Gather::new(TopK::ratio(ratio(own)), Mean).grain(Grain::PerSlot);
        let alone = reduce(&mut gather, &mut comm).unwrap();
        for decided in [ratios(&[2.0, 3.0, 8.0]), ratios(&[2.0])] {
            gather.knob().unwrap().set(match &decided[..] {
                [all] => Ratios::All(*all),
                each => Ratios::PerSlot(each),
            });
            assert_ne!(reduce(&mut gather, &mut comm).unwrap().0, alone.0);
            gather.knob().unwrap().set(Ratios::Own);
            assert_eq!(reduce(&mut gather, &mut comm).unwrap(), alone);
        }
    }
}

#[test]
fn bits_a_value_are_a_unit_of_the_ratio() {
    for bits in 2..=8 {
        let mut given = Given { decided: Some(vec![CompressionRatio::of_bits(bits)]), ..Given::default() };
        let qsgd = |bits| Gather::new(Qsgd::new(bits, 16, Norm::Max).unwrap(), Mean);
        let mut adaptive = Adaptive::new(qsgd(4), &mut given).unwrap();
        let mut comm = Local::world(1).remove(0);
        let turned = reduce(&mut adaptive, &mut comm).unwrap();
        assert_eq!(turned, reduce(&mut qsgd(bits), &mut comm).unwrap(), "{bits} bits");
    }
}

#[test]
fn where_every_slot_is_dense_a_ring_is_used() {
    let ranks = Local::run(3, |mut comm| {
        let mut given = Given { decided: Some(ratios(&[1.0; 3])), ..Given::default() };
        let gather = Gather::new(RandomK::ratio(ratio(4.0)), Mean).grain(Grain::PerSlot);
        let (_, traffic, ratio) = reduce(&mut Adaptive::new(gather, &mut given).unwrap(), &mut comm)?;
        assert_eq!((traffic.sent, ratio), (2 * 4 * 48, 1.0), "48 values to two ranks");
        Ok::<_, ReduceError>(())
    });
    ranks.into_iter().for_each(|rank| rank.unwrap());
}

#[test]
fn what_cannot_have_a_ratio_for_each_slot_is_refused() {
    let per_slot = || Given { decided: Some(ratios(&[2.0, 3.0, 8.0])), ..Given::default() };
    let gather = || Gather::new(TopK::ratio(ratio(2.0)), Mean);
    let bucketed = |grain| Bucketed::new(&layout(), 16, move |_| gather().grain(grain));
    for (refused, reducer) in [
        (true, Box::new(gather()) as Box<dyn Reducer>),
        (true, Box::new(bucketed(Grain::Whole))),
        (true, Box::new(SharedRandomK::new(ratio(2.0)))),
        (false, Box::new(gather().grain(Grain::PerSlot))),
        (false, Box::new(bucketed(Grain::PerSlot))),
    ] {
        let built = Adaptive::new(reducer, &mut per_slot()).map(drop);
        assert_eq!(built.as_ref().is_err_and(|e| e.to_string().contains("per_slot = true")), refused, "{built:?}");
    }
    let identity = Adaptive::new(Gather::new(Identity, Mean), &mut Given::default()).map(drop);
    assert!(identity.unwrap_err().to_string().contains("no adjustable ratio"));
}
