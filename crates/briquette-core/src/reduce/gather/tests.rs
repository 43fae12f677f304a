use super::*;
use crate::Layout;
use crate::aggregate::mean::Mean;
use crate::comm::{Local, run_ranks};
use crate::compress::{random_k::RandomK, top_k::TopK};
use crate::laws::{HostDevice, Kernels};
use crate::seam::{AgreedStep, DeviceInput, Energies, Probe, ProbeInput, Ratios};

/// Each keeps 32 of 64 values. If they were the same, the mean would have no more than these.
#[test]
fn ranks_draw_numbers_of_their_own() {
    let ranks = run_ranks(Local::world(2), |mut comm| {
        let (layout, agreed_step, mut average) = (Layout::flat(64), AgreedStep::default(), vec![0.0; 64]);
        let (key, slots, input) = (Key::new(2), layout.slots(), [1.0; 64]);
        let round = Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None };
        Gather::new(RandomK::fraction(0.5).unwrap(), Mean).reduce(round, &mut comm)?;
        Ok::<_, ReduceError>(average.iter().filter(|value| **value != 0.0).count())
    });
    let counts: Vec<usize> = ranks.into_iter().map(Result::unwrap).collect();
    assert!(counts[0] > 36 && counts == [counts[0]; 2], "{counts:?}");
}

/// 8 values at 2x and 24 at 4x: 4 + 6 of 32 are sent, which is 3.2x.
#[test]
fn the_ratio_of_all_slots_is_by_what_is_sent_by_hand() {
    let (layout, agreed_step, mut average) =
        (Layout::new([("a", vec![8]), ("b", vec![24])]), AgreedStep::default(), vec![0.0; 32]);
    let mut gather = Gather::new(TopK::fraction(0.1).unwrap(), Mean).grain(Grain::PerSlot);
    gather.set(Ratios::PerSlot(&[2.0, 4.0].map(CompressionRatio::constant)));
    let (key, slots, input) = (Key::new(2), layout.slots(), [1.0; 32]);
    let round = Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None };
    gather.reduce(round, &mut Local::world(1).remove(0)).unwrap();
    let mut report = Report::default();
    gather.report(&mut report);
    assert_eq!(report.ratio.map(CompressionRatio::get), Some(3.2));
    assert_eq!(average.iter().filter(|value| **value != 0.0).count(), 10);
}

/// A probe on a device reads the kept values, unless these are more than half of the vector, and leaves the ratio as it was, also if the device fails.
#[test]
fn a_probe_on_a_device_reads_less_than_a_copy_and_restores_the_ratio() {
    let layout = Layout::flat(400);
    let x: Vec<f32> = (0..400).map(|i| (i as f32 - 99.5) * 0.5).collect();
    let probe = |ratios: [f64; 2], operations: Option<usize>| {
        let ratios = ratios.map(CompressionRatio::constant);
        let probe = Probe { slots: layout.slots(), key: Key::new(2), rank: 0, ratios: &ratios, per_slot: false };
        let mut gather = Gather::new(TopK::fraction(0.01).unwrap(), Mean);
        let mut vector = HostDevice::new(x.clone(), Kernels::All);
        operations.into_iter().for_each(|operations| vector.fail_after(operations));
        let (mut on_device, mut on_host) = (Energies::new(), Energies::new());
        let mut input = DeviceInput::new(&mut vector, 1);
        let found = gather.probe(&probe, ProbeInput::Device(input.whole()), &mut on_device);
        assert_eq!(gather.compressor.nominal().get(), 100.0);
        Gather::new(TopK::fraction(0.01).unwrap(), Mean).probe(&probe, ProbeInput::Host(&x), &mut on_host).unwrap();
        (found, on_device == on_host, vector.down())
    };
    let (found, is_equal, down) = probe([10.0, 50.0], None);
    assert!(found == Ok(true) && is_equal && (100..800).contains(&down), "{found:?}, {is_equal}, {down}");
    assert_eq!(probe([3.0, 5.0], None), (Ok(false), false, 0));
    // The norm, then one message for each ratio.
    for operations in 0..3 {
        let (found, ..) = probe([10.0, 50.0], Some(operations));
        assert!(found.is_err(), "{operations}: {found:?}");
    }
}
