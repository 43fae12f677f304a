//! Remembers what was not sent and adds it to the next vector.
//!
//! **Why, and when not.** A contractive compressor alone can diverge on several ranks; with the residual fed back, it
//! converges like the uncompressed method. Unbiased compressors do without. Under an inner optimizer with momentum it
//! loses accuracy at high factors: see [`MomentumCorrection`](super::MomentumCorrection).
//!
//! **Method.**
//!
//! | paper | here |
//! |---|---|
//! | `p = g + e` | input + `residual` |
//! | `Δ = C(p)` | `sent` |
//! | `e ← p − Δ` | the new `residual` |
//!
//! **Properties.** Conserves: `input + residual_before = sent + residual_after`, bit for bit where the sent values are
//! the vector's own (top-k with f32 values). With a dense exchange the residual is exactly 0.
//!
//! **State.** The residual: one vector a rank. While exchanging, two more (the fed vector and `sent`).
//!
//! **Deviations.** The learning rate stays outside the memory, as in GraVAC; the paper's form `p = γg + e` is equal
//! while γ is constant.
//!
//! **Reference.** S. P. Karimireddy, Q. Rebjock, S. Stich, M. Jaggi, *Error Feedback Fixes SignSGD and other Gradient
//! Compression Schemes*, ICML 2019 (arXiv 1901.09847), algorithm 2.
//!
//! ```
//! use briquette_core::{Key, Layout, aggregate::Mean, comm::Local, compress::TopK};
//! use briquette_core::{layer::ErrorFeedback, reduce::{Facts, Gather, Reducer, Round}};
//! let mut comm = Local::world(1).remove(0);
//! let mut reducer = ErrorFeedback::new(Gather::new(TopK::fraction(0.5)?, Mean));
//! let layout = Layout::flat(2);
//! let mut step = |input: [f32; 2]| {
//!     let mut average = [0.0; 2];
//!     reducer.reduce(Round { key: Key::new(0), slots: layout.slots(), facts: &Facts::default(),
//!         input: &input, average: &mut average, sent: None }, &mut comm).map(|_| average)
//! };
//! assert_eq!(step([3.0, 2.0])?, [3.0, 0.0]); // 2 stays behind …
//! assert_eq!(step([3.0, 2.0])?, [0.0, 4.0]); // … and now wins with 2 + 2
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::{check_finite, fit};
use crate::Communicator;
use crate::error::{ReduceError, StateError};
use crate::reduce::{Exchanged, Reducer, Round};
use crate::report::Report;
use crate::state::{State, Stateful};

/// Feeds back what was not sent; see the [module](self).
#[derive(Debug)]
pub struct ErrorFeedback<R> {
    inner: R,
    residual: Vec<f32>,
    fed: Vec<f32>,
    sent: Vec<f32>,
}

impl<R: Reducer> ErrorFeedback<R> {
    /// Around any reducer that reports what it sent.
    pub fn new(inner: R) -> Self {
        ErrorFeedback { inner, residual: Vec::new(), fed: Vec::new(), sent: Vec::new() }
    }

    /// What this rank wanted to send and did not; empty before the first exchange.
    pub fn residual(&self) -> &[f32] {
        &self.residual
    }
}

impl<R: Reducer> Stateful for ErrorFeedback<R> {
    fn save(&self, state: &mut State) {
        state.put("residual", self.residual.clone());
        state.put_part("inner", &self.inner);
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        let residual = state.memory("residual", &self.residual)?;
        state.load_part("inner", &mut self.inner)?;
        self.residual = residual;
        Ok(())
    }
}

impl<R: Reducer> Reducer for ErrorFeedback<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut dyn Communicator) -> Result<Exchanged, ReduceError> {
        let (len, first) = (round.input.len(), self.residual.is_empty());
        fit(&mut self.residual, len)?;
        self.fed.resize(len, 0.0);
        self.sent.resize(len, 0.0);
        for ((fed, residual), input) in self.fed.iter_mut().zip(&self.residual).zip(round.input) {
            *fed = residual + input;
        }
        let Round { key, slots, facts, average, sent: wanted, .. } = round;
        let inner = Round { key, slots, facts, input: &self.fed, average, sent: Some(&mut self.sent) };
        let exchanged = check_finite(&self.fed, slots, comm.rank()).and_then(|()| self.inner.reduce(inner, comm));
        if exchanged.is_err() && first {
            // As it was before.
            self.residual.clear();
        }
        let exchanged = exchanged?;
        if let Some(wanted) = wanted {
            wanted.copy_from_slice(&self.sent);
        }
        self.fed.iter_mut().zip(&self.sent).for_each(|(fed, sent)| *fed -= sent);
        std::mem::swap(&mut self.fed, &mut self.residual);
        Ok(exchanged)
    }

    fn report(&self, report: &mut Report) {
        self.inner.report(report);
    }
}
