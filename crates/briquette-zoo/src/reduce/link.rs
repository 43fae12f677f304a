//! Link: one direction of an exchange through servers. A vector is sent in one message, or in several that each encode what the
//! previous ones left out.

use super::multi_step::weights;
use briquette_core::compress::{Compressor, ErrorBound};
use briquette_core::config::CompressorConfig;
use briquette_core::error::{ConfigError, WireError};
use briquette_core::reduce::incoming::next_message;
use briquette_core::{CompressionRatio, Frame, Key, Message};

/// A compressor and the number of rounds that it is applied to the remainder; see [`multi_step`](crate::reduce::multi_step).
pub(super) struct LinkEncoder {
    compressor: Box<dyn Compressor>,
    rounds: usize,
    /// Share of a message that is subtracted from the remainder.
    damping: f32,
    /// Share of a message that is added to the result.
    weight: f32,
    message: Message,
    left: Vec<f32>,
}

impl LinkEncoder {
    /// Creates a direction for vectors of at most `len` values.
    ///
    /// # Errors
    /// [`ConfigError`] for an invalid number of rounds.
    pub(super) fn new(compressor: &CompressorConfig, rounds: usize, len: usize) -> Result<Self, ConfigError> {
        let omega = match class(compressor, 1, len) {
            Some(ErrorBound::Unbiased { omega }) if rounds > 1 => omega,
            _ => 0.0,
        };
        let [damping, weight] = weights(rounds, omega)?;
        let (compressor, message, left) = (compressor.build(), Message::default(), Vec::new());
        Ok(LinkEncoder { compressor, rounds, damping, weight, message, left })
    }

    /// Returns the number of messages per vector.
    pub(super) fn rounds(&self) -> usize {
        self.rounds
    }

    pub(super) fn weight(&self) -> f32 {
        self.weight
    }

    pub(super) fn selects(&self) -> bool {
        self.compressor.selects()
    }

    /// Returns the nominal compression ratio: dense size divided by the size of all messages.
    pub(super) fn nominal(&self) -> Option<CompressionRatio> {
        CompressionRatio::new((self.compressor.nominal().get() / self.rounds as f64).max(1.0)).ok()
    }

    /// Passes each message of `x` to `each`, which may keep it.
    ///
    /// # Errors
    /// The error of `each`.
    pub(super) fn send(
        &mut self,
        x: &[f32],
        key: Key,
        mut each: impl FnMut(&mut Message) -> Result<(), WireError>,
    ) -> Result<(), WireError> {
        if self.rounds > 1 {
            self.left.clear();
            self.left.extend_from_slice(x);
        }
        for round in 0..self.rounds {
            let (x, key) = match round {
                0 => (x, key),
                _ => (&self.left[..], key.purpose("multi-step").bucket(round)),
            };
            self.compressor.compress_into(x, key, &mut self.message);
            if round + 1 < self.rounds {
                self.message.add_to(-self.damping, &mut self.left)?;
            }
            each(&mut self.message)?;
        }
        Ok(())
    }

    /// Decodes the messages of a vector as long as `out`, starting at `cursor`, into `out`.
    ///
    /// # Errors
    /// [`WireError`] for an invalid message.
    pub(super) fn read(&mut self, frame: &mut Frame, cursor: &mut usize, out: &mut [f32]) -> Result<(), WireError> {
        if self.rounds > 1 {
            out.fill(0.0);
        }
        for _ in 0..self.rounds {
            next_message(frame, cursor, &mut self.message)?;
            match self.message.len() {
                len if len != out.len() => return Err(WireError::Length { expected: out.len(), got: len }),
                _ if self.rounds == 1 => self.message.decode_into(out)?,
                _ => self.message.add_to(self.weight, out)?,
            }
        }
        Ok(())
    }
}

/// Returns the error-bound class of `rounds` messages of at most `len` values each.
pub(super) fn class(compressor: &CompressorConfig, rounds: usize, len: usize) -> Option<ErrorBound> {
    let built = compressor.build();
    ErrorBound::of(&built, len).map(|class| class.of_rounds(rounds))
}
