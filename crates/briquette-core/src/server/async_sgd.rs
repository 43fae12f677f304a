//! Asynchronous SGD: every gradient is applied as it arrives, whatever the current model.
//!
//! **Why, and when not.** No rank waits for another: with ranks of different speeds, all compute all the time. A gradient is
//! older than the model that it is applied to, by `W − 1` versions if all ranks are equally fast, and by many more if one is
//! slow. Learning rates that suit synchronous training may diverge: use a lower rate, or policy `picky` of `briquette-zoo`.
//!
//! **Method.** Each worker computes `g = ∇F(x_v)` and receives the newest model. The server, at `x_t`, steps its optimizer with
//! each gradient as it arrives: `x_{t+1} = x_t − γ·g`.
//!
//! | setting | equivalent to |
//! |---|---|
//! | one worker | SGD |
//!
//! **On the wire.** For each gradient, `14 + 4d` bytes to a worker, and `29` bytes and a message from it.
//!
//! **State.** The model and the optimizer, on the server.
//!
//! **Knobs.** None.
//!
//! **Deviations.** None.
//!
//! **Reference.** J. Dean et al., *Large Scale Distributed Deep Networks*, NeurIPS 2012, section 4.1 (Downpour SGD, a fetch and a push at every
//! step, one server).
//!
//! ```
//! use briquette_core::server::{Arrival, async_sgd::AsyncSgd, PolicySettings, Verdict};
//! let policy = AsyncSgd.build(3)?;
//! let late = Arrival { version: 1, now: 90, distance: &|| 1e9 };
//! assert_eq!((policy.judge(&late), policy.quorum(90)), (Verdict::Accepted, 1));
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use super::{Arrival, Policy, PolicySettings, Verdict};
use crate::error::ConfigError;
use crate::settings::Described;

/// Accepts every gradient; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields)]
#[described(name = "async-sgd", help = "every gradient as it comes")]
pub struct AsyncSgd;

impl PolicySettings for AsyncSgd {
    fn build(&self, workers: usize) -> Result<Box<dyn Policy>, ConfigError> {
        super::check(self, workers)?;
        Ok(Box::new(*self))
    }
}

impl Policy for AsyncSgd {
    fn judge(&self, _: &Arrival<'_>) -> Verdict {
        Verdict::Accepted
    }

    fn puts_back(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_alone_is_refused() {
        let error = AsyncSgd.build(0).unwrap_err().to_string();
        assert!(error.contains("async-sgd") && error.contains("at least 2 ranks"), "{error}");
    }
}
