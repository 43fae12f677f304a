//! Settings of GraVAC, and their valid ranges.

use super::{GraVac, Policy};
use crate::CompressionFactor;
use crate::config::{ControllerSettings, Described, Feedback};
use crate::control::Controller;
use crate::error::ConfigError;

/// Settings of [`GraVac`]; the defaults are the paper's for the exponential policy and `ε = 0.7`.
///
/// ```
/// use briquette_core::control::GraVacConfig;
/// let controller = GraVacConfig { epsilon: 0.9, ..GraVacConfig::default() }.build(4)?;
/// assert_eq!(controller.candidates()[0].get(), 20.0);
/// assert!(GraVacConfig { window: 0, ..GraVacConfig::default() }.build(4).is_err());
/// # Ok::<(), briquette_core::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GraVacConfig {
    /// The safe factor, `θmin` at the start; above 1. Default 10.
    pub min: CompressionFactor,
    /// The largest factor ever sent, `θmax`; at least `min`. Default 1000.
    pub max: CompressionFactor,
    /// Growth of candidates from `min` to `max`. Default exponential.
    pub policy: Policy,
    /// `ε`, the smallest averaged gain at which a factor is sent; 0 sends every candidate, a value above 1 always sends dense. Default 0.7.
    pub epsilon: f64,
    /// `ω`, the relative difference up to which two gains, or two throughputs, count as equal; in `[0, 1)`. Default 0.01.
    pub saturation: f64,
    /// Number of steps between two window checks, at least 1. Default 500.
    pub window: u64,
    /// Weight of the newest gain and throughput in their averages, in `(0, 1]`; the first `1/smoothing` samples have equal weight.
    /// Default `world/100` within `[0.05, 1]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smoothing: Option<f64>,
    /// Number of windows after which an abandoned choice is tried again, at least 1: compression that was switched off, a candidate
    /// whose gain was too small, or the candidate above a held factor. Default 10.
    pub reprobe_windows: u64,
    /// Number of windows after which the throughput of a factor that was not sent is dropped, at least 2. Default 10.
    pub stale_windows: u64,
    /// Share of its throughput that a held factor may lose before the search restarts, in `(0, 1]`. Default 0.2.
    pub hold_tolerance: f64,
    /// Number of dense steps for comparison, at the start and whenever dense's throughput has been dropped (`stale_windows`). Default
    /// 0, as in the paper: dense is then only measured at steps in which no gain reached `epsilon`.
    pub dense_steps: u64,
    /// Set to hold the candidate with the best throughput when all candidates were tried and none saturated. Default `false`, as in
    /// the paper: the largest is kept (dense is held in any case if it was best).
    pub settle: bool,
}

impl Default for GraVacConfig {
    fn default() -> Self {
        GraVacConfig {
            min: known(10.0),
            max: known(1000.0),
            policy: Policy::Exponential,
            epsilon: 0.7,
            saturation: 0.01,
            window: 500,
            smoothing: None,
            reprobe_windows: 10,
            stale_windows: 10,
            hold_tolerance: 0.2,
            dense_steps: 0,
            settle: false,
        }
    }
}

impl GraVacConfig {
    /// The paper's geometric setting: 10x to 2000x by doubling, with windows of 2000 steps.
    pub fn geometric() -> Self {
        let policy = Policy::Geometric { ratio: 2.0 };
        GraVacConfig { max: known(2000.0), policy, window: 2000, ..GraVacConfig::default() }
    }

    /// Settings for models of up to a few million parameters: safe at 10x, up to 100x, `ε = 0.4`, windows of 25 steps.
    ///
    /// Tuned on a ResNet-8 of 78 000 parameters on CIFAR-10, 390 steps, four ranks, under momentum correction. There the gain of a
    /// vector with its residual is near 0.55 at 10x: the paper's `ε = 0.7` would send dense most of the time.
    ///
    /// ```
    /// use briquette_core::{config::ControllerConfig, control::GraVacConfig};
    /// let text: ControllerConfig = "gravac:10x,max=100x,epsilon=0.4,window=25".parse()?;
    /// assert_eq!(text, GraVacConfig::small_model().into());
    /// # Ok::<(), briquette_core::error::ConfigError>(())
    /// ```
    pub fn small_model() -> Self {
        GraVacConfig { max: known(100.0), epsilon: 0.4, window: 25, ..GraVacConfig::default() }
    }

    /// Creates the controller of one of `world` ranks.
    ///
    /// # Errors
    /// [`ConfigError`] for a setting outside its range, or `min` above `max`.
    pub fn build(&self, world: usize) -> Result<GraVac, ConfigError> {
        if world == 0 {
            return Err(ConfigError::range("world", "at least 1", world));
        }
        if self.min.is_dense() {
            // Dense is the last resort already. As the safe factor it would be probed at every step without benefit.
            return Err(ConfigError::range("gravac min", "above 1x", self.min));
        }
        let candidates = self.policy.candidates(self.min, self.max)?;
        number("gravac epsilon", "a finite number of at least 0", self.epsilon, |e| e.is_finite() && e >= 0.0)?;
        number("gravac saturation", "in [0, 1)", self.saturation, |w| (0.0..1.0).contains(&w))?;
        number("gravac hold_tolerance", "in (0, 1]", self.hold_tolerance, |t| t > 0.0 && t <= 1.0)?;
        let smoothing = self.smoothing.unwrap_or((world as f64 / 100.0).clamp(0.05, 1.0));
        number("gravac smoothing", "in (0, 1]", smoothing, |s| s > 0.0 && s <= 1.0)?;
        count("gravac window", "at least 1", self.window, 1)?;
        count("gravac reprobe_windows", "at least 1", self.reprobe_windows, 1)?;
        count("gravac stale_windows", "at least 2: the two best factors are compared", self.stale_windows, 2)?;
        Ok(GraVac::new(self.clone(), smoothing, candidates))
    }
}

fn number(what: &'static str, range: &'static str, got: f64, valid: fn(f64) -> bool) -> Result<(), ConfigError> {
    if valid(got) { Ok(()) } else { Err(ConfigError::range(what, range, got)) }
}

fn count(what: &'static str, range: &'static str, got: u64, least: u64) -> Result<(), ConfigError> {
    if got >= least { Ok(()) } else { Err(ConfigError::range(what, range, got)) }
}

/// Creates a factor from a valid constant.
fn known(factor: f64) -> CompressionFactor {
    CompressionFactor::new(factor).unwrap_or(CompressionFactor::DENSE)
}

impl Described for GraVacConfig {
    const NAME: &'static str = "gravac";
    const SETTINGS: &'static str = "MINx[,max=FACTORx,epsilon=E,window=N,...]";
    const HELP: &'static str = "GraVAC, the largest ratio whose gain is enough (10x to 1000x, 0.7, 500)";

    fn check(&self) -> Result<(), ConfigError> {
        // Only `smoothing` has a default that depends on the number of ranks, and this default is always in its range.
        GraVacConfig::build(self, 1).map(drop)
    }

    /// The gain varies around `epsilon`, so that dense, safe and bold alternate, with a bolder candidate after a window.
    fn representatives() -> Vec<Self> {
        let (min, max) = (known(4.0), known(16.0));
        vec![GraVacConfig { min, max, epsilon: 0.75, smoothing: Some(0.9), window: 4, ..GraVacConfig::default() }]
    }
}

impl ControllerSettings for GraVacConfig {
    fn build(&self, _feedback: &Feedback, world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        Ok(Some(Box::new(GraVacConfig::build(self, world)?)))
    }

    fn reads_seconds(&self) -> bool {
        true
    }

    fn ratios(&self) -> [CompressionFactor; 2] {
        [CompressionFactor::DENSE, self.max]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_settings_are_refused() {
        let base = GraVacConfig::default;
        let wrong = [
            GraVacConfig { min: CompressionFactor::DENSE, ..base() },
            GraVacConfig { min: known(2000.0), ..base() },
            GraVacConfig { policy: Policy::Geometric { ratio: 1.0 }, ..base() },
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
        let text = "min = 5\npolicy = { geometric = { ratio = 3.0 } }\nepsilon = 0.5\n";
        let config: GraVacConfig = toml::from_str(text).unwrap();
        let policy = Policy::Geometric { ratio: 3.0 };
        assert_eq!(config, GraVacConfig { min: known(5.0), policy, epsilon: 0.5, ..GraVacConfig::default() });
        let written = toml::to_string(&GraVacConfig::small_model()).unwrap();
        assert_eq!(toml::from_str::<GraVacConfig>(&written).unwrap(), GraVacConfig::small_model());
        assert!(toml::from_str::<GraVacConfig>("epsilom = 0.5").is_err());
        assert!(toml::from_str::<GraVacConfig>("policy = \"fast\"").is_err());
        assert_eq!(toml::from_str::<GraVacConfig>("min = 5\npolicy = 'geometric:3'\nepsilon = 0.5").unwrap(), config);
        assert!(toml::from_str::<GraVacConfig>("min = 0.5").is_err());
    }
}
