//! Packed ranges of a vector: the bits of the twin in host memory, which is reached through the same operations.

use std::ops::Range;

use briquette_core::compress::{Compressor, min_max::MinMax, top_k::TopK};
use briquette_core::laws::{HostDevice, Kernels};
use briquette_core::reduce::{DeviceVector, Mask};
use briquette_core::{Key, Layout, Message};
use briquette_device::{Gradient, pack, unpack};

use crate::devices::{normal, runs, same};

/// Ranges of vectors: none, empty ones, one slot, neighbors, any order, many slots, and borders next to those of tiles.
#[allow(clippy::single_range_in_vec_init)] // one range is one slot
fn cases() -> Vec<(usize, Vec<Range<usize>>)> {
    let many = |len: usize, stride: usize, slot: usize| {
        (len, (0..len / stride).map(|index| index * stride + 1..index * stride + 1 + slot).collect())
    };
    let mut cases = vec![
        (0, vec![]),
        (10, vec![]),
        (10, vec![3..3, 10..10]),
        (1, vec![0..1]),
        (9000, vec![0..9000]),
        (9000, vec![8999..9000, 0..1]),
        (9000, vec![0..77, 77..4200, 4200..9000]),
        (9000, vec![5000..9000, 100..100, 0..4096, 4500..4501]),
        many(9000, 3, 1),
        many(20_000, 7, 5),
        many(40_000, 9000, 8000),
        many(300_000, 4100, 4090),
    ];
    for border in [255, 256, 257, 4095, 4096, 4097, 8191, 8192, 8193] {
        cases.push((20_000, vec![2..2 + border]));
        cases.push((20_000, vec![2..3, 7..7 + border, 9000..9000, 9001..9001 + border]));
    }
    cases
}

#[test]
fn ranges_are_packed_and_copied_back_to_their_places() {
    for run in &runs() {
        for (len, ranges) in cases() {
            let (x, what) = (normal(len, 1.0), format!("{len} values, {} ranges, {run:?}", ranges.len()));
            let vector = run.upload(&x);
            let expected: Vec<f32> = ranges.iter().flat_map(|range| &x[range.clone()]).copied().collect();
            let before = run.work();
            let packed = pack(run, &vector, &ranges);
            let after = run.work();
            assert!(after.launches - before.launches <= 1, "{what}");
            assert!(after.up - before.up <= 4 * (2 * ranges.len() + 1) && after.down == before.down, "{what}");
            assert!(same(run, &run.read(&packed).unwrap(), &expected), "packed, {what}");
            let mut host = vec![7.0; len];
            let out = run.upload(&host);
            unpack(run, Some(&packed), &ranges, &out);
            ranges.iter().for_each(|range| host[range.clone()].copy_from_slice(&x[range.clone()]));
            assert!(same(run, &run.read(&out).unwrap(), &host), "copied back, {what}");
            unpack(run, None, &ranges, &out);
            ranges.iter().for_each(|range| host[range.clone()].fill(0.0));
            assert!(same(run, &run.read(&out).unwrap(), &host), "cleared, {what}");
        }
    }
}

/// Copies values to the host.
fn read(vector: &mut dyn DeviceVector) -> Vec<f32> {
    let mut values = vec![0.0; vector.len()];
    vector.fetch(0..values.len(), &mut values).unwrap();
    values
}

/// Exchanges packed ranges of a vector by themselves, and returns all that results: the packed values, the average, the remainder and the
/// masked velocity of the whole vector.
fn exchange(vector: &mut dyn DeviceVector, ranges: &[Range<usize>], compressor: &mut dyn Compressor) -> [Vec<f32>; 4] {
    let velocity: Vec<f32> = (0..vector.len()).map(|i| i as f32 + 0.5).collect();
    let mut velocity = vector.upload(&velocity).unwrap();
    vector.put_average(0, &vec![0.25; vector.len()]).unwrap();
    let mut packed = vector.pack(ranges).unwrap();
    let (values, all, layout) = (read(&mut *packed), 0..packed.len(), Layout::flat(packed.len()));
    let mut message = Message::default();
    assert_eq!(packed.encode(compressor, all.clone(), Key::new(1), &mut message), Ok(true));
    assert_eq!(packed.average(all.clone(), 1.0, &[&message], 0), Ok(true));
    assert_eq!(packed.is_average_finite(all.clone()), Ok(true));
    vector.unpack_average(ranges, &*packed.take_average().unwrap()).unwrap();
    assert_eq!(packed.len(), all.len(), "the length stays");
    let mut masked = velocity.pack(ranges);
    packed.mask(all.clone(), &message, Mask::SENT, &mut *masked).unwrap();
    velocity.unpack(ranges, &*masked);
    packed.subtract(all, &message, layout.slots()).unwrap();
    assert!(packed.subtracted().unwrap().1);
    vector.unpack(ranges, Some(&*packed.take().unwrap())).unwrap();
    let average = vector.take_average().unwrap().fetch();
    [values, average, read(vector), velocity.fetch()]
}

#[test]
fn packed_vectors_have_the_bits_of_the_twin() {
    for run in &runs() {
        for (len, ranges) in cases() {
            if ranges.iter().all(Range::is_empty) || len > 20_000 {
                continue;
            }
            let x = normal(len, 1.0);
            let compressors: [Box<dyn Compressor>; 2] =
                [Box::new(TopK::fraction(0.1).unwrap()), Box::new(MinMax::new())];
            for (number, mut compressor) in compressors.into_iter().enumerate() {
                let mut gradient = Gradient::new(run, len, [(0, run.upload(&x))]);
                let device = exchange(&mut gradient, &ranges, &mut *compressor);
                let host = exchange(&mut HostDevice::new(x.clone(), Kernels::All), &ranges, &mut *compressor);
                for ((name, device), host) in
                    ["values", "average", "remainder", "velocity"].iter().zip(&device).zip(&host)
                {
                    let what = format!("{name}, {len} values, {} ranges, compressor {number}, {run:?}", ranges.len());
                    assert!(same(run, device, host), "{what}");
                }
            }
        }
    }
}
