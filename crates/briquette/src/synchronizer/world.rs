//! Small collectives over all ranks: means of metrics, decisions.

use super::Synchronizer;
use crate::error::Error;

impl Synchronizer {
    /// Returns the mean of each value over ranks, weighted by `samples`, in `f64` and with the same bits on every rank. All ranks must call it with
    /// equally many values. If a value is NaN on a rank with samples, its mean is NaN on every rank; if no rank has samples, all means are NaN. The
    /// time of the call does not count as the run's.
    ///
    /// # Errors
    /// [`Error::Comm`] when the transport fails, or ranks call with different numbers of values.
    pub fn mean_over_ranks(&mut self, values: &[f64], samples: u64) -> Result<Vec<f64>, Error> {
        if self.world() == 1 && samples > 0 {
            return Ok(values.to_vec());
        }
        let weight = samples as f64;
        // The value of a rank without samples may be NaN.
        let weighted = values.iter().map(|value| if samples == 0 { 0.0 } else { value * weight });
        let mut sums: Vec<f64> = weighted.chain([weight]).collect();
        let before = self.comm.now();
        self.comm.scope().operation = "mean over ranks";
        self.comm.all_reduce_sum_f64(&mut sums)?;
        self.last_end += self.comm.now() - before;
        let weight = sums.pop().unwrap_or_default();
        Ok(sums.into_iter().map(|sum| sum / weight).collect())
    }

    /// Returns whether the condition holds on any rank. The result is the same on every rank. All ranks must call it.
    ///
    /// # Errors
    /// As for [`mean_over_ranks`](Self::mean_over_ranks).
    pub fn any_rank(&mut self, condition: bool) -> Result<bool, Error> {
        Ok(self.mean_over_ranks(&[f64::from(u8::from(condition))], 1)?[0] > 0.0)
    }
}
