//! Paired comparisons: the same seeds in every row, differences to a baseline row.

/// Mean and standard error of the mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    /// Mean; NaN of no values.
    pub mean: f64,
    /// Standard error; NaN of fewer than two values.
    pub error: f64,
    /// Number of values.
    pub count: usize,
}

impl Mean {
    /// Computes the mean of some values.
    ///
    /// ```
    /// use briquette_benches::paired::Mean;
    /// let mean = Mean::of(&[1.0, 2.0, 3.0]);
    /// assert_eq!(mean.mean, 2.0);
    /// assert!((mean.error - 1.0 / 3.0_f64.sqrt()).abs() < 1e-12); // sd 1, three values
    /// ```
    pub fn of(values: &[f64]) -> Mean {
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
        let error = if count < 2 { f64::NAN } else { (squares / (count - 1) as f64 / count as f64).sqrt() };
        Mean { mean, error, count }
    }

    /// Computes the mean of the differences between values with the same seed.
    pub fn of_differences(values: &[(u64, f64)], baseline: &[(u64, f64)]) -> Mean {
        let other = |seed| baseline.iter().find(|(s, _)| *s == seed).map(|(_, v)| *v);
        let differences: Vec<f64> = values.iter().filter_map(|(seed, v)| Some(v - other(*seed)?)).collect();
        Mean::of(&differences)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_common_seeds_are_compared() {
        let mean = Mean::of_differences(&[(1, 5.0), (2, 7.0), (9, 100.0)], &[(2, 4.0), (1, 4.0)]);
        assert_eq!((mean.mean, mean.error, mean.count), (2.0, 1.0, 2));
    }
}
