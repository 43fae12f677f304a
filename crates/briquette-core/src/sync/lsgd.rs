//! LSGD: ranks are pulled towards the one with the lowest loss, in their group and in the world.
//!
//! **Why, and when not.** An average of good places may be a bad place: two ranks on either side of a ridge have their mean on top of it. A
//! leader is a place where a rank has been, and moves ranks only if it is better. It also sends less than an average: one model goes
//! round, instead of all of them. Its gain in variance is smaller than that of averaging: on a convex problem with noise, average.
//!
//! **Method.** Ranks step alone. After every `l` steps the rank of each group whose mean training loss since the last time was lowest
//! sends its parameters `x̃_j` to its group; after every `g` steps so does the best of the world, `x̃`. With pulls `λ_l`, `λ_g`:
//!
//! ```text
//! when a leader is chosen:  x ← x + λ_l·(x̃_j − x)       and  x ← x + λ_g·(x̃ − x)
//! at the steps between:     x ← x + (λ_l/l)·(x̃_j − x) + (λ_g/g)·(x̃ − x)
//! ```
//!
//! Of equal losses the lowest rank's leads; one that is not finite never does. Several groups are the paper's *multi-leader* form; a group
//! of all ranks has one leader.
//!
//! **On the wire.** Each `l` steps 8 bytes from every rank to every other of its group, and `4d` from its leader to each of the others; each
//! `g` steps the same in the world, and a header.
//!
//! **Properties.** Replicas differ. Where all ranks are at one place, nothing is pulled: stationary points stay ones (they do not
//! under [`Easgd`](super::Easgd)). The model to evaluate is the mean over ranks.
//!
//! **State.** Both leaders' parameters, the rank's own sum of losses.
//!
//! **Knobs.** `period` `g`, steps, default 16, a multiple of `local` `l`, default 4; `pull` `λ_l` and `global_pull` `λ_g` in [0, 1],
//! default 0.1; `group`, ranks of a group, which divides the world; by default the ranks of one machine are a group.
//!
//! **Deviations.** Losses are means since the last choice, where the code has a window of batches. A leader is pulled towards the
//! place that it led from, as in the code.
//!
//! **Reference.** Y. Teng et al., *Leader Stochastic Gradient Descent for Distributed Training of Deep Learning Models*, NeurIPS 2019
//! (arXiv 1905.10395), algorithm 1, and the authors' code.
//!
//! ```
//! use briquette_core::sync::lsgd::leader;
//! assert_eq!(leader(&[0.7, 0.4, 0.4]), Some(1));
//! assert_eq!(leader(&[f64::NAN, f64::INFINITY, 2.0]), Some(2));
//! assert_eq!(leader(&[f64::NAN]), None);
//! ```

use super::{Agrees, Context, Momenta, Plan, SyncStrategy, check_own};
use crate::error::{CommError, ConfigError, ReduceError, StateError, SyncError};
use crate::report::{ExchangeSeconds, Report};
use crate::state::{OnResize, Place, Staged, State, Stateful};
use crate::{Frame, Session, Traffic};

mod config;

pub use config::LsgdConfig;

/// The rank of these losses that leads: the first of the lowest; none where none is finite.
pub fn leader(losses: &[f64]) -> Option<usize> {
    let finite = losses.iter().enumerate().filter(|(_, loss)| loss.is_finite());
    finite.min_by(|a, b| a.1.total_cmp(b.1)).map(|(rank, _)| rank)
}

/// Leader stochastic gradient descent; see the [module](self).
#[derive(Debug)]
pub struct Lsgd {
    settings: LsgdConfig,
    /// Where this rank's group is pulled to; empty before its first leader.
    of_group: Staged<Vec<f32>>,
    /// And where the world is.
    of_world: Staged<Vec<f32>>,
    /// Sum and number of this rank's losses since the last choice.
    losses: Staged<(f64, u64)>,
    seconds: ExchangeSeconds,
    traffic: Traffic,
}

impl Lsgd {
    /// In a world of `world` ranks.
    ///
    /// # Errors
    /// [`ConfigError`] for a setting that is out of range, and for groups that do not tile the world.
    pub fn new(settings: LsgdConfig, world: usize) -> Result<Self, ConfigError> {
        settings.check_in(world)?;
        let (of_group, of_world, losses, seconds, traffic) = Default::default();
        Ok(Lsgd { settings, of_group, of_world, losses, seconds, traffic })
    }

    /// The ranks of this rank's group.
    fn group(&self, comm: &Session) -> Vec<usize> {
        match self.settings.group {
            Some(size) => {
                let first = comm.rank() / size * size;
                (first..first + size).collect()
            }
            None => comm.places().machine().to_vec(),
        }
    }
}

/// Has the rank with the lowest loss send its parameters to the others of the session's group; what was there stays where none leads.
fn follow(loss: f64, x: &[f32], followed: &mut Staged<Vec<f32>>, comm: &mut Session) -> Result<(), CommError> {
    let (rank, mut parts) = (comm.rank(), Vec::new());
    comm.scope().operation = "choice of a leader";
    comm.all_gather(&loss.to_le_bytes(), &mut parts)?;
    let heard = |(other, part): (usize, &Frame)| match part.first_chunk() {
        _ if other == rank => loss,
        Some(bytes) => f64::from_le_bytes(*bytes),
        None => f64::NAN,
    };
    let losses: Vec<f64> = parts.iter().enumerate().map(heard).collect();
    let (before, next) = followed.both();
    next.clone_from(before);
    if let Some(leader) = leader(&losses) {
        let mut bytes = Frame::new();
        if leader == rank {
            bytes.extend(x.iter().flat_map(|x| x.to_le_bytes()));
        }
        comm.broadcast(leader, &mut bytes)?;
        if bytes.len() != 4 * x.len() {
            let (expected, got, during) = (4 * x.len(), bytes.len(), *comm.scope());
            return Err(CommError::Size { rank, other: leader, during, expected, got });
        }
        next.clear();
        next.extend(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
    }
    comm.scope().operation = "";
    followed.stage();
    Ok(())
}

fn pull(x: &mut [f32], share: f32, to: &[f32]) {
    x.iter_mut().zip(to).for_each(|(x, to)| *x += share * (to - *x));
}

impl Stateful for Lsgd {
    fn save(&self, state: &mut State) {
        let own = Place::PerRank(OnResize::Drop);
        let (sum, count) = *self.losses.now();
        state.put("world", self.of_world.now().clone());
        state.put_at(own, "group", self.of_group.now().clone());
        state.put_at(own, "loss", sum);
        state.put_at(own, "losses", count);
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        let of_world = state.memory("world", self.of_world.now())?;
        let of_group = state.memory("group", self.of_group.now())?;
        let losses = (state.f64("loss")?, state.u64("losses")?);
        self.of_world.set(of_world);
        self.of_group.set(of_group);
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
        let in_world = (step + 1).is_multiple_of(self.settings.period);
        let agrees = if in_world { Agrees::World } else { Agrees::NoRank };
        Plan { agrees, parameters: true, ..Plan::ALONE }
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
        let own = cx.ranks.get(comm.rank()).map_or(cx.agreed_step.loss, |own| own.loss);
        let loss = own.ok_or_else(|| failed(ReduceError::NoLoss { step, rank: comm.rank() }))?;
        check_own(parameters, cx, comm)?;
        let (before, start) = (comm.traffic(), comm.now());
        let LsgdConfig { local, period, pull: of_group, global_pull: of_world, .. } = self.settings;
        let (mut sum, mut count) = *self.losses.now();
        (sum, count) = (sum + loss, count + 1);
        let mean = sum / count as f64;
        let [in_group, in_world] = [local, period].map(|period| (step + 1).is_multiple_of(period));
        if in_group {
            let group = self.group(comm);
            comm.within(&group, |group| follow(mean, parameters, &mut self.of_group, group))
                .map_err(|error| failed(error.into()))?;
        }
        if in_world {
            follow(mean, parameters, &mut self.of_world, comm).map_err(|error| failed(error.into()))?;
        }
        *self.losses.next_mut() = if in_group { (0.0, 0) } else { (sum, count) };
        self.losses.stage();
        pull(parameters, if in_group { of_group } else { of_group / local as f32 }, self.of_group.latest());
        pull(parameters, if in_world { of_world } else { of_world / period as f32 }, self.of_world.latest());
        self.traffic = comm.traffic() - before;
        self.seconds = ExchangeSeconds { exchange: comm.now() - start, ..ExchangeSeconds::default() };
        Ok(Momenta::Keep)
    }

    /// Leaders pull the mean.
    fn conserved(&self, _parameters: &[f32]) -> Option<Vec<f32>> {
        None
    }

    fn report(&self, report: &mut Report) {
        (report.seconds, report.traffic) = (Some(self.seconds), Some(self.traffic));
    }
}

#[cfg(test)]
mod tests;
