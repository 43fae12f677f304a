//! L-GreCo: chooses a compression ratio for each slot, to send the fewest values for the energy that a uniform ratio would lose.
//!
//! **Why.** A compression that loses half the energy (squared norm) of a convolution loses almost nothing of an embedding. **Why
//! not.** Lost energy is not the training loss. A decision costs a compression for each candidate. Nothing is measured between
//! decisions.
//!
//! **Method.** Every `every` steps, the ranks agree on the lost energy `e(l, c) = Σ_ranks ‖x − C_c(x)‖²` of each slot `l` and
//! candidate ratio `c`. Of all choices `c_l` with `Σ e(l, c_l) ≤ tolerance·Σ e(l, ratio)`, a dynamic program finds the one with the
//! smallest `Σ size(l, c_l)`. It runs over the slots and 10 000 bins of lost energy, in `O(slots·bins·candidates)`. The size of a slot
//! is the number of values that its ratio keeps. Energies are rounded up to bins. If no choice is then smaller, all slots use
//! `ratio`. The paper calls the bound `E_max` and the number of bins `D`. Candidates are `ratio·2^(i/2)` with `|i| ≤ 2·octaves`.
//!
//! **On the wire.** Every `every` steps an all-reduce of `slots·(2 + 4·octaves)` f64.
//!
//! **Knobs.** `ratio`, default 100x: a ratio known to work. `octaves`, 1 to 6, default 2: ratios from a fourth of `ratio` to four
//! times `ratio`, which must be at least `2^octaves`. `tolerance`, at least 1, default 1. `every`, at least 1 step, default 500.
//!
//! **Invalid measurements.** If an energy is not finite, all slots use `ratio`. If the kept energy exceeds the slot's own, the lost
//! energy is 0.
//!
//! **Deviations.** The paper measures gradients accumulated since the last decision. Here the vector about to be sent is measured,
//! with its residual, over all ranks. Sizes are nominal, whereas the paper uses those of messages.
//!
//! **Reference.** M. Alimohammadi, I. Markov, E. Frantar, D. Alistarh, *L-GreCo: Layerwise-Adaptive Gradient Compression for
//! Efficient and Accurate Deep Learning*, MLSys 2024 (arXiv 2210.17357), algorithm 1.
//!
//! ```
//! use briquette_core::{CompressionRatio, Layout};
//! use briquette_core::control::{Agreed, Controller};
//! use briquette_zoo::control::l_greco::LGreco;
//! use briquette_core::reduce::{Energies, Ratios};
//! let ratio = CompressionRatio::new(4.0)?;
//! let mut controller = LGreco { ratio, octaves: 1, ..LGreco::default() }.controller()?;
//! let (layout, agreed_step, mut energies) = (Layout::new([("a", vec![8]), ("b", vec![32])]), Default::default(), Energies::new());
//! // At 2x, 2.8x, 4x, 5.7x and 8x: a keeps 4, 3, 2, 1, 1 values, and b 16, 11, 8, 6, 4.
//! energies.clear(5);
//! for (slot, norm2, kept) in [(0, 86.0, [85.0, 84.0, 80.0, 64.0, 64.0]), (1, 32.0, [16.0, 11.0, 8.0, 6.0, 4.0])] {
//!     energies.push(norm2);
//!     energies.kept_mut(slot).copy_from_slice(&kept);
//! }
//! let mut agreed = Agreed::new(&agreed_step, layout.slots());
//! agreed.energies = &energies;
//! let decision = controller.decide(&agreed);
//! // 4x for both sends 10 values and loses 6 + 24. Two values more of a (1 + 28) allow to send four fewer of b.
//! let Ratios::PerSlot(ratios) = decision.ratios else { unreachable!() };
//! assert_eq!([ratios[0].get(), ratios[1].get()], [2.0, 8.0]);
//! assert_eq!(decision.reason.as_deref(), Some("8 values sent instead of 10 at 4x for all"));
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use std::f64::consts::SQRT_2;

use briquette_core::config::{ControllerSettings, Described, Feedback};
use briquette_core::control::{Agreed, Controller, Decision, Needs};
use briquette_core::error::{ConfigError, StateError};
use briquette_core::reduce::{AgreedStep, Energies, Ratios};
use briquette_core::state::State;
use briquette_core::{CompressionRatio, Slot, stateful};

/// Settings of L-GreCo; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "l-greco",
    help = "a ratio for each slot, the fewest values that lose no more than RATIO for all",
    representatives("l-greco:8x,every=2"),
    combinations(
        "controller=l-greco:8x,every=2 reducer=gather:(qsgd:4:64:l2),per_slot=true feedback=none dense_below=0 bucket_values=32",
        "controller=l-greco:8x,every=2 reducer=gather:(topk:8x:q8),per_slot=true feedback=error dense_below=0 bucket_values=32",
        "controller=l-greco:8x,every=2 reducer=gather:(topk:8x),per_slot=true feedback=momentum:clip=3 dense_below=0 bucket_values=32",
    ),
    check = Self::check_ratio
)]
pub struct LGreco {
    /// The uniform ratio, whose lost energy is the bound.
    #[setting(default = "100x")]
    pub ratio: CompressionRatio,
    /// Number of times that a slot's ratio may be halved or doubled.
    #[setting(default = 2, range = "[1, 6]")]
    pub octaves: u8,
    /// Factor on the bound of the lost energy.
    #[setting(default = 1.0, range = "[1, inf)")]
    pub tolerance: f64,
    /// Number of steps from one decision to the next.
    #[setting(default = 500, range = "[1, inf)")]
    pub every: u64,
}

impl ControllerSettings for LGreco {
    fn build(&self, _feedback: &Feedback, _world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        Ok(Some(Box::new(self.chooser()?)))
    }

    fn per_slot(&self) -> bool {
        true
    }

    fn ratios(&self) -> [CompressionRatio; 2] {
        let most = f64::from(1_u32 << self.octaves.min(6));
        let times = |by: f64| CompressionRatio::new(self.ratio.get() * by).unwrap_or(self.ratio);
        [1.0 / most, most].map(times)
    }
}

impl LGreco {
    /// Creates the controller.
    ///
    /// # Errors
    /// [`ConfigError`] for a setting outside its range.
    pub fn controller(&self) -> Result<impl Controller + use<>, ConfigError> {
        self.chooser()
    }

    fn chooser(&self) -> Result<Chooser, ConfigError> {
        self.check()?;
        let middle = 2 * i32::from(self.octaves);
        // Computes 2^(i/2) with the same bits on every machine.
        let power = |i: i32| 2_f64.powi(i.div_euclid(2)) * if i % 2 == 0 { 1.0 } else { SQRT_2 };
        let candidates = (-middle..=middle).map(|i| CompressionRatio::new((self.ratio.get() * power(i)).max(1.0)));
        Ok(Chooser {
            settings: *self,
            candidates: candidates.collect::<Result<_, _>>()?,
            is_due: true,
            next: 0,
            chosen: vec![],
        })
    }

    fn check_ratio(&self) -> Result<(), ConfigError> {
        let is_valid = self.ratio.get() >= f64::from(1_u32 << self.octaves);
        ConfigError::unless(is_valid, "ratio of l-greco", "at least 2 to the power of octaves", self.ratio)
    }
}

struct Chooser {
    settings: LGreco,
    candidates: Vec<CompressionRatio>,
    /// Set if this step is due for a decision. A decision may come later than planned, since exchanges need not take place at every step.
    is_due: bool,
    next: u64,
    /// The ratio of each slot.
    chosen: Vec<CompressionRatio>,
}

/// Returns the candidate of each slot, the number of values that these send, and the number that the middle candidate would send for all slots.
fn choose(chooser: &Chooser, energies: &Energies, slots: &[Slot]) -> (Vec<usize>, [usize; 2]) {
    let Chooser { candidates, settings: LGreco { tolerance, .. }, .. } = chooser;
    let uniform = vec![candidates.len() / 2; slots.len()];
    let lost = |slot, index: usize| (energies.norm2(slot) - energies.kept(slot)[index]).max(0.0);
    let is_finite = |slot| energies.kept(slot).iter().all(|kept| (energies.norm2(slot) - kept).is_finite());
    let bound = tolerance * uniform.iter().enumerate().map(|(slot, &i)| lost(slot, i)).sum::<f64>();
    let bins = |lost: f64| if lost > 0.0 { (lost / bound * 10_000.0).ceil() as usize } else { 0 };
    let choice = |slot: usize, index: usize| (bins(lost(slot, index)), candidates[index].keep(slots[slot].len()));
    let row = |slot| (0..candidates.len()).map(|index| choice(slot, index)).collect();
    let all: Vec<Vec<_>> = (0..slots.len()).map(row).collect();
    let size = |chosen: &[usize]| chosen.iter().zip(&all).map(|(index, choices)| choices[*index].1).sum();
    let known = bound.is_finite() && (0..slots.len()).all(is_finite);
    let best = Some(()).filter(|()| known).and_then(|()| smallest(&all, 10_000));
    let best = best.filter(|best| size(best) < size(&uniform)).unwrap_or_else(|| uniform.clone());
    let sizes = [size(&best), size(&uniform)];
    (best, sizes)
}

/// Returns, from each slot's `(bins, size)`, the choice with the smallest total size whose bins add up to at most `bins`.
fn smallest(slots: &[Vec<(usize, usize)>], bins: usize) -> Option<Vec<usize>> {
    // The smallest size of the slots so far for each limit on their bins, and the last slot's choice that leads to it.
    let (mut best, mut taken) = (vec![0_usize; bins + 1], Vec::new());
    for choices in slots {
        let (mut next, mut by) = (vec![usize::MAX; bins + 1], vec![0_u8; bins + 1]);
        for (index, &(used, size)) in (0..).zip(choices) {
            for bin in used..=bins {
                let total = best[bin - used].saturating_add(size);
                (next[bin], by[bin]) = (next[bin], by[bin]).min((total, index));
            }
        }
        best = next;
        taken.push(by);
    }
    let (mut left, mut chosen) = (Some(bins).filter(|bins| best[*bins] < usize::MAX)?, vec![0; slots.len()]);
    for (slot, by) in taken.iter().enumerate().rev() {
        chosen[slot] = usize::from(by[left]);
        left -= slots[slot][chosen[slot]].0;
    }
    Some(chosen)
}

stateful! {
    impl Stateful for Chooser {
        next: value("next"),
        is_due: value("is_due"),
        chosen: value("chosen"),
    }
    check: Self::fits;
}

impl Chooser {
    /// Checks that the saved ratios are candidates.
    fn fits(&self, state: &State) -> Result<(), StateError> {
        let saved = state.f64s("chosen")?;
        let fits = saved.iter().all(|ratio| self.candidates.iter().any(|candidate| candidate.get() == *ratio));
        if fits { Ok(()) } else { Err(StateError::mismatch("chosen", "candidates of l-greco", saved)) }
    }
}

impl Controller for Chooser {
    fn per_slot(&self) -> bool {
        true
    }

    fn observe(&mut self, agreed_step: &AgreedStep) {
        self.is_due = self.chosen.is_empty() || agreed_step.step >= self.next;
        if self.is_due {
            self.next = (agreed_step.step / self.settings.every + 1).saturating_mul(self.settings.every);
        }
    }

    fn needs(&self) -> Needs<'_> {
        let gains = if self.is_due { &self.candidates[..] } else { &[] };
        Needs { gains, slots: self.is_due, ..Needs::default() }
    }

    fn decide(&mut self, agreed: &Agreed<'_>) -> Decision<'_> {
        let mut reason = None;
        if self.is_due {
            let (best, [sent, uniform]) = choose(self, agreed.energies, agreed.slots);
            let (chosen, ratio) = (best.iter().map(|i| self.candidates[*i]).collect(), self.settings.ratio);
            let before = std::mem::replace(&mut self.chosen, chosen);
            let text = format!("{sent} values sent instead of {uniform} at {ratio} for all");
            reason = Some(text).filter(|_| before != self.chosen);
        }
        // The inputs of the next step can be measured at this step.
        self.is_due = agreed.agreed_step.step.saturating_add(1) >= self.next;
        Decision { ratios: Ratios::PerSlot(&self.chosen), reason }
    }

    fn describe(&self) -> Option<String> {
        Some(format!("{} slots chosen for, next choice at step {}", self.chosen.len(), self.next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::Layout;
    use proptest::prelude::*;

    fn brute_force(slots: &[Vec<(usize, usize)>], bins: usize) -> Option<usize> {
        let Some((first, rest)) = slots.split_first() else { return Some(0) };
        first.iter().filter_map(|(used, size)| Some(size + brute_force(rest, bins.checked_sub(*used)?)?)).min()
    }

    proptest! {
        #[test]
        fn the_dynamic_program_equals_brute_force(
            slots in prop::collection::vec(prop::collection::vec((0..40_usize, 0..100_usize), 1..=4), 0..=6),
            bins in 0..100_usize,
        ) {
            let taken = |chosen: Vec<usize>| chosen.into_iter().zip(&slots).map(|(i, slot)| slot[i]).collect::<Vec<_>>();
            let taken = smallest(&slots, bins).map(taken);
            prop_assert_eq!(taken.as_ref().map(|t| t.iter().map(|t| t.1).sum()), brute_force(&slots, bins));
            prop_assert!(taken.is_none_or(|t| t.iter().map(|t| t.0).sum::<usize>() <= bins));
        }

        #[test]
        fn no_more_is_lost_than_allowed_and_no_more_is_sent_than_with_one_ratio(
            slots in prop::collection::vec((1..5000_usize, prop::array::uniform9(0.0..1.0_f64)), 1..30),
            tolerance in prop::sample::select(vec![1.0, 1.5]),
        ) {
            let (mut energies, settings) = (Energies::new(), LGreco { tolerance, ..LGreco::default() });
            energies.clear(9);
            for (slot, (len, shares)) in slots.iter().enumerate() {
                energies.push(*len as f64);
                energies.kept_mut(slot).copy_from_slice(&shares.map(|share| share * *len as f64));
            }
            let layout = Layout::new(slots.iter().enumerate().map(|(slot, (len, _))| (slot.to_string(), vec![*len])));
            let (best, [sent, uniform]) = choose(&settings.chooser().unwrap(), &energies, layout.slots());
            let lost = |(slot, index): (usize, usize)| energies.norm2(slot) - energies.kept(slot)[index];
            let bound = tolerance * (0..slots.len()).map(|slot| lost((slot, 4))).sum::<f64>();
            prop_assert!(sent <= uniform && best.into_iter().enumerate().map(lost).sum::<f64>() <= bound * (1.0 + 1e-12));
        }
    }

    /// The slots of the module's example. At 2x, 2.8x, 4x, 5.7x and 8x, `a` keeps 4, 3, 2, 1, 1 values and loses 1, 2, 6, 22, 22, and
    /// `b` keeps 16, 11, 8, 6, 4 and loses 16, 21, 24, 26, 28. 4x for both sends 10 and loses 30. A tolerance of 1 allows 30, of which
    /// 1 + 28 = 29 sends 8. A tolerance of 1½ allows 45, of which 6 + 28 = 34 sends 6 (22 + 21 = 43 would send 12). A tolerance of 1.7
    /// allows 51, of which 22 + 28 = 50 sends 5.
    #[test]
    fn the_tolerance_is_how_much_more_may_be_lost_by_hand() {
        let ratio = CompressionRatio::constant(4.0);
        let (layout, mut energies) = (Layout::new([("a", vec![8]), ("b", vec![32])]), Energies::new());
        energies.clear(5);
        for (slot, norm2, kept) in [(0, 86.0, [85.0, 84.0, 80.0, 64.0, 64.0]), (1, 32.0, [16.0, 11.0, 8.0, 6.0, 4.0])] {
            energies.push(norm2);
            energies.kept_mut(slot).copy_from_slice(&kept);
        }
        for (tolerance, best, sent) in [(1.0, [0, 4], 8), (1.5, [2, 4], 6), (1.7, [3, 4], 5)] {
            let chooser = LGreco { ratio, octaves: 1, tolerance, ..LGreco::default() }.chooser().unwrap();
            let (chosen, sizes) = choose(&chooser, &energies, layout.slots());
            assert_eq!((chosen, sizes), (best.to_vec(), [sent, 10]), "tolerance {tolerance}");
        }
    }

    /// NaN must not count as zero lost energy.
    #[test]
    fn energies_that_are_not_finite_leave_all_slots_at_the_ratio() {
        let (layout, settings) = (Layout::new([("a", vec![64]), ("b", vec![640])]), LGreco::default());
        let chooser = LGreco { octaves: 1, ..settings }.chooser().unwrap();
        for (bad, chosen) in [(f64::NAN, [2, 2]), (f64::INFINITY, [2, 2]), (f64::NEG_INFINITY, [2, 2]), (0.5, [0, 4])] {
            let mut energies = Energies::new();
            energies.clear(5);
            for (slot, kept) in [[0.9, 0.8, bad, 0.1, 0.0], [9e-4; 5]].into_iter().enumerate() {
                energies.push([1.0, 1e-3][slot]);
                energies.kept_mut(slot).copy_from_slice(&kept);
            }
            assert_eq!(choose(&chooser, &energies, layout.slots()).0, chosen, "{bad}");
        }
    }

    #[test]
    fn impossible_settings_are_refused() {
        let base = LGreco { every: 0, ..LGreco::default() };
        let octaves = [0, 7].map(|octaves| LGreco { octaves, every: 1, ..base });
        let tolerance = [0.9, f64::NAN].map(|tolerance| LGreco { tolerance, every: 1, ..base });
        let low = LGreco { ratio: CompressionRatio::DENSE, every: 1, ..base };
        for wrong in [base, low].iter().chain(&octaves).chain(&tolerance) {
            assert!(
                wrong.build(&Feedback::error(), 2).map(drop).unwrap_err().to_string().contains("l-greco"),
                "{wrong:?}"
            );
        }
    }
}
