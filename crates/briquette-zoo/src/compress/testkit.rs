//! Values for tests of sparsifiers.

use proptest::prelude::*;

/// Values that include ties, zeros of both signs, denormals and extremes.
pub(super) fn awkward() -> impl Strategy<Value = f32> {
    prop_oneof![
        (-3..4_i32).prop_map(|v| v as f32),
        prop::sample::select(vec![0.0, -0.0, 1e-45, -1e-45, 3e-39, f32::MAX, -f32::MAX, f32::MIN_POSITIVE]),
        any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |v| v.is_finite()),
    ]
}
