//! Operations of a device: what kernels compute on a vector.

use std::any::Any;
use std::fmt;
use std::ops::Range;

use crate::error::DeviceError;
use crate::math::{LowRankPlan, Mask, SentStatistics, Velocity};
use crate::seam::Compressor;
use crate::{Key, Message, Slot};

/// Result of an operation on a device.
pub type OnDevice<T> = Result<T, DeviceError>;

/// A vector in the memory of a device, with room for an average.
///
/// Ranges are in values. Every operation has the bits of its host version.
pub trait DeviceVector: Send {
    /// Returns the number of values.
    fn len(&self) -> usize;

    /// Returns whether there are no values.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies these values to the host.
    ///
    /// # Errors
    /// [`DeviceError`], as for every operation, if the device fails.
    fn fetch(&mut self, range: Range<usize>, out: &mut [f32]) -> OnDevice<()>;

    /// Multiplies all values by `weight`.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn scale(&mut self, weight: f32) -> OnDevice<()>;

    /// Returns `‖x‖²` of each slot of these values. `slots` are relative to the start of the range, and cover it.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn energies(&mut self, range: Range<usize>, slots: &[Slot]) -> OnDevice<Vec<f64>>;

    /// Returns the [energy](Message::kept_energy) of these values that a sparse message of `compressor` keeps, and discards the message. Returns
    /// `None` if the device has no kernel for `compressor`, or the message is not sparse.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn kept_energy(&mut self, compressor: &mut dyn Compressor, range: Range<usize>, key: Key) -> OnDevice<Option<f64>>;

    /// Adds the residual of the whole vector, if there is one, multiplied by a weight, to these values, and sets [absent](Slot::is_absent) slots to 0. `slots`
    /// are relative to the start of the range, and cover it. Measures the [energies](DeviceVector::fed_energies) of each slot. A slot with a sum that is not finite is
    /// set to 0 afterwards.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn add_residual(
        &mut self,
        range: Range<usize>,
        residual: (Option<&dyn DeviceMemory>, f32),
        slots: &[Slot],
    ) -> OnDevice<()>;

    /// Returns two energies `‖x‖²` of each slot, in the order of their places, measured since the last call: of the sum and of the vector for
    /// [`add_residual`](DeviceVector::add_residual), of the pending velocity and of the velocity for [`accumulate`](DeviceVector::accumulate). An energy
    /// is not finite if a value is not, and 0 for an absent slot.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn fed_energies(&mut self) -> OnDevice<Vec<[f64; 2]>>;

    /// Returns memory as long as the vector, with undefined values.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn memory(&mut self) -> OnDevice<Box<dyn DeviceMemory>>;

    /// Returns the sum of all values.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn total(&mut self) -> OnDevice<f64>;

    /// Accumulates momentum, as [`Velocity::accumulate`] does: replaces these values by the next pending velocity, with [absent](Slot::is_absent)
    /// slots set to 0, and writes the next velocity to the same range of `next`. `now` is the velocity and the pending velocity, if there are any, of
    /// the whole vector. Measures the [energies](DeviceVector::fed_energies) of each slot. A slot with a pending velocity that is not finite is set
    /// to 0 afterwards.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn accumulate(
        &mut self,
        range: Range<usize>,
        velocity: Velocity,
        states: ([Option<&dyn DeviceMemory>; 2], &mut dyn DeviceMemory),
        slots: &[Slot],
    ) -> OnDevice<()>;

    /// [Masks](Mask::apply) a velocity in the range, by the values of `message`, which is of this rank.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn mask(
        &mut self,
        range: Range<usize>,
        message: &Message,
        mask: Mask,
        velocity: &mut dyn DeviceMemory,
    ) -> OnDevice<()>;

    /// Takes the average as the agreed velocity, and subtracts the decayed velocity `before`, if there is one, from the average, as
    /// [`subtract_velocity`](crate::math::subtract_velocity) does. Returns the agreed velocity, and the place of the first value of the
    /// average that is not finite.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn subtract_velocity(
        &mut self,
        before: Option<&dyn DeviceMemory>,
        momentum: f32,
    ) -> OnDevice<(Box<dyn DeviceMemory>, Option<usize>)>;

    /// Queues the kernels that encode these values, and the copy of the message to the host. Waits only for statistics that an encoding needs first,
    /// such as a Euclidean norm. [`encode`](DeviceVector::encode) with
    /// the same arguments then returns that message. Does nothing if the device has no kernel for `compressor`, or has queued this already. The values
    /// must not change in between.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn start_encoding(&mut self, compressor: &mut dyn Compressor, range: Range<usize>, key: Key) -> OnDevice<()>;

    /// Encodes these values and returns true, or returns false if the device has no kernel for `compressor`. The message is that of
    /// [`Compressor::encoding`], with its values encoded by [`Compressor::value_code`] if there is one.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn encode(
        &mut self,
        compressor: &mut dyn Compressor,
        range: Range<usize>,
        key: Key,
        out: &mut Message,
    ) -> OnDevice<bool>;

    /// Writes `Σ weight · message` to these values of the average, in the order of the messages, of which `own` is the one that was encoded
    /// here. Returns false if the device cannot decode one of the messages. Does not wait.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn average(&mut self, range: Range<usize>, weight: f32, messages: &[&Message], own: usize) -> OnDevice<bool>;

    /// Returns whether these values of the average are finite.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn is_average_finite(&mut self, range: Range<usize>) -> OnDevice<bool>;

    /// Copies values from the host to the average, from `start` on.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn put_average(&mut self, start: usize, values: &[f32]) -> OnDevice<()>;

    /// Subtracts a message of this rank from the values that it encodes, and measures [statistics](DeviceVector::subtracted) of it for each of `slots`,
    /// which tile the range. Does not wait.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn subtract(&mut self, range: Range<usize>, message: &Message, slots: &[Slot]) -> OnDevice<()>;

    /// Returns the statistics of what was subtracted since the last call, of each slot in the order of the subtractions, and whether the remainders
    /// are finite.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn subtracted(&mut self) -> OnDevice<(Vec<SentStatistics>, bool)>;

    /// Computes `P = M Q` for every matrix of the plan, whose slots tile the range, followed by the values of its dense slots, and returns true.
    /// Returns false if the device has no kernels for products.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn left_factor(&mut self, range: Range<usize>, plan: &LowRankPlan, q: &[f32], out: &mut Vec<f32>)
    -> OnDevice<bool>;

    /// Computes `Q = Mᵀ P` for every matrix. The vector keeps `P` and `Q` of this range.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn right_factor(&mut self, range: Range<usize>, plan: &LowRankPlan, p: &[f32], out: &mut [f32]) -> OnDevice<()>;

    /// Writes the average of the range: `P Qᵀ` for every matrix, with the `P` of [`right_factor`](DeviceVector::right_factor), and `dense` to the dense
    /// slots. Does not wait.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn put_product(&mut self, range: Range<usize>, plan: &LowRankPlan, q: &[f32], dense: &[f32]) -> OnDevice<()>;

    /// Subtracts `P Qᵀ` with the factors of [`right_factor`](DeviceVector::right_factor) from every matrix, and dense slots from themselves.
    /// Measures [statistics](DeviceVector::subtracted) of it. Does not wait.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn subtract_product(&mut self, range: Range<usize>, plan: &LowRankPlan, slots: &[Slot]) -> OnDevice<()>;

    /// Returns a new vector on the same device, which holds the values of these ranges, one after another, and has room for their average.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn pack(&mut self, ranges: &[Range<usize>]) -> OnDevice<Box<dyn DeviceVector>>;

    /// Copies packed values to these ranges, or sets the ranges to 0 if there are none.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn unpack(&mut self, ranges: &[Range<usize>], values: Option<&dyn DeviceMemory>) -> OnDevice<()>;

    /// Takes the average. The vector has none afterwards.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn take_average(&mut self) -> OnDevice<Box<dyn DeviceMemory>>;

    /// Copies a packed average to these ranges of the average.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn unpack_average(&mut self, ranges: &[Range<usize>], average: &dyn DeviceMemory) -> OnDevice<()>;

    /// Takes the values as a residual. The vector has none afterwards.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn take(&mut self) -> OnDevice<Box<dyn DeviceMemory>>;

    /// Copies a residual from the host to this vector's device.
    ///
    /// # Errors
    /// As [`fetch`](DeviceVector::fetch).
    fn upload(&mut self, values: &[f32]) -> OnDevice<Box<dyn DeviceMemory>>;
}

/// Values in the memory of a device: a residual, a velocity, or packed values.
pub trait DeviceMemory: Send + fmt::Debug {
    /// Copies the values to the host.
    fn fetch(&self) -> Vec<f32>;

    /// Copies these ranges from other memory of the same device and length, or sets them to 0 if there is none.
    fn restore(&mut self, from: Option<&dyn DeviceMemory>, ranges: &[Range<usize>]);

    /// Returns new memory on the same device, which holds the values of these ranges, one after another.
    fn pack(&self, ranges: &[Range<usize>]) -> Box<dyn DeviceMemory>;

    /// Copies packed values to these ranges.
    fn unpack(&mut self, ranges: &[Range<usize>], values: &dyn DeviceMemory);

    /// Returns itself, for its device to find the memory behind it.
    fn as_any(&self) -> &dyn Any;

    /// Returns itself, for its device to change the memory behind it.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}
