//! Exchange of gradients during the backward pass.
//!
//! Burn returns gradients when all are computed. Here the forward pass runs on a clone of the module whose parameters are
//! [tapped](tap): each gradient is sent to the rank's background channel as soon as it is complete. If the strategy can exchange
//! gradients [as they arrive](briquette_core::reduce::Arriving), most of the exchange is complete at the end of the backward
//! pass.
//!
//! ```text
//! rank's thread   forward ── backward ─┬──┬───┬──── end ──────────── wait ── optimizer
//!                                      │  │   │      │                │
//! channel         header ──────────────┴ bucket ─ bucket ─ bucket ─ header again
//! ```
//!
//! Nothing is committed before the second header, in which every rank reports that all its gradients were finite and complete. In
//! the first header, ranks agree on samples and on the inputs of controllers, all from previous steps. In the second, they agree
//! on losses.

#[cfg(feature = "device")]
mod on_device;
mod on_host;
mod source;
mod storage;
#[cfg(feature = "overlap-backward")]
mod tap;

use std::ops::Range;
use std::sync::mpsc::Sender;
use std::time::Instant;

use briquette_core::comm::{Pending, Session};
use briquette_core::error::{ReduceError, SyncError};
use briquette_core::reduce::{Arriving, DevicePart, DevicePlace};
use briquette_core::step::{ArrivingGradient, EarlyExchange, LentStrategy};
use briquette_core::sync::Header;
use burn::tensor::Tensor;

#[cfg(feature = "device")]
pub(crate) use self::on_device::{DeviceGradient, Placing, Queue};
pub(crate) use self::on_host::HostGradient;
use self::source::End;
pub(crate) use self::source::{GradientSource, Message};
use self::storage::Gradients;
pub(crate) use self::storage::{Decay, Deliver, Storage};
#[cfg(feature = "overlap-backward")]
pub(crate) use self::tap::{Clock, Hook, Taps};
use crate::error::Error;

/// The channel of the exchange.
pub(crate) const CHANNEL: usize = 1;

/// An exchange that waits for gradients, or is in progress.
pub(crate) struct PendingExchange {
    pub(crate) messages: Sender<Message>,
    pub(crate) pending: Option<Pending<FinishedExchange>>,
    #[cfg(feature = "device")]
    pub(crate) placing: Option<Placing>,
}

impl PendingExchange {
    /// Ends the backward pass with the gradients of the step.
    pub(crate) fn end(&self, gradients: Vec<Option<Tensor<1>>>, header: Header, at: Instant) {
        #[cfg(feature = "device")]
        let gradients = match &self.placing {
            Some(placing) => placing.give(gradients).map(Gradients::OnDevice),
            None => Ok(Gradients::Tensors(gradients)),
        };
        #[cfg(not(feature = "device"))]
        let gradients = Ok(Gradients::Tensors(gradients));
        drop(self.messages.send(Message::End(End { gradients, header, at })));
    }

    /// Abandons the step.
    pub(crate) fn give_up(&self) {
        #[cfg(feature = "device")]
        self.placing.iter().for_each(Placing::end);
        drop(self.messages.send(Message::GivenUp));
    }
}

impl Drop for PendingExchange {
    /// Releases the channel's thread, which would otherwise wait indefinitely for gradients.
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Input of the exchange.
pub(crate) struct ExchangeJob {
    pub(crate) strategy: LentStrategy,
    pub(crate) source: GradientSource,
    /// Values known before the backward pass. Learning rates are compared at its end.
    pub(crate) header: Header,
    /// The learning rate, if it was recorded before the backward pass.
    pub(crate) learning_rate: Option<f64>,
    /// Set if ranks must agree on the order of arrival.
    pub(crate) learns_order: bool,
    pub(crate) average: Vec<f32>,
}

/// Output of the exchange.
pub(crate) struct FinishedExchange {
    pub(crate) strategy: LentStrategy,
    pub(crate) source: GradientSource,
    pub(crate) average: Vec<f32>,
    /// `None` if the step was abandoned before its backward pass.
    pub(crate) exchanged: Option<Result<Exchanged, Error>>,
}

/// An exchange that every rank has completed.
pub(crate) struct Exchanged {
    pub(crate) arrived: EarlyExchange,
    /// Rank 0's order of arrival, if it was requested.
    pub(crate) order: Option<Vec<usize>>,
}

impl ExchangeJob {
    pub(crate) fn start(self, messages: Sender<Message>, comm: &mut Session) -> PendingExchange {
        #[cfg(feature = "device")]
        let placing = self.source.storage().placing();
        let pending = comm.start_on_free_link(CHANNEL, move |comm| self.run(comm));
        PendingExchange {
            messages,
            pending: Some(pending),
            #[cfg(feature = "device")]
            placing,
        }
    }

    fn run(mut self, comm: &mut Session) -> FinishedExchange {
        let exchanged = self.source.begins(comm).then(|| self.exchange_on_queue(comm));
        let ExchangeJob { strategy, source, average, .. } = self;
        FinishedExchange { strategy, source, average, exchanged }
    }

    fn exchange_on_queue(&mut self, comm: &mut Session) -> Result<Exchanged, Error> {
        match self.source.storage() {
            Storage::Host(_) => self.exchange(comm),
            #[cfg(feature = "device")]
            Storage::Device(gradient) => {
                let queue = gradient.queue().clone();
                queue.run(|| self.exchange(comm))
            }
        }
    }

    fn exchange(&mut self, comm: &mut Session) -> Result<Exchanged, Error> {
        let ExchangeJob { strategy, source, header, learning_rate, average, .. } = self;
        let mut gradient = Gradient { source, learning_rate: *learning_rate, step: header.step };
        let arrived = strategy.exchange((*header, *learning_rate), &mut gradient, average, comm)?;
        let slots = strategy.layout().slots().len();
        let order = if self.learns_order { agree_on_order(&source.arrived, slots, comm)? } else { None };
        Ok(Exchanged { arrived, order })
    }
}

/// Source of a gradient, with state that must not change before the end of the backward pass.
struct Gradient<'a> {
    source: &'a mut GradientSource,
    learning_rate: Option<f64>,
    step: u64,
}

impl Arriving for Gradient<'_> {
    fn wait(&mut self, range: Range<usize>, comm: &mut Session) -> &[f32] {
        self.source.wait(range, comm)
    }

    fn order(&self) -> &[usize] {
        self.source.order()
    }

    fn on_device(&self) -> Option<DevicePlace> {
        self.source.on_device()
    }

    fn device(&mut self, range: Range<usize>, comm: &mut Session) -> Option<DevicePart<'_>> {
        self.source.device(range, comm)
    }
}

impl ArrivingGradient for Gradient<'_> {
    type Error = Error;

    fn weigh(&mut self, weight: f32) {
        self.source.weigh(weight);
    }

    fn end(&mut self, average: &[f32], comm: &mut Session) -> Result<Option<Header>, Error> {
        let Some(end) = self.source.end(comm) else { return Ok(None) };
        let (source, rank, step) = (&mut *self.source, comm.rank(), self.step);
        let finished = source.finish(average);
        finished.map_err(|source| SyncError::Reduce { step, source: ReduceError::Device { rank, source } })?;
        if let Some(problem) = source.problem.take() {
            return Err(problem);
        }
        if let Some(slot) = source.replaced {
            return Err(Error::Replaced { rank, step, slot: source.path(slot) });
        }
        if let Some((early, late)) = self.learning_rate.zip(end.learning_rate).filter(|(early, late)| early != late) {
            return Err(Error::LateLearningRate { rank, step, early, late });
        }
        Ok(Some(Header { bad_slot: source.bad_slot.or(end.bad_slot), ..end }))
    }

    fn present(&mut self) -> &mut [bool] {
        &mut self.source.present
    }
}

/// Agrees on rank 0's order of arrival; `None` if its gradients did not arrive one by one.
fn agree_on_order(arrived: &[(usize, Instant)], slots: usize, comm: &mut Session) -> Result<Option<Vec<usize>>, Error> {
    let mut bytes: Vec<u8> = arrived.iter().flat_map(|(slot, _)| (*slot as u32).to_le_bytes()).collect();
    comm.broadcast(0, &mut bytes)?;
    let mut order: Vec<usize> = bytes.as_chunks().0.iter().map(|slot| u32::from_le_bytes(*slot) as usize).collect();
    let mut known = vec![false; slots];
    order.retain(|slot| *slot < slots && !std::mem::replace(&mut known[*slot], true));
    if order.is_empty() {
        return Ok(None);
    }
    // Slots that did not arrive during the pass come last.
    order.extend((0..slots).filter(|slot| !known[*slot]));
    Ok(Some(order))
}
