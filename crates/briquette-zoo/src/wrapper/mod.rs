//! Feedback wrappers, and a wrapper that simulates Byzantine ranks. One file per algorithm.

pub mod byzantine;
pub mod dion;
pub mod ef21_sgdm;
pub mod one_bit_adam;
pub mod rank_momentum;
pub mod shifted;

use briquette_core::Slot;

/// Clears slots for which no rank has a gradient, so that a feedback sends nothing for them. The feedback's state of
/// such slots is [held](briquette_core::reduce::Reducer::hold).
fn clear_absent(fed: &mut [f32], slots: &[Slot]) {
    slots.iter().filter(|slot| slot.is_absent()).for_each(|slot| fed[slot.range()].fill(0.0));
}
