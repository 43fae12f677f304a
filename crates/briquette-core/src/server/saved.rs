//! Strategy placeholder that holds the saved state of a server or worker, so that checkpoints can save it.

use super::Server;
use crate::Session;
use crate::error::{StateError, SyncError};
use crate::report::Report;
use crate::seam::{Context, Plan, SyncStrategy};
use crate::state::{OnResize, Place, State, Stateful};

/// Saved state of a server or a worker; empty before the first run. Checkpoints save it as they save a strategy.
///
/// It exchanges nothing, and rejects a synchronous step.
///
/// ```
/// use briquette_core::server::ServerState;
/// use briquette_core::state::{State, Stateful};
///
/// let mut state = State::default();
/// ServerState::new(2, 3).save(&mut state);
/// assert!(!ServerState::has_begun(&state));
/// assert!(ServerState::new(2, 4).load(&state).unwrap_err().to_string().contains("`world` is 3"));
/// ```
#[derive(Debug)]
pub struct ServerState {
    len: usize,
    world: usize,
    begun: Option<State>,
}

const WORLD: &str = "world";
/// Field that marks state with more than the world size.
const BEGUN: &str = "begun";

impl ServerState {
    /// Creates an empty state for a model of `len` values and `world` ranks.
    pub fn new(len: usize, world: usize) -> Self {
        ServerState { len, world, begun: None }
    }

    /// Marks state that a server or worker saved in a world of this size, so that it can be [loaded](Stateful::load).
    pub fn mark(state: &mut State, world: usize) {
        state.put(WORLD, world as u64);
        state.put(BEGUN, 1_u64);
    }

    /// Returns whether a server or a worker has saved this state.
    pub fn has_begun(state: &State) -> bool {
        state.contains(BEGUN)
    }
}

/// By hand, because it keeps the saved state of a server or worker without interpreting it.
impl Stateful for ServerState {
    fn save(&self, state: &mut State) {
        let Some(begun) = &self.begun else { return state.put(WORLD, self.world as u64) };
        for (name, value) in begun.iter() {
            state.put_at(Place::PerRank(OnResize::Drop), name, value.clone());
        }
    }

    /// Loads a checkpoint. Makes the same checks on every rank, so that no rank finds an error alone, later, during
    /// training.
    fn load(&mut self, state: &State) -> Result<(), StateError> {
        let world = state.u64(WORLD)?;
        if world != self.world as u64 {
            let here = self.world;
            let expected = format!(
                "{here}: a server's run resumes in a world of its own size. Begin a new run from its model instead"
            );
            return Err(StateError::Mismatch { name: WORLD.to_owned(), expected, got: world.to_string() });
        }
        let begun = ServerState::has_begun(state);
        if begun {
            Server::check(state, self.len)?;
        }
        self.begun = begun.then(|| state.clone());
        Ok(())
    }
}

impl SyncStrategy for ServerState {
    /// Replicas count as equal whenever they are compared. The plan requests gradients, which are then rejected.
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
    use super::*;
    use crate::compress::dense::Dense;
    use crate::server::{PolicySettings, Uplink, async_sgd::AsyncSgd};

    fn saved(save: impl FnOnce(&mut State)) -> State {
        let mut state = State::default();
        save(&mut state);
        ServerState::mark(&mut state, 3);
        state
    }

    #[test]
    fn what_a_server_or_a_worker_saved_comes_back() {
        let policy = AsyncSgd.build(2).unwrap();
        let server = saved(|state| Server::new(policy, vec![1.0; 4], 2).at_version(5).save(state));
        let worker = saved(|state| Uplink::new(Dense, true).save(state));
        for state in [server, worker] {
            let mut server = ServerState::new(4, 3);
            server.load(&state).unwrap();
            let mut again = State::default();
            server.save(&mut again);
            assert!(ServerState::has_begun(&again) && state.iter().eq(again.iter()));
            assert!(ServerState::new(4, 5).load(&state).unwrap_err().to_string().contains("`world` is 3, expected 5"));
        }
    }

    #[test]
    fn a_memory_of_another_model_is_refused_and_nothing_changes() {
        let state = saved(|state| {
            state.put("residual", vec![1.0_f32; 5]);
            state.put("taken", 1_u64);
        });
        let mut server = ServerState::new(4, 3);
        let error = server.load(&state).unwrap_err().to_string();
        assert!(error.contains("`residual` is 5 f32 values, expected 4"), "{error}");
        assert!(server.begun.is_none());
        assert!(server.load(&State::default()).is_err(), "of something else");
    }
}
