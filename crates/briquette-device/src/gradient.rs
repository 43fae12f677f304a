//! Gradients of a rank on its device, for the exchanges of `briquette-core`.

mod fed;
mod messages;
mod subtracted;

use std::ops::Range;

use briquette_core::compress::Compressor;
use briquette_core::error::DeviceError as Failure;
use briquette_core::reduce::{DeviceMemory, DeviceVector, LowRankPlan, Mask, OnDevice, SentStatistics, Velocity};
use briquette_core::{Key, Message, Slot};

use self::fed::Fed;
use self::messages::Started;
use self::subtracted::Subtracted;
use crate::error::DeviceError;
use crate::feed;
use crate::finite::first_not_finite;
use crate::low_rank::LowRank;
use crate::memory::{Memory, values};
use crate::message::DeviceMessage;
use crate::pack::{pack, unpack};
use crate::run::{Run, Vector};
use crate::sums::{Groups, Terms, sums};

/// A gradient in the memory of a device, with its average. Made of the tensors of a backward pass, which are read and never written.
#[derive(Debug)]
pub struct Gradient {
    run: Run,
    /// The gradient, the sum with the residual, or what encoding has left of either.
    values: Vector,
    average: Vector,
    len: usize,
    /// Messages that were encoded here.
    own: Vec<(Range<usize>, DeviceMessage)>,
    /// Low-rank factors `P` and `Q` of ranges of the values.
    factors: Vec<(Range<usize>, [Vector; 2])>,
    fed: Vec<Fed>,
    started: Vec<Started>,
    subtracted: Vec<Subtracted>,
    zeros: Option<Vector>,
}

impl Gradient {
    /// Gathers tensors into one vector of `len` values: each with its place, where those of absent slots are left out.
    ///
    /// # Panics
    /// If a tensor ends behind the vector.
    pub fn new(run: &Run, len: usize, tensors: impl IntoIterator<Item = (usize, Vector)>) -> Gradient {
        let values = run.zeros(len);
        for (start, tensor) in tensors {
            feed::copy_to(run, &tensor, 0..tensor.len(), &values, start);
        }
        Gradient::of(run, values)
    }

    pub(crate) fn of(run: &Run, values: Vector) -> Gradient {
        let (len, average) = (values.len(), run.empty(values.len()));
        let (own, factors, fed, started, subtracted, zeros) = Default::default();
        Gradient { run: run.clone(), values, average, len, own, factors, fed, started, subtracted, zeros }
    }

    /// Multiplies values by `weight`.
    pub fn scale_range(&self, weight: f32, range: Range<usize>) {
        feed::scale_range(&self.run, &self.values, weight, range);
    }

    /// Returns the index of the first value that is not finite.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] if a kernel failed.
    pub fn first_not_finite(&self) -> Result<Option<usize>, DeviceError> {
        first_not_finite(&self.run, &self.values)
    }

    /// Scales the average so that its norm is at most `max`, and returns the norm before scaling.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] if a kernel failed.
    pub fn clip_average(&self, max: f64) -> Result<f64, DeviceError> {
        let groups = Groups::new(&self.run, [self.average.len()]);
        let energies = sums(&self.run, &self.average, &groups, Terms::Squares).read(&self.run)?;
        let norm = energies[0].sqrt();
        if norm > max {
            feed::scale(&self.run, &self.average, (max / norm) as f32);
        }
        Ok(norm)
    }

    /// Returns the average.
    pub fn into_average(self) -> Vector {
        self.average
    }

    fn failed(&self, operation: &'static str) -> impl Fn(DeviceError) -> Failure + use<> {
        let device = self.run.client().name();
        move |error| Failure::new(device, operation, error.to_string())
    }

    fn message(&self, range: &Range<usize>, message: &Message) -> Result<DeviceMessage, DeviceError> {
        match self.own.iter().find(|(encoded, _)| encoded == range) {
            Some((_, message)) => Ok(message.clone()),
            None => DeviceMessage::upload(&self.run, message),
        }
    }
}

impl DeviceVector for Gradient {
    fn len(&self) -> usize {
        self.len
    }

    fn fetch(&mut self, range: Range<usize>, out: &mut [f32]) -> OnDevice<()> {
        let part = self.run.part(&self.values, range);
        out.copy_from_slice(&self.run.read(&part).map_err(self.failed("reading a gradient"))?);
        Ok(())
    }

    fn scale(&mut self, weight: f32) -> OnDevice<()> {
        self.started.clear();
        feed::scale(&self.run, &self.values, weight);
        Ok(())
    }

    fn energies(&mut self, range: Range<usize>, slots: &[Slot]) -> OnDevice<Vec<f64>> {
        let energies = self.queue_energies(&self.values, &range, &self.groups(slots));
        energies.read(&self.run).map_err(self.failed("summing a gradient"))
    }

    fn kept_energy(&mut self, compressor: &mut dyn Compressor, range: Range<usize>, key: Key) -> OnDevice<Option<f64>> {
        let Some(encoding) = compressor.encoding().filter(|_| compressor.selects()) else { return Ok(None) };
        let part = self.run.part(&self.values, range);
        self.kept_of((encoding, compressor.value_code()), &part, key).map_err(self.failed("measuring a gain"))
    }

    fn add_residual(
        &mut self,
        range: Range<usize>,
        (residual, weight): (Option<&dyn DeviceMemory>, f32),
        slots: &[Slot],
    ) -> OnDevice<()> {
        let groups = self.groups(slots);
        let before = self.queue_energies(&self.values, &range, &groups);
        // A sum with zeros is not a copy: it has no negative zeros.
        let residual = self.kept(residual);
        feed::feed(&self.run, &self.values, &residual, weight, range.clone());
        self.fed(range, slots, |gradient, range| [gradient.queue_energies(&gradient.values, range, &groups), before]);
        Ok(())
    }

    fn fed_energies(&mut self) -> OnDevice<Vec<[f64; 2]>> {
        self.read_energies().map_err(self.failed("feeding a gradient"))
    }

    fn memory(&mut self) -> OnDevice<Box<dyn DeviceMemory>> {
        Ok(Memory::boxed(&self.run, self.run.empty(self.len)))
    }

    fn total(&mut self) -> OnDevice<f64> {
        let total = sums(&self.run, &self.values, &Groups::new(&self.run, [self.values.len()]), Terms::Values);
        Ok(total.read(&self.run).map_err(self.failed("summing a gradient"))?.iter().sum())
    }

    fn accumulate(
        &mut self,
        range: Range<usize>,
        velocity: Velocity,
        (now, next): ([Option<&dyn DeviceMemory>; 2], &mut dyn DeviceMemory),
        slots: &[Slot],
    ) -> OnDevice<()> {
        let (groups, next) = (self.groups(slots), values(next));
        let [u, v] = now.map(|now| self.kept(now));
        feed::accumulate(&self.run, &self.values, velocity, [&u, next], &v, range.clone());
        self.fed(range, slots, |gradient, range| {
            [&gradient.values, next].map(|vector| gradient.queue_energies(vector, range, &groups))
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
        let message = self.message(&range, message).map_err(self.failed("masking a velocity"))?;
        message.mask(&self.run, mask, values(velocity), range.start);
        Ok(())
    }

    fn subtract_velocity(
        &mut self,
        before: Option<&dyn DeviceMemory>,
        momentum: f32,
    ) -> OnDevice<(Box<dyn DeviceMemory>, Option<usize>)> {
        let len = self.average.len();
        let (before, next) = (self.kept(before), self.run.empty(len));
        feed::take_momentum(&self.run, &self.average, [&before, &next], momentum);
        let bad = first_not_finite(&self.run, &self.average).map_err(self.failed("subtracting a velocity"))?;
        Ok((Memory::boxed(&self.run, next), bad))
    }

    fn start_encoding(&mut self, compressor: &mut dyn Compressor, range: Range<usize>, key: Key) -> OnDevice<()> {
        let Some(encoding) = compressor.encoding() else { return Ok(()) };
        self.start(encoding, range, key).map_err(self.failed("encoding a gradient"))
    }

    fn encode(
        &mut self,
        compressor: &mut dyn Compressor,
        range: Range<usize>,
        key: Key,
        out: &mut Message,
    ) -> OnDevice<bool> {
        let Some(encoding) = compressor.encoding() else { return Ok(false) };
        let failed = self.failed("encoding a gradient");
        self.start(encoding, range.clone(), key).map_err(&failed)?;
        let Some(at) = self.started.iter().position(|started| started.is(&range, key)) else { return Ok(false) };
        let started = self.started.swap_remove(at);
        let message = started.finish(&self.run, compressor.value_code(), out).map_err(&failed)?;
        self.own.retain(|(encoded, _)| *encoded != range);
        self.own.push((range, message));
        Ok(true)
    }

    fn average(&mut self, range: Range<usize>, weight: f32, messages: &[&Message], own: usize) -> OnDevice<bool> {
        let failed = self.failed("averaging messages");
        feed::clear_range(&self.run, &self.average, range.clone());
        for (rank, message) in messages.iter().enumerate() {
            let message = match rank == own {
                true => self.message(&range, message),
                false => DeviceMessage::upload(&self.run, message),
            };
            message.map_err(&failed)?.add(&self.run, weight, &self.average, range.start);
        }
        Ok(true)
    }

    fn is_average_finite(&mut self, range: Range<usize>) -> OnDevice<bool> {
        let part = self.run.part(&self.average, range);
        Ok(first_not_finite(&self.run, &part).map_err(self.failed("checking an average"))?.is_none())
    }

    fn put_average(&mut self, start: usize, values: &[f32]) -> OnDevice<()> {
        feed::copy_to(&self.run, &self.run.upload(values), 0..values.len(), &self.average, start);
        Ok(())
    }

    fn subtract(&mut self, range: Range<usize>, message: &Message, slots: &[Slot]) -> OnDevice<()> {
        self.subtract_message(range, message, slots).map_err(self.failed("subtracting a message"))
    }

    fn subtracted(&mut self) -> OnDevice<(Vec<SentStatistics>, bool)> {
        self.read_subtracted().map_err(self.failed("subtracting a message"))
    }

    fn left_factor(
        &mut self,
        range: Range<usize>,
        plan: &LowRankPlan,
        q: &[f32],
        out: &mut Vec<f32>,
    ) -> OnDevice<bool> {
        let (run, tables, part) = (&self.run, self.tables(plan), self.run.part(&self.values, range));
        let (left, dense) = (tables.left(run, &part, &run.upload(q)), tables.dense(run, &part));
        let read = run.read_words(&[&left, &dense]).map_err(self.failed("computing a left factor"))?;
        out.clear();
        out.extend(read.into_iter().flatten().map(f32::from_bits));
        Ok(true)
    }

    fn right_factor(&mut self, range: Range<usize>, plan: &LowRankPlan, p: &[f32], out: &mut [f32]) -> OnDevice<()> {
        let (run, p) = (&self.run, self.run.upload(p));
        let q = self.tables(plan).right(run, &run.part(&self.values, range.clone()), &p);
        out.copy_from_slice(&run.read(&q).map_err(self.failed("computing a right factor"))?);
        self.factors.retain(|(place, _)| *place != range);
        self.factors.push((range, [p, q]));
        Ok(())
    }

    fn put_product(&mut self, range: Range<usize>, plan: &LowRankPlan, q: &[f32], dense: &[f32]) -> OnDevice<()> {
        let (run, tables, [p, _]) = (&self.run, self.tables(plan), self.factors(&range));
        let is_whole = range == (0..self.average.len());
        let product = if is_whole { self.average.clone() } else { run.empty(range.len()) };
        tables.expand(run, p, &run.upload(q), &product);
        tables.put_dense(run, &run.upload(dense), &product);
        if !is_whole {
            feed::copy_to(run, &product, 0..range.len(), &self.average, range.start);
        }
        Ok(())
    }

    fn subtract_product(&mut self, range: Range<usize>, plan: &LowRankPlan, slots: &[Slot]) -> OnDevice<()> {
        let (run, tables, [p, q]) = (&self.run, self.tables(plan), self.factors(&range));
        let (part, product) = (run.part(&self.values, range.clone()), run.empty(range.len()));
        tables.expand(run, p, q, &product);
        tables.put_dense(run, &tables.dense(run, &part), &product);
        self.subtract_dense(range, &DeviceMessage::dense(product), slots);
        Ok(())
    }

    fn pack(&mut self, ranges: &[Range<usize>]) -> OnDevice<Box<dyn DeviceVector>> {
        Ok(Box::new(Gradient::of(&self.run, pack(&self.run, &self.values, ranges))))
    }

    fn unpack(&mut self, ranges: &[Range<usize>], from: Option<&dyn DeviceMemory>) -> OnDevice<()> {
        self.started.clear();
        unpack(&self.run, from.map(values), ranges, &self.values);
        Ok(())
    }

    fn take_average(&mut self) -> OnDevice<Box<dyn DeviceMemory>> {
        let average = std::mem::replace(&mut self.average, self.run.empty(0));
        Ok(Memory::boxed(&self.run, average))
    }

    fn unpack_average(&mut self, ranges: &[Range<usize>], average: &dyn DeviceMemory) -> OnDevice<()> {
        unpack(&self.run, Some(values(average)), ranges, &self.average);
        Ok(())
    }

    fn take(&mut self) -> OnDevice<Box<dyn DeviceMemory>> {
        let values = std::mem::replace(&mut self.values, self.run.empty(0));
        Ok(Memory::boxed(&self.run, values))
    }

    fn upload(&mut self, values: &[f32]) -> OnDevice<Box<dyn DeviceMemory>> {
        Ok(Memory::boxed(&self.run, self.run.upload(values)))
    }
}

impl Gradient {
    /// Returns the tables of a plan on this device.
    fn tables<'a>(&self, plan: &'a LowRankPlan) -> &'a LowRank {
        plan.tables(|| LowRank::new(&self.run, plan))
    }

    fn factors(&self, range: &Range<usize>) -> &[Vector; 2] {
        &self.factors.iter().find(|(place, _)| place == range).expect("a right factor comes before products").1
    }
}
