//! Settings that the derive declares: defaults, ranges at their ends, representatives.

use briquette_core::CompressionRatio;
use briquette_core::config::{CompressorConfig, Described};
use briquette_core::error::ConfigError;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "declared",
    help = "all kinds of settings",
    places = 2,
    representatives("declared", "declared:4:0.25,high=16x,inner=(topk:8x,values=q8)"),
    check = Self::check_together
)]
struct Declared {
    #[setting(default = 2, range = "[1, 8]")]
    count: usize,
    #[setting(default = 0.5, range = "(0, 1]")]
    share: f32,
    #[setting(range = "[0, count)")]
    below: usize,
    #[setting(default = 2.0, range = "(0, inf)")]
    finite: f64,
    #[setting(default = 3.0, range = "[1, inf]")]
    any: f64,
    #[setting(range = "(-1, 1)")]
    maybe: Option<f32>,
    #[setting(default = "2x", range = "(1, inf)")]
    low: CompressionRatio,
    #[setting(default = "8x", range = "[low, inf)")]
    high: CompressionRatio,
    #[setting(default = "sign")]
    inner: CompressorConfig,
    #[setting(default = true)]
    on: bool,
}

impl Declared {
    fn check_together(&self) -> Result<(), ConfigError> {
        ConfigError::unless(self.on || self.maybe.is_none(), "on of declared", "true with maybe", self.on)
    }
}

fn ratio(of: f64) -> CompressionRatio {
    CompressionRatio::new(of).expect("at least 1")
}

#[test]
fn defaults_and_representatives_are_the_declared_ones() {
    let usual = Declared::default();
    assert_eq!((usual.count, usual.share, usual.below, usual.finite, usual.any), (2, 0.5, 0, 2.0, 3.0));
    assert_eq!((usual.maybe, usual.low, usual.high, usual.on), (None, ratio(2.0), ratio(8.0), true));
    assert_eq!(usual.inner.to_string(), "sign");
    let inner = "topk:8x:q8".parse().expect("a compressor");
    let other = Declared { count: 4, share: 0.25, high: ratio(16.0), inner, ..usual.clone() };
    assert_eq!(Declared::representatives(), [usual, other]);
}

#[test]
fn a_range_has_exactly_its_ends() {
    let of = Declared::default;
    for valid in [
        of(),
        Declared { count: 1, ..of() },
        Declared { count: 8, below: 7, ..of() },
        Declared { share: 1.0, ..of() },
        Declared { share: f32::MIN_POSITIVE, ..of() },
        Declared { finite: f64::MAX, any: f64::INFINITY, ..of() },
        Declared { any: 1.0, maybe: Some(0.999), ..of() },
        Declared { low: ratio(8.0), ..of() },
    ] {
        assert_eq!(valid.check(), Ok(()), "{valid:?}");
        assert_eq!(valid.clone().checked(), Ok(valid));
    }
    for (wrong, words) in [
        (Declared { count: 0, ..of() }, "count of declared must be 1 to 8, got 0"),
        (Declared { count: 9, ..of() }, "count of declared must be 1 to 8, got 9"),
        (Declared { share: 0.0, ..of() }, "share of declared must be in (0, 1], got 0"),
        (Declared { share: f32::NAN, ..of() }, "share of declared must be in (0, 1], got NaN"),
        (Declared { below: 2, ..of() }, "below of declared must be in [0, count), got 2"),
        (Declared { finite: f64::INFINITY, ..of() }, "finite of declared must be above 0, got inf"),
        (Declared { finite: f64::NAN, ..of() }, "finite of declared must be above 0, got NaN"),
        (Declared { any: 0.5, ..of() }, "any of declared must be at least 1, got 0.5"),
        (Declared { any: f64::NAN, ..of() }, "any of declared must be at least 1, got NaN"),
        (Declared { maybe: Some(-1.0), ..of() }, "maybe of declared must be in (-1, 1), got -1"),
        (Declared { low: ratio(1.0), ..of() }, "low of declared must be above 1, got 1x"),
        (Declared { high: ratio(1.5), ..of() }, "high of declared must be at least low, got 1.5x"),
        (Declared { on: false, maybe: Some(0.0), ..of() }, "on of declared must be true with maybe, got false"),
    ] {
        assert_eq!(wrong.check().unwrap_err().to_string(), words);
    }
}

#[test]
#[should_panic(expected = "representative `malformed:x`")]
fn a_representative_that_is_no_text_of_its_own_is_named() {
    #[derive(Debug, Serialize, Deserialize, Described)]
    #[serde(default, deny_unknown_fields)]
    #[described(name = "malformed", help = "has a representative without a meaning", representatives("malformed:x"))]
    struct Malformed {
        count: u8,
    }
    Malformed::representatives();
}
