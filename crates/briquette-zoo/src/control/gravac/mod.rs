//! GraVAC: raises the compression ratio while the gradient keeps its energy, and stops when throughput no longer improves.
//!
//! **Why.** The best ratio depends on the model, the phase of training and the network. GraVAC measures two numbers: the share of the
//! vector's energy that survives (the gain), and the samples per second times that share. If the gain is too small it falls back to a
//! safe ratio, then to dense, and it may find that dense is best. **Why not.** It probes at every step (three numbers in the header
//! and one compression, whose message is then sent). Small models lose so much energy that `ε ≈ 0.7` often falls back to dense
//! (below). If model and network are known, a constant [`Schedule`](briquette_core::control::schedule::Schedule) that was found once is cheaper.
//!
//! **Method.** All gains are over all ranks, `Σ‖C(x)‖²/Σ‖x‖²`, and averaged over steps. At each step, `bold` is sent if its gain
//! reaches `ε`; else `safe` if its gain does; else dense. Then `T[sent]` becomes the average of `samples/t · gain`. Every `window`
//! steps the search is checked. If the gains of `safe` and `bold` differ by at most `ω`, `safe` becomes `bold`. If the two best
//! entries of `T` differ by at most `ω`, the lower ratio of the two is held (if it is dense, compression is off). Otherwise `bold`
//! becomes the next candidate, or the previous one if its gain is below `ε`. After a hold or a step back the search rests for
//! `reprobe_windows` windows before it tries a bolder candidate.
//!
//! Compression is multi-level: the message of `bold` is made from the message of `safe`
//! ([`refine_into`](briquette_core::compress::Compressor::refine_into)). For [`TopK`](briquette_core::compress::top_k::TopK),
//! [`ThresholdTopK`](briquette_core::compress::threshold_top_k::ThresholdTopK) (DGC's threshold) and [`Redsync`](crate::compress::redsync::Redsync) it is bit for bit the
//! message made from the vector. For [`RandomK`](briquette_core::compress::random_k::RandomK) it has the same distribution. Each may be layer-wise, as in
//! the paper (gather with `per_slot`), or over the whole vector. Gains are those of the whole vector in both cases.
//!
//! | paper | here |
//! |---|---|
//! | `θmin`, `θmax` | `min` (moves as `safe`), `max` |
//! | `θs·θmin` | `bold`, a candidate |
//! | `δmin`, `δc` | gains of `safe` and `bold` |
//! | `ε`, `ω`, window | `epsilon`, `saturation`, `window` |
//! | `N/100` | `smoothing` |
//! | `T` | throughput |
//! | `t_o`, `t_compress`, `t_s` | `compute_seconds`, `compress_seconds`, `exchange_seconds` of [`LastExchange`](briquette_core::reduce::LastExchange) |
//! | ScalingPolicy | [`Policy`] |
//!
//! **Time.** The check of a window belongs to the end of its last step. It runs once the measurements of that step are known, before
//! the next gains are requested. If they are unknown, it runs at the end of the next step instead. A step of unknown duration (no
//! clock, no samples) leaves `T` unchanged. Without any clock nothing ever saturates, and the candidates are tried by gain alone.
//!
//! **Knobs.** [`GraVacConfig`], each with unit, range and default. The defaults are the paper's, tuned there for ResNet101, VGG16 and
//! an LSTM of 170 to 530 MB on 32 ranks. A window that is too small exhausts the candidates early, an `ε` that is too small costs
//! accuracy. They are the same in code, TOML and flags. *Small models*: the gain of a vector with its residual is far below that of a
//! fresh gradient (a ResNet-8 under top-k 10x: 0.55 against 0.80; under 100x: 0.07 against 0.5), so `ε = 0.7` keeps falling back to
//! dense. [`GraVacConfig::small_model`], `gravac:10x,max=100x,epsilon=0.4,window=25`, starts lower. *Fast networks*: `T` contains
//! dense only from steps that fell back to it. Set `dense_steps` to time dense at the start, and again whenever `T` has dropped it.
//!
//! # Deviations from the paper
//!
//! The paper's Alg. 1 leaves the following points open, or contradicts its text. Our choices:
//!
//! - **a** Gains there are rank-local, so ranks may choose different payloads. Here ranks agree on gains, and on times.
//! - **b** Line 33 moves `θs` before line 35 uses it, so `θmin` would jump to a ratio that was never measured. Here `safe` becomes
//!   the ratio that was measured, with its averaged gain.
//! - **c** `θs` is relative to a moving `θmin`. Here candidates are absolute, and computed once from the first `θmin`.
//! - **d** Smoothing `N/100` is above 1 for more than 100 ranks and very slow for few. Here it is clamped to `[0.05, 1]`, and can be
//!   set. The start of an average is not specified. If it started with its first sample, that sample would have a weight of 29 % in a
//!   window of 25 steps at four ranks, and first gains are high, as the residual is still empty. Here an average is the mean of its
//!   samples until it has `1/smoothing` of them, and during that time the newest gain must reach `ε` as well.
//! - **e** Line 38 takes the ratio of the second largest throughput, the text the lower ratio. Here it is the lower ratio. (The
//!   literal rule may alternate between two ratios every window.)
//! - **f** There is no stop state. Here a ratio found by saturation is held until its gain falls below `ε`, or its throughput falls
//!   by more than `hold_tolerance`. The search then restarts from the first candidate, with the first `θmin`. It also restarts if
//!   `safe` has moved and no longer reaches `ε`. After `reprobe_windows` windows a held ratio is compared with the next candidate.
//! - **g** Gains per layer or over the whole vector: over the whole vector.
//! - **h** For unbiased compressors `‖C(x)‖²` exceeds `‖x‖²`. Here gains are `1 − ‖x − C(x)‖²/‖x‖²`, clamped to `[0, 1]`.
//! - **i** The paper's ratios of floats leave indices out. The ratio here is nominal too; traffic is reported in bytes in addition.
//! - **j** The initial `θs` is not stated. Here the first candidate is `2·min` (exponential) or `growth·min` (geometric).
//! - **k** A dense step flushes the residual. This is kept: the residual belongs to error feedback, and is then exactly zero.
//! - **l** `T` entries go stale. Here those not refreshed for `stale_windows` windows are dropped.
//! - **m** (Two figures are cited wrongly; there is nothing to choose.)
//! - **n** Line 33 moves on regardless of the gain, so the search ends at `θmax` for good, and a gain that recovers at a lower ratio
//!   is never detected. A bolder message keeps less. Here a candidate below `ε` at the end of its window rules out those above it, and
//!   the one below is tried instead. After `reprobe_windows` windows its neighbor is tried again.
//!
//! The following choices come from simulation. The average of `bold`'s gain restarts when `bold` changes (otherwise steps at an
//! untried ratio pass on the old ratio's gain). The gain of a zero vector is 1. A gain that is NaN counts as 0, so that it cannot
//! stay in the average. `T` is averaged with the same smoothing, not overwritten. If dense wins, compression is off and nothing is
//! probed for `reprobe_windows` windows. In the last of these windows probing resumes while dense is still sent, so that `T` compares
//! with the current cost of dense. Then the search restarts. The time of a dense step excludes probing (Alg. 1, line 25). Compression
//! is also off if dense has the best throughput when the candidates are exhausted without saturation (the last one was tried, or one
//! failed), or while the search rests. `settle` extends this to every ratio when the candidates are exhausted.
//!
//! **Reference.** S. Tyagi, M. Swany, *GraVAC: Adaptive Compression for Communication-Efficient Distributed DL Training*,
//! IEEE CLOUD 2023, pp. 319–329, <https://arxiv.org/abs/2305.12201>, Algorithm 1.
//!
//! ```
//! use briquette_core::control::{Agreed, Controller};
//! use briquette_zoo::control::gravac::GraVacConfig;
//! let mut controller = GraVacConfig::default().build(32)?;
//! let probes: Vec<f64> = controller.needs().gains.iter().map(|f| f.get()).collect();
//! assert_eq!(probes, [10.0, 20.0]);
//! let agreed_step = Default::default();
//! let mut agreed = Agreed::new(&agreed_step, &[]);
//! agreed.gains = &[0.80, 0.72];
//! let decision = controller.decide(&agreed);
//! assert_eq!(decision.ratio().map(|ratio| ratio.get()), Some(20.0));
//! // Until there are 100/32 gains of each, an average is their mean, and the newest must reach 0.7 as well: 0.50 does not.
//! agreed.gains = &[0.70, 0.50];
//! let decision = controller.decide(&agreed);
//! assert_eq!(decision.ratio().map(|ratio| ratio.get()), Some(10.0));
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

use average::Gain;
use briquette_core::CompressionRatio;
use briquette_core::control::{Agreed, Controller, Decision, Needs};
use briquette_core::reduce::{AgreedStep, Ratios};
use event::Event;
use search::Search;
use throughput::samples_per_second;

/// The GraVAC controller, made by [`GraVacConfig::build`]; see the [module](self).
#[derive(Debug, Clone, PartialEq)]
pub struct GraVac {
    config: GraVacConfig,
    smoothing: f64,
    candidates: Vec<CompressionRatio>,
    search: Search,
    /// Derived from `search`.
    probes: Vec<CompressionRatio>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Sent {
    ratio: CompressionRatio,
    gain: f64,
}

impl GraVac {
    /// Creates the controller. [`GraVacConfig::build`] has checked that the settings are valid and `candidates` is not empty.
    fn new(config: GraVacConfig, smoothing: f64, candidates: Vec<CompressionRatio>) -> Self {
        let search = Search::start(config.min, candidates[0], config.dense_steps);
        let mut controller = GraVac { config, smoothing, candidates, search, probes: Vec::new() };
        controller.list_probes();
        controller
    }

    /// Returns the ratios that are tried in turn, from the smallest to the largest.
    pub fn candidates(&self) -> &[CompressionRatio] {
        &self.candidates
    }

    fn list_probes(&mut self) {
        self.probes.clear();
        // While compression is off, only the last window's dense steps are measured, for comparison.
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
            // Nothing was needed, or the caller measured something else. Without a gain, dense is sent.
            _ => {}
        }
    }

    /// Returns the boldest ratio with a sufficient gain.
    fn choose(&self) -> Sent {
        let search = &self.search;
        let counts = |gain: Option<Gain>| gain.map(|gain| gain.counts);
        let enough =
            |ratio, gain| counts(gain).filter(|gain| *gain >= self.config.epsilon).map(|gain| Sent { ratio, gain });
        enough(search.bold, search.bold_gain)
            .or_else(|| enough(search.safe, search.safe_gain))
            .unwrap_or(Sent { ratio: CompressionRatio::DENSE, gain: 1.0 })
    }

    /// Plans a dense step.
    fn plan_dense(&mut self) -> Sent {
        self.search.dense_left -= 1;
        Sent { ratio: CompressionRatio::DENSE, gain: 1.0 }
    }

    fn count_step(&mut self) {
        self.search.steps_in_window += 1;
        if self.search.steps_in_window >= self.config.window {
            self.search.steps_in_window = 0;
            self.search.check_due = true;
        }
    }

    fn explain(&self, sent: CompressionRatio, planned: bool, note: Option<Event>) -> String {
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
        // Without a measurement or a previous step there is nothing to record.
        if let (Some(sent), Some(previous)) = (self.search.sent, &agreed_step.previous) {
            self.search.sent = None;
            if let Some(rate) = samples_per_second(previous, sent.ratio) {
                self.search.throughput.record(sent.ratio, rate * sent.gain, self.smoothing);
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
        // The last step of a window was not recorded, so its check runs without it.
        let late = std::mem::take(&mut self.search.check_due);
        let note = self.search.note.take();
        self.average_gains(agreed.gains);
        let planned = self.search.dense_left > 0;
        let sent = if planned { self.plan_dense() } else { self.choose() };
        let changed = self.search.last != Some(sent.ratio);
        let reason = changed.then(|| self.explain(sent.ratio, planned, note));
        self.search.last = Some(sent.ratio);
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
        Decision::all(sent.ratio, reason)
    }

    /// Ignores the time of this step, since another ratio was sent than was decided.
    fn overruled(&mut self, _ratios: Ratios<'_>) {
        self.search.sent = None;
    }

    fn describe(&self) -> Option<String> {
        Some(self.search.describe(self.config.window))
    }
}
