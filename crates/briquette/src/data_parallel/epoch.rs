//! One rank's training epoch.

use briquette_core::Traffic;
use briquette_core::comm::all_reduce_traffic;
use briquette_core::sync::Plan;
use briquette_core::trace::TARGET;
use burn::data::dataloader::{DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::train::{LearnerEvent, LearnerModel, TrainStep, TrainingItem};
use tracing::trace_span;

use super::metrics::Reading;
use super::progress::{split_end, split_start};
use super::records::optimizer;
use super::run::{Failure, Run};
use super::signal::{Next, Signal};
use crate::checkpoint::by_the_default_device;
use crate::error::Error;
use crate::flat::{self, Part};

/// A loader's batches, read one ahead, so that the end of the data is detected before the exchange.
struct LookAhead<'a, I> {
    batches: Box<dyn DataLoaderIterator<I> + 'a>,
    next: Option<(I, Progress)>,
    iteration: usize,
    /// The number of complete steps of this epoch.
    steps: usize,
    /// Progress after the batches taken so far, without the batch read ahead.
    progress: Progress,
}

impl<'a, I> LookAhead<'a, I> {
    fn new(batches: Box<dyn DataLoaderIterator<I> + 'a>) -> Result<Self, DatasetError> {
        let progress = batches.progress();
        let mut feed = LookAhead { batches, next: None, iteration: 0, steps: 0, progress };
        feed.look_ahead()?;
        Ok(feed)
    }

    /// Takes no batches: those of the epoch in which a new member enters are assigned to other ranks. The step at whose end it was
    /// admitted is complete.
    fn without(batches: Box<dyn DataLoaderIterator<I> + 'a>) -> Self {
        let progress = batches.progress();
        LookAhead { batches, next: None, iteration: 0, steps: 1, progress }
    }

    fn look_ahead(&mut self) -> Result<(), DatasetError> {
        let batch = self.batches.next().transpose()?;
        self.next = batch.map(|batch| (batch, self.batches.progress()));
        Ok(())
    }

    fn take(&mut self) -> Result<Option<(I, Progress)>, DatasetError> {
        let taken = self.next.take();
        if let Some((_, progress)) = &taken {
            self.iteration += 1;
            self.progress = progress.clone();
            self.look_ahead()?;
        }
        Ok(taken)
    }
}

/// The batches of one step, after their forward and backward passes.
struct Group<O> {
    grads: GradientsParams,
    /// The last batch, to be displayed after the step.
    last: (O, Progress, usize),
    samples: usize,
    /// The losses of the batches.
    losses: Vec<f64>,
    /// Set if the exchange has already begun. Samples, losses and learning rate are then recorded.
    is_recorded: bool,
    /// Buffers after the forward passes, if the step is repeated.
    buffers: Option<Vec<u8>>,
}

/// Result of a step.
enum Stepped<O> {
    /// The step is complete, or no rank had a batch.
    To(Next),
    /// A rank was lost: the survivors repeat the step.
    Again(Option<Group<O>>),
}

/// Bytes since the last reading.
struct Ledger {
    before: Traffic,
    dense: u64,
    /// The generation whose session has counted them.
    generation: Option<u64>,
}

impl<M: LearnerModel> Run<M> {
    /// Trains until no rank has a batch left, or a rank stops the epoch. Returns the rank that stopped it, if any. A rank that `entered` in
    /// this epoch has no batches, and begins with what the others do after that step.
    pub(super) fn train_epoch(&mut self, epoch: usize, entered: Option<Next>) -> Result<Option<usize>, Failure> {
        let loader = self.train.clone();
        let batches = loader.iter();
        self.emit(split_start(epoch, loader.num_items(), batches.progress()));
        self.metrics.start_epoch();
        let generation = self.generation;
        let mut ledger = Ledger { before: self.own.sync.session().traffic(), dense: 0, generation };
        let mut feed = if entered.is_some() { LookAhead::without(batches) } else { LookAhead::new(batches)? };
        let (mut next, mut again) = (entered.unwrap_or(Next::Step), None);
        let stopped = loop {
            match next {
                Next::Step => {}
                Next::EndOfEpoch => break None,
                Next::Stopped(rank) => break Some(rank),
            }
            let group = again.take().map_or_else(|| self.compute(epoch, &mut feed), |group| Ok(Some(group)))?;
            // An error is stored before the stop is requested. Checked in this order, an error is never mistaken for a mere
            // stop request.
            let stop = self.components.interrupter.should_stop();
            self.check()?;
            let scheduled = self.is_scheduled && self.is_elastic();
            let signal = Signal { batch: group.is_some(), more: feed.next.is_some(), stop, scheduled };
            match self.step(epoch, group, signal, &mut ledger)? {
                Stepped::To(to) => (next, feed.steps) = (to, feed.steps + 1),
                // Ranks that noticed the loss at the end of the last epoch have divided this one among the survivors.
                Stepped::Again(_) if feed.steps == 0 => feed = LookAhead::new(loader.iter())?,
                Stepped::Again(group) => again = group,
            }
        };
        self.emit(split_end(epoch, feed.progress, stopped.is_none()));
        self.end_split()?;
        Ok(stopped)
    }

    /// Runs the forward and backward passes, over several batches under gradient accumulation.
    fn compute(
        &mut self,
        epoch: usize,
        feed: &mut LookAhead<'_, <M as TrainStep>::Input>,
    ) -> Result<Option<Group<<M as TrainStep>::Output>>, Failure> {
        let mut accumulator = GradientsAccumulator::new();
        let accumulation = self.components.grad_accumulation;
        let (mut samples, mut losses) = (0, Vec::new());
        let (mut grads, mut last) = (GradientsParams::new(), None);
        let mut batches = 0;
        // Under accumulation, the gradient is complete only after the last batch's backward pass. In an elastic world, a step may be
        // repeated with its gradients, which an exchange during the backward pass does not return.
        let overlaps = accumulation.is_none() && !self.is_elastic() && self.own.sync.is_overlapped()?;
        while batches < accumulation.unwrap_or(1) {
            let Some((batch, progress)) = feed.take()? else { break };
            batches += 1;
            samples += self.own.samples.as_ref().map_or(1, |samples| samples(&batch));
            let model = if overlaps {
                self.record_step(samples);
                self.own.sync.forward_model(&self.learner.model())?
            } else {
                self.learner.model()
            };
            let output = match &self.own.random {
                Some(random) => random.batch(epoch, feed.iteration, || TrainStep::step(&model, batch)),
                None => TrainStep::step(&model, batch),
            };
            if let Some(loss) = self.own.loss {
                let loss = loss(&output.item).map_err(Error::device)?;
                losses.push(loss);
                if overlaps {
                    self.own.sync.record_loss(loss);
                }
            }
            match accumulation {
                Some(_) => accumulator.accumulate(&self.learner.model(), output.grads),
                None => grads = output.grads,
            }
            if let Some(shown) = last.replace((output.item, progress, feed.iteration)) {
                self.show(shown);
            }
        }
        if accumulation.is_some() && batches > 0 {
            grads = accumulator.grads();
        }
        // The gradients of the batches were summed, so the rank's weight is their mean number of samples.
        let group = |last| Group {
            grads,
            last,
            samples: samples.div_ceil(batches),
            losses,
            is_recorded: overlaps,
            buffers: None,
        };
        Ok(last.map(group))
    }

    /// Records samples and learning rate for the exchange. Burn's schedule is stepped here, just before the optimizer, once per
    /// step, also if the step is repeated.
    fn record_step(&mut self, samples: usize) {
        self.own.sync.record_samples(samples);
        self.schedule();
        self.own.sync.record_learning_rate(self.learner.lr_current().base());
    }

    /// Makes a step of the schedule, once for a step that is repeated.
    fn schedule(&mut self) {
        if !std::mem::replace(&mut self.is_scheduled, true) {
            self.learner.lr_step();
        }
    }

    /// Runs the schedule, the exchange and the optimizer. A failure ends the run, which then has to resume from a
    /// checkpoint, unless a rank of an elastic world was lost.
    fn step(
        &mut self,
        epoch: usize,
        mut group: Option<Group<<M as TrainStep>::Output>>,
        signal: Signal,
        ledger: &mut Ledger,
    ) -> Result<Stepped<<M as TrainStep>::Output>, Failure> {
        let (plan, model) = (self.own.sync.plan()?, self.learner.model());
        if let (true, Some(group)) = (self.is_elastic(), &mut group) {
            // A loss undoes what the forward passes have written.
            flat::drain(&model);
            if let Some(buffers) = group.buffers.take() {
                drop(flat::write_bytes(model.clone(), Part::Buffers, &buffers));
            }
            group.buffers = Some(flat::read_bytes(&model, Part::Buffers)?);
        }
        let mut next = Next::Step;
        if plan.exchanges() {
            let agreed = match signal.agree(&mut self.own.sync) {
                Ok(agreed) => agreed,
                Err(error) => {
                    self.recover(error)?;
                    return Ok(Stepped::Again(group));
                }
            };
            next = agreed.next;
            if !agreed.batch && plan.gradients {
                // No step follows whose vote would show that all ranks have agreed.
                let concluded = self.own.sync.conclude(&model, Ok(()))?;
                self.follow_world();
                if concluded.is_some() && agreed.scheduled {
                    self.schedule();
                }
                return Ok(concluded.map_or(Stepped::Again(group), |()| Stepped::To(next)));
            }
        }
        let grads = group.as_mut().map(|group| std::mem::take(&mut group.grads)).unwrap_or_default();
        if !group.as_ref().is_some_and(|group| group.is_recorded) {
            self.record_step(group.as_ref().map_or(0, |group| group.samples));
            group.iter().flat_map(|group| &group.losses).for_each(|loss| self.own.sync.record_loss(*loss));
        }
        let kept = self.is_elastic().then(|| flat::copy(&model, &grads));
        let grads = match self.own.sync.sync_gradients(&model, grads) {
            Ok(grads) => grads,
            Err(error) => {
                self.recover(error)?;
                let again = |group| Group { grads: kept.unwrap_or_default(), ..group };
                return Ok(Stepped::Again(group.map(again)));
            }
        };
        drop((model, kept));
        let last = group.map(|group| group.last);
        trace_span!(target: TARGET, "optimizer").in_scope(|| self.learner.optimizer_step(grads));
        self.is_scheduled = false;
        // The exchange may have been in doubt, and committed in the next world.
        self.follow_world();
        self.finish_step(plan)?;
        self.read(ledger, last.as_ref().map(|(_, _, iteration)| *iteration))?;
        if let Some(last) = last {
            self.show(last);
        }
        self.admit(epoch, next)?;
        Ok(Stepped::To(next))
    }

    fn finish_step(&mut self, plan: Plan) -> Result<(), Error> {
        let model = self.learner.model();
        let replaced = plan.parameters || self.own.sync.rebroadcast_due();
        if replaced {
            // A pending update of running statistics would be lost with the old values.
            flat::drain(&model);
        }
        let model = self.own.sync.sync_parameters(model).map_err(|(_, error)| error)?;
        if replaced {
            self.learner.load_model(model.into_record());
        }
        let (learner, store) = (&self.learner, &self.components.event_store);
        let momenta = self.own.sync.next_momenta(&learner.model(), || optimizer(learner, store))?;
        if let Some(record) = momenta {
            by_the_default_device(|| self.learner.load_optim(record))?;
        }
        Ok(())
    }

    /// Publishes this step's numbers to the metrics. A step without a batch is published with the next batch.
    fn read(&mut self, ledger: &mut Ledger, iteration: Option<usize>) -> Result<(), Error> {
        let sync = &mut self.own.sync;
        ledger.dense += all_reduce_traffic(sync.layout()?.len(), sync.world(), sync.rank()).sent;
        let Some(iteration) = iteration else { return Ok(()) };
        let now = sync.session().traffic();
        if ledger.generation != self.generation {
            ledger.before = Traffic::default();
        }
        let Traffic { sent, received } = now - ledger.before;
        let exchange = &sync.report().exchange;
        let (ratio, relative_error) = (exchange.ratio.map(|ratio| ratio.get()), exchange.relative_error());
        let (gain, delay, dense) = (exchange.gain, exchange.delay(), ledger.dense);
        self.metrics.push(Reading { iteration, ratio, gain, relative_error, delay, dense, sent, received });
        *ledger = Ledger { before: now, dense: 0, generation: self.generation };
        Ok(())
    }

    fn show(&mut self, (output, progress, iteration): (<M as TrainStep>::Output, Progress, usize)) {
        let lr = self.learner.lr_current();
        self.emit(LearnerEvent::ProcessedItem(TrainingItem::new(output, progress, Some(iteration), Some(lr))));
    }
}
