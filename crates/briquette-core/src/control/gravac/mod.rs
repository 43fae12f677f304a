//! Tries bolder compression factors while the gradient keeps its energy, and stops where it no longer pays.
//!
//! **Why.** The right factor depends on the model, the phase of training and the network. GraVAC watches two numbers: the
//! share of the vector's energy that survives (the gain), and samples per second times that share. It falls back to a
//! safe factor, then to dense, whenever the gain is too small, and may find that dense is best.
//! **Why not.** It probes at every step (three numbers in the header and one compression, whose message is then
//! sent); small models lose so much energy that `ε ≈ 0.7` sends dense by turns (below). With a known model and
//! network a [`Constant`](super::Constant) found once is cheaper.
//!
//! **Method.** Per step, with all gains over all ranks, `Σ‖C(x)‖²/Σ‖x‖²`, and averaged over steps:
//! send `bold` if its gain reaches `ε`; else `safe` if its gain does; else dense. Then `T[sent]` ← average of
//! `samples/t · gain`. Every `window` steps: if the gains of `safe` and `bold` differ by no more than `ω`, `safe` becomes
//! `bold`; if the two best entries of `T` differ by no more than `ω`, the lower factor of the two is held (dense: compression
//! is off); else `bold` becomes the next candidate, or the one before where its gain is below `ε`. After a hold or a step back
//! the search rests for `reprobe_windows` windows before it tries a bolder candidate.
//!
//! Compression is multi-level: the message of `bold` is made of the message of `safe`
//! ([`refine_into`](crate::compress::Compressor::refine_into)). Of [`TopK`](crate::compress::TopK),
//! [`ThresholdTopK`](crate::compress::ThresholdTopK) (DGC's threshold) and [`Redsync`](crate::compress::Redsync) it is bit for bit the
//! message made of the vector, of [`RandomK`](crate::compress::RandomK) one of the same distribution. Each may be layer-wise, as in
//! the paper (gather with `per_slot`), or of the whole vector; gains are those of the whole vector in both.
//!
//! | paper | here |
//! |---|---|
//! | `θmin`, `θmax` | `min` (moves as `safe`), `max` |
//! | `θs·θmin` | `bold`, a candidate |
//! | `δmin`, `δc` | gains of `safe` and `bold` |
//! | `ε`, `ω`, window | `epsilon`, `saturation`, `window` |
//! | `N/100` | `smoothing` |
//! | `T` | throughput |
//! | `t_o`, `t_compress`, `t_s` | `compute_seconds`, `compress_seconds`, `exchange_seconds` of [`LastExchange`](crate::reduce::LastExchange) |
//! | ScalingPolicy | [`Policy`] |
//!
//! **Time.** The check of a window belongs to the end of its last step: it runs when what came of that step is known, before
//! the next gains are asked for. Where that is not known, it runs at the end of the next step instead. A step
//! of unknown duration (no clock, no samples) leaves `T` as it is; with no clock at all nothing ever saturates, and the
//! candidates are walked by gain alone.
//!
//! **Knobs.** [`GraVacConfig`], each with unit, range and default. The defaults are the paper's, tuned there for ResNet101,
//! VGG16 and an LSTM of 170 to 530 MB on 32 ranks. A window too small exhausts the candidates early, an `ε` too small
//! costs accuracy. They are the same in code, TOML and flags. *Small models*: the gain of a vector with its residual is far below that of a fresh gradient (a ResNet-8
//! under top-k 10x: 0.55 against 0.80; under 100x: 0.07 against 0.5), so `ε = 0.7` keeps falling back to dense;
//! [`GraVacConfig::small_model`], `gravac:10x,max=100x,epsilon=0.4,window=25`, starts lower. *Fast networks*: `T` knows dense only
//! from steps that fell back to it; set `dense_steps` to time it at the start, and again whenever `T` has forgotten it.
//!
//! # Deviations from the paper
//!
//! Its Alg. 1 leaves open, or contradicts its text in, the following; our choices:
//!
//! - **a** Gains there are each rank's own, so ranks may choose different payloads: here they are agreed, times too.
//! - **b** Line 33 moves `θs` before line 35 uses it, so `θmin` would jump to a factor never measured: `safe` becomes the
//!   factor that was measured, and takes its averaged gain over.
//! - **c** `θs` relative to a moving `θmin`: candidates are absolute, made once from the first `θmin`.
//! - **d** Smoothing `N/100` is above 1 for more than 100 ranks and very slow for few: clamped to `[0.05, 1]`, settable. Where an
//!   average starts is not said. Begun with its first sample it would give that one 29 % of a window of 25 steps at four
//!   ranks, and first gains are high, as the residual is still empty: an average is the mean of its samples until it has
//!   `1/smoothing` of them, and so long the newest gain must reach `ε` as well.
//! - **e** Line 38 takes the factor of the second largest throughput, the text the lower factor: the lower factor. (The
//!   literal rule may flip between two factors every window.)
//! - **f** No stop state: a factor found by saturation is held until its gain falls below `ε`, or its throughput by more
//!   than `hold_tolerance`; the search then starts again from the first candidate, with the first `θmin`. A `safe` that had
//!   moved and no longer reaches `ε` starts it again, too. After `reprobe_windows` windows a held factor is compared with the
//!   next candidate.
//! - **g** Per layer or over all: over the whole vector.
//! - **h** For unbiased compressors `‖C(x)‖²` exceeds `‖x‖²`: gains are `1 − ‖x − C(x)‖²/‖x‖²`, clamped to `[0, 1]`.
//! - **i** Its ratios of floats leave indices out: the factor here is nominal too; traffic is reported in bytes beside it.
//! - **j** The initial `θs` is not stated: the first candidate is `2·min` (exponential) or `ratio·min` (geometric).
//! - **k** A dense step flushes the residual: kept; it is error feedback's, and exactly zero then.
//! - **l** `T` entries go stale: those not refreshed for `stale_windows` windows are forgotten.
//! - **m** (Two figures are cited wrongly; nothing to choose.)
//! - **n** Line 33 moves on whatever the gain, so the search ends at `θmax` for good, and a gain that recovers at a lower factor is
//!   never seen. A bolder message keeps less: a candidate below `ε` at the end of its window rules out those above it, and
//!   the one below is tried instead, until after `reprobe_windows` windows its neighbour is tried again.
//!
//! Further, found by simulation: the average of `bold`'s gain restarts when `bold` changes (else steps at an untried
//! factor slip through on the old factor's gain); the gain of a zero vector is 1, and one that is NaN counts as 0, so
//! that it cannot stay in the average; `T` is averaged with the same smoothing, not overwritten. Dense may win:
//! compression is then off and nothing is probed for `reprobe_windows` windows, in the last of which probing resumes
//! while dense is still sent, so that `T` compares today's dense; then the search starts anew. A dense step's time leaves
//! probing out (Alg. 1, line 25). When the candidates are exhausted without saturation (the last one was tried, or one
//! failed), or while the search rests, and dense has the best throughput, compression is off as well; when they are exhausted,
//! `settle` extends this to every factor.
//!
//! **Reference.** S. Tyagi, M. Swany, *GraVAC: Adaptive Compression for Communication-Efficient Distributed DL Training*,
//! IEEE CLOUD 2023, pp. 319–329, <https://arxiv.org/abs/2305.12201>, Algorithm 1.
//!
//! ```
//! use briquette_core::control::{Agreed, Controller, GraVacConfig};
//! let mut controller = GraVacConfig::default().build(32)?;
//! let probes: Vec<f64> = controller.needs().gains.iter().map(|f| f.get()).collect();
//! assert_eq!(probes, [10.0, 20.0]);
//! let agreed_step = Default::default();
//! let agreed = Agreed::new(&agreed_step, &[]);
//! let decision = controller.decide(&Agreed { gains: &[0.80, 0.72], ..agreed });
//! assert_eq!(decision.factor().map(|f| f.get()), Some(20.0));
//! // Until there are 100/32 gains of each, an average is their mean, and the newest must reach 0.7 as well: 0.50 does not.
//! let decision = controller.decide(&Agreed { gains: &[0.70, 0.50], ..agreed });
//! assert_eq!(decision.factor().map(|f| f.get()), Some(10.0));
//! assert_eq!(decision.reason.as_deref(), Some("gain 0.50 at 20x below 0.70: sending 10x"));
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

mod average;
mod config;
mod event;
mod policy;
mod search;
mod state;
#[cfg(test)]
mod tests;
mod throughput;

pub use config::GraVacConfig;
pub use policy::Policy;

use super::{Agreed, Controller, Decision, Needs};
use crate::CompressionFactor;
use crate::reduce::{AgreedStep, Levels};
use average::Gain;
use event::Event;
use search::Search;
use throughput::samples_per_second;

/// The controller; made by [`GraVacConfig::build`], described in the [module](self).
#[derive(Debug, Clone, PartialEq)]
pub struct GraVac {
    config: GraVacConfig,
    smoothing: f64,
    candidates: Vec<CompressionFactor>,
    search: Search,
    /// Derived from `search`.
    probes: Vec<CompressionFactor>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Sent {
    factor: CompressionFactor,
    gain: f64,
}

impl GraVac {
    /// The settings are valid and `candidates` is not empty: [`GraVacConfig::build`] has seen to it.
    fn new(config: GraVacConfig, smoothing: f64, candidates: Vec<CompressionFactor>) -> Self {
        let search = Search::start(config.min, candidates[0], config.dense_steps);
        let mut controller = GraVac { config, smoothing, candidates, search, probes: Vec::new() };
        controller.list_probes();
        controller
    }

    /// The factors that are tried one after the other, from the smallest to the largest.
    pub fn candidates(&self) -> &[CompressionFactor] {
        &self.candidates
    }

    fn list_probes(&mut self) {
        self.probes.clear();
        // Off: only the last window's dense steps are measured, to compare with.
        if self.search.dense_left <= self.config.window {
            self.probes.push(self.search.safe);
            if self.search.bold != self.search.safe {
                self.probes.push(self.search.bold);
            }
        }
    }

    fn average_gains(&mut self, gains: &[f64]) {
        let average = |before, gain| Some(Gain::add(before, gain, self.smoothing));
        let search = &mut self.search;
        match *gains {
            [safe] if search.bold == search.safe => {
                search.safe_gain = average(search.safe_gain, safe);
                search.bold_gain = search.safe_gain;
            }
            [safe, bold] if search.bold != search.safe => {
                search.safe_gain = average(search.safe_gain, safe);
                search.bold_gain = average(search.bold_gain, bold);
            }
            // Nothing was needed, or the caller measured something else: without a gain, dense is sent.
            _ => {}
        }
    }

    /// The boldest factor that keeps enough.
    fn choose(&self) -> Sent {
        let search = &self.search;
        let counts = |gain: Option<Gain>| gain.map(|gain| gain.counts);
        let enough =
            |factor, gain| counts(gain).filter(|gain| *gain >= self.config.epsilon).map(|gain| Sent { factor, gain });
        enough(search.bold, search.bold_gain)
            .or_else(|| enough(search.safe, search.safe_gain))
            .unwrap_or(Sent { factor: CompressionFactor::DENSE, gain: 1.0 })
    }

    /// A step that is dense by plan.
    fn plan_dense(&mut self) -> Sent {
        self.search.dense_left -= 1;
        Sent { factor: CompressionFactor::DENSE, gain: 1.0 }
    }

    fn count_step(&mut self) {
        self.search.steps_in_window += 1;
        if self.search.steps_in_window >= self.config.window {
            self.search.steps_in_window = 0;
            self.search.check_due = true;
        }
    }

    fn explain(&self, sent: CompressionFactor, planned: bool, note: Option<Event>) -> String {
        let search = &self.search;
        match note {
            Some(note) if planned || sent == search.bold => return note.explain(sent),
            _ if planned => return "timing dense before compression is tried".to_owned(),
            _ => {}
        }
        let least = self.config.epsilon;
        let gain = |gain: Option<Gain>| gain.map_or("unknown".to_owned(), |gain| format!("{:.2}", gain.counts));
        let (safe, bold) = (gain(search.safe_gain), gain(search.bold_gain));
        if sent == search.bold {
            format!("gain {bold} at {sent} reaches {least:.2}: sending {sent}")
        } else if sent == search.safe {
            format!("gain {bold} at {} below {least:.2}: sending {sent}", search.bold)
        } else if search.bold == search.safe {
            format!("gain {safe} at {} below {least:.2}: sending dense", search.safe)
        } else {
            format!("gain {bold} at {} and {safe} at {} below {least:.2}: sending dense", search.bold, search.safe)
        }
    }
}

impl Controller for GraVac {
    fn observe(&mut self, agreed_step: &AgreedStep) {
        // Nothing was measured, or nothing is known of the step before.
        if let (Some(sent), Some(previous)) = (self.search.sent, &agreed_step.previous) {
            self.search.sent = None;
            if let Some(rate) = samples_per_second(previous, sent.factor) {
                self.search.throughput.record(sent.factor, rate * sent.gain, self.smoothing);
            }
            if std::mem::take(&mut self.search.check_due) {
                self.check_window();
            }
            self.list_probes();
        }
    }

    fn needs(&self) -> Needs<'_> {
        Needs { gains: &self.probes, ..Needs::default() }
    }

    fn decide(&mut self, agreed: &Agreed<'_>) -> Decision<'_> {
        // Nothing was known of a window's last step: its check has to do without.
        let late = std::mem::take(&mut self.search.check_due);
        let note = self.search.note.take();
        self.average_gains(agreed.gains);
        let planned = self.search.dense_left > 0;
        let sent = if planned { self.plan_dense() } else { self.choose() };
        let changed = self.search.last != Some(sent.factor);
        let reason = changed.then(|| self.explain(sent.factor, planned, note));
        self.search.last = Some(sent.factor);
        self.search.sent = Some(sent).filter(|_| !self.probes.is_empty());
        if planned {
            self.search.note = (self.search.dense_left == 0).then_some(Event::Timed);
        } else {
            self.count_step();
        }
        if late {
            self.check_window();
        }
        self.list_probes();
        Decision::all(sent.factor, reason)
    }

    /// The seconds of what is sent instead say nothing of what was decided.
    fn overruled(&mut self, _levels: Levels<'_>) {
        self.search.sent = None;
    }

    fn describe(&self) -> Option<String> {
        Some(self.search.describe(self.config.window))
    }
}
