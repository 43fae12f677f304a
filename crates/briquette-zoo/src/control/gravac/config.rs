//! Settings of GraVAC, and their valid ranges.

use super::{GraVac, Policy};
use briquette_core::CompressionRatio;
use briquette_core::config::{
    CompressorConfig, Config, ControllerSettings, Described, Exchange, Feedback, ReducerConfig,
};
use briquette_core::control::Controller;
use briquette_core::error::ConfigError;

/// Settings of [`GraVac`]; the defaults are the paper's for the exponential policy and `ε = 0.7`.
///
/// ```
/// use briquette_zoo::control::gravac::GraVacConfig;
/// let controller = GraVacConfig { epsilon: 0.9, ..GraVacConfig::default() }.build(4)?;
/// assert_eq!(controller.candidates()[0].get(), 20.0);
/// assert!(GraVacConfig { window: 0, ..GraVacConfig::default() }.build(4).is_err());
/// # Ok::<(), briquette_core::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "gravac",
    help = "GraVAC, the largest ratio whose gain is enough (10x to 1000x, 0.7, 500)",
    // The gain varies around `epsilon`, so that dense, safe and bold alternate, with a bolder candidate after a window.
    representatives("gravac:4x,max=16x,epsilon=0.75,window=4,smoothing=0.9"),
    combinations(
        // Random coordinates keep less energy: about 1/4 of it at 4x.
        "reducer=shared-random-k:8x feedback=error controller=gravac:4x,max=16x,epsilon=0.2,smoothing=0.9,window=4,dense_steps=1 bucket_values=32",
        "reducer=gather:topk:8x feedback=error controller=gravac:4x,max=16x,epsilon=0.75,smoothing=0.9,window=4 bucket_values=32",
    ),
    check = Self::check_candidates
)]
pub struct GraVacConfig {
    /// The safe ratio, `θmin` at the start; above 1. Default 10. Dense is the last resort already: as the safe ratio it would be probed
    /// at every step without benefit.
    #[setting(default = "10x", range = "(1, inf)")]
    pub min: CompressionRatio,
    /// The largest ratio ever sent, `θmax`; at least `min`. Default 1000.
    #[setting(default = "1000x")]
    pub max: CompressionRatio,
    /// Growth of candidates from `min` to `max`. Default exponential.
    #[setting(default = Policy::Exponential)]
    pub policy: Policy,
    /// `ε`, the smallest averaged gain at which a ratio is sent; 0 sends every candidate, a value above 1 always sends dense. Default 0.7.
    #[setting(default = 0.7, range = "[0, inf)")]
    pub epsilon: f64,
    /// `ω`, the relative difference up to which two gains, or two throughputs, count as equal; in `[0, 1)`. Default 0.01.
    #[setting(default = 0.01, range = "[0, 1)")]
    pub saturation: f64,
    /// Number of steps between two window checks, at least 1. Default 500.
    #[setting(default = 500, range = "[1, inf)")]
    pub window: u64,
    /// Weight of the newest gain and throughput in their averages, in `(0, 1]`; the first `1/smoothing` samples have equal weight.
    /// Default `world/100` within `[0.05, 1]`.
    #[setting(range = "(0, 1]")]
    pub smoothing: Option<f64>,
    /// Number of windows after which an abandoned choice is tried again, at least 1: compression that was switched off, a candidate
    /// whose gain was too small, or the candidate above a held ratio. Default 10.
    #[setting(default = 10, range = "[1, inf)")]
    pub reprobe_windows: u64,
    /// Number of windows after which the throughput of a ratio that was not sent is dropped, at least 2. Default 10.
    #[setting(default = 10, range = "[2, inf)")]
    pub stale_windows: u64,
    /// Share of its throughput that a held ratio may lose before the search restarts, in `(0, 1]`. Default 0.2.
    #[setting(default = 0.2, range = "(0, 1]")]
    pub hold_tolerance: f64,
    /// Number of dense steps for comparison, at the start and whenever dense's throughput has been dropped (`stale_windows`). Default
    /// 0, as in the paper: dense is then only measured at steps in which no gain reached `epsilon`.
    pub dense_steps: u64,
    /// Set to hold the candidate with the best throughput when all candidates were tried and none saturated. Default `false`, as in
    /// the paper: the largest is kept (dense is held in any case if it was best).
    pub settle: bool,
}

impl GraVacConfig {
    /// The paper's geometric setting: 10x to 2000x by doubling, with windows of 2000 steps.
    pub fn geometric() -> Self {
        let policy = Policy::Geometric { growth: 2.0 };
        GraVacConfig { max: known(2000.0), policy, window: 2000, ..GraVacConfig::default() }
    }

    /// Settings for models of up to a few million parameters: safe at 10x, up to 100x, `ε = 0.4`, windows of 25 steps.
    ///
    /// Tuned on a ResNet-8 of 78 000 parameters on CIFAR-10, 390 steps, four ranks, under momentum correction. There the gain of a
    /// vector with its residual is near 0.55 at 10x: the paper's `ε = 0.7` would send dense most of the time.
    ///
    /// ```
    /// use briquette_core::config::ControllerConfig;
    /// briquette_zoo::install();
    /// use briquette_zoo::control::gravac::GraVacConfig;
    /// let text: ControllerConfig = "gravac:10x,max=100x,epsilon=0.4,window=25".parse()?;
    /// assert_eq!(text, GraVacConfig::small_model().into());
    /// # Ok::<(), briquette_core::error::ConfigError>(())
    /// ```
    pub fn small_model() -> Self {
        GraVacConfig { max: known(100.0), epsilon: 0.4, window: 25, ..GraVacConfig::default() }
    }

    /// Returns the configuration of top-k with 8-bit values, with this controller and error feedback. It works with any inner optimizer.
    pub fn top_k_q8(self) -> Config {
        Config::every_step(Exchange {
            reducer: ReducerConfig::gather(CompressorConfig::top_k_q8(self.min)),
            feedback: Feedback::error(),
            controller: self.into(),
            ..Exchange::default()
        })
    }

    /// Creates the controller of one of `world` ranks.
    ///
    /// # Errors
    /// [`ConfigError`] for a setting outside its range, or `min` above `max`.
    pub fn build(&self, world: usize) -> Result<GraVac, ConfigError> {
        if world == 0 {
            return Err(ConfigError::range("world", "at least 1", world));
        }
        self.check()?;
        let smoothing = self.smoothing.unwrap_or((world as f64 / 100.0).clamp(0.05, 1.0));
        let candidates = self.policy.candidates(self.min, self.max)?;
        Ok(GraVac::new(self.clone(), smoothing, candidates))
    }

    fn check_candidates(&self) -> Result<(), ConfigError> {
        self.policy.candidates(self.min, self.max).map(drop)
    }
}

/// Creates a ratio from a valid constant.
fn known(ratio: f64) -> CompressionRatio {
    CompressionRatio::new(ratio).unwrap_or(CompressionRatio::DENSE)
}

impl ControllerSettings for GraVacConfig {
    fn build(&self, _feedback: &Feedback, world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        Ok(Some(Box::new(GraVacConfig::build(self, world)?)))
    }

    fn reads_seconds(&self) -> bool {
        true
    }

    fn ratios(&self) -> [CompressionRatio; 2] {
        [CompressionRatio::DENSE, self.max]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_settings_are_refused() {
        let base = GraVacConfig::default;
        let wrong = [
            GraVacConfig { min: CompressionRatio::DENSE, ..base() },
            GraVacConfig { min: known(2000.0), ..base() },
            GraVacConfig { policy: Policy::Geometric { growth: 1.0 }, ..base() },
            GraVacConfig { epsilon: -0.1, ..base() },
            GraVacConfig { epsilon: f64::NAN, ..base() },
            GraVacConfig { saturation: 1.0, ..base() },
            GraVacConfig { window: 0, ..base() },
            GraVacConfig { smoothing: Some(0.0), ..base() },
            GraVacConfig { smoothing: Some(1.5), ..base() },
            GraVacConfig { reprobe_windows: 0, ..base() },
            GraVacConfig { stale_windows: 1, ..base() },
            GraVacConfig { hold_tolerance: 0.0, ..base() },
        ];
        for config in wrong {
            assert!(config.build(4).is_err(), "{config:?}");
        }
        assert!(base().build(0).is_err());
        for config in
            [base(), GraVacConfig::geometric(), GraVacConfig::small_model(), GraVacConfig { epsilon: 1.5, ..base() }]
        {
            assert!(config.build(1).is_ok() && config.build(1000).is_ok(), "{config:?}");
        }
    }

    #[test]
    fn smoothing_follows_the_world_within_limits() {
        for (world, smoothing) in [(2, 0.05), (32, 0.32), (500, 1.0)] {
            assert_eq!(GraVacConfig::default().build(world).unwrap().smoothing, smoothing);
        }
    }

    #[test]
    fn config_reads_back_and_refuses_unknown_fields() {
        let text = "min = 5\npolicy = { geometric = { growth = 3.0 } }\nepsilon = 0.5\n";
        let config: GraVacConfig = toml::from_str(text).unwrap();
        let policy = Policy::Geometric { growth: 3.0 };
        assert_eq!(config, GraVacConfig { min: known(5.0), policy, epsilon: 0.5, ..GraVacConfig::default() });
        let written = toml::to_string(&GraVacConfig::small_model()).unwrap();
        assert_eq!(toml::from_str::<GraVacConfig>(&written).unwrap(), GraVacConfig::small_model());
        assert!(toml::from_str::<GraVacConfig>("epsilom = 0.5").is_err());
        assert!(toml::from_str::<GraVacConfig>("policy = \"fast\"").is_err());
        assert_eq!(toml::from_str::<GraVacConfig>("min = 5\npolicy = 'geometric:3'\nepsilon = 0.5").unwrap(), config);
        assert!(toml::from_str::<GraVacConfig>("min = 0.5").is_err());
    }
}
