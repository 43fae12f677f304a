//! Automatic controller: chooses the compression ratio, including no compression, from costs and the progress of the loss.
//!
//! **Why.** The best ratio depends on the link, the machine, the model and the phase of training. This controller needs no setting,
//! and [`Config::auto`](crate::config::Config::auto) uses it. **Why not.** It spends steps (at most five at the start) on timing
//! other ratios. If the network and its best ratio are known and do not change, a constant
//! [`Schedule`](crate::control::schedule::Schedule) avoids these steps.
//!
//! **Method.** Three nested controllers:
//!
//! 1. [`CostAware`] chooses the lowest ratio whose predicted step time is within 3 % of the fastest.
//! 2. [`LossGuard`] limits this ratio for a while when the loss falls behind its trend.
//! 3. [`DelayLimit`](crate::control::delay_limit::DelayLimit) also limits it, at first to 10x. It raises the limit while the staleness of the
//!    residual stays low, and lowers it, even below 10x, when the staleness is too high.
//!
//! The limit on the staleness depends on the feedback. It applies to the *effective delay*: the norm of the residual divided by the norm of a
//! step's gradient, in steps. Under [error feedback](crate::wrapper::error_feedback::ErrorFeedback) the limit is 0.2 steps: with Adam, a delay of
//! 0.12 cost 0.4 points of accuracy, and 0.36 cost 1.1.
//! Under [momentum correction](crate::wrapper::momentum_correction::MomentumCorrection), whose velocity itself spans ten steps, the limit is 10
//! steps: delays up to 9 steps cost no accuracy, and 15 steps cost seven points. Both limits lie between measurements on three small models with one
//! seed each (`docs/evidence/signals.md`). The highest ratio is 50x by default: static 100x lost 2 to 6 points on every model. For error
//! feedback, this controller equals `cost-aware:MAX,limit=(loss-guard:(delay-limit:MAX,most=0.2))`.
//!
//! If no controller is named under a strategy with outer momentum `μ` whose period [adapts](crate::sync::pace), the limit is `0.2/(1 − μ)`
//! exchanges: 0.2 of those over which that momentum extends. A delay of 2 exchanges did no harm to a BiLSTM under DiLoCo. At 50x, with a delay of 4
//! to 5 exchanges, its training loss doubled.
//!
//! **Knobs.** `max`, the highest ratio; `delay`, the limit on the effective delay, if it is not that of the feedback; `rungs`, the ratios to
//! choose from: `int4` adds a 4-bit ring, `lossless` leaves only a lossless ring; a `budget` of bytes and a `deadline` in seconds, for a run of
//! `steps` steps: see [`CostAware`]. Decisions depend on measured times, so a run can be replayed only with a clock that replays them.
//!
//! **Source.** This project's.
//!
//! ```
//! use briquette_core::{Layout, config::Config};
//! let config = Config::auto();
//! assert_eq!(config.exchange.controller.to_string(), "auto:50x");
//! config.build(&Layout::flat(1000), 4)?;
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use serde::{Deserialize, Serialize};

use super::{
    cost_aware::{CostAware, CostAwareConfig},
    delay_limit::DelayLimitConfig,
    loss_guard::{LossGuard, LossGuardConfig},
};
use crate::CompressionRatio;
use crate::error::ConfigError;
use crate::reduce::ladder::{LadderConfig, Rungs};
use crate::seam::Controller;
use crate::settings::{ControllerSettings, Described, Feedback, InnerOptimizer, ReducerConfig};

/// Settings of the controller; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "auto",
    help = "what pays here and now by seconds and loss progress, dense included; with reducer ladder (50x)"
)]
pub struct Auto {
    /// The highest ratio.
    #[setting(default = "50x")]
    pub max: CompressionRatio,
    /// Number of steps of the run, for `budget` and `deadline`.
    #[setting(range = "[1, inf)")]
    pub steps: Option<u64>,
    /// Bytes that all ranks together may send in these steps.
    #[setting(range = "(0, inf)")]
    pub budget: Option<f64>,
    /// Seconds that these steps may take. Time that is left goes into less compression.
    #[setting(range = "(0, inf)")]
    pub deadline: Option<f64>,
    /// The ratios, and the rings of the ladder.
    #[setting(syntax = "usual|int4|lossless")]
    pub rungs: Rungs,
    /// The longest effective delay, in exchanges. If absent, it follows from the feedback.
    #[setting(range = "(0, inf)")]
    pub delay: Option<f64>,
}

/// The limits on the effective delay, in steps: under error feedback, and under momentum correction.
const DELAYS: [f64; 2] = [0.2, 10.0];

impl ControllerSettings for Auto {
    fn build(&self, feedback: &Feedback, world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        let is_of_sgd =
            matches!(feedback.get().optimizer(), Some(InnerOptimizer::Sgd | InnerOptimizer::HeavyBall { .. }));
        let is_residual_of_velocity = is_of_sgd && feedback.get().requirement().keeps_residual();
        let most = self.delay.unwrap_or(DELAYS[usize::from(is_residual_of_velocity)]);
        let delay = DelayLimitConfig { max: self.max, most, rungs: self.rungs, ..DelayLimitConfig::default() };
        let guard = LossGuard::new(LossGuardConfig::default(), delay.controller()?)?;
        let Auto { max, steps, budget, deadline, rungs, .. } = *self;
        let settings = CostAwareConfig { max, steps, budget, deadline, rungs, ..CostAwareConfig::default() };
        Ok(Some(Box::new(CostAware::new(settings, guard, world)?)))
    }

    fn needs_clock(&self) -> bool {
        true
    }

    fn reducer(&self) -> Option<ReducerConfig> {
        Some(LadderConfig { rungs: self.rungs, ..LadderConfig::default() }.into())
    }

    fn ratios(&self) -> [CompressionRatio; 2] {
        [CompressionRatio::DENSE, self.max]
    }

    fn is_dense_alone(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ResidualEnergy;
    use crate::seam::{Agreed, AgreedStep, Controller, LastExchange};
    use crate::settings::ControllerConfig;
    use crate::wrapper::momentum_correction::MomentumCorrectionConfig;
    use crate::{Layout, Traffic};

    /// Returns the ratios of 200 steps on a link that is slow at every ratio. The effective delay in steps is a tenth of the ratio.
    fn ratios(text: &str, feedback: Feedback) -> Vec<f64> {
        with_losses(text, feedback, |_| None)
    }

    /// Returns the same ratios with `loss` as the training loss of a step.
    fn with_losses(text: &str, feedback: Feedback, loss: impl Fn(u64) -> Option<f64>) -> Vec<f64> {
        let settings: ControllerConfig = text.parse().unwrap();
        let mut controller = settings.get().build(&feedback, 4).unwrap().unwrap();
        let (layout, mut previous, mut ratios) = (Layout::flat(1_000_000), None, Vec::new());
        for step in 0..200 {
            let agreed_step = AgreedStep { step, previous, loss: loss(step), ..AgreedStep::default() };
            controller.observe(&agreed_step);
            let ratio = controller.decide(&Agreed::new(&agreed_step, layout.slots())).ratio().unwrap().get();
            let (sent, residual_energy) =
                ((2.4e7 / ratio) as u64, ResidualEnergy { entered: 1.0, left: (0.1 * ratio).powi(2) });
            let traffic = Traffic { sent, received: sent };
            let exchange_seconds = 1e-6 * sent as f64;
            previous = Some(LastExchange { traffic, residual_energy, exchange_seconds, ..LastExchange::default() });
            ratios.push(ratio);
        }
        ratios
    }

    /// The inner guard has the same settings and inputs as one that is named alone. The loss rises by 0.01 a step from step 100 on.
    #[test]
    fn the_guard_is_the_one_that_its_name_alone_builds() {
        let loss = |step: u64| Some(1.0 + 0.01 * step.saturating_sub(100) as f64);
        let written_out = "cost-aware:100x,limit=(loss-guard:(delay-limit:100x,most=10))";
        let momentum = || Feedback::from(MomentumCorrectionConfig::default());
        let auto = with_losses("auto:100x", momentum(), loss);
        assert_eq!(auto, with_losses(written_out, momentum(), loss));
        assert_ne!(auto, ratios("auto:100x", momentum()));
    }

    /// A feedback of momentum for another optimizer than SGD.
    #[derive(Debug, serde::Serialize, serde::Deserialize, Described)]
    #[described(name = "of-adam", help = "a feedback with Adam's momentum")]
    struct OfAdam;

    impl crate::settings::FeedbackSettings for OfAdam {
        fn wrap(
            &self,
            inner: Box<dyn crate::seam::Reducer>,
            _: &crate::settings::Exchange,
            _: &Layout,
        ) -> Result<Box<dyn crate::seam::Reducer>, ConfigError> {
            Ok(inner)
        }
        fn requirement(&self) -> crate::settings::FeedbackRequirement {
            crate::settings::FeedbackRequirement::Bounded
        }
        fn has_momentum(&self) -> bool {
            true
        }
        fn optimizer(&self) -> Option<InnerOptimizer> {
            Some(InnerOptimizer::OneBitAdam)
        }
    }

    #[test]
    fn only_the_velocity_of_sgd_allows_a_longer_delay() {
        assert_eq!(ratios("auto:100x", OfAdam.into()), ratios("auto:100x", Feedback::error()));
    }

    #[test]
    fn the_delay_allowed_is_the_memorys_inside_another_controller_too() {
        for text in ["auto:100x", "loss-guard:(auto:100x)", "cost-aware:100x,limit=(auto:100x)"] {
            let momentum = Feedback::from(MomentumCorrectionConfig::default());
            let last = [Feedback::error(), momentum].map(|feedback| ratios(text, feedback)[199]);
            assert_eq!(last, [2.0, 100.0], "{text}");
        }
    }

    /// A tenth of the ratio waits: 2x has a delay of 0.2, and 20x one of 2.
    #[test]
    fn a_named_delay_replaces_that_of_the_feedback() {
        let error = || Feedback::error();
        assert_eq!(ratios("auto:100x,delay=2", error())[199], 20.0);
        assert_eq!(ratios("auto:100x,delay=0.2", error()), ratios("auto:100x", error()));
    }
}
