//! Recorded encode and decode times, for runs on a clock that does not measure them.

use briquette_core::CompressionRatio;
use briquette_core::error::ConfigError;

/// Measured seconds of encoding and decoding in an exchange, at several compression ratios. In a simulation with given
/// compute times, they are added to the session's seconds, and to the measurements that controllers observe.
///
/// Between two ratios, seconds are interpolated linearly in the logarithm of the ratio; beyond the first and the last
/// ratio, they are constant.
///
/// ```
/// use briquette_core::CompressionRatio;
/// use briquette_sim::CompressSeconds;
///
/// let seconds = CompressSeconds::new(&[(1.0, 0.001), (4.0, 0.003), (100.0, 0.002)])?;
/// let at = |ratio| seconds.at(CompressionRatio::new(ratio).unwrap());
/// assert_eq!([1.0, 2.0, 4.0, 20.0, 1000.0].map(at), [0.001, 0.002, 0.003, 0.0025, 0.002]);
/// # Ok::<(), briquette_core::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct CompressSeconds(Vec<(f64, f64)>);

/// The setting, for errors.
const SECONDS: &str = "seconds of compressing";

impl CompressSeconds {
    /// Creates the table from compression ratios with the seconds of each, in any order.
    ///
    /// # Errors
    /// [`ConfigError`] for an empty list, a ratio below 1 or given twice, and seconds that are not finite or negative.
    pub fn new(points: &[(f64, f64)]) -> Result<Self, ConfigError> {
        let mut points = points.to_vec();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        if points.is_empty() {
            return Err(ConfigError::range(SECONDS, "of one ratio or more", "no ratio"));
        }
        for (ratio, seconds) in &points {
            CompressionRatio::new(*ratio)?;
            if !seconds.is_finite() || *seconds < 0.0 {
                return Err(ConfigError::range(
                    SECONDS,
                    "finite numbers of at least 0",
                    format!("{seconds} at {ratio}x"),
                ));
            }
        }
        match points.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(ConfigError::range(SECONDS, "of one time a ratio", format!("{}x twice", pair[0].0))),
            None => Ok(CompressSeconds(points)),
        }
    }

    /// Returns the seconds of an exchange at this ratio.
    pub fn at(&self, ratio: CompressionRatio) -> f64 {
        let (ratio, points) = (ratio.get(), &self.0);
        let above = points.partition_point(|(at, _)| *at < ratio);
        match (above.checked_sub(1).map(|below| points[below]), points.get(above)) {
            (Some((low, begin)), Some((high, end))) => begin + (end - begin) * (ratio / low).ln() / (high / low).ln(),
            (None, Some((_, seconds))) => *seconds,
            _ => points[points.len() - 1].1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_that_cannot_be_are_refused() {
        for (points, why) in [
            (&[][..], "no ratio"),
            (&[(0.5, 0.1)], "1"),
            (&[(2.0, f64::NAN)], "finite"),
            (&[(2.0, -1.0)], "at least 0"),
            (&[(2.0, 0.1), (4.0, 0.1), (2.0, 0.2)], "got 2x twice"),
        ] {
            let error = CompressSeconds::new(points).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
