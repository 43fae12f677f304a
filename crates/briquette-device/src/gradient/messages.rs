//! Messages of a gradient: the encoder of each encoding, and statistics of a sparse message.

use briquette_core::compress::{Encoding, random_k::RandomK, top_k::TopK};
use briquette_core::{CompressionRatio, Key, Layout, Message, Slot};

use super::Gradient;
use crate::Encoded;
use crate::encode::{self, Norm};
use crate::error::DeviceError;
use crate::message::DeviceMessage;
use crate::run::Vector;

/// Values that a hard threshold is expected to keep at most, as a share: more cost a second copy.
const EXPECTED_SHARE: usize = 20;

impl Gradient {
    /// Queues the kernels of an encoding, if there are any.
    pub(super) fn queue(&self, encoding: Encoding, x: &Vector, key: Key) -> Result<Option<Encoded>, DeviceError> {
        let run = &self.run;
        Ok(Some(match encoding {
            Encoding::TopK { ratio, .. } => encode::top_k(run, x, ratio.keep(x.len())),
            Encoding::HardThreshold { threshold } => {
                encode::hard_threshold(run, x, threshold, x.len().div_ceil(EXPECTED_SHARE))
            }
            Encoding::ThresholdTopK { ratio, sample } => {
                encode::threshold_top_k(run, x, ratio.keep(x.len()), sample, key)?
            }
            Encoding::RandomK { ratio, scaled } => {
                let random_k = RandomK::ratio(ratio);
                encode::random_k(run, x, if scaled { random_k.scaled() } else { random_k }, key)
            }
            Encoding::MinMax { block } => encode::min_max(run, x, block),
            Encoding::Half { kind } => encode::half(run, x, kind),
            Encoding::Natural => encode::natural(run, x, key),
            Encoding::Qsgd { levels, bucket, euclidean } => {
                let norm = if euclidean { Norm::L2 } else { Norm::Max };
                encode::qsgd(run, x, (levels, bucket), norm, key)?
            }
            Encoding::TernGrad { clip } => encode::tern_grad(run, x, clip, key)?,
            Encoding::ScaledSign { bucket } => encode::scaled_sign(run, x, bucket),
            Encoding::PlainSign { random_zeros } => encode::plain_sign(run, x, random_zeros.then_some(key)),
            _ => return Ok(None),
        }))
    }

    /// Waits for a message, whose kept values the host may encode.
    pub(super) fn read(
        &self,
        encoding: Encoding,
        encoded: Encoded,
        key: Key,
        out: &mut Message,
    ) -> Result<DeviceMessage, DeviceError> {
        match encoding {
            Encoding::TopK { values, .. } if values != briquette_core::compress::ValueKind::F32 => {
                let mut short = TopK::ratio(CompressionRatio::DENSE).with_values(values);
                encoded.read_coded(&self.run, &mut short, key, out)
            }
            _ => encoded.read(&self.run, out),
        }
    }

    /// Returns the energy that a sparse message keeps, or `None` if there is no such message.
    pub(super) fn kept_of(&self, encoding: Encoding, x: &Vector, key: Key) -> Result<Option<f64>, DeviceError> {
        let Some(encoded) = self.queue(encoding, x, key)? else { return Ok(None) };
        let mut message = Message::default();
        self.read(encoding, encoded, key, &mut message)?;
        let Some(indices) = message.sparse_indices() else { return Ok(None) };
        match message.sparse_f32() {
            // Values as they are in the vector: c·(2x − c) is c².
            Some((_, kept)) if !matches!(encoding, Encoding::RandomK { .. }) => {
                return Ok(Some(kept.iter().fold(0.0, |energy, c| energy + f64::from(*c) * f64::from(*c))));
            }
            _ => {}
        }
        let whole = Layout::flat(x.len());
        let before = self.run.read_words(&[&encode::gather(&self.run, x, indices)])?;
        Ok(sparse_statistics(&before[0], &message, indices, whole.slots())?.first().map(|(energy, _)| *energy))
    }
}

/// Returns the energy and the number of the values that a sparse message sent, of each slot, summed as core does. `before` are the bits of the vector
/// in its places.
pub(super) fn sparse_statistics(
    before: &[u32],
    message: &Message,
    indices: &[u32],
    slots: &[Slot],
) -> Result<Vec<(f64, usize)>, DeviceError> {
    let sent = crate::sparse::kept_values(message)?;
    let start = slots.first().map_or(0, |slot| slot.range().start);
    let mut from = 0;
    let slot = |slot: &Slot| {
        let to = from + indices[from..].partition_point(|&index| (index as usize) < slot.range().end - start);
        let pairs = before[from..to].iter().zip(&sent[from..to]);
        from = to;
        pairs.fold((0.0, 0), |(energy, values), (before, sent)| {
            let (before, value) = (f64::from(f32::from_bits(*before)), f64::from(*sent));
            (energy + value * (2.0 * before - value), values + usize::from(*sent != 0.0))
        })
    };
    Ok(slots.iter().map(slot).collect())
}
