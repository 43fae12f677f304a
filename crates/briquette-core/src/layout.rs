//! Layout of the parameter tensors in the flat vector.
//!
//! Parameters are identified by their path in the module and their order, because these are equal on every rank. A
//! framework's parameter ids are not.
//!
//! ```
//! use briquette_core::Layout;
//! let layout = Layout::new([("conv.weight", vec![16, 3, 3, 3]), ("fc.bias", vec![10])]);
//! assert_eq!(layout.len(), 442);
//! assert_eq!(layout.slots()[1].range(), 432..442);
//! ```

use std::fmt;
use std::ops::Range;

/// One parameter tensor inside the flat vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    path: String,
    shape: Vec<usize>,
    start: usize,
    len: usize,
    absent: bool,
}

impl Slot {
    /// Returns the path in the module, such as `block1.conv2.weight`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the tensor's dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of values.
    #[allow(clippy::len_without_is_empty)] // a slot of a scalar still holds one value
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the range of the values in the vector that this slot describes.
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// Returns the same slot for the part of this vector (a bucket) that begins at `offset`.
    pub fn rebased(&self, offset: usize) -> Slot {
        Slot { start: self.start - offset, ..self.clone() }
    }

    /// Returns whether no rank has a gradient for this slot at the step of the exchange. Error feedback then does not
    /// send its residual of this slot, and keeps it.
    pub fn is_absent(&self) -> bool {
        self.absent
    }

    /// Returns rows and columns for PowerSGD: the first dimension and the product of the others. `None` for vectors.
    pub fn matrix(&self) -> Option<(usize, usize)> {
        let rows = *self.shape.first()?;
        let cols: usize = self.shape[1..].iter().product();
        (self.shape.len() >= 2 && rows > 1 && cols > 1).then_some((rows, cols))
    }
}

/// The slots of a model's trainable parameters, in the order of the module's traversal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layout {
    slots: Vec<Slot>,
    len: usize,
}

impl Layout {
    /// Creates the layout of these tensors, one after another.
    pub fn new<P: Into<String>>(tensors: impl IntoIterator<Item = (P, Vec<usize>)>) -> Self {
        let mut layout = Layout::default();
        for (path, shape) in tensors {
            let len = shape.iter().product();
            layout.slots.push(Slot { path: path.into(), shape, start: layout.len, len, absent: false });
            layout.len += len;
        }
        layout
    }

    /// Creates one slot of `len` values, for vectors without inner structure.
    pub fn flat(len: usize) -> Self {
        Layout::new([("x", vec![len])])
    }

    /// Returns the slots in order. Their ranges cover `0..len()` without gaps.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Returns all slots, and marks those whose entry in `present` is false as [absent](Slot::is_absent). `None` if all
    /// are present.
    ///
    /// ```
    /// use briquette_core::Layout;
    /// let layout = Layout::new([("generator", vec![2]), ("critic", vec![3])]);
    /// let absent = layout.absent(&[true, false]).unwrap();
    /// assert_eq!((absent.ranges, absent.slots[1].is_absent()), (vec![2..5], true));
    /// assert!(layout.absent(&[true, true]).is_none());
    /// ```
    pub fn absent(&self, present: &[bool]) -> Option<AbsentSlots> {
        present.contains(&false).then(|| {
            let slots = with_absent(&self.slots, |index| present.get(index) == Some(&false));
            let ranges = absent(&slots);
            AbsentSlots { slots, ranges }
        })
    }

    /// Returns the number of values in the flat vector.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there is nothing to train.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a hash of paths, shapes and order, compared during rendezvous.
    pub fn fingerprint(&self) -> u64 {
        let mut text = String::new();
        for slot in &self.slots {
            text.push_str(&format!("{}{:?};", slot.path, slot.shape));
        }
        text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
    }
}

/// The slots of a step in which some slots have a gradient on no rank; see [`Layout::absent`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AbsentSlots {
    /// All slots, with the absent ones marked.
    pub slots: Vec<Slot>,
    /// Ranges of the absent slots, in order.
    pub ranges: Vec<Range<usize>>,
}

impl AbsentSlots {
    /// Sets a vector to zero in the absent slots.
    pub fn clear(&self, vector: &mut [f32]) {
        self.ranges.iter().for_each(|range| vector[range.clone()].fill(0.0));
    }
}

/// Returns the slots, marked as absent where `is_absent` holds for their index.
pub fn with_absent(slots: &[Slot], is_absent: impl Fn(usize) -> bool) -> Vec<Slot> {
    slots.iter().enumerate().map(|(index, slot)| Slot { absent: is_absent(index), ..slot.clone() }).collect()
}

/// Returns the ranges of the slots that are marked as absent.
pub fn absent(slots: &[Slot]) -> Vec<Range<usize>> {
    slots.iter().filter(|slot| slot.absent).map(Slot::range).collect()
}

/// Returns the parts of the ordered ranges `places` inside `range`, relative to its start.
pub fn inside(places: &[Range<usize>], range: &Range<usize>) -> Vec<Range<usize>> {
    let cut = |place: &Range<usize>| place.start.max(range.start)..place.end.min(range.end);
    let cut = places.iter().map(cut).filter(|place| !place.is_empty());
    cut.map(|place| place.start - range.start..place.end - range.start).collect()
}

/// Returns these ranges shifted by `by`.
pub fn moved(places: &[Range<usize>], by: usize) -> Vec<Range<usize>> {
    places.iter().map(|place| place.start + by..place.end + by).collect()
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values in {} slots", self.len, self.slots.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_tile_the_vector() {
        let layout = Layout::new([("a", vec![2, 3]), ("b", vec![4]), ("c", vec![])]);
        let ranges: Vec<_> = layout.slots().iter().map(Slot::range).collect();
        assert_eq!(ranges, [0..6, 6..10, 10..11]);
    }

    #[test]
    fn fingerprint_sees_order_path_and_shape() {
        let base = Layout::new([("a", vec![2, 3]), ("b", vec![6])]);
        for other in [
            Layout::new([("b", vec![6]), ("a", vec![2, 3])]),
            Layout::new([("a", vec![3, 2]), ("b", vec![6])]),
            Layout::new([("a", vec![2, 3]), ("c", vec![6])]),
        ] {
            assert_ne!(base.fingerprint(), other.fingerprint());
        }
    }

    #[test]
    fn only_tensors_with_two_real_dimensions_are_matrices() {
        let layout = Layout::new([("m", vec![4, 3, 2]), ("v", vec![5]), ("thin", vec![1, 9])]);
        let shapes: Vec<_> = layout.slots().iter().map(Slot::matrix).collect();
        assert_eq!(shapes, [Some((4, 6)), None, None]);
    }
}
