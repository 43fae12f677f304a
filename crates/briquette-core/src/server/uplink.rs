//! Worker uplink: compression of contributions, with optional error feedback.

use super::wire::Fate;
use crate::compress::dense::Dense;
use crate::error::{ReduceError, StateError};
use crate::seam::Compressor;
use crate::state::{OnResize, Place, State};
use crate::{Key, Message};

/// Compressor of a worker's contributions to the server.
///
/// With error feedback, the residual of a message is added to the next vector. If a message does not count, the
/// [policy](super::Policy::puts_back) decides. Either its whole input becomes the residual: a gradient that was too late for
/// one update is still useful in the next. Or the message is discarded, and the residual is the same as before it.
pub struct Uplink {
    compressor: Box<dyn Compressor>,
    /// `None` without error feedback.
    residual: Option<Vec<f32>>,
    /// Input of the last message; empty once its verdict is known.
    fed: Vec<f32>,
    message: Message,
    /// Number of gradients that the worker has computed; selects its next compute time, if times are simulated.
    pub(super) taken: u64,
}

impl std::fmt::Debug for Uplink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uplink").field("error_feedback", &self.residual.is_some()).finish_non_exhaustive()
    }
}

impl Uplink {
    /// Creates an uplink through `compressor`, with or without error feedback.
    pub fn new(compressor: impl Compressor + 'static, error_feedback: bool) -> Self {
        let (fed, message) = Default::default();
        let residual = error_feedback.then(Vec::new);
        Uplink { compressor: Box::new(compressor), residual, fed, message, taken: 0 }
    }

    /// Returns the residual; empty at first, and without error feedback.
    pub fn residual(&self) -> &[f32] {
        self.residual.as_deref().unwrap_or_default()
    }

    /// Compresses the sum of `x` and the residual.
    ///
    /// # Errors
    /// [`ReduceError::NonFinite`] if their sum is not finite, [`ReduceError::Length`] if their lengths differ.
    pub(super) fn compress(&mut self, x: &[f32], key: Key, rank: usize) -> Result<&Message, ReduceError> {
        let waits = self.residual().len();
        if waits > 0 && waits != x.len() {
            return Err(ReduceError::Length { expected: waits, got: x.len() });
        }
        self.fed.clear();
        self.fed.extend_from_slice(x);
        self.fed.iter_mut().zip(self.residual.iter().flatten()).for_each(|(fed, residual)| *fed += residual);
        if !self.fed.iter().all(|value| value.is_finite()) {
            return Err(ReduceError::NonFinite { rank, slot: "a contribution".into() });
        }
        self.compressor.compress_into(&self.fed, key, &mut self.message);
        Ok(&self.message)
    }

    /// Encodes `x` exactly; the residual is unchanged.
    ///
    /// # Errors
    /// [`ReduceError::NonFinite`] if it is not finite.
    pub(super) fn exact(&mut self, x: &[f32], key: Key, rank: usize) -> Result<&Message, ReduceError> {
        if !x.iter().all(|value| value.is_finite()) {
            return Err(ReduceError::NonFinite { rank, slot: "a contribution".into() });
        }
        self.fed.clear();
        Dense.compress_into(x, key, &mut self.message);
        Ok(&self.message)
    }

    /// Updates the residual with the verdict on the last message.
    pub(super) fn judged(&mut self, fate: Option<Fate>) {
        if let (Some(residual), Some(fate)) = (&mut self.residual, fate)
            && !self.fed.is_empty()
            && fate != Fate::Dropped
        {
            std::mem::swap(residual, &mut self.fed);
            if fate == Fate::Counted {
                self.message.add_to(-1.0, residual).expect("of this vector");
            }
        }
        self.fed.clear();
    }

    /// Saves the state, between two calls of [`work`](super::work).
    pub fn save(&self, state: &mut State) {
        state.put_at(Place::PerRank(OnResize::Spread), "residual", self.residual().to_vec());
        state.put("taken", self.taken);
    }

    /// Loads a saved state, for a model of `len` values.
    ///
    /// # Errors
    /// [`StateError`] for fields that are missing, or of another type or length; nothing has changed then.
    pub fn load(&mut self, state: &State, len: usize) -> Result<(), StateError> {
        let (residual, taken) = (super::state::vector_or_none(state, "residual", len)?, state.u64("taken")?);
        self.residual.iter_mut().for_each(|own| own.clone_from(&residual));
        self.taken = taken;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::top_k::TopK;

    fn half(error_feedback: bool) -> Uplink {
        Uplink::new(TopK::fraction(0.5).unwrap(), error_feedback)
    }

    /// Half of (3, 2) is sent. If counted, the residual 2 makes the next value 2 + 2. If put back, everything is in the
    /// residual; if dropped, the previous residual.
    #[test]
    fn what_is_not_sent_waits_and_what_does_not_count_as_the_policy_says() {
        let mut uplink = half(true);
        let mut send = |fate| {
            uplink.compress(&[3.0, 2.0], Key::new(0), 1).unwrap();
            uplink.judged(Some(fate));
            uplink.residual().to_vec()
        };
        assert_eq!(send(Fate::Counted), [0.0, 2.0]);
        assert_eq!(send(Fate::Dropped), [0.0, 2.0]);
        assert_eq!(send(Fate::PutBack), [3.0, 4.0]);
        assert_eq!(send(Fate::Counted), [0.0, 6.0]);
        let mut forgets = half(false);
        forgets.compress(&[3.0, 2.0], Key::new(0), 1).unwrap();
        forgets.judged(Some(Fate::PutBack));
        assert!(forgets.residual().is_empty());
    }

    #[test]
    fn what_cannot_be_sent_or_loaded_is_named() {
        let error = half(true).compress(&[f32::NAN, 0.0], Key::new(0), 4).unwrap_err().to_string();
        assert!(error.contains("rank 4"), "{error}");
        let mut state = State::default();
        state.put("residual", vec![1.0_f32; 3]);
        state.put("taken", 5_u64);
        let error = half(true).load(&state, 2).unwrap_err().to_string();
        assert!(error.contains("`residual` is 3 f32 values, expected 2"), "{error}");
        let mut uplink = half(true);
        uplink.load(&state, 3).unwrap();
        assert_eq!((uplink.residual(), uplink.taken), (&[1.0; 3][..], 5));
        let error = uplink.compress(&[0.0; 2], Key::new(0), 1).unwrap_err();
        assert_eq!(error, ReduceError::Length { expected: 3, got: 2 });
    }
}
