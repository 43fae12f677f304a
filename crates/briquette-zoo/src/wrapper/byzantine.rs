//! Simulated Byzantine ranks: tests robust aggregation with your own model, compressor and aggregator.
//!
//! **Why, and when not.** For experiments and tests only. It wraps error feedback, so that a false vector is accumulated, compressed and
//! aggregated like a gradient. In settings it is a reducer (`byzantine:(gather:topk:100x),attack=little`), the outermost one, with the
//! feedback inside it. A momentum without a residual (`rank-momentum`) is outside; its velocity is then falsified. The attack `not-finite`
//! is applied inside all of them, because error feedback would refuse its vector and end the step.
//!
//! **Method.** The last `byzantine` ranks send one of these instead of their vector `x`:
//!
//! | attack | sends | source |
//! |---|---|---|
//! | `large:C` | `C·x`, 1000 | |
//! | `sign-flip` | `−x` | |
//! | `inner-product:E` | `−E` times the mean of the honest ranks, 0.5 | Xie, Koyejo, Gupta, *Fall of Empires*, UAI 2019 |
//! | `little:Z` | the honest mean minus `Z` honest standard deviations, 1 | Baruch, Baruch, Goldberg, *A Little Is Enough*, NeurIPS 2019 |
//! | `mimic` | the vector of rank 0 | Karimireddy, He, Jaggi, ICLR 2022 |
//! | `crash` | zeros | |
//! | `stale:STEPS` | its vector of this many steps ago, 10; zeros until there is one | |
//! | `not-finite` | not a number | |
//!
//! Ranks with one of the three attacks that use the others' vectors receive these: every rank first sends its own vector to all, which a
//! real attack would not need.
//!
//! **On the wire.** The inner reducer's bytes. If the others' vectors are used, also `4d` bytes from every rank to every other rank.
//!
//! **Properties.** It has no knob: in code an [`Adaptive`](briquette_core::wrapper::adaptive::Adaptive) goes inside it, as it does from settings.
//!
//! **State.** The vectors that `stale` sends later: they are staged and committed like other state, but not saved. A resumed run starts
//! with zeros again.
//!
//! ```
//! use briquette_zoo::aggregate::median::Median;
//! use briquette_core::comm::{Local, run_ranks};
//! use briquette_core::compress::dense::Dense;
//! use briquette_core::error::ReduceError;
//! use briquette_core::reduce::{AgreedStep, gather::Gather, Reducer, Round};
//! use briquette_zoo::wrapper::byzantine::Byzantine;
//! use briquette_core::{Key, Layout};
//!
//! let medians = run_ranks(Local::world(3), |mut comm| {
//!     let (layout, mut average) = (Layout::flat(1), [0.0]);
//!     let input = [1.0 + comm.rank() as f32];
//!     let mut reducer = Byzantine::new(Gather::new(Dense, Median), "large:-1000".parse()?, 1);
//!     let round = Round { key: Key::new(0), slots: layout.slots(), agreed_step: &AgreedStep::default(),
//!         input: &input, average: &mut average, sent: None };
//!     reducer.reduce(round, &mut comm)?;
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(average[0])
//! });
//! // 1, 2 and -3000.
//! assert!(medians.into_iter().all(|median| median.unwrap() == 1.0));
//! ```

mod attack;
mod config;

pub use attack::Attack;
pub use config::ByzantineConfig;

use std::collections::VecDeque;
use std::ops::Range;

use briquette_core::error::{AggregateError, ReduceError, StateError, WireError};
use briquette_core::reduce::{Exchanged, Reducer, Round};
use briquette_core::report::Report;
use briquette_core::state::{State, Stateful};
use briquette_core::{Frame, Session};

/// A reducer under attack by the last ranks; see the [module](self).
#[derive(Debug)]
pub struct Byzantine<R> {
    inner: R,
    attack: Attack,
    byzantine: usize,
    /// The false vector to send.
    lie: Vec<f32>,
    /// The vectors of the last steps, oldest first.
    before: VecDeque<Vec<f32>>,
    /// The vector of this step, until it is committed.
    staged: Option<Vec<f32>>,
    frames: Vec<Frame>,
}

impl<R: Reducer> Byzantine<R> {
    /// Creates a wrapper in which the last `byzantine` ranks attack.
    pub fn new(inner: R, attack: Attack, byzantine: usize) -> Self {
        let (lie, before, staged, frames) = Default::default();
        Byzantine { inner, attack, byzantine, lie, before, staged, frames }
    }

    /// Computes the vector that this rank sends instead of `x`.
    fn lie(&mut self, x: &[f32], comm: &mut Session) -> Result<(), ReduceError> {
        let (rank, honest) = (comm.rank(), comm.world().saturating_sub(self.byzantine));
        self.lie.clear();
        if self.attack.knows_the_others() {
            let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
            comm.all_gather(&bytes, &mut self.frames)?;
            if let Some(from) = (0..honest).find(|from| *from != rank && self.frames[*from].len() != bytes.len()) {
                let source = WireError::Length { expected: x.len(), got: self.frames[from].len() / 4 };
                return Err(AggregateError::Message { rank: from, source }.into());
            }
        }
        match self.attack {
            _ if rank < honest => self.lie.extend_from_slice(x),
            Attack::Large(by) => self.lie.extend(x.iter().map(|x| by * x)),
            Attack::SignFlip => self.lie.extend(x.iter().map(|x| -x)),
            Attack::Crash => self.lie.resize(x.len(), 0.0),
            Attack::NotFinite => self.lie.resize(x.len(), f32::NAN),
            Attack::Stale(steps) => {
                self.staged = Some(x.to_vec());
                match self.before.front().filter(|_| self.before.len() == steps) {
                    Some(old) => self.lie.extend_from_slice(old),
                    None => self.lie.resize(x.len(), 0.0),
                }
            }
            attack => {
                let values = |from: usize| self.frames[from].as_chunks::<4>().0;
                let of =
                    |i: usize| (0..honest).map(move |from| f32::from_le_bytes(values(from)[i])).collect::<Vec<_>>();
                self.lie.extend((0..x.len()).map(|i| if honest == 0 { x[i] } else { attack.of_others(&of(i)) }));
            }
        }
        Ok(())
    }
}

/// By hand, because the vectors that an attack repeats are not saved.
impl<R: Reducer> Stateful for Byzantine<R> {
    fn save(&self, state: &mut State) {
        self.inner.save(state);
    }
    fn load(&mut self, state: &State) -> Result<(), StateError> {
        self.before.clear();
        self.staged = None;
        self.inner.load(state)
    }
    fn commit(&mut self) {
        self.inner.commit();
        if let (Some(vector), Attack::Stale(steps)) = (self.staged.take(), self.attack) {
            self.before.push_back(vector);
            self.before.drain(..self.before.len().saturating_sub(steps));
        }
    }
    fn discard(&mut self) {
        self.inner.discard();
        self.staged = None;
    }
}

impl<R: Reducer> Reducer for Byzantine<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let before = comm.traffic();
        self.lie(round.input, comm)?;
        let Round { key, slots, agreed_step, average, sent, .. } = round;
        let exchanged = self.inner.reduce(Round { key, slots, agreed_step, input: &self.lie, average, sent }, comm)?;
        Ok(Exchanged { traffic: comm.traffic() - before, ..exchanged })
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        self.inner.hold(absent);
    }

    fn report(&self, report: &mut Report) {
        self.inner.report(report);
    }
}

#[cfg(test)]
mod tests;
