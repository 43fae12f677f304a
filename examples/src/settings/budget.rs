//! Budgets of a run, for the controllers that spread them over its steps: bytes (`--budget`) and time (`--deadline`).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use briquette::core::config::ControllerConfig;
use briquette::core::control::{auto::Auto, cost_aware::CostAwareConfig};
use serde::{Deserialize, Serialize};

use super::Settings;

/// Bytes: a number with a unit of powers of 1000, such as `500MB`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SizeSpec(f64);

const UNITS: [(&str, f64); 5] = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)];

impl FromStr for SizeSpec {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<Self> {
        let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
        let number = unit.and_then(|(number, bytes)| Some(number.trim().parse::<f64>().ok()? * bytes));
        match number {
            Some(bytes) if bytes > 0.0 && bytes.is_finite() => Ok(SizeSpec(bytes)),
            _ => bail!("a size is a positive number and one of B, kB, MB, GB, TB, such as 500MB; got `{text}`"),
        }
    }
}

impl fmt::Display for SizeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, bytes) = UNITS.iter().find(|(_, bytes)| self.0 >= *bytes).unwrap_or(&UNITS[4]);
        write!(f, "{}{unit}", self.0 / bytes)
    }
}

/// A duration, such as `90s` or `1h 30m`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TimeSpec(Duration);

impl FromStr for TimeSpec {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<Self> {
        let time = humantime::parse_duration(text)
            .with_context(|| format!("a time is written as in 90s, 10m or 1h 30m; got `{text}`"))?;
        ensure!(!time.is_zero(), "a time must be longer than 0 s, such as 10m; got `{text}`");
        Ok(TimeSpec(time))
    }
}

impl fmt::Display for TimeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

macro_rules! as_text {
    ($spec:ty) => {
        impl TryFrom<String> for $spec {
            type Error = String;
            fn try_from(text: String) -> Result<Self, String> {
                text.parse().map_err(|error| format!("{error:#}"))
            }
        }

        impl From<$spec> for String {
            fn from(spec: $spec) -> String {
                spec.to_string()
            }
        }
    };
}

as_text!(SizeSpec);
as_text!(TimeSpec);

impl Settings {
    fn budgets(&self) -> [Option<f64>; 2] {
        [self.budget.map(|size| size.0), self.deadline.map(|time| time.0.as_secs_f64())]
    }

    /// Refuses a budget that the controller would ignore.
    pub(super) fn check_budget(&self) -> Result<()> {
        let controller = &self.config.exchange.controller;
        let flag = match self.budgets() {
            [Some(_), _] => "budget",
            [None, Some(_)] => "deadline",
            [None, None] => return Ok(()),
        };
        if with(controller, [Some(1.0), None], 1).is_none() {
            bail!(
                "--{flag} would be ignored under --controller {}: use auto or cost-aware, which spread it over the run",
                controller.name()
            );
        }
        let strategy = &self.config.strategy;
        ensure!(
            strategy.is_every_step(),
            "--{flag} is spread over exchanges at every step, and --strategy {strategy} has fewer: omit it"
        );
        Ok(())
    }

    /// Refuses to resume a run with a budget for another number of steps.
    pub(crate) fn check_budget_steps(&self, steps: u64) -> Result<()> {
        let controller = &self.config.exchange.controller;
        let auto = controller.downcast_ref::<Auto>().and_then(|auto| auto.steps);
        let planned = auto.or_else(|| controller.downcast_ref::<CostAwareConfig>().and_then(|other| other.steps));
        match planned.filter(|planned| *planned != steps) {
            Some(planned) => {
                bail!(
                    "the run has a budget for {planned} steps, and would now have {steps}: resume it with its own length"
                )
            }
            None => Ok(()),
        }
    }

    /// Gives the controller the budgets, and the number of steps over which it spreads them.
    pub(super) fn set_budget(&mut self, steps: u64) {
        let budgets = self.budgets();
        let controller = &mut self.config.exchange.controller;
        if budgets != [None; 2]
            && let Some(other) = with(controller, budgets, steps)
        {
            *controller = other;
        }
    }
}

/// Returns the controller with these budgets, if it can have any.
fn with(controller: &ControllerConfig, [budget, deadline]: [Option<f64>; 2], steps: u64) -> Option<ControllerConfig> {
    let steps = Some(steps);
    if let Some(auto) = controller.downcast_ref::<Auto>() {
        let (budget, deadline) = (budget.or(auto.budget), deadline.or(auto.deadline));
        return Some(Auto { steps, budget, deadline, ..*auto }.into());
    }
    let cost_aware = controller.downcast_ref::<CostAwareConfig>()?;
    let (budget, deadline) = (budget.or(cost_aware.budget), deadline.or(cost_aware.deadline));
    Some(CostAwareConfig { steps, budget, deadline, ..cost_aware.clone() }.into())
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::*;

    #[test]
    fn sizes_and_times_have_units_and_round_trip() {
        for (text, bytes) in [("500MB", 5e8), ("1.5GB", 1.5e9), ("2 kB", 2e3), ("7B", 7.0)] {
            let size = text.parse::<SizeSpec>().unwrap();
            assert_eq!(size.0, bytes);
            assert_eq!(size.to_string().parse::<SizeSpec>().unwrap(), size);
        }
        for text in ["", "500", "MB", "-1MB", "0B", "NaNMB", "5mb"] {
            let error = text.parse::<SizeSpec>().unwrap_err().to_string();
            assert!(error.contains("such as 500MB") && error.contains(&format!("`{text}`")), "{error}");
        }
        assert_eq!("1h 30m".parse::<TimeSpec>().unwrap().to_string(), "1h 30m");
        assert!("0s".parse::<TimeSpec>().is_err() && "10".parse::<TimeSpec>().is_err());
    }

    #[test]
    fn budgets_reach_the_controller_with_the_length_of_the_run() {
        let resolve = |toml: &str| toml::from_str::<Options>(toml).unwrap().resolve();
        let settings = resolve("budget = '500MB'\ndeadline = '1m'").unwrap();
        let (settings, _) = settings.for_steps(Some(390));
        let controller = settings.config.exchange.controller.to_string();
        assert_eq!(controller, "auto:50x,steps=390,budget=500000000,deadline=60");
        let again = resolve(&toml::to_string(&settings).unwrap()).unwrap();
        assert_eq!(again, settings, "config.toml is a valid --config");
        let error = resolve("budget = '500MB'\ncontroller = 'delay-limit'").unwrap_err();
        assert!(format!("{error:#}").contains("--budget would be ignored under --controller delay-limit"), "{error:#}");
        let error = resolve("deadline = '1m'\ncontroller = 'auto'\nlocal-steps = 4").unwrap_err();
        assert!(format!("{error:#}").contains("--deadline is spread over exchanges at every step"), "{error:#}");
        assert!(settings.check_budget_steps(390).is_ok());
        let error = settings.check_budget_steps(400).unwrap_err().to_string();
        assert!(error.contains("a budget for 390 steps, and would now have 400"), "{error}");
    }
}
