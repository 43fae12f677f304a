//! Measurements of a compressor on a vector: size, loss, time.

use std::hint::black_box;
use std::time::Instant;

use briquette_core::compress::ErrorBound;
use briquette_core::config::CompressorConfig;
use briquette_core::{Key, Message};
use serde::Serialize;

/// One compressor on one vector.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// Compressor as written in settings.
    pub compressor: String,
    /// Compressor class that it declares for this vector.
    pub class: String,
    /// Dense size divided by compressed size, as the compressor counts it.
    pub ratio: f64,
    /// Dense bytes divided by the bytes of the whole message.
    pub wire_ratio: f64,
    /// Bytes of the whole message.
    pub bytes: usize,
    /// `1 − ‖x − C(x)‖²/‖x‖²`; 1 for a zero vector.
    pub gain: f64,
    /// `‖x − C(x)‖/‖x‖`; 0 for a zero vector.
    pub relative_error: f64,
    /// Median seconds to compress and write the message.
    pub encode_seconds: f64,
    /// Median seconds to read the message and add it to a vector.
    pub decode_seconds: f64,
    /// Median seconds to copy the vector; a copy precedes each run, since the load of a machine varies.
    pub copy_seconds: f64,
}

/// Measures with `key`, timing `repeats` runs (at least one), on the threads of the pool it is called from.
///
/// Costs that a training loop does not have are excluded: compressor, message, frame and copy all reuse the storage of
/// the previous run, pages included. Byte conversion is included: encoding ends with a frame ready to be sent, and
/// decoding begins with a received frame. The transport between the two is not measured.
///
/// # Panics
/// If a message does not survive its own wire format, which would be a bug in this library.
pub fn measure(config: &CompressorConfig, x: &[f32], key: Key, repeats: usize) -> Measured {
    let mut compressor = config.build();
    let (mut message, mut read) = (Message::default(), Message::default());
    let (mut spare, mut frame) = (Vec::new(), Vec::new());
    let (mut sum, mut copy) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    let (mut encode, mut decode, mut copying) = (Vec::new(), Vec::new(), Vec::new());
    // The first run allocates storage; it does not count unless it is the only one.
    for run in 0..=repeats.max(1) {
        let begin = Instant::now();
        copy.copy_from_slice(black_box(x));
        black_box(&mut copy);
        let start = Instant::now();
        compressor.compress_into(x, key, &mut message);
        let sent = black_box(message.to_frame(&mut spare).expect("a message of less than 4 GiB"));
        let encoded = Instant::now();
        frame.clear();
        frame.extend_from_slice(sent);
        let received = Instant::now();
        read.read_frame(&mut frame).expect("a message reads what it wrote");
        read.add_to(1.0, &mut sum).expect("a message fits the vector it was made of");
        if run > 0 {
            copying.push((start - begin).as_secs_f64());
            encode.push((encoded - start).as_secs_f64());
            decode.push(received.elapsed().as_secs_f64());
        }
    }
    let energy: f64 = x.iter().map(|v| f64::from(*v).powi(2)).sum();
    let lost = message.error_energy(x);
    let share = if energy > 0.0 { lost / energy } else { 0.0 };
    Measured {
        compressor: config.to_string(),
        class: class_text(compressor.error_bound(x)),
        ratio: compressor.nominal().get(),
        wire_ratio: 4.0 * x.len() as f64 / message.encoded_len() as f64,
        bytes: message.encoded_len(),
        gain: 1.0 - share,
        relative_error: share.sqrt(),
        encode_seconds: median(encode),
        decode_seconds: median(decode),
        copy_seconds: median(copying),
    }
}

/// Runs `work` on a separate pool of `threads` threads; on the caller's thread if that is one.
///
/// # Errors
/// If threads cannot be started.
pub fn on_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> Result<T, rayon::ThreadPoolBuildError> {
    match threads {
        1 => Ok(work()),
        threads => Ok(rayon::ThreadPoolBuilder::new().num_threads(threads).build()?.install(work)),
    }
}

/// Returns the median.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn class_text(class: ErrorBound) -> String {
    match class {
        ErrorBound::Contractive { delta } => format!("contractive, δ = {delta:.3}"),
        ErrorBound::MeanContractive { delta } => format!("contractive in the mean, δ = {delta:.3}"),
        ErrorBound::Unbiased { omega } => format!("unbiased, ω = {omega:.3}"),
        ErrorBound::Biased { omega } => format!("biased, error {omega:.3}"),
        other => format!("error {:.3}", other.error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_vector_that_can_be_checked_by_hand() {
        // The larger half of 3, −4, 1, 0: kept 25 of 26.
        let x = [3.0, -4.0, 1.0, 0.0];
        let measured = measure(&"topk:2x".parse().unwrap(), &x, Key::new(0), 3);
        assert_eq!((measured.ratio, measured.gain), (2.0, 1.0 - 1.0 / 26.0));
        assert!((measured.relative_error - (1.0_f64 / 26.0).sqrt()).abs() < 1e-12);
        assert_eq!(measured.bytes, 17 + 1 + 8);
        assert_eq!(measured.wire_ratio, 16.0 / 26.0);
        let zero = measure(&"sign".parse().unwrap(), &[0.0; 4], Key::new(0), 1);
        assert_eq!((zero.gain, zero.relative_error), (1.0, 0.0));
    }
}
