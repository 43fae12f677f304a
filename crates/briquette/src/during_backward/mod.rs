//! Exchanges gradients while the backward pass goes on.
//!
//! Burn hands gradients over when all are computed. Here the forward pass runs on a clone of the module whose parameters are
//! [tapped](tap): each gradient is sent to the rank's background channel as soon as it is complete, where the strategy
//! exchanges it [as it arrives](briquette_core::reduce::Arriving). When the backward pass ends most of the exchange may be behind it.
//!
//! ```text
//! rank's thread   forward ── backward ─┬──┬───┬──── end ──────────── wait ── optimizer
//!                                      │  │   │      │                │
//! channel         header ──────────────┴ bucket ─ bucket ─ bucket ─ header again
//! ```
//!
//! Nothing is committed before the second header, in which every rank says that all its gradients were finite and complete. The first
//! agrees on samples and on what controllers decide from, all of it of steps before; losses are agreed by the second.

mod source;
#[cfg(feature = "overlap-backward")]
mod tap;

use std::sync::mpsc::Sender;
use std::time::Instant;

use briquette_core::comm::{Pending, Session};
use briquette_core::error::SyncError;
use briquette_core::reduce::AgreedStep;
use briquette_core::sync::{Agreement, Context, Header, SyncStrategy, agree};
use briquette_core::{Key, Slot};

pub(crate) use self::source::{End, Message, Source};
#[cfg(feature = "overlap-backward")]
pub(crate) use self::tap::{Clock, Hook, Taps};
use crate::error::Error;

/// The channel of the exchange.
pub(crate) const CHANNEL: usize = 1;

/// An exchange that waits for gradients, or is on its way.
pub(crate) struct Armed {
    pub(crate) messages: Sender<Message>,
    pub(crate) pending: Option<Pending<Done>>,
}

impl Drop for Armed {
    /// Lets the channel's thread go: it would wait for gradients for ever.
    fn drop(&mut self) {
        drop(self.messages.send(Message::GivenUp));
    }
}

/// What the exchange takes with it.
pub(crate) struct Job {
    pub(crate) strategy: Box<dyn SyncStrategy>,
    pub(crate) source: Source,
    /// What is known before the backward pass; rates are compared at its end.
    pub(crate) header: Header,
    /// The rate, where it was recorded by then.
    pub(crate) learning_rate: Option<f64>,
    /// What the step before agreed on.
    pub(crate) before: Option<AgreedStep>,
    pub(crate) key: Key,
    pub(crate) slots: Vec<Slot>,
    /// Those, then buffers: what can be found not finite.
    pub(crate) names: Vec<Slot>,
    pub(crate) weighs_samples: bool,
    /// Whether the order in which gradients come is to be agreed on.
    pub(crate) learns_order: bool,
    pub(crate) average: Vec<f32>,
}

/// What it brings back.
pub(crate) struct Done {
    pub(crate) strategy: Box<dyn SyncStrategy>,
    pub(crate) source: Source,
    pub(crate) average: Vec<f32>,
    /// `None` where the step was given up before its backward pass.
    pub(crate) exchanged: Option<Result<Exchanged, Error>>,
}

/// An exchange that every rank has completed.
pub(crate) struct Exchanged {
    /// What strategies knew.
    pub(crate) early: Agreement,
    /// With what was known at the end.
    pub(crate) late: Agreement,
    /// Rank 0's order of arrival, where it was asked for.
    pub(crate) order: Option<Vec<usize>>,
    /// Seconds of the two headers.
    pub(crate) header_seconds: f64,
}

impl Job {
    pub(crate) fn start(self, messages: Sender<Message>, comm: &mut Session) -> Armed {
        let pending = comm.start_on_free_link(CHANNEL, move |comm| self.run(comm));
        Armed { messages, pending: Some(pending) }
    }

    fn run(mut self, comm: &mut Session) -> Done {
        let exchanged = self.source.begins(comm).then(|| self.exchange(comm));
        let Job { strategy, source, average, .. } = self;
        Done { strategy, source, average, exchanged }
    }

    fn exchange(&mut self, comm: &mut Session) -> Result<Exchanged, Error> {
        let Job { strategy, source, header, learning_rate, before, key, slots, names, average, .. } = self;
        let start = comm.now();
        let mut early = agree(header, before.as_ref(), slots, &mut vec![true; slots.len()], comm)?;
        let mut header_seconds = comm.now() - start;
        // That of the step before: this one's may not be known yet.
        early.agreed_step.loss = before.and_then(|before| before.loss);
        early.agreed_step.validation_loss = before.and_then(|before| before.validation_loss);
        early.agreed_step.learning_rate = *learning_rate;
        source.weigh(if self.weighs_samples { early.weight } else { 1.0 });
        let cx = Context { key: *key, slots, agreed_step: &early.agreed_step, ranks: &early.ranks };
        strategy.during_backward(source, average, &cx, comm)?;
        let Some(end) = source.end(comm) else {
            agree(&Header { gave_up: true, ..*header }, before.as_ref(), slots, &mut source.present, comm)?;
            unreachable!("a step that this rank gives up is agreed on by none");
        };
        if let Some(problem) = source.problem.take() {
            return Err(problem);
        }
        let (step, rank) = (header.step, comm.rank());
        if let Some(slot) = source.replaced {
            return Err(Error::Replaced { rank, step, slot: slots[slot].path().to_owned() });
        }
        if let Some((early, late)) = learning_rate.zip(end.learning_rate).filter(|(early, late)| early != late) {
            return Err(Error::LateLearningRate { rank, step, early, late });
        }
        let mine = Header { bad_slot: source.bad_slot.or(end.bad_slot), previous: header.previous, ..end };
        let start = comm.now();
        let late = agree(&mine, before.as_ref(), names, &mut source.present, comm)?;
        header_seconds += comm.now() - start;
        let samples = |agreement: &Agreement| agreement.ranks.iter().map(|rank| rank.samples).collect::<Vec<_>>();
        if let Some(rank) = samples(&early).iter().zip(samples(&late)).position(|(early, late)| *early != late) {
            return Err(SyncError::LateSamples { step: header.step, rank }.into());
        }
        let order = if self.learns_order { agree_on_order(&source.arrived, slots.len(), comm)? } else { None };
        Ok(Exchanged { early, late, order, header_seconds })
    }
}

/// Rank 0's order of arrival; `None` where its gradients did not come one by one.
fn agree_on_order(arrived: &[(usize, Instant)], slots: usize, comm: &mut Session) -> Result<Option<Vec<usize>>, Error> {
    let mut bytes: Vec<u8> = arrived.iter().flat_map(|(slot, _)| (*slot as u32).to_le_bytes()).collect();
    comm.broadcast(0, &mut bytes)?;
    let mut order: Vec<usize> = bytes.as_chunks().0.iter().map(|slot| u32::from_le_bytes(*slot) as usize).collect();
    let mut known = vec![false; slots];
    order.retain(|slot| *slot < slots && !std::mem::replace(&mut known[*slot], true));
    if order.is_empty() {
        return Ok(None);
    }
    // What never came on its own comes at the end.
    order.extend((0..slots).filter(|slot| !known[*slot]));
    Ok(Some(order))
}
