//! Host twin of a device: vectors in host memory that are used only through the operations of a device.

mod bus;
mod memory;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use self::bus::Bus;
use self::memory::{Memory, memory, memory_mut, packed, unpack};
use crate::math::{
    LowRankPlan, Mask, SentStatistics, Velocity, add_scaled, all_finite, norm2, subtract_velocity, total,
};
use crate::seam::{Compressor, DeviceMemory, DeviceVector, OnDevice};
use crate::{Key, Message, Slot};

/// Operations for which a device has kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernels {
    /// All.
    All,
    /// Encoders only: averages are computed on the host.
    Encoders,
    /// None: vectors are copied.
    None,
}

/// A vector on a device that is host memory, with the bytes that a bus would carry.
#[derive(Debug)]
pub struct HostDevice {
    values: Vec<f32>,
    average: Vec<f32>,
    len: usize,
    /// The low-rank factors of ranges of the values.
    factors: Vec<(Range<usize>, [Vec<f32>; 2])>,
    /// The energies of slots that were fed, with their places.
    fed: Vec<(usize, [f64; 2])>,
    /// Messages of encodings that have started.
    started: Vec<(Range<usize>, Key, Message)>,
    /// Statistics of slots that were subtracted, and whether all remainders are finite.
    subtracted: Vec<SentStatistics>,
    is_finite: bool,
    kernels: Kernels,
    /// Shared by the vectors that were packed from this one.
    bus: Arc<Mutex<Bus>>,
}

impl HostDevice {
    /// Creates a vector of these values.
    pub fn new(values: Vec<f32>, kernels: Kernels) -> Self {
        HostDevice::on(values, kernels, Arc::default())
    }

    fn on(values: Vec<f32>, kernels: Kernels, bus: Arc<Mutex<Bus>>) -> Self {
        let (len, average) = (values.len(), vec![f32::NAN; values.len()]);
        let (factors, fed, started, subtracted) = Default::default();
        HostDevice { values, average, len, factors, fed, started, subtracted, is_finite: true, kernels, bus }
    }

    /// Sets values, as a gradient that arrives does.
    pub fn arrive(&mut self, start: usize, values: &[f32]) {
        self.values[start..start + values.len()].copy_from_slice(values);
    }

    fn bus(&self) -> MutexGuard<'_, Bus> {
        self.bus.lock().expect("nothing panics with this lock")
    }

    /// Returns the average.
    pub fn into_average(self) -> Vec<f32> {
        self.average
    }

    /// Replaces the values of each slot by what `feed` makes of them, given their place in the vector.
    fn feed(
        &mut self,
        range: Range<usize>,
        slots: &[Slot],
        mut feed: impl FnMut(Range<usize>, &[f32], &mut [f32]) -> [f64; 2],
    ) {
        for slot in slots {
            let place = range.start + slot.range().start..range.start + slot.range().end;
            let (mut fed, mut energies) = (vec![0.0; slot.len()], [0.0, 0.0]);
            if !slot.is_absent() {
                energies = feed(place.clone(), &self.values[place.clone()], &mut fed);
                if !energies[0].is_finite() {
                    fed.fill(0.0);
                }
            }
            self.values[place.clone()].copy_from_slice(&fed);
            self.fed.push((place.start, energies));
        }
    }

    /// Returns whether this device encodes the messages of a compressor.
    fn has_kernel(&self, compressor: &dyn Compressor) -> bool {
        self.kernels != Kernels::None && compressor.encoding().is_some()
    }

    /// Returns the low-rank factors of a range.
    fn factors(&self, range: &Range<usize>) -> &[Vec<f32>; 2] {
        &self.factors.iter().find(|(place, _)| place == range).expect("a right factor comes before products").1
    }

    fn run(&mut self, operation: &'static str) -> OnDevice<()> {
        self.bus().run(operation)
    }
}

impl DeviceVector for HostDevice {
    fn len(&self) -> usize {
        self.len
    }

    fn fetch(&mut self, range: Range<usize>, out: &mut [f32]) -> OnDevice<()> {
        self.run("fetch")?;
        self.bus().down += 4 * range.len();
        out.copy_from_slice(&self.values[range]);
        Ok(())
    }

    fn scale(&mut self, weight: f32) -> OnDevice<()> {
        self.run("scale")?;
        self.values.iter_mut().for_each(|value| *value *= weight);
        Ok(())
    }

    fn energies(&mut self, range: Range<usize>, slots: &[Slot]) -> OnDevice<Vec<f64>> {
        self.run("energies")?;
        self.bus().down += 8 * slots.len();
        let values = &self.values[range];
        Ok(slots.iter().map(|slot| norm2(&values[slot.range()])).collect())
    }

    fn kept_energy(&mut self, compressor: &mut dyn Compressor, range: Range<usize>, key: Key) -> OnDevice<Option<f64>> {
        self.run("kept_energy")?;
        if !self.has_kernel(compressor) || !compressor.selects() {
            return Ok(None);
        }
        let mut message = Message::default();
        compressor.compress_into(&self.values[range.clone()], key, &mut message);
        self.bus().down += message.encoded_len();
        Ok(message.sparse_indices().is_some().then(|| message.kept_energy(&self.values[range])))
    }

    fn add_residual(
        &mut self,
        range: Range<usize>,
        (residual, weight): (Option<&dyn DeviceMemory>, f32),
        slots: &[Slot],
    ) -> OnDevice<()> {
        self.run("add_residual")?;
        let zeros = vec![0.0; self.len];
        let residual = residual.map_or(&zeros, |residual| &memory(residual).0);
        self.feed(range, slots, |place, values, sum| add_scaled(&residual[place], weight, values, sum));
        Ok(())
    }

    fn fed_energies(&mut self) -> OnDevice<Vec<[f64; 2]>> {
        self.run("fed_energies")?;
        self.bus().down += 16 * self.fed.len();
        let mut fed = std::mem::take(&mut self.fed);
        fed.sort_by_key(|(start, _)| *start);
        Ok(fed.into_iter().map(|(_, energies)| energies).collect())
    }

    fn memory(&mut self) -> OnDevice<Box<dyn DeviceMemory>> {
        self.run("memory")?;
        Ok(Box::new(Memory(vec![f32::NAN; self.len])))
    }

    fn total(&mut self) -> OnDevice<f64> {
        self.run("total")?;
        self.bus().down += 8;
        Ok(total(&self.values))
    }

    fn accumulate(
        &mut self,
        range: Range<usize>,
        velocity: Velocity,
        (now, next): ([Option<&dyn DeviceMemory>; 2], &mut dyn DeviceMemory),
        slots: &[Slot],
    ) -> OnDevice<()> {
        self.run("accumulate")?;
        let zeros = vec![0.0; self.len];
        let now = now.map(|now| now.map_or(&zeros, |now| &memory(now).0));
        let next = &mut memory_mut(next).0;
        // What a slot without a gradient has in the next velocity is never used.
        self.feed(range, slots, |place, values, pending| {
            let now = now.map(|now| &now[place.clone()]);
            velocity.accumulate(values, now, [&mut next[place], pending])
        });
        Ok(())
    }

    fn mask(
        &mut self,
        range: Range<usize>,
        message: &Message,
        mask: Mask,
        velocity: &mut dyn DeviceMemory,
    ) -> OnDevice<()> {
        self.run("mask")?;
        message.mask(mask, &mut memory_mut(velocity).0[range]);
        Ok(())
    }

    fn subtract_velocity(
        &mut self,
        before: Option<&dyn DeviceMemory>,
        momentum: f32,
    ) -> OnDevice<(Box<dyn DeviceMemory>, Option<usize>)> {
        self.run("subtract_velocity")?;
        let zeros = vec![0.0; self.average.len()];
        let (before, mut next) = (before.map_or(&zeros, |before| &memory(before).0), zeros.clone());
        subtract_velocity(&mut self.average, before, &mut next, momentum);
        Ok((Box::new(Memory(next)), self.average.iter().position(|value| !value.is_finite())))
    }

    fn start_encoding(&mut self, compressor: &mut dyn Compressor, range: Range<usize>, key: Key) -> OnDevice<()> {
        self.run("start_encoding")?;
        let is_started = self.started.iter().any(|started| (&started.0, started.1) == (&range, key));
        if self.has_kernel(compressor) && !is_started {
            let mut message = Message::default();
            compressor.compress_into(&self.values[range.clone()], key, &mut message);
            self.bus().down += message.encoded_len();
            self.started.push((range, key, message));
            let started = self.started.len();
            let mut bus = self.bus();
            bus.most_started = bus.most_started.max(started);
        }
        Ok(())
    }

    fn encode(
        &mut self,
        compressor: &mut dyn Compressor,
        range: Range<usize>,
        key: Key,
        out: &mut Message,
    ) -> OnDevice<bool> {
        self.run("encode")?;
        if !self.has_kernel(compressor) {
            return Ok(false);
        }
        if let Some(at) = self.started.iter().position(|started| (&started.0, started.1) == (&range, key)) {
            *out = self.started.swap_remove(at).2;
            return Ok(true);
        }
        compressor.compress_into(&self.values[range], key, out);
        self.bus().down += out.encoded_len();
        Ok(true)
    }

    fn average(&mut self, range: Range<usize>, weight: f32, messages: &[&Message], own: usize) -> OnDevice<bool> {
        self.run("average")?;
        if self.kernels != Kernels::All {
            return Ok(false);
        }
        let average = &mut self.average[range];
        average.fill(0.0);
        let mut up = 0;
        for (rank, message) in messages.iter().enumerate() {
            up += if rank == own { 0 } else { message.encoded_len() };
            message.add_to(weight, average).expect("a message that the host has checked");
        }
        self.bus().up += up;
        Ok(true)
    }

    fn is_average_finite(&mut self, range: Range<usize>) -> OnDevice<bool> {
        self.run("is_average_finite")?;
        Ok(all_finite(&self.average[range]))
    }

    fn put_average(&mut self, start: usize, values: &[f32]) -> OnDevice<()> {
        self.run("put_average")?;
        self.bus().up += 4 * values.len();
        self.average[start..start + values.len()].copy_from_slice(values);
        Ok(())
    }

    fn subtract(&mut self, range: Range<usize>, message: &Message, slots: &[Slot]) -> OnDevice<()> {
        self.run("subtract")?;
        let first = slots.first().map_or(0, |slot| slot.range().start);
        let mut sent = vec![SentStatistics::default(); slots.len()];
        self.is_finite &= message.subtract_sent(first, slots, &mut self.values[range], &mut sent);
        self.subtracted.append(&mut sent);
        Ok(())
    }

    fn subtracted(&mut self) -> OnDevice<(Vec<SentStatistics>, bool)> {
        if self.subtracted.is_empty() {
            return Ok((Vec::new(), true));
        }
        self.run("subtracted")?;
        let subtracted = std::mem::take(&mut self.subtracted);
        self.bus().down += 16 * subtracted.len();
        Ok((subtracted, std::mem::replace(&mut self.is_finite, true)))
    }

    fn left_factor(
        &mut self,
        range: Range<usize>,
        plan: &LowRankPlan,
        q: &[f32],
        out: &mut Vec<f32>,
    ) -> OnDevice<bool> {
        self.run("left_factor")?;
        if self.kernels != Kernels::All {
            return Ok(false);
        }
        plan.project_left(&self.values[range], q, out, &mut Vec::new());
        self.bus().up += 4 * q.len();
        self.bus().down += 4 * out.len();
        Ok(true)
    }

    fn right_factor(&mut self, range: Range<usize>, plan: &LowRankPlan, p: &[f32], out: &mut [f32]) -> OnDevice<()> {
        self.run("right_factor")?;
        plan.project_right(&self.values[range.clone()], p, out, &mut Vec::new());
        self.bus().up += 4 * p.len();
        self.bus().down += 4 * out.len();
        self.factors.retain(|(place, _)| *place != range);
        self.factors.push((range, [p.to_vec(), out.to_vec()]));
        Ok(())
    }

    fn put_product(&mut self, range: Range<usize>, plan: &LowRankPlan, q: &[f32], dense: &[f32]) -> OnDevice<()> {
        self.run("put_product")?;
        self.bus().up += 4 * (q.len() + dense.len());
        let (p, mut average) = (self.factors(&range)[0].clone(), vec![0.0; range.len()]);
        plan.put_product((&p, q), dense, &mut average, &mut Vec::new());
        self.average[range].copy_from_slice(&average);
        Ok(())
    }

    fn subtract_product(&mut self, range: Range<usize>, plan: &LowRankPlan, slots: &[Slot]) -> OnDevice<()> {
        self.run("subtract_product")?;
        let ([p, q], mut sent) = (self.factors(&range).clone(), vec![SentStatistics::default(); slots.len()]);
        let scratch = (&mut Vec::new(), &mut Vec::new());
        self.is_finite &= plan.subtract_product((&p, &q), &mut self.values[range], &mut sent, scratch);
        self.subtracted.append(&mut sent);
        Ok(())
    }

    fn pack(&mut self, ranges: &[Range<usize>]) -> OnDevice<Box<dyn DeviceVector>> {
        self.run("pack")?;
        Ok(Box::new(HostDevice::on(packed(&self.values, ranges), self.kernels, self.bus.clone())))
    }

    fn unpack(&mut self, ranges: &[Range<usize>], values: Option<&dyn DeviceMemory>) -> OnDevice<()> {
        self.run("unpack")?;
        match values {
            Some(values) => unpack(&mut self.values, ranges, memory(values)),
            None => ranges.iter().for_each(|range| self.values[range.clone()].fill(0.0)),
        }
        Ok(())
    }

    fn take_average(&mut self) -> OnDevice<Box<dyn DeviceMemory>> {
        self.run("take_average")?;
        Ok(Box::new(Memory(std::mem::take(&mut self.average))))
    }

    fn unpack_average(&mut self, ranges: &[Range<usize>], average: &dyn DeviceMemory) -> OnDevice<()> {
        self.run("unpack_average")?;
        unpack(&mut self.average, ranges, memory(average));
        Ok(())
    }

    fn take(&mut self) -> OnDevice<Box<dyn DeviceMemory>> {
        self.run("take")?;
        Ok(Box::new(Memory(std::mem::take(&mut self.values))))
    }

    fn upload(&mut self, values: &[f32]) -> OnDevice<Box<dyn DeviceMemory>> {
        self.run("upload")?;
        self.bus().up += 4 * values.len();
        Ok(Box::new(Memory(values.to_vec())))
    }
}
