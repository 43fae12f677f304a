//! Asynchronous training with a server: rank 0 holds the model, and workers compute contributions without waiting for each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use briquette_core::compress::dense::Dense;
use briquette_core::config::{CompressorConfig, ServerConfig};
use briquette_core::error::{ConfigError, ReduceError, SyncError};
use briquette_core::server::{Batch, Computed, Served, Server, ServerState, Trainer, Uplink, serve, work};
use briquette_core::state::State;
use briquette_core::{Key, Layout, Session};
use burn::module::Module;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;

use crate::error::Error;
use crate::flat::{self, Gradients, Inventory, Part};
use crate::optimizer::DistributedOptimizer;
use crate::strategy::{BuildStrategy, custom};
use crate::synchronizer::Synchronizer;

/// The server's rank.
const SERVER: usize = 0;

/// Asynchronous training with a parameter server, in place of synchronous steps. Rank 0 is the server, the other ranks are workers.
///
/// The [policy](briquette_core::server) determines the content of an update: each gradient on arrival (`async-sgd`), the first `N` of
/// `N + b` gradients (`backup:4,spare=1`), gradients computed from a model close enough to the current one (`picky:0.5`), local steps
/// (`async-local-sgd:8`), or gradient differences (`synthesis`). All but the first are in `briquette-zoo`: enable the feature `zoo`, and
/// call `briquette::zoo::install()` before a text names them.
///
/// ```no_run
/// use briquette::{DistributedOptimizer, ServerTraining, core::Session};
/// use burn::optim::SgdConfig;
/// # use burn::prelude::*;
/// # use burn::nn::{Linear, LinearConfig};
/// # fn loss(model: &Linear, batch: u64) -> Tensor<1> {
/// #     model.forward(Tensor::<2>::ones([1, 2], &model.devices()[0])).mean()
/// # }
/// # fn train(session: Session, device: Device) -> Result<(), briquette::Error> {
/// # let model = LinearConfig::new(2, 1).init(&device);
/// briquette::zoo::install();
/// let mut server = ServerTraining::new("backup:4,spare=1".parse()?); // a world of 6
/// let mut optim = DistributedOptimizer::new(SgdConfig::new().init(), session, server.strategy(), 42);
/// let mut model = optim.join(model)?;
/// for pause in 1..=10 {
///     // Rank 0 serves and the others compute, until the model has had so many updates.
///     model = server.train(&mut optim, model, 100 * pause, |_| 0.1, |model, batch| (loss(model, batch), 32))?;
///     // Here every rank has the same model: to evaluate, or to save.
/// }
/// # Ok(())
/// # }
/// ```
///
/// The optimizer joins, saves, resumes and evaluates as usual. Only [`step`](DistributedOptimizer::step) is refused.
///
/// **Consistency.** When [`train`](Self::train) returns, every worker is idle. All ranks have the server's parameters and the
/// workers' mean of the buffers (BatchNorm's running statistics). During training there is no replicated model. A pause costs a
/// wait for the slowest worker, and afterwards all workers start from one version. The next call starts from the module that
/// rank 0 passes.
///
/// **Momenta** are those of the server's optimizer, which steps with the contributions. Under `async-local-sgd` each worker has
/// its own. If a slot (parameter tensor) has no gradient, every rank steps with zeros: its momentum continues, and an optimizer's
/// own weight decay shrinks the parameter.
///
/// **Determinism.** Over TCP results depend on the order in which contributions arrive. On a
/// [simulated](briquette_sim::Simulated) network a run is reproducible bit for bit. Each call of `train` ends in a pause,
/// and each save needs one, so a run with other pauses has other results. On a simulated network, a run that is saved at
/// a pause and resumed in a world of the same size equals, bit for bit, the run that continued after this pause. A world
/// of another size is refused.
#[derive(Debug, Clone)]
pub struct ServerTraining {
    policy: ServerConfig,
    /// The workers' compressor, and whether it keeps a residual.
    uplink: Option<(CompressorConfig, bool)>,
    /// The number of batches in all of this rank's data.
    batches: Option<u64>,
    stop: Arc<AtomicBool>,
    served: Option<Served>,
    /// The index of this worker's next batch.
    batch: u64,
}

impl ServerTraining {
    /// Creates server training with a policy. All settings except [`with_batches`](Self::with_batches) must be the same
    /// on every rank.
    pub fn new(policy: ServerConfig) -> Self {
        ServerTraining { policy, uplink: None, batches: None, stop: Arc::default(), served: None, batch: 0 }
    }

    /// Sets the compressor of the workers' contributions, which are dense by default. With `error_feedback`, a worker keeps a
    /// residual: it adds the omitted part of a message to the next one. If the policy [requires
    /// it](briquette_core::server::Policy::puts_back), it also adds contributions that were not used. `synthesis` and `qsvrg`
    /// allow no residual.
    #[must_use]
    pub fn with_compressor(mut self, compressor: CompressorConfig, error_feedback: bool) -> Self {
        self.uplink = Some((compressor, error_feedback));
        self
    }

    /// Sets the number of batches in all of this rank's data, numbered from 0. Needed for `synthesis` and `qsvrg`, which compute full
    /// gradients.
    #[must_use]
    pub fn with_batches(mut self, batches: u64) -> Self {
        self.batches = Some(batches);
        self
    }

    /// Sets a stop flag. If it becomes true on any rank, for example by Ctrl-C, [`train`](Self::train) ends early on all
    /// ranks, at the next update.
    #[must_use]
    pub fn with_stop(mut self, stop: Arc<AtomicBool>) -> Self {
        self.stop = stop;
        self
    }

    /// Returns the strategy for [`DistributedOptimizer::new`]. With it, ranks compare these settings when they join,
    /// and checkpoints contain the state of server and workers.
    pub fn strategy(&self) -> impl BuildStrategy + use<> {
        let Self { policy, uplink, batches, .. } = self.clone();
        custom(self.settings(), move |layout: &Layout, world: usize| {
            let server = format!("server {policy}");
            policy.get().build(world - 1)?;
            if uplink.as_ref().is_some_and(|(_, error_feedback)| *error_feedback) && !policy.get().allows_residual() {
                let instead = "give `with_compressor` false, and a compressor without bias";
                return Err(ConfigError::conflict(server, "feedback error", "it allows workers no memory", instead));
            }
            if policy.get().requires_all_data() && batches.is_none() {
                let instead = "say by `with_batches` how many batches a rank's data are";
                return Err(ConfigError::conflict(
                    server,
                    "an unknown number of batches",
                    "it takes full gradients",
                    instead,
                ));
            }
            Ok(ServerState::new(layout.len(), world))
        })
    }

    fn settings(&self) -> String {
        let uplink = match &self.uplink {
            None => "dense".to_owned(),
            Some((compressor, true)) => format!("{compressor} with memory"),
            Some((compressor, false)) => format!("{compressor} without memory"),
        };
        serde_json::json!({ "server": self.policy.to_string(), "uplink": uplink }).to_string()
    }

    /// Trains until the model has had `until` updates since the run began, and returns the model. All ranks must call it with the
    /// same number. After a [stop request](Self::with_stop) there are fewer updates: see [`step`](Synchronizer::step).
    ///
    /// `rate` maps the number of an update to the learning rate, also for local steps from that version. `batch` maps the number
    /// of a batch, counted from 0 over the whole run, to this rank's mean loss on the batch and its number of samples, which must
    /// be at least one. The server calls `rate`; workers call `batch` and, under local steps, `rate`.
    ///
    /// # Errors
    /// [`Error::NotJoined`]. Errors of the transport, which name the failed rank. [`Error::Sync`] for a gradient or a learning
    /// rate that is not finite, [`Error::Reduce`] for such a contribution or model. [`Error::Config`] for an optimizer that was
    /// not created with this [`strategy`](Self::strategy). After an error the world is stopped.
    pub fn train<M: Module>(
        &mut self,
        optim: &mut DistributedOptimizer,
        module: M,
        until: u64,
        rate: impl FnMut(u64) -> f64,
        batch: impl FnMut(&M, u64) -> (Tensor<1>, usize),
    ) -> Result<M, Error> {
        let trained = self.train_on(optim, module, until, (rate, batch));
        trained.inspect_err(|error| optim.sync.comm.abort(&error.to_string()))
    }

    fn train_on<M: Module>(
        &mut self,
        DistributedOptimizer { inner, sync, .. }: &mut DistributedOptimizer,
        module: M,
        until: u64,
        (rate, batch): (impl FnMut(u64) -> f64, impl FnMut(&M, u64) -> (Tensor<1>, usize)),
    ) -> Result<M, Error> {
        self.check(sync)?;
        let (rank, world, seed, weight_decay) = (sync.rank(), sync.world(), sync.seed, sync.weight_decay);
        let Synchronizer { comm, joined, driver, .. } = &mut *sync;
        let joined = joined.as_ref().ok_or(Error::NotJoined { rank })?;
        let (mut model, mut saved) = (Vec::new(), State::default());
        flat::read_values(&module, Part::Trainable, &mut model)?;
        driver.strategy().save(&mut saved);
        let (inventory, gradients, stop) = (&joined.inventory, Gradients::default(), Arc::clone(&self.stop));
        let (module, batches) = (Some(module), self.batches.unwrap_or_default());
        let mut glue = Glue { rank, module, inner, inventory, gradients, weight_decay, batches, stop, rate, batch };
        let (updates, mut state) = match rank {
            SERVER => self.serve(&mut glue, (driver.step(), until), (&mut model, &saved), comm)?,
            _ => self.work(&mut glue, Key::new(seed), (&mut model, &saved), comm)?,
        };
        let module = glue.at(&model);
        ServerState::mark(&mut state, world);
        driver.strategy_mut().load(&state)?;
        driver.resume(updates, driver.agreed_step().copied(), driver.previous().copied());
        // The server has processed no data.
        sync.average_buffers_without(SERVER, module)
    }

    /// Checks that this rank can train.
    fn check(&self, sync: &Synchronizer) -> Result<(), Error> {
        let (rank, batches) = (sync.rank(), self.batches.unwrap_or_default());
        let (right, why, instead) = if sync.config.settings() != self.settings() {
            let why = "the optimizer was built with another strategy than this server's";
            (format!("strategy {}", sync.config.settings()), why, "give it `server.strategy()`")
        } else if sync.clips() {
            let why = "a server's optimizer steps with one worker's gradient at a time, which is not clipped";
            ("a clip norm".to_owned(), why, "leave out `with_clip_norm`, and clip in the training loop")
        } else if rank != SERVER && self.policy.get().requires_all_data() && batches == 0 {
            (
                format!("a worker without batches (rank {rank})"),
                "it takes full gradients",
                "give every worker batches (`with_batches`)",
            )
        } else {
            return Ok(());
        };
        Err(ConfigError::conflict(format!("server {}", self.policy), right, why, instead).into())
    }

    /// Serves the workers. Returns the number of updates and the state to save.
    fn serve(
        &mut self,
        glue: &mut impl Trainer<Error = Error>,
        (step, until): (u64, u64),
        (model, saved): (&mut Vec<f32>, &State),
        comm: &mut Session,
    ) -> Result<(u64, State), Error> {
        let (workers, mut state) = (comm.world() - 1, State::default());
        // Ranks that have just joined hold no contributions, whatever the step.
        let mut server = Server::new(self.policy.get().build(workers)?, model.clone(), workers).at_version(step);
        if ServerState::has_begun(saved) {
            server.load(saved)?;
        }
        serve(&mut server, glue, until, comm)?;
        server.save(&mut state);
        model.copy_from_slice(server.model());
        self.served = Some(*server.served());
        Ok((server.version(), state))
    }

    /// Works for the server. Returns the same as [`serve`](Self::serve).
    fn work(
        &mut self,
        glue: &mut impl Trainer<Error = Error>,
        key: Key,
        (model, saved): (&mut Vec<f32>, &State),
        comm: &mut Session,
    ) -> Result<(u64, State), Error> {
        let (mut uplink, mut state) = (self.uplink(), State::default());
        if ServerState::has_begun(saved) {
            uplink.load(saved, model.len())?;
            self.batch = saved.u64(BATCH)?;
        }
        let updates = work(&mut uplink, glue, (SERVER, &mut self.batch), (key, model), comm)?;
        uplink.save(&mut state);
        state.put(BATCH, self.batch);
        Ok((updates, state))
    }

    fn uplink(&self) -> Uplink {
        match &self.uplink {
            None => Uplink::new(Dense, false),
            Some((compressor, error_feedback)) => Uplink::new(compressor.build(), *error_feedback),
        }
    }

    /// Statistics of the server since the run began; `None` on a worker, and before [training](Self::train).
    pub fn served(&self) -> Option<&Served> {
        self.served.as_ref()
    }
}

/// Key of a worker's next batch.
const BATCH: &str = "batch";

/// Adapter that gives core the model and its data as vectors.
struct Glue<'a, M, R, B> {
    rank: usize,
    /// `None` while it is being mapped.
    module: Option<M>,
    inner: &'a mut ModuleOptimizer,
    inventory: &'a Inventory,
    gradients: Gradients,
    weight_decay: f64,
    batches: u64,
    stop: Arc<AtomicBool>,
    rate: R,
    batch: B,
}

impl<M: Module, R, B> Glue<'_, M, R, B> {
    /// Returns the module with these parameters.
    fn at(&mut self, x: &[f32]) -> M {
        let module = self.module.take().expect("put back by whoever took it");
        flat::write_values(module, Part::Trainable, x, self.inventory)
    }
}

impl<M: Module, R: FnMut(u64) -> f64, B: FnMut(&M, u64) -> (Tensor<1>, usize)> Trainer for Glue<'_, M, R, B> {
    type Error = Error;

    fn gradient(&mut self, x: &[f32], batch: Batch, out: &mut Vec<f32>) -> Result<Computed, Error> {
        let module = self.at(x);
        let numbers = match batch {
            Batch::Number(number) => number..number + 1,
            Batch::All => 0..self.batches,
        };
        let mut all = Computed { batches: (numbers.end - numbers.start) as u32, ..Computed::default() };
        out.clear();
        out.resize(x.len(), 0.0);
        for number in numbers {
            let (loss, samples) = (self.batch)(&module, number);
            let value = f64::from(loss.clone().try_into_scalar::<f32>().map_err(Error::device)?);
            let grads = GradientsParams::from_grads(loss.backward(), &module);
            self.gradients.collect(&module, grads, &self.inventory.layout, self.weight_decay)?;
            if let Some(slot) = self.gradients.bad_slot {
                let slot = self.inventory.layout.slots()[slot as usize].path().to_owned();
                return Err(ReduceError::NonFinite { rank: self.rank, slot }.into());
            }
            let weight = if all.batches == 1 { 1.0 } else { samples as f32 };
            out.iter_mut().zip(&self.gradients.flat).for_each(|(sum, g)| *sum += weight * g);
            all.loss += f64::from(weight) * value;
            all.samples += samples as u64;
        }
        if all.batches != 1 {
            let samples = all.samples.max(1) as f32;
            out.iter_mut().for_each(|sum| *sum /= samples);
            all.loss /= f64::from(samples);
        }
        self.module = Some(module);
        Ok(all)
    }

    fn step(&mut self, x: &mut Vec<f32>, gradient: &[f32], update: u64) -> Result<(), Error> {
        let module = self.at(x);
        self.gradients.collect(&module, GradientsParams::new(), &self.inventory.layout, 0.0)?;
        self.gradients.flat.copy_from_slice(gradient);
        // Zeros count as gradients, so momenta continue.
        self.gradients.present.fill(true);
        let grads = self.gradients.restore(&module, &self.inventory.layout)?;
        flat::forget_leaves(&module);
        let rate = (self.rate)(update);
        if !rate.is_finite() {
            return Err(SyncError::Rate { step: update, rank: self.rank, got: rate }.into());
        }
        let module = self.inner.step(rate, module, grads);
        flat::read_values(&module, Part::Trainable, x)?;
        self.module = Some(module);
        Ok(())
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
