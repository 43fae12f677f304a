//! What a worker sends: compressed, with what was not sent remembered, and put back when it was rejected.

use crate::compress::Compressor;
use crate::error::{ReduceError, StateError};
use crate::state::{OnResize, Place, State};
use crate::{Key, Message};

/// A worker's way to the server.
///
/// With a memory, what a message leaves out is added to the next vector, and so is a message that did not count: a gradient that came late is
/// not lost. Without one, it is.
pub struct Uplink {
    compressor: Box<dyn Compressor>,
    /// Absent without a memory.
    residual: Option<Vec<f32>>,
    /// What the last message was made of; empty when its verdict is known.
    fed: Vec<f32>,
    message: Message,
}

impl std::fmt::Debug for Uplink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uplink").field("remembers", &self.residual.is_some()).finish_non_exhaustive()
    }
}

impl Uplink {
    /// Through `compressor`, with error feedback or without.
    pub fn new(compressor: impl Compressor + 'static, remembers: bool) -> Self {
        let (fed, message) = Default::default();
        Uplink { compressor: Box::new(compressor), residual: remembers.then(Vec::new), fed, message }
    }

    /// What waits to be sent; empty at first, and without a memory.
    pub fn residual(&self) -> &[f32] {
        self.residual.as_deref().unwrap_or_default()
    }

    /// The message of `x` and of what waits.
    ///
    /// # Errors
    /// [`ReduceError::NonFinite`] where their sum is not finite.
    pub(super) fn compress(&mut self, x: &[f32], key: Key, rank: usize) -> Result<&Message, ReduceError> {
        self.fed.clear();
        self.fed.extend_from_slice(x);
        self.fed.iter_mut().zip(self.residual.iter().flatten()).for_each(|(fed, residual)| *fed += residual);
        if !self.fed.iter().all(|value| value.is_finite()) {
            return Err(ReduceError::NonFinite { rank, slot: "a contribution".into() });
        }
        self.compressor.compress_into(&self.fed, key, &mut self.message);
        Ok(&self.message)
    }

    /// What became of the last message.
    pub(super) fn judged(&mut self, counted: bool) {
        if self.fed.is_empty() {
            return;
        }
        if let Some(residual) = &mut self.residual {
            std::mem::swap(residual, &mut self.fed);
            if counted {
                self.message.add_to(-1.0, residual).expect("of this vector");
            }
        }
        self.fed.clear();
    }

    /// Between two calls of [`work`](super::work).
    pub fn save(&self, state: &mut State) {
        state.put_at(Place::PerRank(OnResize::Spread), "residual", self.residual().to_vec());
    }

    /// What was saved.
    ///
    /// # Errors
    /// [`StateError`] for what is missing or has another type.
    pub fn load(&mut self, state: &State) -> Result<(), StateError> {
        let saved = state.f32s("residual", None)?.to_vec();
        self.residual.iter_mut().for_each(|residual| residual.clone_from(&saved));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::TopK;

    /// Half of (3, 2) goes; counted, 2 waits and is 2 + 2 next time. Rejected, all of it waits.
    #[test]
    fn what_is_not_sent_and_what_does_not_count_waits() {
        let mut uplink = Uplink::new(TopK::fraction(0.5).unwrap(), true);
        let mut send = |counted| {
            uplink.compress(&[3.0, 2.0], Key::new(0), 1).unwrap();
            uplink.judged(counted);
            uplink.residual().to_vec()
        };
        assert_eq!(send(true), [0.0, 2.0]);
        assert_eq!(send(false), [3.0, 4.0]);
        assert_eq!(send(true), [0.0, 6.0]);
        let mut forgets = Uplink::new(TopK::fraction(0.5).unwrap(), false);
        forgets.compress(&[3.0, 2.0], Key::new(0), 1).unwrap();
        forgets.judged(false);
        assert!(forgets.residual().is_empty());
        let error = uplink.compress(&[f32::NAN, 0.0], Key::new(0), 4).unwrap_err().to_string();
        assert!(error.contains("rank 4"), "{error}");
    }
}
