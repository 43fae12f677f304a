//! Changes of the world between two steps.

use super::Driver;
use crate::error::{ConfigError, StateError};
use crate::seam::{Agrees, Plan, SyncStrategy};
use crate::state::{OnResize, State};

/// Number of steps whose plans are checked; longer than the periods of the literature.
const LOOK_AHEAD: u64 = 1000;
/// Name of the strategy in a state.
const STRATEGY: &str = "strategy";

/// Returns whether survivors can repeat the exchange of such a step: one of all ranks, after which replicas are equal, or none.
fn is_repeatable(plan: Plan) -> bool {
    let exchanges = plan.gradients != plan.parameters && plan.replicas_equal && plan.agrees == Agrees::World;
    exchanges || !plan.exchanges() && plan.agrees == Agrees::NoRank
}

/// Checks whether survivors of a lost rank can repeat an exchange of `strategy`: all ranks take part in it, replicas are equal after it, and
/// what a rank keeps for itself does not depend on the lost rank's share. Returns whether some steps exchange nothing.
///
/// # Errors
/// [`ConfigError::Conflict`].
pub fn check_elastic(strategy: &dyn SyncStrategy) -> Result<bool, ConfigError> {
    let conflict =
        |with: String, why: &str, instead: &str| Err(ConfigError::conflict("an elastic world", with, why, instead));
    if !(0..LOOK_AHEAD).all(|step| is_repeatable(strategy.plan(step))) {
        let why = "its survivors repeat an exchange, and those of this strategy are not of the same kind for all ranks";
        return conflict("this strategy".to_owned(), why, "use every-step, local-sgd or diloco");
    }
    if strategy.averages_momenta() {
        let why = "the average of momenta follows the commit of a step, and cannot be repeated";
        return conflict("averages of momenta".to_owned(), why, "use momenta=keep or momenta=reset");
    }
    let (mut own, mut coupled) = (State::default(), None);
    strategy.save(&mut own);
    own.clone().for_each_own(&own, |name, resize, _| {
        if !matches!(resize, OnResize::Waits | OnResize::Keep) {
            coupled = Some(name.to_owned());
        }
    });
    if let Some(name) = coupled {
        let why = "without a lost rank's share, it does not agree with what the others keep of it";
        return conflict(format!("the rank-local state `{name}`"), why, "use feedback error, momentum or none");
    }
    Ok((0..LOOK_AHEAD).any(|step| !strategy.plan(step).exchanges()))
}

impl Driver {
    /// Continues in a world of `after` ranks instead of `before` with the strategy `fresh`, which was built for it: this rank's state is
    /// [converted](State::survive).
    ///
    /// # Errors
    /// [`StateError`], if `fresh` is another strategy; nothing has changed.
    pub fn survive(&mut self, mut fresh: Box<dyn SyncStrategy>, before: usize, after: usize) -> Result<(), StateError> {
        let (mut state, mut own) = (State::default(), State::default());
        state.put_part(STRATEGY, &*self.strategy);
        own.put_part(STRATEGY, &*fresh);
        state.survive(&own, before, after);
        state.load_part(STRATEGY, &mut *fresh)?;
        self.strategy = fresh;
        Ok(())
    }
}
