//! Memory of the host twin of a device.

use std::any::Any;
use std::ops::Range;

use crate::seam::DeviceMemory;

/// Values on this device.
#[derive(Debug)]
pub(super) struct Memory(pub(super) Vec<f32>);

impl DeviceMemory for Memory {
    fn fetch(&self) -> Vec<f32> {
        self.0.clone()
    }

    fn restore(&mut self, from: Option<&dyn DeviceMemory>, ranges: &[Range<usize>]) {
        for range in ranges {
            match from {
                Some(from) => self.0[range.clone()].copy_from_slice(&memory(from).0[range.clone()]),
                None => self.0[range.clone()].fill(0.0),
            }
        }
    }

    fn pack(&self, ranges: &[Range<usize>]) -> Box<dyn DeviceMemory> {
        Box::new(Memory(packed(&self.0, ranges)))
    }

    fn unpack(&mut self, ranges: &[Range<usize>], values: &dyn DeviceMemory) {
        unpack(&mut self.0, ranges, memory(values));
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

pub(super) fn packed(values: &[f32], ranges: &[Range<usize>]) -> Vec<f32> {
    ranges.iter().flat_map(|range| &values[range.clone()]).copied().collect()
}

pub(super) fn unpack(values: &mut [f32], ranges: &[Range<usize>], packed: &Memory) {
    let mut start = 0;
    for range in ranges {
        values[range.clone()].copy_from_slice(&packed.0[start..start + range.len()]);
        start += range.len();
    }
    assert_eq!(start, packed.0.len(), "packed values have the length of their ranges");
}

pub(super) fn memory(memory: &dyn DeviceMemory) -> &Memory {
    memory.as_any().downcast_ref().expect("a residual of this device")
}

pub(super) fn memory_mut(memory: &mut dyn DeviceMemory) -> &mut Memory {
    memory.as_any_mut().downcast_mut().expect("a residual of this device")
}
