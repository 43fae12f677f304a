//! Accordion: switches between two compression ratios, the low one while gradients change from one interval to the next, the high one otherwise.
//!
//! **Why.** Compression loses accuracy in critical regimes, in which gradients change fast: at the start, and after the learning rate
//! falls. In other regimes high ratios cost nothing. Slots that settle at different times each have their own regime. **Why not.** Two
//! ratios must be known. A regime is detected an interval late. The controller knows neither the network nor the compression error.
//!
//! **Method.** In the first `window` steps of every `interval` the ranks agree on the energies of slots. After them, the root mean
//! square of each slot's norms is compared with that of the previous window. The slot is critical if the relative change
//! `|before − now|/before` is at least `change`. Until the next check, a critical slot is sent at `low`, any other at `high`. All
//! slots are critical until the second check. When the learning rate falls to `drop` times its highest value since the last such
//! step, all slots are critical from that step to the next check.
//!
//! | paper | here |
//! |---|---|
//! | `ℓ_low`, `ℓ_high` (keep more, keep less) | `low`, `high` |
//! | `η` | `change` |
//! | 10 epochs between checks, one epoch accumulated | `interval`, `window` |
//! | `‖Δ_prev‖`, `‖Δ_curr‖` | root mean squares of the norms in two windows |
//!
//! **On the wire.** In the steps of windows one f64 per slot, or one for the whole vector ([`Probing`](crate::wrapper::Probing)).
//!
//! **Knobs.** `low` and `high`, default 10x and 100x (the paper's are ranks 2 and 1 of PowerSGD, or 99 % and 10 % of values).
//! `interval`, steps between checks, default 1000, and `window`, 1 to `interval`, default 100. `change`, above 0, default 0.5, the
//! paper's. `drop`, above 0 and below 1, default 0.5. `per_slot`, default true as in the paper, needs a reducer that compresses each
//! slot separately; false makes one decision for the whole vector.
//!
//! **Bad numbers.** A window with an energy that is not finite has no norm: at its end, and at that of the next, the slot is critical.
//! From 0 to 0 is no change; from 0 to anything else is. A window consists of the measured steps, so steps may be missing, repeat or
//! go back. If the slots change, everything restarts. A learning rate that is unknown, not finite or not above 0 is ignored.
//!
//! **Deviations.** The authors' program accumulates the gradients of rank 0 over an epoch, which needs one more vector on every rank.
//! Here norms are accumulated, over all ranks, of the vector about to be sent: with error feedback it includes the residual. There any
//! fall of the learning rate counts. Here it must fall to `drop`, since a rate that falls a little at every step would be critical for
//! good. Ranks must have the same learning rate, which strategies that exchange gradients check.
//!
//! **Reference.** S. Agarwal, H. Wang, K. Lee, S. Venkataraman, D. Papailiopoulos, *Accordion: Adaptive Gradient Communication via
//! Critical Learning Regime Identification*, MLSys 2021 (arXiv 2010.16248), algorithm 1, and its program, `main.py`.
//!
//! ```
//! use briquette_core::control::{Accordion, Agreed, Controller};
//! use briquette_core::reduce::AgreedStep;
//! let settings = Accordion { interval: 1, window: 1, per_slot: false, ..Accordion::default() };
//! let mut controller = settings.controller()?;
//! let mut ratio = |step, norm: f64| {
//!     let agreed_step = AgreedStep { step, ..AgreedStep::default() };
//!     controller.observe(&agreed_step);
//!     let mut agreed = Agreed::new(&agreed_step, &[]);
//!     agreed.norm2 = norm * norm;
//!     controller.decide(&agreed).factor().map(|factor| factor.get())
//! };
//! // Decided from the norms before: 8, and 8 to 4 (by half), are critical; 4 to 3 (by a fourth) is not.
//! let ratios = [(0, 8.0), (1, 4.0), (2, 3.0), (3, 3.0)].map(|(step, norm)| ratio(step, norm));
//! assert_eq!(ratios, [Some(10.0), Some(10.0), Some(10.0), Some(100.0)]);
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

mod config;
#[cfg(test)]
mod tests;

pub use config::Accordion;

use super::{Agreed, Controller, Decision, Needs};
use crate::CompressionFactor;
use crate::error::StateError;
use crate::reduce::{AgreedStep, Levels};
use crate::state::{State, Stateful};

/// An unknown energy or norm. (NaN cannot be stored in every file format.)
const UNKNOWN: f64 = -1.0;

#[derive(Debug, Clone, Copy, PartialEq)]
struct Regime {
    critical: bool,
    /// Energies of the window, summed over its steps.
    sum: f64,
    /// The norm of the previous window.
    before: f64,
}

impl Regime {
    const NEW: Regime = Regime { critical: true, sum: 0.0, before: UNKNOWN };

    fn measure(&mut self, norm2: f64) {
        let sum = self.sum + norm2;
        let known = self.sum != UNKNOWN && norm2 >= 0.0 && sum.is_finite();
        self.sum = if known { sum } else { UNKNOWN };
    }

    /// Ends a window of `steps` steps.
    fn check(&mut self, steps: u64, change: f64) {
        let now = if self.sum == UNKNOWN { UNKNOWN } else { (self.sum / steps as f64).sqrt() };
        let before = std::mem::replace(&mut self.before, now);
        self.critical = match (before, now) {
            (UNKNOWN, _) | (_, UNKNOWN) => true,
            (0.0, now) => now > 0.0,
            (before, now) => (before - now).abs() / before >= change,
        };
        self.sum = 0.0;
    }
}

#[derive(Debug)]
struct Detector {
    settings: Accordion,
    /// Regime of each slot, or one for the whole vector; empty before the first decision.
    regimes: Vec<Regime>,
    /// Number of steps measured in this window, and the number of the window.
    measured: u64,
    window: u64,
    /// The highest learning rate since the last fall; 0 while unknown.
    rate: f64,
    /// Set if this step is in a window; after the decision, if the next one is.
    is_measured: bool,
    /// Derived: the ratios sent, and the reason for the last change.
    factors: Vec<CompressionFactor>,
    reason: Option<String>,
}

impl Detector {
    fn new(settings: Accordion) -> Self {
        let (regimes, factors, reason) = (vec![], vec![], None);
        Detector { settings, regimes, measured: 0, window: 0, rate: 0.0, is_measured: true, factors, reason }
    }

    /// Ends the window, if it is over.
    fn check(&mut self, window: u64, is_in_it: bool) {
        if self.measured == 0 || is_in_it && window == self.window {
            return;
        }
        let (Accordion { low, high, change, .. }, critical) = (self.settings, self.critical());
        self.regimes.iter_mut().for_each(|regime| regime.check(self.measured, change));
        self.measured = 0;
        let (now, all) = (self.critical(), self.regimes.len());
        if now != critical {
            let count = now.iter().filter(|critical| **critical).count();
            self.reason = Some(match (all, count) {
                (1, 0) => format!("the gradient's norm is steady: sending {high}"),
                (1, _) => format!("the gradient's norm changes: sending {low}"),
                _ => format!("{count} of {all} slots critical: sending {low} of them, {high} of the others"),
            });
        }
    }

    fn critical(&self) -> Vec<bool> {
        self.regimes.iter().map(|regime| regime.critical).collect()
    }

    /// Makes all slots critical at a step at which the learning rate falls.
    fn see_rate(&mut self, rate: f64) {
        let (Accordion { low, drop, .. }, highest) = (self.settings, self.rate);
        self.rate = highest.max(rate);
        if rate <= drop * highest {
            self.rate = rate;
            self.regimes.iter_mut().for_each(|regime| regime.critical = true);
            self.reason = Some(format!("the learning rate fell from {highest} to {rate}: sending {low}"));
        }
    }
}

impl Stateful for Detector {
    fn save(&self, state: &mut State) {
        let flat = |r: &Regime| [f64::from(u8::from(r.critical)), r.sum, r.before];
        state.put("regimes", self.regimes.iter().flat_map(flat).collect::<Vec<_>>());
        state.put("measured", self.measured);
        state.put("is_measured", u64::from(self.is_measured));
        state.put("window", self.window);
        state.put("rate", self.rate);
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        let saved = state.f64s("regimes")?;
        let (regimes, rest) = saved.as_chunks::<3>();
        if !rest.is_empty() || !self.settings.per_slot && regimes.len() > 1 {
            return Err(StateError::mismatch("regimes", "three numbers a slot, or for all", saved));
        }
        let (measured, window, rate) = (state.u64("measured")?, state.u64("window")?, state.f64("rate")?);
        let regime = |&[critical, sum, before]: &[f64; 3]| Regime { critical: critical != 0.0, sum, before };
        self.is_measured = state.u64("is_measured")? != 0;
        self.regimes = regimes.iter().map(regime).collect();
        (self.measured, self.window, self.rate, self.reason) = (measured, window, rate, None);
        Ok(())
    }
}

impl Controller for Detector {
    fn per_slot(&self) -> bool {
        self.settings.per_slot
    }

    fn observe(&mut self, agreed_step: &AgreedStep) {
        let Accordion { interval, window, .. } = self.settings;
        let number = agreed_step.step / interval;
        self.is_measured = agreed_step.step % interval < window;
        self.check(number, self.is_measured);
        self.window = number;
        if let Some(rate) = agreed_step.learning_rate.filter(|rate| rate.is_finite() && *rate > 0.0) {
            self.see_rate(rate);
        }
    }

    fn needs(&self) -> Needs<'_> {
        let slots = self.settings.per_slot;
        Needs { slots: slots && self.is_measured, norm: !slots && self.is_measured, ..Needs::default() }
    }

    fn decide(&mut self, agreed: &Agreed<'_>) -> Decision<'_> {
        let Accordion { low, high, per_slot, .. } = self.settings;
        let count = if per_slot { agreed.slots.len() } else { 1 };
        if self.regimes.len() != count {
            self.regimes = vec![Regime::NEW; count];
            self.measured = 0;
            self.reason = Some(format!("the first interval: sending {low}"));
        }
        if self.is_measured {
            let norm2 = |slot| if per_slot { agreed.energies.norm2(slot) } else { agreed.norm2 };
            self.regimes.iter_mut().enumerate().for_each(|(slot, regime)| regime.measure(norm2(slot)));
            self.measured += 1;
        }
        // The inputs of the next step can be measured at this step.
        let Accordion { interval, window, .. } = self.settings;
        self.is_measured = agreed.agreed_step.step.saturating_add(1) % interval < window;
        self.factors.clear();
        self.factors.extend(self.regimes.iter().map(|regime| if regime.critical { low } else { high }));
        let levels = if per_slot { Levels::PerSlot(&self.factors) } else { Levels::All(self.factors[0]) };
        Decision { levels, reason: self.reason.take() }
    }

    fn describe(&self) -> Option<String> {
        let critical = self.regimes.iter().filter(|regime| regime.critical).count();
        let regime = match (self.regimes.len(), critical) {
            (1, 0) => "steady".to_owned(),
            (1, _) => "critical".to_owned(),
            (slots, _) => format!("{critical} of {slots} slots critical"),
        };
        let Accordion { interval, window, .. } = self.settings;
        Some(match self.measured {
            0 => format!("{regime}, until the next {interval} steps begin"),
            measured => format!("{regime}, measured {measured} of {window} steps"),
        })
    }
}
