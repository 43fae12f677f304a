//! LSGD: pulls ranks towards the rank with the lowest loss, in their group and in the world.
//!
//! **Why, and when not.** The average of good points may be a bad point: the mean of two ranks on either side of a ridge lies
//! on top of it. A leader is a point that a rank has reached, and moves other ranks only if it is better. It also sends less
//! than an average: one model instead of all of them. It reduces variance less than averaging does, so on a convex problem with
//! noise, average.
//! **Method.** Ranks step alone. After every `l` steps the rank of each group with the lowest mean training loss since the
//! previous choice sends its parameters `x̃_j` to its group; after every `g` steps so does the best rank of the world, `x̃`.
//! With pulls `λ_l`, `λ_g`:
//!
//! ```text
//! when a leader is chosen:  x ← x + λ_l·(x̃_j − x)        then  x ← x + λ_g·(x̃ − x)
//! at the steps between:     x ← x + (λ_l/l)·(x̃_j − x)    then  x ← x + (λ_g/g)·(x̃ − x)
//! ```
//!
//! Among equal losses the lowest rank leads. A rank with a non-finite loss never leads, nor does a rank that had no samples
//! since the last choice. A rank is not pulled towards itself: while it leads its group or the world, that pull is 0. Several
//! groups are the paper's *multi-leader* form; a group of all ranks has one leader.
//!
//! **On the wire.** Every `l` steps, 8 bytes from every rank to every other rank of its group, and `4d` from its leader to each
//! of the others; every `g` steps the same in the world, and a header.
//!
//! **Properties.** Replicas differ. If all ranks are at one point, nothing is pulled, so stationary points are preserved (not
//! so under [`Easgd`](crate::sync::easgd::Easgd)). A single rank always leads, and is plain SGD to the bit. The model to evaluate is the
//! mean over ranks. Each rank's loss must be recorded at every step with samples.
//!
//! **State.** Both leaders' parameters and whether the rank is one of them; the rank's own sum of losses.
//!
//! **Knobs.** `period` `g`, steps, default 16, a multiple of `local` `l`, default 4; `pull` `λ_l` and `global_pull` `λ_g` in [0, 1],
//! default 0.1; `group`, ranks of a group, which divides the world; by default the ranks of one machine are a group.
//!
//! **Deviations.** Losses are means since the last choice; the code uses a window of batches. Between choices the code pulls a
//! leader back to the point from which it led. Pulls follow the optimizer's step, start at its result and are applied one after
//! the other; the paper's step applies all three at one point. The paper's algorithm is asynchronous; this is its synchronous
//! form.
//!
//! **Reference.** Y. Teng, W. Gao, F. Chalus, A. Choromanska, D. Goldfarb, A. Weller, *Leader Stochastic Gradient Descent for Distributed Training
//! of Deep Learning Models*, NeurIPS 2019 (arXiv 1905.10395), section 2 and algorithm 1, and the authors' code.
//!
//! ```
//! use briquette_zoo::sync::lsgd::leader;
//! assert_eq!(leader(&[0.7, 0.4, 0.4]), Some(1));
//! assert_eq!(leader(&[f64::NAN, f64::INFINITY, 2.0]), Some(2));
//! assert_eq!(leader(&[f64::NAN]), None);
//! ```

use briquette_core::error::{ConfigError, ReduceError, StateError, SyncError};
use briquette_core::report::{ExchangeSeconds, Report};
use briquette_core::state::{OnResize, Place, Staged, State, Stateful};
use briquette_core::sync::{Agrees, Context, Momenta, Plan, SyncStrategy, check_own};
use briquette_core::{Session, Traffic};

mod config;
mod followed;

pub use config::LsgdConfig;
use followed::Followed;

/// Returns the rank that leads: the first of the lowest losses, or none if no loss is finite.
pub fn leader(losses: &[f64]) -> Option<usize> {
    let finite = losses.iter().enumerate().filter(|(_, loss)| loss.is_finite());
    finite.min_by(|a, b| a.1.total_cmp(b.1)).map(|(rank, _)| rank)
}

/// Leader stochastic gradient descent; see the [module](self).
#[derive(Debug)]
pub struct Lsgd {
    settings: LsgdConfig,
    of_group: Followed,
    of_world: Followed,
    /// Sum and number of this rank's losses since the last choice.
    losses: Staged<(f64, u64)>,
    seconds: ExchangeSeconds,
    traffic: Traffic,
}

impl Lsgd {
    /// Creates the strategy for `world` ranks.
    ///
    /// # Errors
    /// [`ConfigError`] for a setting that is out of range, and for groups that do not tile the world.
    pub fn new(settings: LsgdConfig, world: usize) -> Result<Self, ConfigError> {
        settings.check_in(world)?;
        let (of_group, of_world, losses, seconds, traffic) = Default::default();
        Ok(Lsgd { settings, of_group, of_world, losses, seconds, traffic })
    }

    /// Returns this rank's loss of a step, or none for a step without samples.
    fn own_loss(cx: &Context<'_>, comm: &Session) -> Result<Option<f64>, ReduceError> {
        // If no rank agrees, the step's values are this rank's own.
        let known = (cx.agreed_step.samples, cx.agreed_step.loss);
        match cx.ranks.get(comm.rank()).map_or(known, |own| (own.samples, own.loss)) {
            (0, _) => Ok(None),
            (_, None) => Err(ReduceError::NoLoss { step: cx.agreed_step.step, rank: comm.rank() }),
            (_, loss) => Ok(loss),
        }
    }
}

/// By hand, because one entry holds whether this rank is either leader.
impl Stateful for Lsgd {
    fn save(&self, state: &mut State) {
        let own = Place::PerRank(OnResize::Drop);
        let (sum, count) = *self.losses.now();
        let leads = [&self.of_group, &self.of_world].map(|followed| f32::from(u8::from(*followed.is_own.now())));
        state.put("world", self.of_world.place.now().clone());
        state.put_at(own, "group", self.of_group.place.now().clone());
        state.put_at(own, "leads", leads.to_vec());
        state.put_at(own, "loss", sum);
        state.put_at(own, "losses", count);
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        let of_world = state.memory("world", self.of_world.place.now())?;
        let of_group = state.memory("group", self.of_group.place.now())?;
        // Dropped if the world size changed: no rank has led there yet.
        let leads = state.f32s("leads", None)?.iter().map(|leads| *leads > 0.0).collect::<Vec<_>>();
        let losses = (state.f64("loss")?, state.u64("losses")?);
        for (followed, place, at) in [(&mut self.of_group, of_group, 0), (&mut self.of_world, of_world, 1)] {
            followed.place.set(place);
            followed.is_own.set(leads.get(at).copied().unwrap_or_default());
        }
        self.losses.set(losses);
        Ok(())
    }

    fn commit(&mut self) {
        self.of_world.commit();
        self.of_group.commit();
        self.losses.commit();
    }

    fn discard(&mut self) {
        self.of_world.discard();
        self.of_group.discard();
        self.losses.discard();
    }
}

impl SyncStrategy for Lsgd {
    fn plan(&self, step: u64) -> Plan {
        let in_world = (step + 1).is_multiple_of(self.settings.steps());
        let agrees = if in_world { Agrees::World } else { Agrees::NoRank };
        Plan::ALONE.agreeing(agrees).with_parameters(true)
    }

    fn begin(&mut self, _parameters: &[f32]) {
        self.of_group.clear();
        self.of_world.clear();
        self.losses.set((0.0, 0));
    }

    fn after_step(
        &mut self,
        parameters: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<Momenta, SyncError> {
        let step = cx.agreed_step.step;
        let failed = |source| SyncError::Reduce { step, source };
        let loss = Self::own_loss(cx, comm).map_err(failed)?;
        check_own(parameters, cx, comm)?;
        let (before, start) = (comm.traffic(), comm.now());
        let LsgdConfig { local, pull: of_group, global_pull: of_world, .. } = self.settings;
        let period = self.settings.steps();
        let (mut sum, mut count) = *self.losses.now();
        (sum, count) = (sum + loss.unwrap_or(0.0), count + u64::from(loss.is_some()));
        // NaN without samples: such a rank does not lead.
        let mean = sum / count as f64;
        let [in_group, in_world] = [local, period].map(|period| (step + 1).is_multiple_of(period));
        if in_group {
            let places = comm.machine_map_in(self.settings.group);
            comm.within(places.machine(), |group| self.of_group.choose(mean, parameters, group))
                .map_err(|error| failed(error.into()))?;
        }
        if in_world {
            self.of_world.choose(mean, parameters, comm).map_err(|error| failed(error.into()))?;
        }
        *self.losses.next_mut() = if in_group { (0.0, 0) } else { (sum, count) };
        self.losses.stage();
        self.of_group.pull(parameters, if in_group { of_group } else { of_group / local as f32 });
        self.of_world.pull(parameters, if in_world { of_world } else { of_world / period as f32 });
        self.traffic = comm.traffic() - before;
        self.seconds = ExchangeSeconds::exchanging(comm.now() - start);
        Ok(Momenta::Keep)
    }

    /// Returns nothing: leaders pull the mean.
    fn conserved(&self, _parameters: &[f32]) -> Option<Vec<f32>> {
        None
    }

    fn report(&self, report: &mut Report) {
        (report.seconds, report.traffic) = (Some(self.seconds), Some(self.traffic));
    }
}

#[cfg(test)]
mod tests;
