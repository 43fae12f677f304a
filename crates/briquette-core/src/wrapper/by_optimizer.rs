//! Selects error feedback or inner momentum according to the optimizer that applies the average.
//!
//! **Why, and when not.** Under an optimizer with heavy-ball momentum, [`InnerMomentum`](crate::wrapper::inner_momentum::InnerMomentum) loses less
//! accuracy than [`ErrorFeedback`]. Under Adam and others it does not work. The code that builds the exchange may not know the optimizer. If it does,
//! name the feedback directly.
//!
//! **Method.** [`Config::for_optimizer`](crate::config::Config::for_optimizer) replaces this setting once the optimizer is known: by
//! `inner-momentum:m` for SGD with heavy-ball momentum `m`, and by `error` for any other. If it is never called, the feedback is `error`.
//!
//! **Properties, state.** Those of the replacement.
//!
//! **Source.** This project.

use super::error_feedback::ErrorFeedback;
use crate::Layout;
use crate::error::ConfigError;
use crate::seam::Reducer;
use crate::settings::{Described, Exchange, FeedbackRequirement, FeedbackSettings};

/// Placeholder until the optimizer is known; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[described(name = "by-optimizer", help = "inner-momentum around SGD with momentum, error around any other optimizer")]
pub struct ByOptimizer;

impl FeedbackSettings for ByOptimizer {
    fn wrap(&self, inner: Box<dyn Reducer>, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(ErrorFeedback::new(inner)))
    }

    fn requirement(&self) -> FeedbackRequirement {
        FeedbackRequirement::Bounded
    }

    fn is_identity_when_dense(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::Local;
    use crate::seam::{AgreedStep, Round};
    use crate::{Key, Session};

    /// Of (3, 2), 3 is sent; then 2 + 2.
    #[test]
    fn without_an_optimizer_it_is_error_feedback() {
        let feedback = crate::settings::Feedback::by_optimizer();
        let exchange = Exchange { reducer: "gather:topk:2x".parse().unwrap(), feedback, ..Exchange::default() };
        let (layout, mut comm) = (Layout::flat(2), Local::world(1).remove(0));
        let mut reducer = exchange.build_reducer(&layout, 1).unwrap();
        let mut step = |comm: &mut Session| {
            let mut average = [0.0; 2];
            let (key, slots, agreed_step) = (Key::new(0), layout.slots(), &AgreedStep::default());
            let round = Round { key, slots, agreed_step, input: &[3.0, 2.0], average: &mut average, sent: None };
            reducer.exchange(round, comm).unwrap();
            average
        };
        assert_eq!([step(&mut comm), step(&mut comm)], [[3.0, 0.0], [0.0, 4.0]]);
    }
}
