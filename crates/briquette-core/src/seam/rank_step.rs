//! One rank's values for a step. The step header gives them to every rank.

/// One rank's values for a step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct RankStep {
    /// Mean loss over the rank's samples, if recorded.
    pub loss: Option<f64>,
    /// Number of samples behind the gradient.
    pub samples: u64,
    /// Compute seconds of the step; after local steps, of the last one.
    pub compute_seconds: f64,
    /// Energy (squared norm) of the rank's residual before this exchange.
    pub residual_energy: f64,
}

impl RankStep {
    /// Combines ranks: the mean loss, weighted by samples, of the ranks that recorded one; the sum of samples; the largest
    /// compute time.
    pub fn together<'a>(ranks: impl Iterator<Item = &'a RankStep> + Clone) -> RankStep {
        // Sums of received numbers must not overflow.
        let sum =
            |ranks: &mut dyn Iterator<Item = &RankStep>| ranks.fold(0, |sum: u64, r| sum.saturating_add(r.samples));
        let heard = || ranks.clone().filter(|rank| rank.samples > 0 && rank.loss.is_some());
        let loss_samples = sum(&mut heard());
        let loss_sum: f64 = heard().map(|rank| rank.loss.unwrap_or(0.0) * rank.samples as f64).sum();
        RankStep {
            loss: (loss_samples > 0).then(|| loss_sum / loss_samples as f64),
            samples: sum(&mut ranks.clone()),
            compute_seconds: ranks.clone().map(|rank| rank.compute_seconds).fold(0.0, f64::max),
            residual_energy: ranks.map(|rank| rank.residual_energy).sum(),
        }
    }
}
