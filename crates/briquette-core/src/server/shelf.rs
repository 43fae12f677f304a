//! Where a rank's part of a server's world is kept while its workers are idle, in the place of a strategy.

use super::Server;
use crate::Session;
use crate::error::{StateError, SyncError};
use crate::report::Report;
use crate::state::{OnResize, Place, State, Stateful};
use crate::sync::{Context, Plan, SyncStrategy};

/// What a server, or a worker, has saved; nothing before it has begun. Whoever saves strategies with their checkpoints so saves these.
///
/// It exchanges nothing: a step that all ranks take together is refused.
///
/// ```
/// use briquette_core::server::Shelf;
/// use briquette_core::state::{State, Stateful};
///
/// let mut state = State::default();
/// Shelf::new(2, 3).save(&mut state);
/// assert!(!Shelf::has_begun(&state));
/// assert!(Shelf::new(2, 4).load(&state).unwrap_err().to_string().contains("`world` is 3"));
/// ```
#[derive(Debug)]
pub struct Shelf {
    len: usize,
    world: usize,
    begun: Option<State>,
}

const WORLD: &str = "world";
/// There is more than the world.
const BEGUN: &str = "begun";

impl Shelf {
    /// Of a model of `len` values, in a world of so many ranks.
    pub fn new(len: usize, world: usize) -> Self {
        Shelf { len, world, begun: None }
    }

    /// Marks what a server or a worker of such a world has saved, so that it can be [loaded](Stateful::load).
    pub fn mark(state: &mut State, world: usize) {
        state.put(WORLD, world as u64);
        state.put(BEGUN, 1_u64);
    }

    /// Whether a server or a worker has saved this.
    pub fn has_begun(state: &State) -> bool {
        state.contains(BEGUN)
    }
}

impl Stateful for Shelf {
    fn save(&self, state: &mut State) {
        let Some(begun) = &self.begun else { return state.put(WORLD, self.world as u64) };
        for (name, value) in begun.iter() {
            state.put_at(Place::PerRank(OnResize::Drop), name, value.clone());
        }
    }

    /// On every rank alike when a checkpoint is read, so that nothing of it is found wrong by one rank alone when it trains.
    fn load(&mut self, state: &State) -> Result<(), StateError> {
        let world = state.u64(WORLD)?;
        if world != self.world as u64 {
            let here = self.world;
            let expected = format!(
                "{here}: a server's run resumes in a world of its own size. Begin a new run from its model instead"
            );
            return Err(StateError::Mismatch { name: WORLD.to_owned(), expected, got: world.to_string() });
        }
        let begun = Shelf::has_begun(state);
        if begun {
            Server::check(state, self.len)?;
        }
        self.begun = begun.then(|| state.clone());
        Ok(())
    }
}

impl SyncStrategy for Shelf {
    /// Replicas are equal whenever they are looked at. Gradients are asked for, and refused.
    fn plan(&self, _step: u64) -> Plan {
        Plan { gradients: true, replicas_equal: true, ..Plan::ALONE }
    }

    fn after_backward(&mut self, _: &mut Vec<f32>, cx: &Context<'_>, _: &mut Session) -> Result<(), SyncError> {
        Err(SyncError::Served { step: cx.agreed_step.step })
    }

    fn report(&self, _report: &mut Report) {}
}

#[cfg(test)]
mod tests {
    use super::super::{BackupConfig, PolicySettings, Uplink};
    use super::*;
    use crate::compress::Dense;

    fn saved(save: impl FnOnce(&mut State)) -> State {
        let mut state = State::default();
        save(&mut state);
        Shelf::mark(&mut state, 3);
        state
    }

    #[test]
    fn what_a_server_or_a_worker_saved_comes_back() {
        let policy = BackupConfig { ranks: 1, spare: 1 }.build(2).unwrap();
        let server = saved(|state| Server::new(policy, vec![1.0; 4], 2).at_version(5).save(state));
        let worker = saved(|state| Uplink::new(Dense, true).save(state));
        for state in [server, worker] {
            let mut shelf = Shelf::new(4, 3);
            shelf.load(&state).unwrap();
            let mut again = State::default();
            shelf.save(&mut again);
            assert!(Shelf::has_begun(&again) && state.iter().eq(again.iter()));
            assert!(Shelf::new(4, 5).load(&state).unwrap_err().to_string().contains("`world` is 3, expected 5"));
        }
    }

    #[test]
    fn a_memory_of_another_model_is_refused_and_nothing_changes() {
        let state = saved(|state| {
            state.put("residual", vec![1.0_f32; 5]);
            state.put("taken", 1_u64);
        });
        let mut shelf = Shelf::new(4, 3);
        let error = shelf.load(&state).unwrap_err().to_string();
        assert!(error.contains("`residual` is 5 f32 values, expected 4"), "{error}");
        assert!(shelf.begun.is_none());
        assert!(shelf.load(&State::default()).is_err(), "of something else");
    }
}
