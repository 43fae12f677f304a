//! Law 7: a compressor satisfies the error bound of its declared class.

use crate::seam::{Compressor, ErrorBound};
use crate::{Key, Message};

/// Returns the number of draws of `x` that suffice to test a compressor of this class.
fn draws(class: ErrorBound, x: &[f32]) -> u64 {
    let draws = if matches!(class, ErrorBound::Contractive { .. }) { 200 } else { 2000 };
    if x.len() > 1000 { draws / 10 } else { draws }
}

/// Checks law 7 on one vector: the size of the error, and a mean of 0 where the class requires it.
///
/// # Errors
/// The message states the violation.
pub fn check_class(compressor: &mut dyn Compressor, x: &[f32]) -> Result<(), String> {
    let mut message = Message::default();
    let nonzero = x.iter().filter(|v| **v != 0.0).count();
    let class = compressor.error_bound(x);
    let draws = draws(class, x);
    let mut bias = Bias::new(x);
    let mut errors = Vec::new();
    let mut decoded = vec![0.0; x.len()];
    for step in 0..draws {
        compressor.compress_into(x, Key::new(9).step(step), &mut message);
        message.decode_into(&mut decoded).map_err(|e| e.to_string())?;
        errors.push(x.iter().zip(&decoded).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum::<f64>());
        match class {
            // A declared share must be sent: otherwise only vectors of equal magnitudes would show the violation in the error.
            ErrorBound::Contractive { delta } if compressor.selects() => {
                let declared = (delta * x.len() as f64 * (1.0 - 1e-12)).ceil() as usize;
                if message.kept() < declared.min(nonzero) {
                    return Err(format!("{} kept of {declared}", message.kept()));
                }
            }
            ErrorBound::Unbiased { .. } => bias.add(x, &decoded),
            _ => {}
        }
    }
    check_size(class, x, &errors)?;
    bias.check(draws)
}

/// Checks the size of the error: of every draw, or of the mean.
fn check_size(class: ErrorBound, x: &[f32], errors: &[f64]) -> Result<(), String> {
    let norm2: f64 = x.iter().map(|v| f64::from(*v).powi(2)).sum();
    // 5.5 standard deviations of the mean. An outcome that hardly any draw has affects both.
    let draws = errors.len() as f64;
    let mean = errors.iter().sum::<f64>() / draws;
    let variance = errors.iter().map(|e| (e - mean).powi(2)).sum::<f64>() / draws;
    let noise = 5.5 * (variance / draws).sqrt();
    let worst = errors.iter().copied().fold(0.0, f64::max);
    let (error, bound) = match class {
        ErrorBound::Contractive { delta } => (worst, (1.0 - delta) * norm2),
        ErrorBound::MeanContractive { delta } => (mean - noise, (1.0 - delta) * norm2),
        ErrorBound::Unbiased { omega } | ErrorBound::Biased { omega } => {
            (mean - noise, omega * norm2.max(f64::MIN_POSITIVE))
        }
    };
    if error <= bound + 1e-6 * bound { Ok(()) } else { Err(format!("{error} exceeds {bound} of {norm2}")) }
}

/// Sums of errors: of each value, and along the vector itself, where a common shrinkage accumulates.
struct Bias {
    norm: f64,
    sums: Vec<[f64; 2]>,
    along: [f64; 2],
}

impl Bias {
    fn new(x: &[f32]) -> Self {
        let norm = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        Bias { norm, sums: vec![[0.0; 2]; x.len()], along: [0.0; 2] }
    }

    fn add(&mut self, x: &[f32], decoded: &[f32]) {
        let mut along = 0.0;
        for (sum, (x, v)) in self.sums.iter_mut().zip(x.iter().zip(decoded)) {
            let error = f64::from(*v) - f64::from(*x);
            add(sum, error);
            along += error * f64::from(*x) / self.norm.max(f64::MIN_POSITIVE);
        }
        add(&mut self.along, along);
    }

    /// Checks that the bias is within 5.5 standard deviations of the mean plus the weight of twenty errors as large as the
    /// vector: a value that hardly any draw rounds the other way is not normally distributed.
    fn check(&self, draws: u64) -> Result<(), String> {
        let draws = draws as f64;
        let rare = 20.0 * self.norm / draws;
        let off = |[sum, squares]: [f64; 2]| (sum / draws).abs() > 5.5 * squares.sqrt() / draws + rare;
        if off(self.along) {
            return Err(format!("the mean is off by {} along the vector", self.along[0] / draws));
        }
        match self.sums.iter().position(|sum| off(*sum)) {
            Some(i) => Err(format!("the mean of value {i} is off by {}", self.sums[i][0] / draws)),
            None => Ok(()),
        }
    }
}

fn add(sum: &mut [f64; 2], error: f64) {
    sum[0] += error;
    sum[1] += error * error;
}
