//! Selects error feedback or inner momentum according to the optimizer that applies the average.
//!
//! **Why, and when not.** Under momentum, [`InnerMomentum`](super::InnerMomentum) loses less accuracy than [`ErrorFeedback`]; under Adam
//! and others it does not work. The code that builds the exchange may not know the optimizer. If it does, name the feedback directly.
//!
//! **Method.** [`Config::for_optimizer`](crate::config::Config::for_optimizer) replaces this setting as soon as the optimizer is known: by
//! `inner-momentum:m` for SGD with heavy-ball momentum `m`, else by `error`. If that is never called, it is `error`.
//!
//! **Properties, state.** Those of the replacement.
//!
//! **Source.** This project.

use super::ErrorFeedback;
use crate::Layout;
use crate::config::{Described, Exchange, FeedbackRequirement, FeedbackSettings};
use crate::error::ConfigError;
use crate::reduce::Reducer;

/// Placeholder until the optimizer is known; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct ByOptimizer;

impl Described for ByOptimizer {
    const NAME: &'static str = "by-optimizer";
    const HELP: &'static str = "inner-momentum around SGD with momentum, error around any other optimizer";
}

impl FeedbackSettings for ByOptimizer {
    fn wrap(&self, inner: Box<dyn Reducer>, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(ErrorFeedback::new(inner)))
    }

    fn requirement(&self) -> FeedbackRequirement {
        FeedbackRequirement::Bounded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::Local;
    use crate::reduce::{AgreedStep, Round};
    use crate::{Key, Session};

    /// Of (3, 2), 3 is sent; then 2 + 2.
    #[test]
    fn without_an_optimizer_it_is_error_feedback() {
        let feedback = crate::config::Feedback::ByOptimizer;
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
