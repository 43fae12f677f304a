//! Zeros that are omitted: no loop branches on a value, because scattered zeros are not predictable.

use super::{BLOCK, ZERO};

/// Values that are tested together: a run of zeros is skipped.
const RUN: usize = 16;

/// Gives positive zeros the symbol [`ZERO`], copies all other values, and returns their number.
pub(super) fn omit(values: &[f32], symbols: &mut [u8], stored: &mut [f32; BLOCK]) -> usize {
    let mut at = 0_u32;
    for (symbols, values) in symbols.chunks_mut(RUN).zip(values.chunks(RUN)) {
        if values.iter().fold(0, |all, v| all | v.to_bits()) == 0 {
            symbols.fill(ZERO);
            continue;
        }
        for (symbol, value) in symbols.iter_mut().zip(values) {
            let bits = value.to_bits();
            stored[at as usize % BLOCK] = *value;
            // 1 if any bit is set.
            let keep = (bits | bits.wrapping_neg()) >> 31;
            at += keep;
            *symbol |= (keep as u8).wrapping_sub(1);
        }
    }
    at as usize
}

/// Copies the symbols of stored values, and returns their number.
pub(super) fn compact(symbols: &[u8], kept: &mut [u8; BLOCK]) -> usize {
    let mut at = 0_u32;
    for symbols in symbols.chunks(RUN).filter(|symbols| !is_zeros(symbols)) {
        for symbol in symbols {
            kept[at as usize % BLOCK] = *symbol;
            at += is_stored(*symbol);
        }
    }
    at as usize
}

/// Writes zeros, and stored values in their places.
pub(super) fn expand(symbols: &[u8], stored: &[f32; BLOCK], out: &mut [f32]) {
    let mut at = 0_u32;
    for (symbols, out) in symbols.chunks(RUN).zip(out.chunks_mut(RUN)) {
        if is_zeros(symbols) {
            out.fill(0.0);
            continue;
        }
        for (out, symbol) in out.iter_mut().zip(symbols) {
            let keep = is_stored(*symbol);
            *out = f32::from_bits(stored[at as usize % BLOCK].to_bits() & keep.wrapping_neg());
            at += keep;
        }
    }
}

/// Returns 0 for the symbol of zeros, else 1.
fn is_stored(symbol: u8) -> u32 {
    (u32::from(symbol ^ ZERO) + 255) >> 8
}

fn is_zeros(symbols: &[u8]) -> bool {
    symbols.iter().fold(ZERO, |all, symbol| all & symbol) == ZERO
}
