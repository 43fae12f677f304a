//! Picky SGD: asynchronous SGD that accepts a gradient only if the model has moved little since the version it was computed at.
//!
//! **Why, and when not.** A delay in itself does no harm: near a stationary point models hardly move, and a gradient that is
//! fifty versions old is as good as a new one. A gradient from a distant model does harm. The policy therefore tests the
//! distance, and the learning rate need not be lowered for the longest delay: progress depends on the *average* delay. If all
//! ranks are equally fast, plain [`async_sgd`](briquette_core::server::async_sgd) avoids the cost of the distance, which is a
//! pass over the parameters.
//!
//! **Method.** When a gradient of version `s` arrives at version `t`:
//!
//! ```text
//! ‖x_t − x_s‖ ≤ ε/(2β):   x_{t+1} = x_t − η·g        else x stays, and the worker gets it anew
//! ```
//!
//! for gradients of norm `ε` of a `β`-smooth function. The server keeps each worker's model, so no delay exceeds the stored
//! history. A rejected gradient is discarded, and the worker's residual is the same as before; otherwise the worker would send
//! the gradient with the next one.
//!
//! | setting | equivalent to |
//! |---|---|
//! | `threshold = inf` | [`async_sgd`](briquette_core::server::async_sgd) |
//! | no delays | SGD |
//!
//! **On the wire.** As for [`async_sgd`](briquette_core::server::async_sgd).
//!
//! **State.** The model, the optimizer and one model for each worker (shared if equal), on the server.
//!
//! **Knobs.** `threshold`, a distance of parameters above 0, default 1; `inf` accepts all.
//!
//! **Deviations.** The optimizer sets the rate, and a run ends after a given number of updates; the paper's constants (`η =
//! min{1, ε²/σ²}/(4β)`) are for proofs.
//!
//! **Reference.** A. Cohen, A. Daniely, Y. Drori, T. Koren, M. Schain, *Asynchronous Stochastic Optimization Robust to Arbitrary Delays*, NeurIPS
//! 2021 (arXiv 2106.11879), algorithm 1.
//!
//! ```
//! use briquette_core::server::{Arrival, PolicySettings, Verdict};
//! use briquette_zoo::server::picky::Picky;
//! let policy = Picky { threshold: 0.5 }.build(2)?;
//! let judge = |distance: f64| policy.judge(&Arrival { version: 1, now: 90, distance: &|| distance });
//! assert_eq!((judge(0.5), judge(0.6)), (Verdict::Accepted, Verdict::Far));
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use briquette_core::config::Described;
use briquette_core::error::ConfigError;
use briquette_core::server::{Arrival, Policy, PolicySettings, Verdict};

/// Accepts gradients from nearby models; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "picky",
    help = "every gradient that was taken within THRESHOLD of the model",
    representatives("picky:0.5", "picky:inf")
)]
pub struct Picky {
    /// Maximum distance from the model at which a gradient was computed.
    #[setting(default = 1.0, range = "(0, inf]")]
    pub threshold: f64,
}

impl PolicySettings for Picky {
    fn build(&self, workers: usize) -> Result<Box<dyn Policy>, ConfigError> {
        briquette_core::server::check(self, workers)?;
        Ok(Box::new(*self))
    }
}

impl Policy for Picky {
    fn judge(&self, arrival: &Arrival<'_>) -> Verdict {
        let near =
            arrival.version == arrival.now || self.threshold.is_infinite() || (arrival.distance)() <= self.threshold;
        if near { Verdict::Accepted } else { Verdict::Far }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::server::async_sgd::AsyncSgd;
    use briquette_testkit::server::{Noisy, simulate};

    /// One gradient in fifty takes a hundred times as long. At any time two thirds of the workers compute such a gradient,
    /// which will be hundreds of versions old.
    const PACES: &str = "0ms,10ms;slow=0.02x100;seed=1";

    #[test]
    fn without_a_threshold_it_takes_all() {
        let noisy = Noisy { rate: 0.05, ..Noisy::default() };
        let all = simulate(&AsyncSgd, 4, PACES, &noisy, 60);
        let picky = simulate(&Picky { threshold: f64::INFINITY }, 4, PACES, &noisy, 60);
        assert_eq!((picky.model, picky.seconds), (all.model, all.seconds));
    }

    /// Claim: at a rate that is good without delays, plain asynchronous SGD does not reach the target, and Picky SGD does.
    #[test]
    fn it_reaches_what_plain_asynchronous_sgd_does_not() {
        let noisy = Noisy { rate: 0.3, noise: 0.05 };
        let workers = 16;
        let plain = simulate(&AsyncSgd, workers, PACES, &noisy, 600);
        let picky = simulate(&Picky { threshold: 0.5 }, workers, PACES, &noisy, 600);
        let (plain_norm, picky_norm) = (noisy.norm(&plain.model), noisy.norm(&picky.model));
        assert!(picky_norm < 0.25 && plain_norm > 4.0 * picky_norm, "{plain_norm} {picky_norm} {:?}", picky.served);
        assert!(picky.served.far > 0 && picky.served.accepted == 600, "{:?}", picky.served);
    }

    #[test]
    fn a_threshold_that_is_none_is_refused() {
        for threshold in [0.0, -1.0, f64::NAN] {
            let error = Picky { threshold }.build(2).unwrap_err().to_string();
            assert!(error.contains("threshold of picky must be above 0"), "{error}");
        }
    }
}
