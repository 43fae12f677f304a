//! Law 7: every compressor satisfies the error bound of its declared class.

use crate::exchanges;
use briquette_core::compress::{Compressor, ErrorBound, ValueKind, top_k::TopK};
use briquette_core::config::CompressorConfig;
use briquette_core::laws::{check_class, vectors};
use briquette_core::{CompressionRatio, Key, Message};
use briquette_zoo::compress::rounding::Rounding;

/// Returns the compressors whose messages are sent unchanged, each once.
fn compressors() -> Vec<CompressorConfig> {
    let mut compressors: Vec<_> = exchanges().iter().filter_map(|e| e.reducer.get().compressor()).collect();
    compressors.sort_by_key(ToString::to_string);
    compressors.dedup();
    compressors
}

#[test]
fn law_7_declared_classes_hold() {
    briquette_zoo::install();
    // No representative has two unbiased parts.
    let more = ["randk:4x:scaled+natural", "randk:4x:scaled+qsgd:4:64:l2", "biased-random:0.3+natural"];
    let more = more.map(|text| text.parse::<CompressorConfig>().unwrap());
    for config in compressors().into_iter().chain(more) {
        for (name, x) in vectors() {
            if let Err(fault) = check_class(&mut *config.build(), &x) {
                panic!("{config} on {name}: {fault}");
            }
        }
    }
}

/// Bounds of [`Message::largest`], which most messages have.
#[test]
fn no_value_of_a_message_exceeds_its_bound() {
    briquette_zoo::install();
    let (mut bounded, mut all) = (0, 0);
    for config in compressors() {
        for (name, x) in vectors() {
            let (mut message, mut decoded) = (Message::default(), vec![0.0; x.len()]);
            config.build().compress_into(&x, Key::new(3), &mut message);
            message.decode_into(&mut decoded).unwrap();
            let largest = decoded.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
            let bound = message.largest();
            // A code times its scale may round up.
            assert!(
                bound.is_none_or(|bound| largest <= bound * 1.0001),
                "{config} on {name}: {largest}, not {bound:?}"
            );
            (bounded, all) = (bounded + usize::from(bound.is_some()), all + 1);
        }
    }
    assert!(2 * bounded > all, "{bounded} of {all} messages have a bound");
}

#[test]
fn law_7_short_values_lose_no_more_of_what_is_kept_than_declared() {
    // In the class of top-k the omitted values dominate this error; the class of keeping everything isolates it.
    for values in [ValueKind::F32, ValueKind::F16, ValueKind::Q8] {
        let top_k = |ratio| TopK::ratio(CompressionRatio::new(ratio).unwrap()).with_values(values);
        for (name, x) in vectors() {
            let ErrorBound::Contractive { delta } = top_k(1.0).error_bound(&x) else { panic!("top-k contracts") };
            for ratio in [1.0, 8.0] {
                let (mut message, mut decoded) = (Message::default(), vec![0.0; x.len()]);
                top_k(ratio).compress_into(&x, Key::new(0), &mut message);
                message.decode_into(&mut decoded).unwrap();
                let kept = || x.iter().zip(&decoded).filter(|(_, v)| **v != 0.0);
                let error: f64 = kept().map(|(x, v)| (f64::from(*x) - f64::from(*v)).powi(2)).sum();
                let norm2: f64 = kept().map(|(x, _)| f64::from(*x).powi(2)).sum();
                assert!(error <= (1.0 - delta) * norm2, "{values:?} at {ratio}x on {name}: {error} of {norm2}");
            }
        }
    }
}

/// Declares that another compressor belongs to this class.
struct Claims<C>(C, ErrorBound);

impl<C: Compressor> Compressor for Claims<C> {
    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        self.0.compress_into(x, key, out);
    }
    fn error_bound(&self, _x: &[f32]) -> ErrorBound {
        self.1
    }
    fn nominal(&self) -> CompressionRatio {
        self.0.nominal()
    }
}

#[test]
fn law_7_sees_through_rounding_to_nearest_that_claims_to_be_unbiased() {
    // Its error is smaller than that of random rounding, whose class it declares.
    let (nearest, random) = (Rounding::nearest(2.0).unwrap(), Rounding::random(2.0).unwrap());
    for (name, x) in vectors() {
        assert_eq!(check_class(&mut Claims(random, random.error_bound(&x)), &x), Ok(()), "{name}");
        let fault = check_class(&mut Claims(nearest, random.error_bound(&x)), &x).err();
        // Zeros have no error, and the long vector has too few draws to detect 3 %.
        if !["zeros", "long"].contains(&name) {
            assert!(fault.as_ref().is_some_and(|f| f.contains("mean")), "{name}: {fault:?}");
        }
    }
    // Also detects a constant that is too good.
    let x = vec![0.7; 100];
    let fault = check_class(&mut Claims(nearest, ErrorBound::Contractive { delta: 0.999 }), &x);
    assert!(fault.is_err_and(|f| f.contains("exceeds")));
}
