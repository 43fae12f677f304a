//! Messages of a gradient: the encoder of each encoding, and statistics of a sparse message.

use std::ops::Range;

use briquette_core::compress::{Compressor, Encoding, random_k::RandomK, top_k::TopK};
use briquette_core::message::Coding;
use briquette_core::{CompressionRatio, Key, Message};

use super::Gradient;
use crate::encode::{self, Norm};
use crate::error::DeviceError;
use crate::message::DeviceMessage;
use crate::run::{Run, Vector};
use crate::{Encoded, Reading};

/// Values that a hard threshold is expected to keep at most, as a share: more cost a second copy.
const EXPECTED_SHARE: usize = 20;

/// A message on its way to the host.
#[derive(Debug)]
pub(super) struct Started {
    range: Range<usize>,
    key: Key,
    encoding: Encoding,
    reading: Reading,
}

impl Started {
    pub(super) fn is(&self, range: &Range<usize>, key: Key) -> bool {
        self.range == *range && self.key == key
    }

    /// Waits for the message, whose kept values the host may encode.
    pub(super) fn finish(
        self,
        run: &Run,
        value_code: Option<&mut dyn Compressor>,
        out: &mut Message,
    ) -> Result<DeviceMessage, DeviceError> {
        if let Some(values) = value_code {
            return self.reading.finish_coded(run, values, self.key, out);
        }
        match self.encoding {
            Encoding::TopK { values, .. } if values != briquette_core::compress::ValueKind::F32 => {
                let mut short = TopK::ratio(CompressionRatio::DENSE).with_values(values);
                self.reading.finish_coded(run, &mut short, self.key, out)
            }
            Encoding::Qsgd { coding: Coding::Elias, .. } => {
                let message = self.reading.finish(run, out)?;
                // The device has the same values in codes of fixed width.
                out.set_coding(Coding::Elias);
                Ok(message)
            }
            _ => self.reading.finish(run, out),
        }
    }
}

impl Gradient {
    /// Queues the kernels of an encoding, if there are any.
    pub(super) fn queue(&self, encoding: Encoding, x: &Vector, key: Key) -> Result<Option<Encoded>, DeviceError> {
        let run = &self.run;
        Ok(Some(match encoding {
            Encoding::TopK { ratio, .. } => encode::top_k(run, x, ratio.keep(x.len())),
            Encoding::ChunkTopK { ratio, chunk } => encode::chunk_top_k(run, x, ratio, chunk),
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
            Encoding::Qsgd { levels, bucket, euclidean, .. } => {
                let norm = if euclidean { Norm::L2 } else { Norm::Max };
                encode::qsgd(run, x, (levels, bucket), norm, key)?
            }
            Encoding::TernGrad { clip } => encode::tern_grad(run, x, clip, key)?,
            Encoding::ScaledSign { bucket } => encode::scaled_sign(run, x, bucket),
            Encoding::PlainSign { random_zeros } => encode::plain_sign(run, x, random_zeros.then_some(key)),
            _ => return Ok(None),
        }))
    }

    /// Starts to encode a range of the values, unless this has been done or there are no kernels.
    pub(super) fn start(&mut self, encoding: Encoding, range: Range<usize>, key: Key) -> Result<(), DeviceError> {
        if self.started.iter().any(|started| started.is(&range, key)) {
            return Ok(());
        }
        let part = self.run.part(&self.values, range.clone());
        if let Some(encoded) = self.queue(encoding, &part, key)? {
            self.started.push(Started { range, key, encoding, reading: encoded.start(&self.run) });
        }
        Ok(())
    }

    /// Returns the energy that a sparse message keeps, or `None` if there is no such message.
    pub(super) fn kept_of(
        &self,
        (encoding, value_code): (Encoding, Option<&mut dyn Compressor>),
        x: &Vector,
        key: Key,
    ) -> Result<Option<f64>, DeviceError> {
        let Some(encoded) = self.queue(encoding, x, key)? else { return Ok(None) };
        let mut message = Message::default();
        let reading = encoded.start(&self.run);
        Started { range: 0..x.len(), key, encoding, reading }.finish(&self.run, value_code, &mut message)?;
        let Some(indices) = message.sparse_indices() else { return Ok(None) };
        match message.sparse_f32() {
            // Values as they are in the vector: c·(2x − c) is c².
            Some((_, kept)) if !matches!(encoding, Encoding::RandomK { .. }) => {
                return Ok(Some(kept.iter().fold(0.0, |energy, c| energy + f64::from(*c) * f64::from(*c))));
            }
            _ => {}
        }
        let before = self.run.read_words(&[&encode::gather(&self.run, x, indices)])?;
        Ok(Some(statistics_of_kept(&before[0], &crate::sparse::kept_values(&message)?).0))
    }
}

/// Returns the energy and the number of values that a sparse message sent of a slot, summed as core does. `before` are the bits of the vector in its
/// places.
pub(super) fn statistics_of_kept(before: &[u32], sent: &[f32]) -> (f64, usize) {
    before.iter().zip(sent).fold((0.0, 0), |(energy, values), (before, sent)| {
        let (before, value) = (f64::from(f32::from_bits(*before)), f64::from(*sent));
        (energy + value * (2.0 * before - value), values + usize::from(*sent != 0.0))
    })
}
