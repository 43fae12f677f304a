//! Random-k with a shared seed: an all-reduce of `k` values, without indices.
//!
//! **Why, and when not.** All ranks derive the selected coordinates from the key. Only values are sent, and they are summed in transit,
//! so the bytes per rank do not grow with the world. It keeps only `k/d` of the energy (squared norm), far less than the largest `k`
//! coordinates would.
//!
//! **Method.** `S` is a set of `k` of the `d` positions, drawn without replacement and equal on all ranks. The average
//! is `s·mean(x_S)` on `S`, 0 elsewhere. Unscaled, `s = 1` (use error feedback); scaled, `s = d/k`.
//!
//! **On the wire.** The all-reduce of `k` values: `2·(W−1)/W·4k` bytes each way on a ring.
//!
//! **Properties.** Unscaled: contractive in expectation, δ = k/d. Scaled: unbiased, ω = d/k − 1.
//!
//! **Knobs.** The ratio `d/k`.
//!
//! **Deviations.** Sampling is without replacement (GraVAC's code samples with), which changes the constants.
//!
//! **Reference.** S. U. Stich, J.-B. Cordonnier, M. Jaggi, *Sparsified SGD with Memory*, 2018 (rand-k); shared seed as
//! T. Vogels, S. P. Karimireddy, M. Jaggi, *PowerSGD*, 2019, §4.
//!
//! ```
//! use briquette_core::{CompressionRatio, Key};
//! use briquette_core::reduce::shared_random_k::SharedRandomK;
//! let mut picked = Vec::new();
//! SharedRandomK::choose(Key::new(1), 1000, 10, &mut picked);
//! assert_eq!(picked.len(), 10);
//! assert!(picked.is_sorted());
//! ```

use crate::compress::random_k;
use crate::error::{ConfigError, ReduceError};
use crate::math::norm2;
use crate::report::Report;
use crate::seam::{
    Energies, ErrorBound, Exchanged, Knob, OnDevice, Probe, ProbeInput, Ratios, Reducer, Round, Selection,
    check_average,
};
use crate::settings::{Described, Exchange, ReducerSettings, ReducerTraits};
use crate::state::Stateful;
use crate::{CompressionRatio, Key, Layout, Session};

/// An all-reduce of `k` shared coordinates; see the [module](self).
#[derive(Debug)]
pub struct SharedRandomK {
    /// The configured ratio.
    own: CompressionRatio,
    /// The ratio in use.
    ratio: CompressionRatio,
    scaled: bool,
    indices: Vec<u32>,
    values: Vec<f32>,
}

impl SharedRandomK {
    /// Creates a reducer that sends unscaled values, for use under error feedback.
    pub fn new(ratio: CompressionRatio) -> Self {
        SharedRandomK { own: ratio, ratio, scaled: false, indices: Vec::new(), values: Vec::new() }
    }

    /// Creates a reducer that scales values by `d/k`: unbiased, for use without error feedback.
    pub fn scaled(ratio: CompressionRatio) -> Self {
        SharedRandomK { scaled: true, ..SharedRandomK::new(ratio) }
    }

    /// Draws `k` of `len` positions in ascending order, each subset equally likely. [`RandomK`](crate::compress::random_k::RandomK) draws the same
    /// way.
    pub fn choose(key: Key, len: usize, k: usize, out: &mut Vec<u32>) {
        random_k::choose(key, len, k, out);
    }

    fn scale(&self, len: usize, k: usize) -> f64 {
        if self.scaled && k > 0 { len as f64 / k as f64 } else { 1.0 }
    }
}

impl Stateful for SharedRandomK {}

impl Knob for SharedRandomK {
    fn per_slot(&self) -> bool {
        false
    }

    fn set(&mut self, ratios: Ratios<'_>) {
        self.ratio = match ratios {
            Ratios::Own => self.own,
            Ratios::All(ratio) => ratio,
            Ratios::PerSlot(_) => panic!("coordinates of all slots are chosen together"),
        };
    }

    /// Draws the positions that a ratio would select. Nothing is cached for the exchange.
    fn probe(&mut self, probe: &Probe<'_>, input: ProbeInput<'_>, out: &mut Energies) -> OnDevice<bool> {
        let ProbeInput::Host(x) = input else { return Ok(false) };
        out.clear(probe.ratios.len());
        out.push(norm2(x));
        for (ratio, kept) in probe.ratios.iter().zip(out.kept_mut(0)) {
            SharedRandomK::choose(probe.key, x.len(), ratio.keep(x.len()), &mut self.indices);
            let chosen: f64 = self.indices.iter().map(|&i| f64::from(x[i as usize]).powi(2)).sum();
            // For a value x sent as s·x, x² − (x − s·x)² = s(2 − s)·x².
            let scale = self.scale(x.len(), self.indices.len());
            *kept = scale * (2.0 - scale) * chosen;
        }
        Ok(true)
    }
}

impl Reducer for SharedRandomK {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let Round { key, slots, input, average, sent, .. } = round;
        let k = self.ratio.keep(input.len());
        SharedRandomK::choose(key, input.len(), k, &mut self.indices);
        let scale = self.scale(input.len(), k) as f32;
        self.values.clear();
        self.values.extend(self.indices.iter().map(|&i| input[i as usize] * scale));
        if let Some(sent) = sent {
            sent.fill(0.0);
            for (&i, &v) in self.indices.iter().zip(&self.values) {
                sent[i as usize] = v;
            }
        }
        let exchanged = Exchanged::count(comm, Selection::Some, |comm| Ok(comm.all_reduce_sum(&mut self.values)?))?;
        let weight = 1.0 / comm.world() as f32;
        average.fill(0.0);
        for (&i, &v) in self.indices.iter().zip(&self.values) {
            average[i as usize] = v * weight;
        }
        check_average(average, slots)?;
        Ok(exchanged)
    }

    fn report(&self, report: &mut Report) {
        report.ratio = Some(self.ratio);
    }

    fn knob(&mut self) -> Option<&mut dyn Knob> {
        Some(self)
    }
}

/// Settings of [`SharedRandomK`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "shared-random-k",
    help = "an all-reduce of the same random coordinates on every rank (10x)",
    representatives("shared-random-k:8x")
)]
pub struct SharedRandomKConfig {
    /// `d/k`.
    #[setting(default = "10x")]
    pub ratio: CompressionRatio,
    /// Scales values by `d/k` (unbiased, without feedback).
    pub scaled: bool,
}

impl SharedRandomKConfig {
    fn reducer(self) -> SharedRandomK {
        SharedRandomK { scaled: self.scaled, ..SharedRandomK::new(self.ratio) }
    }
}

impl ReducerSettings for SharedRandomKConfig {
    fn build(&self, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(self.reducer()))
    }

    fn traits(&self) -> ReducerTraits {
        ReducerTraits { needs_feedback: !self.scaled, is_exact: !self.scaled, ..ReducerTraits::default() }
    }

    fn has_knob(&self) -> bool {
        true
    }

    fn error_bound(&self, len: usize) -> Option<ErrorBound> {
        let share = self.ratio.keep(len.max(1)) as f64 / len.max(1) as f64;
        Some(if self.scaled {
            ErrorBound::Unbiased { omega: 1.0 / share - 1.0 }
        } else {
            ErrorBound::MeanContractive { delta: share }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;
    use crate::comm::Local;
    use crate::math::distance2;
    use crate::seam::AgreedStep;

    #[test]
    fn a_probe_foretells_what_is_kept_scaled_or_not() {
        let x: Vec<f32> = (0..100).map(|i| (i as f32 * 0.7).sin()).collect();
        let (layout, key, ratio) = (Layout::flat(100), Key::new(3), CompressionRatio::new(10.0).unwrap());
        for mut reducer in [SharedRandomK::new(ratio), SharedRandomK::scaled(ratio)] {
            let (mut energies, mut average, mut sent) = (Energies::default(), vec![0.0; 100], vec![0.0; 100]);
            let probe = Probe { slots: layout.slots(), key, rank: 0, ratios: &[ratio], per_slot: false };
            reducer.probe(&probe, ProbeInput::Host(&x), &mut energies).unwrap();
            let agreed_step = AgreedStep::default();
            let (average, sent) = (&mut average, Some(&mut sent[..]));
            let round = Round { key, slots: layout.slots(), agreed_step: &agreed_step, input: &x, average, sent };
            reducer.reduce(round, &mut Local::world(1).remove(0)).unwrap();
            let kept = norm2(&x) - distance2(&x, average);
            assert!((energies.kept(0)[0] - kept).abs() < 1e-4, "{energies:?}, {kept}");
            // A value that is ten times too large does more harm than its absence: 10·(2 − 10) = −80 of its energy.
            assert_eq!(kept < 0.0, reducer.scaled);
        }
    }

    #[test]
    fn every_position_is_chosen_equally_often() {
        let (len, k, draws) = (50, 5, 4000);
        let mut counts = vec![0_u32; len];
        let mut picked = Vec::new();
        for step in 0..draws {
            SharedRandomK::choose(Key::new(3).step(step), len, k, &mut picked);
            assert_eq!(picked.len(), k);
            picked.iter().for_each(|&i| counts[i as usize] += 1);
        }
        // Mean 400, sd √(4000·0.1·0.9) = 19; five sd.
        assert!(counts.iter().all(|&c| (305..495).contains(&c)), "{counts:?}");
    }

    #[test]
    fn all_are_chosen_when_k_is_the_length() {
        let mut picked = Vec::new();
        SharedRandomK::choose(Key::new(0), 9, 9, &mut picked);
        assert_eq!(picked, (0..9).collect::<Vec<u32>>());
    }
}
