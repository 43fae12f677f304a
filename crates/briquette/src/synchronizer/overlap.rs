//! Steps whose gradients are exchanged during the backward pass.

use std::sync::mpsc::{self, Sender};
#[cfg(feature = "overlap-backward")]
use std::sync::{Arc, Mutex};
use std::time::Instant;

use briquette_core::error::SyncError;
#[cfg(feature = "device")]
use briquette_core::reduce::DeviceVector;
use briquette_core::step::{self, EarlyExchange};
use briquette_core::sync::{Header, Plan};
use briquette_core::trace::TARGET;
use burn::module::Module;
use burn::optim::GradientsParams;
use tracing::trace_span;

use super::Synchronizer;
use super::recorded::WeightedMean;
#[cfg(feature = "overlap-backward")]
use crate::during_backward;
use crate::during_backward::{
    Decay, Deliver, ExchangeJob, Exchanged, FinishedExchange, GradientSource, HostGradient, Message, PendingExchange,
    Storage,
};
#[cfg(feature = "device")]
use crate::during_backward::{DeviceGradient, Queue};
use crate::error::Error;
use crate::flat::{self, Gradients};
use crate::step_report::Arrival;

/// Reason for the other ranks, by which they know that [a rank was lost](briquette_core::membership::is_loss).
const LOST: &str = "lost rank of an elastic world";

/// The maximum number of steps in which the order of arrival is requested.
const TRIES: u32 = 8;

/// State of exchanges during the backward pass, kept from step to step.
#[derive(Default)]
pub(super) struct Overlap {
    /// The exchange in progress.
    armed: Option<PendingExchange>,
    /// Slots in the order in which their gradients arrive on rank 0; empty until it is known.
    order: Vec<usize>,
    /// Steps in which the order was requested and not found.
    failed_tries: u32,
    /// Set once the missing overlap has been logged.
    has_warned: bool,
    /// The slots of the last exchange in order of arrival, with their times.
    arrived: Vec<(usize, Instant)>,
    /// Buffers for reuse.
    spare: [Vec<f32>; 2],
    /// The device queue of the exchanges, and the gradient of the last one with its average.
    #[cfg(feature = "device")]
    queue: Option<Queue>,
    #[cfg(feature = "device")]
    on_device: Option<Box<DeviceGradient>>,
    #[cfg(feature = "overlap-backward")]
    clock: Arc<Mutex<during_backward::Clock>>,
}

impl Synchronizer {
    /// Returns the model for this step's forward pass, if gradients are exchanged [during the backward
    /// pass](briquette_core::config::Exchange::during_backward). In other configurations it is a clone. The parameters of the
    /// returned model send their gradients as soon as they are complete. It shares everything with `module`, and is valid for one
    /// forward and one backward pass. `GradientsParams::from_grads(loss.backward(), …)` works with either of the two. Drop it
    /// before the optimizer's step, which can then update tensors in place.
    ///
    /// Before calling it, record samples, and the learning rate if the feedback is [error feedback inside the learning
    /// rate](briquette_core::wrapper::error_feedback::ErrorInside). The call begins a step on every rank. If a step is begun but not
    /// completed, it is abandoned on all ranks.
    ///
    /// # Errors
    /// [`Error::NotJoined`]; [`Error::Order`] if the previous step was not ended; [`Error::Layout`] if the module has other
    /// trainable tensors than at join; those of the transport.
    pub fn forward_model<M: Module>(&mut self, module: &M) -> Result<M, Error> {
        if self.overlap.armed.is_some() {
            self.give_up()?;
            // The writes of the previous forward pass are undone here too, as on the ranks that refuse its step.
            self.undo_forward(module);
        }
        let plan = self.plan()?;
        if self.open {
            return Err(self.order("forward_model", "sync_parameters"));
        }
        if !self.overlaps(plan) {
            return Ok(module.clone());
        }
        // The other ranks have begun this step or will begin it, and would wait for this one.
        self.check_layout(module).inspect_err(|error| self.comm.abort(&error.to_string()))?;
        #[cfg(feature = "overlap-backward")]
        if crate::backend::is_tapped(module) {
            let (messages, deliver) = self.arm(module, |source| source)?;
            let hook = move |slot, gradient| {
                drop(messages.send(Message::Gradient(slot, deliver(slot, gradient), Instant::now())));
            };
            return Ok(during_backward::Taps::put(module, during_backward::Hook(Arc::new(hook)), &self.overlap.clock));
        }
        Ok(module.clone())
    }

    /// Logs once, on rank 0 at its first step with data, that no communication is overlapped.
    fn warn_no_overlap(&mut self, came: bool, was_armed: bool) {
        if came || self.rank() > 0 || std::mem::replace(&mut self.overlap.has_warned, true) {
            return;
        }
        let why = match (cfg!(feature = "overlap-backward"), was_armed) {
            (false, _) => "this build cannot read them earlier: enable the feature overlap-backward",
            (true, false) => {
                "this backend cannot read them earlier, or the forward pass did not use the result of `forward_model` (as under gradient \
                 accumulation)"
            }
            (true, true) => "none arrived earlier: Burn may differentiate in an unexpected order",
        };
        tracing::warn!("gradients are exchanged after the backward pass: {why}");
    }

    /// Returns whether this step's gradients are exchanged [during the backward pass](Self::forward_model).
    #[cfg(feature = "train")]
    pub(crate) fn is_overlapped(&self) -> Result<bool, Error> {
        Ok(self.overlaps(self.plan()?))
    }

    /// Returns whether this step's gradients are exchanged on the channel.
    pub(super) fn overlaps(&self, plan: Plan) -> bool {
        self.config.during_backward() && plan.gradients && !plan.parameters && self.world() > 1
    }

    /// Returns the memory for a gradient.
    fn storage<M: Module>(&mut self, module: &M) -> Result<Storage, Error> {
        let decay = match self.weight_decay {
            0.0 => Decay::default(),
            factor => Decay { factor, parameters: flat::flat_parameters(module) },
        };
        #[cfg(feature = "device")]
        if let Some(run) = self.kernels(module) {
            let queue = self.overlap.queue.get_or_insert_with(|| Queue::new(run)).clone();
            return Ok(Storage::Device(Box::new(DeviceGradient::new(&queue, self.layout()?.slots(), decay))));
        }
        let flat = std::mem::take(&mut self.overlap.spare[0]);
        Ok(Storage::Host(HostGradient::new(flat, self.layout()?.slots(), decay)))
    }

    fn arm<M: Module>(
        &mut self,
        module: &M,
        how: fn(GradientSource) -> GradientSource,
    ) -> Result<(Sender<Message>, Deliver), Error> {
        let (messages, inbox) = mpsc::channel();
        let storage = self.storage(module)?;
        let deliver = storage.deliver();
        let samples = WeightedMean { samples: self.loss.samples, ..Default::default() };
        let learning_rate = self.learning_rate.filter(|_| self.rate_step == Some(self.step()));
        // Only at the end is it known whether all ranks have recorded samples.
        let header = Header { learning_rate: None, samples_recorded: false, ..self.header_of(&samples, None) };
        let average = std::mem::take(&mut self.overlap.spare[1]);
        let strategy = self.driver.lend();
        let source = GradientSource::new(inbox, strategy.layout().slots(), self.overlap.order.clone(), storage);
        let job = ExchangeJob {
            strategy,
            source: how(source),
            header,
            learning_rate,
            learns_order: self.overlap.order.is_empty() && self.overlap.failed_tries < TRIES,
            average,
        };
        self.overlap.armed = Some(job.start(messages.clone(), &mut self.comm));
        Ok((messages, deliver))
    }

    /// The slots in the order in which their gradients arrive on rank 0; empty until it is known.
    pub(crate) fn order_of_arrival(&self) -> &[usize] {
        &self.overlap.order
    }

    /// Restores the order from a checkpoint.
    pub(crate) fn set_order_of_arrival(&mut self, order: Vec<usize>) {
        let mut sorted = order.clone();
        sorted.sort_unstable();
        let slots = self.joined.as_ref().map_or(0, |joined| joined.inventory.layout.slots().len());
        self.overlap.order = if sorted.into_iter().eq(0..slots) { order } else { Vec::new() };
    }

    /// Abandons a step in progress: completes the exchange on the channel. If this rank's gradients have begun to arrive,
    /// every rank refuses the step.
    pub(crate) fn give_up(&mut self) -> Result<(), Error> {
        let Some(mut armed) = self.overlap.armed.take() else { return Ok(()) };
        armed.give_up();
        match self.finish_exchange(&mut armed) {
            Ok(Some(Err(Error::Sync(error)))) if error.is_on_all_ranks() => Ok(()),
            Ok(Some(Err(error))) | Err(error) => {
                self.comm.abort(&error.to_string());
                Err(error)
            }
            Ok(_) => Ok(()),
        }
    }

    /// Ends a step in progress on a session that is lost, whatever its result.
    pub(super) fn end_with_session(&mut self) {
        let Some(mut armed) = self.overlap.armed.take() else { return };
        // The loop records the step again.
        self.loss = WeightedMean::default();
        // The other ranks may wait for this one on the channel.
        self.comm.abort(LOST);
        armed.give_up();
        drop(self.finish_exchange(&mut armed));
    }

    /// Forgets the order of arrival, which a new member does not know.
    pub(super) fn forget_order(&mut self) {
        (self.overlap.order, self.overlap.failed_tries) = (Vec::new(), 0);
    }

    fn finish_exchange(&mut self, armed: &mut PendingExchange) -> Result<Option<Result<Exchanged, Error>>, Error> {
        let Some(pending) = armed.pending.take() else { return Ok(None) };
        let (FinishedExchange { strategy, mut source, average, exchanged }, ended) = pending.finish(&mut self.comm);
        let succeeded = matches!(exchanged, Some(Ok(_)));
        self.driver.give_back(strategy, succeeded);
        self.gradients.present.clone_from(&source.present);
        self.overlap.arrived = std::mem::take(&mut source.arrived);
        self.overlap.spare[1] = average;
        match source.into_storage() {
            Storage::Host(gradient) => self.overlap.spare[0] = gradient.into_flat(),
            #[cfg(feature = "device")]
            Storage::Device(gradient) => self.overlap.on_device = Some(gradient).filter(|_| succeeded),
        }
        ended?;
        Ok(exchanged)
    }

    /// Ends the backward pass: waits for the rest of the exchange.
    pub(super) fn finish_overlapped<M: Module>(
        &mut self,
        module: &M,
        grads: GradientsParams,
        gradients: &mut Gradients,
    ) -> Result<GradientsParams, Error> {
        let given = flat::flat_gradients(module, &grads);
        let (was_armed, has_data) = (self.overlap.armed.is_some(), given.iter().any(Option::is_some));
        if !was_armed {
            let (_messages, _deliver) = self.arm(module, GradientSource::after_computing)?;
        }
        let Some(mut armed) = self.overlap.armed.take() else {
            return Err(self.order("sync_gradients", "forward_model"));
        };
        let computed = Instant::now();
        let (bad_slot, plan) = (self.check_buffers(module)?, self.plan()?);
        self.digest = self.digest_due(module, plan)?;
        let header = self.header(bad_slot, plan);
        armed.end(given, header, computed);
        let begin = self.comm.now();
        let exchanged = match self.finish_exchange(&mut armed) {
            Ok(None) => return Err(self.order("sync_gradients", "forward_model")),
            Ok(Some(exchanged)) => exchanged,
            Err(error) => Err(error),
        };
        let waited = self.comm.now() - begin;
        let Exchanged { arrived, order } = match exchanged {
            Ok(exchanged) => exchanged,
            // The vote comes after the exchange, so that no step is in doubt.
            Err(error) => return Err(self.repeat_without_lost(module, error)),
        };
        match order {
            Some(order) => self.overlap.order = order,
            None => self.overlap.failed_tries += 1,
        }
        let layout = &self.joined.as_ref().ok_or(Error::NotJoined { rank: self.comm.rank() })?.inventory.layout;
        gradients.keep_places(module, grads, layout)?;
        gradients.present.clone_from(&self.gradients.present);
        std::mem::swap(&mut gradients.flat, &mut self.overlap.spare[1]);
        let _commit = trace_span!(target: TARGET, "commit").entered();
        let committed = self.commit_overlapped(&arrived, gradients);
        let EarlyExchange { late, header, .. } = arrived;
        let (agreed_step, ranks, stop) = match committed {
            Ok(()) => (late.agreed_step, late.ranks, late.stop),
            Err(error) => {
                let step::Exchanged { agreed_step, ranks, stop, .. } = self.continue_without_lost(module, error)?;
                (agreed_step, ranks, stop)
            }
        };
        self.start.header_seconds = header.seconds.min(waited);
        self.observe_speeds(&ranks, Plan::GRADIENTS);
        self.elastic.observe_residuals(&ranks);
        self.report_exchange(agreed_step, stop, Some(waited));
        let lead = |(slot, at): (usize, Instant)| Arrival { slot, lead: computed.saturating_duration_since(at) };
        self.report.arrivals = self.overlap.arrived.drain(..).map(lead).collect();
        if has_data {
            self.warn_no_overlap(!self.report.arrivals.is_empty(), was_armed);
        }
        let begin = self.comm.now();
        let restored = self.restore_overlapped(module, gradients);
        self.report.write_seconds = self.comm.now() - begin;
        restored
    }

    fn commit_overlapped(&mut self, arrived: &EarlyExchange, gradients: &mut Gradients) -> Result<(), SyncError> {
        let Gradients { flat, present, .. } = gradients;
        #[cfg(feature = "device")]
        if let Some(gradient) = &mut self.overlap.on_device {
            let queue = gradient.queue().clone();
            let vector: &mut dyn DeviceVector = gradient.vector();
            return queue.run(|| self.driver.commit_early(arrived, vector, present, &mut self.comm));
        }
        self.driver.commit_early(arrived, flat, present, &mut self.comm)
    }

    /// Converts the average to Burn's gradients.
    fn restore_overlapped<M: Module>(
        &mut self,
        module: &M,
        gradients: &mut Gradients,
    ) -> Result<GradientsParams, Error> {
        #[cfg(feature = "device")]
        if let Some(mut gradient) = self.overlap.on_device.take() {
            let queue = gradient.queue().clone();
            queue.run(|| self.clip_on_device(gradient.vector()))?;
            let (run, average) = gradient.into_average();
            return gradients.adopt(&run, module, average, self.layout()?);
        }
        self.clip_average(&mut gradients.flat);
        gradients.restore(module, self.layout()?)
    }
}

#[cfg(test)]
mod tests {
    use briquette_core::comm::Scope;
    use briquette_core::error::CommError;
    use briquette_core::membership::is_loss;

    #[test]
    fn the_reason_for_the_other_ranks_is_a_loss() {
        let during = Scope { operation: "idle", step: 0, bucket: None };
        assert!(is_loss(&CommError::Aborted { by: 0, during, reason: super::LOST.to_owned() }));
    }
}
