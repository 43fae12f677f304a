//! Generated images: the class is a shape and a color, everything else is random.
//!
//! A shape is placed on a background with a brightness gradient. Position, size, tilt, shade and background are drawn
//! for each image, and every byte gets noise. No single pixel identifies the class, and the mean image of a class shows
//! only part of it: a model has to find the shape.

use std::f32::consts::TAU;

use briquette_core::{Key, KeyRng};
use rand::{Rng, RngCore};

use crate::error::DataError;
use crate::image::{CHANNELS, ImageSet, ImageSource, Images, Normalization, PIXELS, SIDE};

const TRAIN: usize = 4096;
const TEST: usize = 1024;
const SHAPES: [&str; 10] =
    ["disc", "square", "triangle", "plus", "ring", "saltire", "frame", "rows", "columns", "diamond"];

pub(crate) fn load(source: &ImageSource, classes: usize) -> Result<Images, DataError> {
    if !(2..=100).contains(&classes) {
        return Err(DataError::setting("number of classes of generated images", classes, "2 to 100"));
    }
    let classes = Classes::new(classes);
    let key = Key::new(source.seed).purpose("generated images");
    let draw = |purpose: &str, count: usize| {
        let key = key.purpose(purpose);
        let too_many = || DataError::Memory { count, what: "generated images" };
        let len = count.checked_mul(PIXELS).ok_or_else(too_many)?;
        let mut pixels = Vec::new();
        pixels.try_reserve_exact(len).map_err(|_| too_many())?;
        pixels.resize(len, 0);
        let labels: Vec<u8> = (0..count).map(|index| (index % classes.count) as u8).collect();
        for (index, image) in pixels.chunks_exact_mut(PIXELS).enumerate() {
            let mut rng = key.block(index);
            Scene::draw(&classes, index % classes.count, &mut rng).paint(image, &mut rng);
        }
        Ok(ImageSet::from_parts(pixels, labels, Normalization::GENERATED))
    };
    Ok(Images {
        train: draw("train", source.train_limit.unwrap_or(TRAIN))?,
        test: draw("test", source.test_limit.unwrap_or(TEST))?,
        classes: classes.count,
        class_names: (0..classes.count).map(|class| classes.name(class)).collect(),
        notes: vec!["images are generated, not photographs".to_owned()],
    })
}

/// Class `c` has shape `c % shapes` and hue `c / shapes`.
struct Classes {
    count: usize,
    shapes: usize,
    hues: usize,
}

impl Classes {
    /// Creates the classes. Up to 10 classes use five shapes and two distant hues, more use ten shapes and up to ten hues.
    fn new(count: usize) -> Self {
        let shapes = if count <= 10 { 5 } else { 10 };
        Self { count, shapes, hues: count.div_ceil(shapes).max(2) }
    }

    fn name(&self, class: usize) -> String {
        let degrees = 360 * (class / self.shapes) / self.hues;
        format!("{} of hue {degrees}°", SHAPES[class % self.shapes])
    }
}

/// Random values of one image.
struct Scene {
    shape: usize,
    centre: [f32; 2],
    radius: f32,
    tilt: f32,
    paint: [f32; CHANNELS],
    ground: [f32; CHANNELS],
    slope: [f32; 2],
}

impl Scene {
    fn draw(classes: &Classes, class: usize, rng: &mut KeyRng) -> Self {
        let middle = (SIDE as f32 - 1.0) / 2.0;
        let hue = (class / classes.shapes) as f32 + rng.random_range(-0.25..0.25);
        let (saturation, value) = (rng.random_range(0.55..1.0), rng.random_range(0.6..1.0));
        let angle = rng.random_range(0.0..TAU);
        let slope = rng.random_range(0.0..0.012);
        Self {
            shape: class % classes.shapes,
            centre: [(); 2].map(|()| middle + rng.random_range(-5.0..5.0)),
            radius: rng.random_range(7.0..12.0),
            tilt: rng.random_range(-0.2..0.2),
            paint: rgb(hue / classes.hues as f32, saturation, value),
            ground: rgb(rng.random(), rng.random_range(0.0..0.35), rng.random_range(0.15..0.75)),
            slope: [slope * angle.cos(), slope * angle.sin()],
        }
    }

    fn paint(&self, image: &mut [u8], rng: &mut KeyRng) {
        for y in 0..SIDE {
            for x in 0..SIDE {
                let [dx, dy] = [x as f32 - self.centre[0], y as f32 - self.centre[1]];
                let (sin, cos) = self.tilt.sin_cos();
                let [u, v] = [dx * cos + dy * sin, dy * cos - dx * sin].map(|d| d / self.radius);
                let inside = inside(self.shape, u, v);
                let light = 1.0 + (dx * self.slope[0] + dy * self.slope[1]) * 2.0;
                let noise = rng.next_u64().to_le_bytes();
                for channel in 0..CHANNELS {
                    let colour = if inside { self.paint[channel] } else { self.ground[channel] * light };
                    // The sum of two uniform bytes, minus its mean of 255: a triangle with deviation 104.
                    let pair = [noise[2 * channel], noise[2 * channel + 1]].map(f32::from);
                    let noisy = colour * 255.0 + (pair[0] + pair[1] - 255.0) * 0.25;
                    image[(channel * SIDE + y) * SIDE + x] = noisy as u8; // `as` saturates
                }
            }
        }
    }
}

/// Returns whether a point of the shape's own square from -1 to 1 is painted.
fn inside(shape: usize, u: f32, v: f32) -> bool {
    let (far, round) = (u.abs().max(v.abs()), u * u + v * v);
    match shape {
        // in the order of SHAPES
        0 => round < 1.0,
        1 => far < 0.85,
        2 => (-0.9..0.8).contains(&v) && u.abs() < (v + 0.9) * 0.6,
        3 => far < 1.0 && u.abs().min(v.abs()) < 0.28,
        4 => (0.3..1.0).contains(&round),
        5 => far < 0.9 && (u.abs() - v.abs()).abs() < 0.35,
        6 => (0.5..0.9).contains(&far),
        7 => far < 0.95 && (((v + 1.0) * 2.5) as usize).is_multiple_of(2),
        8 => far < 0.95 && (((u + 1.0) * 2.5) as usize).is_multiple_of(2),
        _ => u.abs() + v.abs() < 1.1,
    }
}

/// Converts hue, saturation and value to a color; hue 1 is hue 0.
fn rgb(hue: f32, saturation: f32, value: f32) -> [f32; CHANNELS] {
    // Each channel is full within a sixth of the circle around its own hue, absent beyond a third, linear between.
    [0.0, 2.0, 4.0].map(|own| {
        let apart = (hue * 6.0 - own).rem_euclid(6.0);
        let share = (2.0 - apart.min(6.0 - apart)).clamp(0.0, 1.0);
        value * (1.0 - saturation * (1.0 - share))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pure_hues_are_red_green_and_blue() {
        assert_eq!(rgb(0.0, 1.0, 1.0), [1.0, 0.0, 0.0]);
        assert_eq!(rgb(1.0 / 3.0, 1.0, 1.0), [0.0, 1.0, 0.0]);
        assert_eq!(rgb(2.0 / 3.0, 1.0, 1.0), [0.0, 0.0, 1.0]);
        assert_eq!(rgb(0.4, 0.0, 0.5), [0.5; 3]);
    }

    #[test]
    fn hundred_classes_are_ten_shapes_in_ten_hues_with_different_names() {
        let classes = Classes::new(100);
        assert_eq!((classes.shapes, classes.hues), (10, 10));
        let names: std::collections::HashSet<_> = (0..100).map(|class| classes.name(class)).collect();
        assert_eq!(names.len(), 100);
        assert_eq!(classes.name(37), "rows of hue 108°");
    }

    #[test]
    fn classes_beyond_the_range_are_refused() {
        let source = ImageSource::new(crate::ImageKind::Generated { classes: 101 });
        assert_eq!(
            source.load().unwrap_err().to_string(),
            "number of classes of generated images is 101, expected 2 to 100"
        );
    }
}
