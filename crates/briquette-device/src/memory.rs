//! Residuals, velocities and packed values in the memory of a device, during and between the exchanges of `briquette-core`.

use std::any::Any;
use std::ops::Range;

use briquette_core::reduce::DeviceMemory;

use crate::feed;
use crate::pack::{pack, unpack};
use crate::run::{Run, Vector};

/// Values in the memory of a device.
#[derive(Debug)]
pub(crate) struct Memory {
    run: Run,
    values: Vector,
}

impl Memory {
    pub(crate) fn boxed(run: &Run, values: Vector) -> Box<dyn DeviceMemory> {
        Box::new(Memory { run: run.clone(), values })
    }
}

impl DeviceMemory for Memory {
    fn fetch(&self) -> Vec<f32> {
        self.run.read(&self.values).expect("a residual can be read while its device works")
    }

    fn restore(&mut self, from: Option<&dyn DeviceMemory>, ranges: &[Range<usize>]) {
        for range in ranges {
            match from {
                Some(from) => feed::copy_to(&self.run, values(from), range.clone(), &self.values, range.start),
                None => feed::clear_range(&self.run, &self.values, range.clone()),
            }
        }
    }

    fn pack(&self, ranges: &[Range<usize>]) -> Box<dyn DeviceMemory> {
        Memory::boxed(&self.run, pack(&self.run, &self.values, ranges))
    }

    fn unpack(&mut self, ranges: &[Range<usize>], from: &dyn DeviceMemory) {
        unpack(&self.run, Some(values(from)), ranges, &self.values);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// Returns the values of memory of this device.
pub(crate) fn values(memory: &dyn DeviceMemory) -> &Vector {
    let memory: &Memory = memory.as_any().downcast_ref().expect("a residual of this device");
    &memory.values
}
