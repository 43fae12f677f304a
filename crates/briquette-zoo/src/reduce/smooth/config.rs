//! Settings of the smoothness-aware exchange.

use super::importance::{Importance, omega};
use super::norm::{Norm, Sends};
use super::{SmoothnessAware, WarmUp};
use crate::wrapper::shifted::Shifted;
use briquette_core::compress::ErrorBound;
use briquette_core::config::{CompressorConfig, Described, Exchange, ReducerSettings, ReducerTraits};
use briquette_core::error::{ConfigError, Conflict};
use briquette_core::reduce::Reducer;
use briquette_core::state::{OnResize, Place};
use briquette_core::{CompressionRatio, Layout};

/// Settings of [`SmoothnessAware`].
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "smooth",
    help = "less noise where the loss is steep (qsgd:4), by an estimate of WARM_UP dense steps (DIANA+); for plain SGD",
    representatives(
        "smooth:qsgd:4:64:l2,warm-up=2,condition=100",
        "smooth:qsgd:4:64:l2,importance=4x,warm-up=2,per-rank=true,condition=100",
    )
)]
pub struct Smooth {
    /// The compressor of the scaled vector.
    #[setting(default = "qsgd:4")]
    pub compressor: CompressorConfig,
    /// Samples values by the smoothness of their coordinates, one in this many on average, instead of compressing.
    #[setting(syntax = "RATIOx")]
    pub importance: Option<CompressionRatio>,
    /// Step size of a rank's memory towards its contribution, in [0, 1/(1+ω)]; by default the maximum, or 0 if the compressor is not
    /// unbiased.
    #[setting(range = "[0, 1]")]
    pub alpha: Option<f32>,
    /// Number of dense steps for the estimate; at least 2.
    #[setting(default = 100, range = "[2, inf)")]
    pub warm_up: u64,
    /// Estimates one diagonal per rank instead of one for all.
    pub per_rank: bool,
    /// The largest ratio of two values of the diagonal; at least 1.
    #[setting(default = 1e4, range = "[1, inf)")]
    pub condition: f64,
}

impl Smooth {
    /// Builds a reducer with known diagonals, one per rank in rank order or one for all, and without a warm-up.
    ///
    /// # Errors
    /// [`ConfigError`] for a value that is not finite or not above 0, or if lengths differ.
    pub fn given(&self, diagonals: &[Vec<f32>]) -> Result<SmoothnessAware, ConfigError> {
        self.check()?;
        let len = diagonals.first().map_or(0, Vec::len);
        for diagonal in diagonals {
            if let Some(wrong) = diagonal.iter().find(|l| !(l.is_finite() && **l > 0.0)) {
                return Err(ConfigError::range("smoothness of a coordinate", "finite and above 0", wrong));
            }
            if diagonal.len() != len || len == 0 {
                return Err(ConfigError::range("values of a smoothness", "as many as of the others", diagonal.len()));
            }
        }
        let weights: Vec<f32> = diagonals.iter().flatten().map(|l| l.sqrt()).collect();
        let alpha = match (self.importance, self.alpha) {
            (Some(ratio), None) => {
                let worst = weights.chunks(len).map(|weights| omega(weights, ratio)).fold(0.0, f64::max);
                (1.0 / (1.0 + worst)) as f32
            }
            _ => self.step(len)?,
        };
        Ok(self.with(weights, alpha))
    }

    /// Builds a reducer with a warm-up, for vectors of `len` values.
    pub(super) fn estimated(&self, len: usize) -> Result<SmoothnessAware, ConfigError> {
        Ok(self.with(Vec::new(), self.step(len)?))
    }

    fn with(&self, weights: Vec<f32>, alpha: f32) -> SmoothnessAware {
        let sends = match self.importance {
            Some(ratio) => Sends::Importance(Importance::new(ratio)),
            None => Sends::Compressor(self.compressor.build()),
        };
        let shifted = Shifted::moving(Norm::new(sends, weights), alpha);
        let place = if self.per_rank { Place::PerRank(OnResize::Spread) } else { Place::Replicated };
        SmoothnessAware { settings: self.clone(), warm_up: WarmUp { place, ..WarmUp::default() }, shifted }
    }

    fn class(&self, len: usize) -> Option<ErrorBound> {
        match self.importance {
            // The flattest coordinate is drawn least often. The diagonals may differ by `condition` at most.
            Some(ratio) => {
                let mut weights = vec![self.condition.sqrt() as f32; len.max(1)];
                weights[0] = 1.0;
                Some(ErrorBound::Unbiased { omega: omega(&weights, ratio) })
            }
            None => {
                let compressor = self.compressor.build();
                ErrorBound::of(&compressor, len)
            }
        }
    }

    /// Returns `α`.
    fn step(&self, len: usize) -> Result<f32, ConfigError> {
        let most = match self.class(len) {
            Some(ErrorBound::Unbiased { omega }) => 1.0 / (1.0 + omega),
            Some(ErrorBound::Contractive { delta: 1.0 }) | None => 1.0,
            _ if self.alpha.is_none_or(|alpha| alpha == 0.0) => return Ok(0.0),
            _ => {
                return Err(ConfigError::conflict(
                    "the memory of smooth",
                    format!("compressor {}", self.compressor),
                    "it needs an unbiased compressor",
                    "use alpha=0, or qsgd, natural or randk:…:scaled",
                ));
            }
        };
        match self.alpha {
            Some(alpha) if f64::from(alpha) > most * (1.0 + 1e-6) => Err(ConfigError::conflict(
                format!("alpha {alpha} of smooth"),
                self.importance
                    .map_or(format!("compressor {}", self.compressor), |ratio| format!("importance {ratio}")),
                format!("it must be at most {most:.4}, which is 1/(1+ω) of what it sends"),
                "lower it, or omit it for that value",
            )),
            Some(alpha) => Ok(alpha),
            None => Ok(most as f32),
        }
    }
}

impl ReducerSettings for Smooth {
    fn check_within(&self, exchange: &Exchange) -> Result<(), Conflict> {
        let feedback = &exchange.feedback;
        match feedback.get().requirement().sends_differences() || feedback.get().has_momentum() {
            false => Ok(()),
            true => Err(Conflict::new(
                "reducer smooth",
                format!("feedback {feedback}"),
                "it keeps state of its own (alpha), and its estimates require plain SGD",
                "use feedback none or error",
            )),
        }
    }

    fn build(&self, _: &Exchange, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        self.check()?;
        Ok(Box::new(self.estimated(layout.len())?))
    }

    fn requires_plain_sgd(&self) -> bool {
        true
    }

    fn traits(&self) -> ReducerTraits {
        ReducerTraits {
            needs_feedback: self.importance.is_none() && self.compressor.needs_feedback(),
            ..ReducerTraits::default()
        }
    }

    /// The bound holds in the norm of the loss, which depends on more than one vector.
    fn error_bound(&self, _len: usize) -> Option<ErrorBound> {
        None
    }

    fn amplification(&self, len: usize) -> Option<f64> {
        self.class(len)?.amplification()
    }
}
