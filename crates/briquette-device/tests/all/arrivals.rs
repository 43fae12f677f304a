//! Gradients that arrive on their device during the backward pass: the bits of complete gradients, on the device and on the host.

use std::ops::Range;

use briquette_core::config::{Config, Exchange};
use briquette_core::error::{ConfigError, ReduceError, SyncError};
use briquette_core::laws::{self, Delivered, HostDevice, Kernels, Setup, Synchronizes, assert_same_runs};
use briquette_core::reduce::{Arriving, DeviceCopies, DevicePart, DevicePlace, DeviceVector, Velocity};
use briquette_core::sync::{Context, SyncStrategy};
use briquette_core::{Layout, Session, Slot};
use briquette_device::{Arrivals, Gradient, Run};

use crate::devices::{normal, runs};

fn fetch(vector: &mut dyn DeviceVector) -> Vec<f32> {
    let mut values = vec![0.0; vector.len()];
    vector.fetch(0..values.len(), &mut values).unwrap();
    values
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn tensors_arrive_in_any_order_and_those_that_are_not_finite_are_zeros() {
    for run in runs() {
        let lengths = [5000, 3, 0, 40, 17, 9000];
        let (mut tensors, mut places, mut len) = (Vec::new(), Vec::new(), 0);
        for (index, count) in lengths.into_iter().enumerate() {
            tensors.push(normal(count + index, 0.5)[index..].to_vec());
            places.push(len..len + count);
            len += count;
        }
        (tensors[3][39], tensors[5][8191], tensors[5][0]) = (f32::NEG_INFINITY, f32::NAN, f32::INFINITY);
        let (arrivals, mut gradient) = Arrivals::new(&run, len, lengths.len());
        for slot in [5, 1, 0, 3, 2] {
            let tensor = run.upload(&tensors[slot]);
            arrivals.put(slot, places[slot].start, &tensor, &Arrivals::sample(&run, &tensor));
        }
        let other = run.upload(&[1.5, 2.5]);
        let (bad, samples, others) = arrivals.read(&[&other]).unwrap();
        assert_eq!(others, [[1.5, 2.5]]);
        assert_eq!(bad, Some(3), "the first slot of the layout, and slot 4 has not arrived");
        for slot in [0, 1, 2, 3, 5] {
            let stride = Arrivals::stride(lengths[slot]);
            let mut expected: Vec<f32> = tensors[slot].iter().step_by(stride).copied().collect();
            expected.resize(Arrivals::SAMPLES, 0.0);
            assert_eq!(bits(&samples[Arrivals::SAMPLES * slot..][..Arrivals::SAMPLES]), bits(&expected), "{slot}");
        }
        gradient.scale_range(0.5, places[0].clone());
        let mut expected = vec![0.0; len];
        expected[places[0].clone()].iter_mut().zip(&tensors[0]).for_each(|(to, from)| *to = 0.5 * from);
        expected[places[1].clone()].copy_from_slice(&tensors[1]);
        assert_eq!(bits(&fetch(&mut gradient)), bits(&expected));
    }
}

/// Values, velocity and energies of a vector that is fed in two ranges, the second one first.
fn fed(vector: &mut dyn DeviceVector, layout: &Layout, states: [&[f32]; 2]) -> [(Vec<u32>, Vec<[u64; 2]>); 2] {
    let slots = layout.slots();
    let split = slots[2].range().start;
    let mut parts = [(split..layout.len(), &slots[2..]), (0..split, &slots[..2])].map(|(range, slots)| {
        let slots: Vec<Slot> = slots.iter().map(|slot| slot.rebased(range.start)).collect();
        (range, slots)
    });
    let energies = |vector: &mut dyn DeviceVector| {
        let energies = vector.fed_energies().unwrap();
        // Any number that is not finite will do.
        energies.iter().map(|pair| pair.map(|energy| if energy.is_finite() { energy.to_bits() } else { 1 })).collect()
    };
    let [u, v] = states.map(|values| vector.upload(values).unwrap());
    for (range, slots) in &parts {
        vector.add_residual(range.clone(), (Some(&*v), 1.0), slots).unwrap();
    }
    let with_residual = (bits(&fetch(vector)), energies(vector));
    let velocity = Velocity { momentum: 0.9, nesterov: false, scale: 1.0 };
    let mut next = vector.memory().unwrap();
    parts.reverse();
    for (range, slots) in &parts {
        vector.accumulate(range.clone(), velocity, ([Some(&*u), None], &mut *next), slots).unwrap();
    }
    let mut after = [next.fetch(), fetch(vector)];
    // The next velocity of a slot whose sum is not finite is not used.
    after[0][..split].fill(0.0);
    [with_residual, (bits(&after.concat()), energies(vector))]
}

/// The last slot has three segments, of which the second has a sum that is not finite.
#[test]
fn a_vector_is_fed_range_by_range_as_on_the_host() {
    let layout = Layout::new([("a", vec![2000]), ("b", vec![3000]), ("c", vec![70]), ("d", vec![150_000])]);
    let [x, u, mut v] = [0, 1, 2].map(|skip| normal(layout.len() + skip, 0.5)[skip..].to_vec());
    let mut large = x.clone();
    (large[5070 + 70_000], v[5070 + 70_000]) = (f32::MAX, f32::MAX);
    (large[1999], v[1999]) = (f32::MIN, f32::MIN);
    for run in runs() {
        for x in [&x, &large] {
            let (arrivals, mut gradient) = Arrivals::new(&run, layout.len(), 1);
            let tensor = run.upload(x);
            arrivals.put(0, 0, &tensor, &Arrivals::sample(&run, &tensor));
            let mut twin = HostDevice::new(x.clone(), Kernels::All);
            let (expected, found) = (fed(&mut twin, &layout, [&u, &v]), fed(&mut gradient, &layout, [&u, &v]));
            assert_eq!(expected[0].1, found[0].1);
            assert_eq!(expected[1].1, found[1].1);
            assert!(expected == found);
        }
    }
}

/// A gradient whose slots arrive when they are waited for.
struct Late<'a> {
    values: &'a [f32],
    slots: &'a [Slot],
    run: Run,
    arrivals: Arrivals,
    gradient: Gradient,
    copies: DeviceCopies,
    is_there: Vec<bool>,
    order: Vec<usize>,
}

impl<'a> Late<'a> {
    fn new(values: &'a [f32], slots: &'a [Slot], run: &Run) -> Self {
        let (arrivals, gradient) = Arrivals::new(run, values.len(), slots.len());
        let (is_there, order) = (vec![false; slots.len()], (0..slots.len()).collect());
        Late { values, slots, run: run.clone(), arrivals, gradient, copies: DeviceCopies::default(), is_there, order }
    }

    fn arrive(&mut self, range: &Range<usize>) {
        for (index, slot) in self.slots.iter().enumerate() {
            let place = slot.range();
            if range.start <= place.start && place.end <= range.end && !self.is_there[index] {
                self.is_there[index] = true;
                let tensor = self.run.upload(&self.values[place.clone()]);
                self.arrivals.put(index, place.start, &tensor, &Arrivals::sample(&self.run, &tensor));
            }
        }
    }
}

impl Arriving for Late<'_> {
    fn wait(&mut self, range: Range<usize>, comm: &mut Session) -> &[f32] {
        self.arrive(&range);
        self.copies.wait(&mut self.gradient, range, comm)
    }
    fn order(&self) -> &[usize] {
        &self.order
    }
    fn on_device(&self) -> Option<DevicePlace> {
        Some(DevicePlace { len: self.values.len(), is_complete: false })
    }
    fn device(&mut self, range: Range<usize>, _: &mut Session) -> Option<DevicePart<'_>> {
        self.arrive(&range);
        Some(self.copies.part(&mut self.gradient, range))
    }
}

#[derive(Debug, Clone)]
struct AsItComes {
    config: Config,
    run: Run,
}

impl Synchronizes for AsItComes {
    fn strategy(&self, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        let (strategy, run) = (self.config.build(layout, world)?, self.run.clone());
        let deliver =
            move |strategy: &mut dyn SyncStrategy, own: &mut Vec<f32>, cx: &Context<'_>, comm: &mut Session| {
                let (step, rank) = (cx.agreed_step.step, comm.rank());
                if (rank + step as usize / 2) % 2 == 1 {
                    return strategy.after_backward(own, cx, comm);
                }
                let (mut late, mut average) = (Late::new(own, cx.slots, &run), Vec::new());
                strategy.during_backward(&mut late, &mut average, cx, comm)?;
                let Late { mut copies, mut gradient, .. } = late;
                let finished = copies.finish(&mut gradient, &average);
                finished.map_err(|source| SyncError::Reduce { step, source: ReduceError::Device { rank, source } })?;
                *own = run.read(&gradient.into_average()).expect("a device that works");
                Ok(())
            };
        Ok(Box::new(Delivered::new(strategy, deliver)))
    }
    fn min_ranks(&self) -> usize {
        self.config.min_ranks()
    }
}

#[test]
fn worlds_of_gradients_that_arrive_have_the_bits_of_hosts() {
    briquette_zoo::install();
    for run in runs() {
        for text in [
            "reducer=gather:topk:8x feedback=error",
            "reducer=gather:topk:8x:q8 feedback=momentum:0.9,nesterov=true",
            "reducer=gather:topk:8x feedback=inner-momentum",
            "reducer=gather:minmax:100 feedback=error",
            "reducer=gather:qsgd:4:100 feedback=none",
            "reducer=gather:topk:8x,per-slot=true dense_below=20 feedback=error",
            "reducer=gather:topk:8x feedback=error controller=gravac:4x,max=16x",
            "reducer=power-sgd:1 feedback=error",
            "reducer=dense",
        ] {
            let config: Config = text.parse().unwrap();
            for bucket_values in [None, Some(32)] {
                let config = Config::every_step(Exchange { bucket_values, ..config.exchange.clone() });
                let setup = Setup::short(&AsItComes { config: config.clone(), run: run.clone() }, 2);
                assert_same_runs(&setup, &Setup::short(&config, 2).run(4), &setup.run(4));
            }
        }
        let config: Config = "reducer=gather:topk:8x feedback=error bucket_values=32".parse().unwrap();
        laws::leaves_no_trace(&Setup::short(&AsItComes { config, run }, 2), 1);
    }
}
