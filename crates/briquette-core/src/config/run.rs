//! Choices and warnings for a run: settings that follow from the number of steps.

use super::{Choice, Config};
use crate::sync::rounds::FEWEST_EXCHANGES;

impl Config {
    /// Chooses the settings that the strategy leaves open until the number of steps is known: periods, and the scope of Parle. If the
    /// number is unknown, it chooses the usual settings. Returns `None` if nothing was left open.
    ///
    /// A checkpoint compares the chosen values as part of the configuration. To resume a run for another number of steps, set the
    /// period (and the scope of Parle) explicitly. Otherwise the period follows from the new number, and the checkpoint is refused if
    /// the period differs.
    ///
    /// ```
    /// use briquette_core::config::Config;
    /// let period = |steps| -> Result<String, briquette_core::error::ConfigError> {
    ///     let mut config: Config = "strategy=diloco".parse()?;
    ///     config.choose_for(steps);
    ///     Ok(config.strategy.to_string())
    /// };
    /// assert_eq!((period(None)?, period(Some(5000))?, period(Some(158))?), ("diloco:100".into(), "diloco:100".into(), "diloco:7".into()));
    /// # Ok::<(), briquette_core::error::ConfigError>(())
    /// ```
    pub fn choose_for(&mut self, steps: Option<u64>) -> Option<Choice> {
        let (strategy, why) = self.strategy.get().for_steps(steps)?;
        self.strategy = strategy;
        Some(Choice::because("strategy", &self.strategy, why))
    }

    /// Returns whether, in a world of one rank, the average always equals the rank's gradient. Everything is then sent, the feedback
    /// adds nothing, and the step needs no exchange.
    ///
    /// ```
    /// use briquette_core::config::Config;
    /// assert!(Config::auto().is_identity_alone() && Config::dense().is_identity_alone());
    /// assert!(!Config::top_k(0.01)?.is_identity_alone(), "top-k compresses, whatever the number of ranks");
    /// # Ok::<(), briquette_core::error::ConfigError>(())
    /// ```
    pub fn is_identity_alone(&self) -> bool {
        let exchange = &self.exchange;
        let sends_all = match exchange.controller.is_none() {
            true => exchange.reducer.get().traits().is_dense,
            false => exchange.controller.get().is_dense_alone() && !exchange.reducer.get().changes_contributions(),
        };
        let adds_nothing = exchange.feedback.get().is_identity_when_dense();
        let averages = self.strategy.is_every_step() && exchange.aggregator.get().is_mean();
        sends_all && adds_nothing && averages && exchange.rules.is_empty()
    }

    /// Returns warnings, one sentence each, for a run of this many steps, if the number is known. It warns of exchanges that are too
    /// rare to combine what ranks learn locally, and of a learning rate that must differ from that of SGD.
    pub fn cautions(&self, steps: Option<u64>) -> Vec<String> {
        [self.few_exchanges(steps), self.other_rate()].into_iter().flatten().collect()
    }

    fn few_exchanges(&self, steps: Option<u64>) -> Option<String> {
        let is_constant = !self.strategy.get().reads_seconds();
        let (steps, period) = (steps?, self.strategy.get().local_steps().filter(|period| is_constant && *period > 0)?);
        let exchanges = steps / period;
        let longest = (steps / FEWEST_EXCHANGES).max(1);
        (exchanges < FEWEST_EXCHANGES && period > longest).then(|| {
            format!(
                "strategy {} has {exchanges} exchanges in {steps} steps, and with fewer than some {FEWEST_EXCHANGES} what ranks learn \
                 apart hardly comes together: use a period of at most {longest}, or name none, which then follows from the number of steps",
                self.strategy
            )
        })
    }

    /// Returns a warning if the received values have lost the gradient's magnitude.
    fn other_rate(&self) -> Option<String> {
        let signs = self.exchange.reducers().find(|reducer| reducer.get().traits().loses_magnitude)?;
        Some(format!(
            "reducer {signs} sends signs without a size, so every value moves by the learning rate at every step: use about a hundredth of \
             SGD's (0.002 where SGD takes 0.2)"
        ))
    }
}
