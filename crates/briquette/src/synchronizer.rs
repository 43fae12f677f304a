//! Synchronization of one rank with the others, independent of the optimizer.

mod alone;
mod average;
mod balance;
mod clip;
#[cfg(feature = "device")]
mod device;
mod elastic;
mod forward;
mod join;
mod mixed;
mod optimizer_state;
mod overlap;
mod parameters;
mod recorded;
mod replicas;
mod timing;
mod trace;
mod world;

use std::collections::HashSet;
use std::sync::Arc;

use briquette_core::comm::Session;
use briquette_core::step::{Driver, Exchanged};
use briquette_core::sync::{Momenta, Plan, StopFlags};
use briquette_core::trace::TARGET;
use briquette_core::{Key, Layout};
use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use tracing::trace_span;

use crate::checkpoint::Leaders;
use crate::clock::WallClock;
use crate::error::Error;
use crate::flat::{self, Gradients, Inventory, Known};
use crate::handshake::{Compared, Identity};
use crate::step_report::StepReport;
use crate::strategy::BuildStrategy;
use crate::summary::Tally;

pub(crate) use self::average::LocalValues;
use self::balance::Shares;
use self::clip::Clip;
use self::elastic::Elastic;
use self::forward::Written;
use self::join::averages_gradients;
pub use self::mixed::REBROADCAST_STEPS;
use self::overlap::Overlap;
use self::recorded::WeightedMean;
pub use self::replicas::REPLICA_CHECK_STEPS;
use self::timing::Start;
use self::trace::SentAs;

/// Synchronizes gradients or parameters with the other ranks. A [`DistributedOptimizer`](crate::DistributedOptimizer) is a
/// `Synchronizer` and a `ModuleOptimizer`. Use a `Synchronizer` alone if something else owns the optimizer.
pub struct Synchronizer {
    /// Declared before the session, which waits for its channels when it is dropped.
    overlap: Overlap,
    pub(crate) comm: Session,
    pub(crate) config: Box<dyn BuildStrategy>,
    pub(crate) joined: Option<Joined>,
    pub(crate) seed: u64,
    /// The strategy, once joined, and the step.
    pub(crate) driver: Driver,
    elastic: Elastic,
    pub(crate) weight_decay: f64,
    /// Settings of the training loop that ranks compare, grouped by their scope.
    settings: Compared,
    /// Steps between re-broadcasts; `None` if the default of the world applies.
    rebroadcast: Option<u64>,
    /// Steps of the run, if known.
    run_steps: Option<u64>,
    /// Steps between comparisons of replicas, if set.
    replica_check: Option<u64>,
    /// Digest of the parameters before this step, if ranks compare them.
    digest: Option<u64>,
    /// State that forward passes write.
    written: Written,
    clip: Clip,
    shares: Shares,
    #[cfg(feature = "device")]
    kernels: device::Kernels,
    /// The public method that computes an average, for error messages.
    on_behalf: Option<&'static str>,
    gradients: Gradients,
    loss: WeightedMean,
    validation_loss: Option<f64>,
    learning_rate: Option<f64>,
    /// The step for which the learning rate was last recorded.
    rate_step: Option<u64>,
    stop_request: StopFlags,
    agreed_stop: StopFlags,
    pub(crate) last_end: f64,
    start: Start,
    /// Set between `sync_gradients` and `sync_parameters`.
    open: bool,
    report: StepReport,
    momenta: Momenta,
    /// The feedback that was decided at join, if the configuration left it open.
    feedback: Option<String>,
    tally: Tally,
    sent_as: SentAs,
    /// The leaders of the directory to which a checkpoint was last saved.
    pub(crate) leaders: Option<Leaders>,
    /// Tracing span of the current step, from `sync_gradients` to the end of `sync_parameters`.
    span: tracing::Span,
}

/// State established by joining.
pub(crate) struct Joined {
    pub(crate) inventory: Inventory,
    pub(crate) identity: Identity,
    /// Steps between re-broadcasts; 0 for none.
    rebroadcast: u64,
    /// Set if devices round differently.
    is_mixed: bool,
    /// Set in a world of one rank whose gradients are already their average.
    is_identity: bool,
    known: Known,
    buffer_ids: HashSet<ParamId>,
}

impl std::fmt::Debug for Synchronizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Synchronizer")
            .field("rank", &self.comm.rank())
            .field("world", &self.comm.world())
            .field("step", &self.step())
            .field("config", &self.config.settings())
            .finish_non_exhaustive()
    }
}

impl Synchronizer {
    /// Creates a synchronizer for this rank's session, or for a transport. If decisions of `config` depend on seconds,
    /// a session without a clock gets the [wall clock](WallClock). `seed` and `config` must be the same on every rank:
    /// [`join`](Self::join) compares them.
    pub fn new(comm: impl Into<Session>, config: impl BuildStrategy + 'static, seed: u64) -> Self {
        let comm: Session = comm.into();
        let comm = if config.needs_clock() { comm.or_clock(Arc::new(WallClock::start())) } else { comm };
        let last_end = comm.now();
        Synchronizer {
            overlap: Overlap::default(),
            comm,
            config: Box::new(config),
            joined: None,
            seed,
            driver: Driver::new(Key::new(seed)),
            elastic: Elastic::default(),
            weight_decay: 0.0,
            settings: Default::default(),
            rebroadcast: None,
            run_steps: None,
            replica_check: None,
            digest: None,
            written: Written::default(),
            clip: Clip::default(),
            shares: Shares::default(),
            #[cfg(feature = "device")]
            kernels: device::Kernels::default(),
            on_behalf: None,
            gradients: Gradients::default(),
            loss: WeightedMean::default(),
            validation_loss: None,
            learning_rate: None,
            rate_step: None,
            stop_request: StopFlags::NONE,
            agreed_stop: StopFlags::NONE,
            last_end,
            start: Start::default(),
            open: false,
            report: StepReport::default(),
            momenta: Momenta::Keep,
            feedback: None,
            tally: Tally::default(),
            sent_as: SentAs::default(),
            leaders: None,
            span: tracing::Span::none(),
        }
    }

    /// Adds `weight_decay · parameter` to every local gradient before it is exchanged. Momentum correction needs this, because
    /// its inner optimizer receives velocities instead of gradients. Turn off the inner optimizer's own weight decay then.
    #[must_use]
    pub fn with_local_weight_decay(mut self, weight_decay: f64) -> Self {
        self.weight_decay = weight_decay;
        self
    }

    /// This rank's index.
    pub fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.comm.world()
    }

    /// Steps taken, not counting skipped ones.
    pub fn step(&self) -> u64 {
        self.driver.step()
    }

    /// The layout of the module that joined: its parameter tensors, called slots, in order.
    ///
    /// # Errors
    /// [`Error::NotJoined`].
    pub fn layout(&self) -> Result<&Layout, Error> {
        self.joined.as_ref().map(|j| &j.inventory.layout).ok_or(Error::NotJoined { rank: self.rank() })
    }

    /// Returns this rank's gradients as one vector, in the order of [`layout`](Self::layout), with zeros for a missing gradient.
    /// Use it to inspect gradients, or to keep them for `briquette inspect`.
    ///
    /// # Errors
    /// [`Error::Device`] when they cannot be read, [`Error::Mismatch`] when `module` is not the one that joined.
    pub fn flat_gradient<M: Module>(&self, module: &M, grads: &GradientsParams) -> Result<Vec<f32>, Error> {
        let (mut values, expected) = (Vec::new(), self.layout()?.len());
        flat::read_gradients(module, grads, &mut values)?;
        if values.len() != expected {
            return Err(self.mismatch(self.rank(), "values of a gradient", expected, values.len()));
        }
        Ok(values)
    }

    /// The report of the last exchange.
    pub fn report(&self) -> &StepReport {
        &self.report
    }

    /// The treatment of the inner optimizer's momenta after the last step. [`DistributedOptimizer`](crate::DistributedOptimizer)
    /// applies it to its own optimizer.
    pub fn momenta(&self) -> Momenta {
        self.momenta
    }

    /// The session, for further exchanges by the training loop. Every rank must make the same ones.
    pub fn session(&mut self) -> &mut Session {
        &mut self.comm
    }

    fn mismatch(&self, rank: usize, field: &str, ours: impl ToString, theirs: impl ToString) -> Error {
        let (field, ours, theirs) = (field.to_owned(), ours.to_string(), theirs.to_string());
        Error::Mismatch { this: self.rank(), rank, field, ours, theirs }
    }

    /// The plan of the current step.
    ///
    /// # Errors
    /// [`Error::NotJoined`].
    pub fn plan(&self) -> Result<Plan, Error> {
        self.joined.as_ref().map(|_| self.driver.plan()).ok_or(Error::NotJoined { rank: self.rank() })
    }

    /// Replaces this rank's gradients by the result that all ranks agree on, if gradients are exchanged at this step. Otherwise
    /// the gradients stay rank-local, with the local weight decay added. Step the optimizer with the result, then call
    /// [`sync_parameters`](Self::sync_parameters), which ends the step, at every step. A rank without data passes empty gradients
    /// and records 0 samples.
    ///
    /// # Errors
    /// [`SyncError::NonFinite`](briquette_core::error::SyncError::NonFinite) and any other error that [every rank
    /// detects](briquette_core::error::SyncError::is_on_all_ranks) leave everything unchanged, and training may continue with the
    /// next batch. Buffers that the forward pass has written (BatchNorm's running statistics) are restored to their values after
    /// the previous step. A buffer that is not finite after the forward pass is refused like a gradient.
    ///
    /// [`Error::Layout`] if the set of trained layers has changed since join. [`Error::Order`] if the previous step was not ended.
    /// After any other error the session is unusable.
    pub fn sync_gradients<M: Module>(&mut self, module: &M, grads: GradientsParams) -> Result<GradientsParams, Error> {
        let plan = self.plan()?;
        if self.open {
            return Err(self.order("sync_gradients", "sync_parameters"));
        }
        let _step = self.begin_span();
        if grads.is_empty() {
            flat::forget_leaves(module);
        }
        let grads = if plan.gradients {
            let ready = flat::settle(module).and_then(|()| self.check_layout(module));
            self.begin();
            let mut gradients = std::mem::take(&mut self.gradients);
            // A gradient of no samples has weight 0.
            let weighs = self.loss.samples != Some(0);
            let is_identity = weighs && self.joined.as_ref().is_some_and(|joined| joined.is_identity);
            let result = ready.and_then(|()| match (is_identity, self.overlaps(plan)) {
                (true, _) => self.pass_through(module, grads, plan),
                (false, true) => self.finish_overlapped(module, grads, &mut gradients),
                (false, false) => self.exchange_gradients(module, grads, &mut gradients),
            });
            self.gradients = gradients;
            self.end(result).map_err(|error| self.with_tensor(module, error))
        } else {
            let checked = self.check_layout(module).inspect_err(|error| self.comm.abort(&error.to_string()));
            let checked = checked.and_then(|()| self.check_recorded());
            checked.and_then(|()| {
                let grads = flat::decay(module, grads, self.weight_decay);
                self.clip_own(module, grads).inspect_err(|error| self.comm.abort(&error.to_string()))
            })
        };
        self.open = grads.is_ok();
        // If the step is refused, the writes of its forward pass are undone.
        let grads = grads.inspect_err(|_| self.undo_forward(module))?;
        // Without gradients, an optimizer changes no parameters, momenta or step counters.
        Ok(if plan.optimizes { grads } else { GradientsParams::new() })
    }

    fn order(&self, called: &'static str, first: &'static str) -> Error {
        Error::Order { rank: self.rank(), step: self.step(), called, first }
    }

    fn exchange_gradients<M: Module>(
        &mut self,
        module: &M,
        grads: GradientsParams,
        gradients: &mut Gradients,
    ) -> Result<GradientsParams, Error> {
        #[cfg(feature = "device")]
        if let Some(run) = self.kernels(module) {
            return self.exchange_on_device(&run, module, grads, gradients);
        }
        let begin = self.comm.now();
        let read = trace_span!(target: TARGET, "read").entered();
        gradients.collect(module, grads, self.layout()?, self.weight_decay)?;
        let (bad_buffer, plan) = (self.check_buffers(module)?, self.plan()?);
        self.digest = self.digest_due(module, plan)?;
        drop(read);
        let read_seconds = self.comm.now() - begin;
        let header = self.header(gradients.bad_slot.or(bad_buffer), plan);
        let Gradients { flat: values, present, .. } = gradients;
        let exchanged = self.driver.exchange_gradient(header, values, present, &mut self.comm);
        let exchanged = exchanged.or_else(|error| self.continue_without_lost(module, error))?;
        self.exchanged(exchanged);
        let begin = self.comm.now();
        let _commit = trace_span!(target: TARGET, "commit").entered();
        self.clip_average(&mut gradients.flat);
        let layout = &self.joined.as_ref().expect("joined above").inventory.layout;
        let restored = gradients.restore(module, layout);
        (self.report.read_seconds, self.report.write_seconds) = (read_seconds, self.comm.now() - begin);
        restored
    }

    /// Applies the result of an exchange.
    fn exchanged(&mut self, Exchanged { agreed_step, ranks, stop, momenta, header, .. }: Exchanged) {
        self.momenta = momenta;
        if let Ok(plan) = self.plan() {
            self.observe_speeds(&ranks, plan);
        }
        self.elastic.observe_residuals(&ranks);
        self.start.header_seconds += header.seconds;
        self.report_exchange(agreed_step, stop, None);
    }
}
