//! Random flips and crops, keyed by sample.

use briquette_core::Key;
use rand::Rng;

use crate::image::{CHANNELS, SIDE};

/// Random augmentation of training images.
///
/// The randomness depends only on a key and the sample's index. Pass `key.purpose("augment").step(epoch)`: an image
/// then looks the same throughout an epoch, on any rank or thread, and different in the next epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Augment {
    /// Mirrors every second image on average, left to right.
    pub flip: bool,
    /// Pads with this many black pixels on each side, then cuts a `SIDE` by `SIDE` window at a random position. 0
    /// leaves images in place.
    pub padding: usize,
}

impl Augment {
    /// Returns mirroring only.
    pub fn flip() -> Self {
        Self { flip: true, padding: 0 }
    }

    /// Returns a random crop with the usual padding of 4 only.
    pub fn crop() -> Self {
        Self { flip: false, padding: 4 }
    }

    /// Returns the usual augmentation for CIFAR (He et al. 2016, section 4.2): padding 4, crop, mirror.
    pub fn crop_and_flip() -> Self {
        Self { flip: true, padding: 4 }
    }

    /// Draws the placement of one sample. Both draws are always made, so that one option does not change the other's outcome.
    pub(crate) fn draw(&self, key: Key, sample: usize) -> Placement {
        let mut rng = key.block(sample);
        let flip = rng.random::<bool>();
        let [mut shift_y, mut shift_x] = [0; 2];
        if self.padding > 0 {
            let reach = i32::try_from(self.padding).unwrap_or(i32::MAX);
            shift_y = rng.random_range(-reach..=reach);
            shift_x = rng.random_range(-reach..=reach);
        }
        Placement { shift_y, shift_x, flip: flip && self.flip }
    }
}

/// Source positions of the output's pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Placement {
    pub(crate) shift_y: i32,
    pub(crate) shift_x: i32,
    pub(crate) flip: bool,
}

impl Placement {
    /// The image as stored.
    pub(crate) const IDENTITY: Self = Self { shift_y: 0, shift_x: 0, flip: false };

    /// Writes the placed image, with `value(channel, byte)` at each pixel; the value is 0 beyond the edge.
    pub(crate) fn place(self, image: &[u8], out: &mut [f32], value: impl Fn(usize, u8) -> f32) {
        for channel in 0..CHANNELS {
            for y in 0..SIDE {
                let row = within(y, self.shift_y);
                for x in 0..SIDE {
                    let column = within(if self.flip { SIDE - 1 - x } else { x }, self.shift_x);
                    let byte = row.zip(column).map_or(0, |(row, column)| image[(channel * SIDE + row) * SIDE + column]);
                    out[(channel * SIDE + y) * SIDE + x] = value(channel, byte);
                }
            }
        }
    }
}

fn within(position: usize, shift: i32) -> Option<usize> {
    let moved = position as i64 + i64::from(shift);
    usize::try_from(moved).ok().filter(|&moved| moved < SIDE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::PIXELS;

    fn placed(placement: Placement) -> Vec<f32> {
        let image: Vec<u8> = (0..PIXELS).map(|i| (i % 251) as u8 + 1).collect();
        let mut out = vec![0.0; PIXELS];
        placement.place(&image, &mut out, |_, byte| f32::from(byte));
        out
    }

    #[test]
    fn flip_mirrors_each_row_and_twice_is_identity() {
        let plain = placed(Placement::IDENTITY);
        let flipped = placed(Placement { flip: true, ..Placement::IDENTITY });
        for (row, mirrored) in plain.chunks(SIDE).zip(flipped.chunks(SIDE)) {
            assert!(row.iter().eq(mirrored.iter().rev()));
        }
        assert_ne!(plain, flipped);
    }

    #[test]
    fn shift_moves_rows_and_columns_and_fills_with_black() {
        let plain = placed(Placement::IDENTITY);
        let moved = placed(Placement { shift_y: 2, shift_x: -3, flip: false });
        let at = |image: &[f32], channel: usize, y: usize, x: usize| image[(channel * SIDE + y) * SIDE + x];
        for channel in 0..CHANNELS {
            assert_eq!(at(&moved, channel, 0, 3), at(&plain, channel, 2, 0));
            assert_eq!(at(&moved, channel, 10, 20), at(&plain, channel, 12, 17));
            assert_eq!(at(&moved, channel, 0, 2), 0.0);
            assert_eq!(at(&moved, channel, 30, 10), 0.0);
        }
    }

    #[test]
    fn draws_cover_all_shifts_and_both_flips_and_repeat() {
        let augment = Augment::crop_and_flip();
        let draws: Vec<_> = (0..2000).map(|i| augment.draw(Key::new(1), i)).collect();
        for shift in -4..=4 {
            assert!(draws.iter().any(|d| d.shift_x == shift) && draws.iter().any(|d| d.shift_y == shift));
        }
        let flips = draws.iter().filter(|d| d.flip).count();
        assert!((900..1100).contains(&flips), "{flips}"); // sd 22
        assert_eq!(draws[7], augment.draw(Key::new(1), 7));
        assert_eq!(Augment::flip().draw(Key::new(1), 7).flip, draws[7].flip);
    }
}
