//! Accordion: switches between two compression ratios, the low one while gradients change from one interval to the next, the high one otherwise.
//!
//! **Why.** Compression loses accuracy in *critical* regimes, in which gradients change fast: at the start, and after the learning
//! rate falls. In other regimes high ratios cost nothing. Each slot (parameter tensor) has its own regime, because slots settle at
//! different times. **Why not.** Two ratios must be known. A regime is detected one interval late. The controller considers neither
//! the network nor the compression error.
//!
//! **Method.** In the first `window` steps of every `interval` the ranks agree on the energies (squared norms) of slots. Then the
//! root mean square of each slot's norms is compared with that of the previous window. The slot is critical if the relative change
//! `|before − now|/before` is at least `change`. Until the next check, a critical slot is sent at `low`, any other at `high`. All
//! slots are critical until the second check. When the learning rate falls to `drop` times the highest value since the last such
//! fall, all slots are critical from that step until the next check.
//!
//! | paper | here |
//! |---|---|
//! | `ℓ_low`, `ℓ_high` (keep more, keep less) | `low`, `high` |
//! | `η` | `change` |
//! | 10 epochs between checks, one epoch accumulated | `interval`, `window` |
//! | `‖Δ_prev‖`, `‖Δ_curr‖` | root mean squares of the norms in two windows |
//!
//! **On the wire.** In the steps of windows one f64 per slot, or one for the whole vector ([`Probing`](briquette_core::wrapper::adaptive::Probing)).
//!
//! **Knobs.** `low` and `high`, default 10x and 100x (the paper's are ranks 2 and 1 of PowerSGD, or 99 % and 10 % of values).
//! `interval`, steps between checks, default 1000, and `window`, 1 to `interval`, default 100. `change`, above 0, default 0.5, the
//! paper's. `drop`, above 0 and below 1, default 0.5. `per_slot`, default true as in the paper, needs a reducer that compresses each
//! slot separately; false makes one decision for the whole vector.
//!
//! **Invalid measurements.** A window with an energy that is not finite has no norm: at its end, and at that of the next, the slot is
//! critical. A change from 0 to 0 is no change; a change from 0 to anything else is one. A window consists of the measured steps, so
//! steps may be missing, repeat or go back. If the slots change, everything restarts. A learning rate that is unknown, not finite or
//! not above 0 is ignored.
//!
//! **Deviations.** The authors' program accumulates the gradients of rank 0 over an epoch, which needs one more vector on every rank.
//! Here norms are accumulated, over all ranks, of the vector about to be sent: with error feedback it includes the residual. In the
//! authors' program any decrease of the learning rate counts. Here the rate must fall to `drop`; otherwise slots would always be
//! critical under a rate that falls a little at every step. Ranks must have the same learning rate, which strategies that exchange
//! gradients check.
//!
//! **Reference.** S. Agarwal, H. Wang, K. Lee, S. Venkataraman, D. Papailiopoulos, *Accordion: Adaptive Gradient Communication via
//! Critical Learning Regime Identification*, MLSys 2021 (arXiv 2010.16248), algorithm 1, and its program, `main.py`.
//!
//! ```
//! use briquette_zoo::control::accordion::Accordion;
//! use briquette_core::control::{Agreed, Controller};
//! use briquette_core::reduce::AgreedStep;
//! let settings = Accordion { interval: 1, window: 1, per_slot: false, ..Accordion::default() };
//! let mut controller = settings.controller()?;
//! let mut ratio = |step, norm: f64| {
//!     let agreed_step = AgreedStep { step, ..AgreedStep::default() };
//!     controller.observe(&agreed_step);
//!     let mut agreed = Agreed::new(&agreed_step, &[]);
//!     agreed.norm2 = norm * norm;
//!     controller.decide(&agreed).ratio().map(|ratio| ratio.get())
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

use briquette_core::control::{Agreed, Controller, Decision, Needs};
use briquette_core::error::StateError;
use briquette_core::reduce::{AgreedStep, Ratios};
use briquette_core::state::{State, Value, fields::Saved};
use briquette_core::{CompressionRatio, stateful};

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

#[derive(Debug, Clone, Default, PartialEq)]
struct Regimes(Vec<Regime>);

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
    regimes: Regimes,
    /// Number of steps measured in this window, and the number of the window.
    measured: u64,
    window: u64,
    /// The highest learning rate since the last fall; 0 while unknown.
    rate: f64,
    /// Set if this step is in a window; after the decision, if the next one is.
    is_measured: bool,
    /// Derived: the ratios sent, and the reason for the last change.
    ratios: Vec<CompressionRatio>,
    reason: Option<String>,
}

impl Detector {
    fn new(settings: Accordion) -> Self {
        let (regimes, ratios, reason) = (vec![], vec![], None);
        Detector {
            settings,
            regimes: Regimes(regimes),
            measured: 0,
            window: 0,
            rate: 0.0,
            is_measured: true,
            ratios,
            reason,
        }
    }

    /// Checks that regimes of slots are loaded only with `per_slot`.
    fn fits(&self, state: &State) -> Result<(), StateError> {
        let saved = state.f64s("regimes")?;
        let fits = self.settings.per_slot || saved.len() <= 3;
        if fits { Ok(()) } else { Err(StateError::mismatch("regimes", "three numbers for all slots", saved)) }
    }

    /// Ends the window, if it is over.
    fn check(&mut self, window: u64, is_in_it: bool) {
        if self.measured == 0 || is_in_it && window == self.window {
            return;
        }
        let (Accordion { low, high, change, .. }, critical) = (self.settings, self.critical());
        self.regimes.0.iter_mut().for_each(|regime| regime.check(self.measured, change));
        self.measured = 0;
        let (now, all) = (self.critical(), self.regimes.0.len());
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
        self.regimes.0.iter().map(|regime| regime.critical).collect()
    }

    /// Makes all slots critical at a step at which the learning rate falls.
    fn see_rate(&mut self, rate: f64) {
        let (Accordion { low, drop, .. }, highest) = (self.settings, self.rate);
        self.rate = highest.max(rate);
        if rate <= drop * highest {
            self.rate = rate;
            self.regimes.0.iter_mut().for_each(|regime| regime.critical = true);
            self.reason = Some(format!("the learning rate fell from {highest} to {rate}: sending {low}"));
        }
    }
}

stateful! {
    impl Stateful for Detector {
        regimes: value("regimes"),
        measured: value("measured"),
        is_measured: value("is_measured"),
        window: value("window"),
        rate: value("rate"),
    }
    check: Self::fits;
    after_load: |it| it.reason = None;
}

impl Saved for Regimes {
    fn saved(&self) -> Option<Value> {
        let numbers = |regime: &Regime| [f64::from(u8::from(regime.critical)), regime.sum, regime.before];
        Some(self.0.iter().flat_map(numbers).collect::<Vec<_>>().into())
    }

    fn load(name: &str, state: &State) -> Result<Self, StateError> {
        let saved = state.f64s(name)?;
        let (regimes, []) = saved.as_chunks::<3>() else {
            return Err(StateError::mismatch(name, "three numbers a slot, or for all", saved));
        };
        let regime = |&[critical, sum, before]: &[f64; 3]| Regime { critical: critical != 0.0, sum, before };
        Ok(Regimes(regimes.iter().map(regime).collect()))
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
        if self.regimes.0.len() != count {
            self.regimes.0 = vec![Regime::NEW; count];
            self.measured = 0;
            self.reason = Some(format!("the first interval: sending {low}"));
        }
        if self.is_measured {
            let norm2 = |slot| if per_slot { agreed.energies.norm2(slot) } else { agreed.norm2 };
            self.regimes.0.iter_mut().enumerate().for_each(|(slot, regime)| regime.measure(norm2(slot)));
            self.measured += 1;
        }
        // The inputs of the next step can be measured at this step.
        let Accordion { interval, window, .. } = self.settings;
        self.is_measured = agreed.agreed_step.step.saturating_add(1) % interval < window;
        self.ratios.clear();
        self.ratios.extend(self.regimes.0.iter().map(|regime| if regime.critical { low } else { high }));
        let ratios = if per_slot { Ratios::PerSlot(&self.ratios) } else { Ratios::All(self.ratios[0]) };
        Decision { ratios, reason: self.reason.take() }
    }

    fn describe(&self) -> Option<String> {
        let critical = self.regimes.0.iter().filter(|regime| regime.critical).count();
        let regime = match (self.regimes.0.len(), critical) {
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
