//! 64-bit integers in two words, for devices that have none (WGSL).

use cubecl::prelude::*;

/// A 64-bit word.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Wide {
    pub(crate) high: u32,
    pub(crate) low: u32,
}

#[cube]
impl Wide {
    pub(crate) fn xor(&self, other: &Wide) -> Wide {
        Wide { high: self.high ^ other.high, low: self.low ^ other.low }
    }

    /// Wrapping sum.
    pub(crate) fn add(&self, other: &Wide) -> Wide {
        let low = self.low + other.low;
        Wide { high: self.high + other.high + u32::cast_from(low < self.low), low }
    }

    /// Wrapping product.
    pub(crate) fn times(&self, other: &Wide) -> Wide {
        let low = self.low * other.low;
        let high = u32::mul_hi(self.low, other.low) + self.low * other.high + self.high * other.low;
        Wide { high, low }
    }

    /// Shifts by 1 to 31 places.
    pub(crate) fn shifted_right(&self, places: u32) -> Wide {
        Wide { high: self.high >> places, low: (self.low >> places) | (self.high << (32u32 - places)) }
    }
}

/// Finalizer of SplitMix64, as in core's keys.
#[cube]
pub(crate) fn mix(value: &Wide) -> Wide {
    let a = value.add(&Wide { high: 0x9e37_79b9u32, low: 0x7f4a_7c15u32 });
    let b = a.xor(&a.shifted_right(30u32)).times(&Wide { high: 0xbf58_476du32, low: 0x1ce4_e5b9u32 });
    let c = b.xor(&b.shifted_right(27u32)).times(&Wide { high: 0x94d0_49bbu32, low: 0x1331_11ebu32 });
    c.xor(&c.shifted_right(31u32))
}

/// 64 random bits of core's `Key::word(index)`, from the key's [salt](crate::random::salt).
#[cube]
pub(crate) fn word_of(salt_high: u32, salt_low: u32, index: u32) -> Wide {
    let place = mix(&Wide { high: 0u32, low: index });
    mix(&Wide { high: salt_high, low: salt_low }.xor(&place))
}
