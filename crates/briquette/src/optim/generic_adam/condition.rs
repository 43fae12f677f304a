//! The sufficient condition, for the schedules that there are settings of.
//!
//! | paper | for `α_t = η/t^s`, `1 − θ_t ∝ t^−r` |
//! |---|---|
//! | 1. `β_t ≤ β < 1`, and `β < √θ₁` | as it stands |
//! | 2. `θ_t` in (0, 1) does not fall | settings cannot say otherwise |
//! | 3. `χ_t = α_t/√(1 − θ_t)` almost does not rise | `χ_t ∝ t^(r/2 − s)`: `r ≤ 2s` |
//! | 4. `Σ α_t·√(1 − θ_t)/(T·α_T) → 0` | goes with `T^−min(r/2, 1 − s)`: `r > 0` and `s < 1` |
//!
//! The paper's `0 ≤ r ≤ 2s < 2` allows `r = 0`, a constant `θ`, where what condition 4 bounds stays: only a neighbourhood is reached. Here that
//! is refused. `θ₁ = 0` is allowed where `β = 0`, which is AdaGrad.

use super::GenericAdamConfig;

/// Which part of the condition settings do not meet.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Unmet {
    /// The first: momentum is too large for the second moment.
    #[error(
        "condition 1: beta_1 must be below the root of θ₁, {root}, got {beta}; make theta_from larger, or beta_1 smaller"
    )]
    Momentum {
        /// `β`.
        beta: f64,
        /// `√θ₁`.
        root: f64,
    },
    /// The third: rates of coordinates grow.
    #[error("condition 3: theta_power must be at most twice rate_power, {twice}, got {theta_power}")]
    Rising {
        /// `r`.
        theta_power: f64,
        /// `2s`.
        twice: f64,
    },
    /// The fourth: the second moment forgets at one pace.
    #[error("condition 4: theta_power must be above 0: with a constant θ of {theta} only a neighbourhood is reached")]
    Constant {
        /// `θ`.
        theta: f64,
    },
    /// The fourth: rates fall too fast.
    #[error("condition 4: rate_power must be below 1, got {rate_power}")]
    Falling {
        /// `s`.
        rate_power: f64,
    },
}

impl GenericAdamConfig {
    /// Whether convergence is proven for these schedules, where gradients are bounded and the loss is smooth.
    ///
    /// # Errors
    /// The first part of the condition that they do not meet.
    ///
    /// # Panics
    /// A setting is out of its range.
    pub fn sufficient_condition(&self) -> Result<(), Unmet> {
        self.build();
        let (theta, beta) = (1.0 - self.off_theta(1), self.beta_1);
        let (root, twice) = (theta.sqrt(), 2.0 * self.rate_power);
        if self.theta_power == 0.0 {
            return Err(Unmet::Constant { theta });
        }
        if self.rate_power >= 1.0 {
            return Err(Unmet::Falling { rate_power: self.rate_power });
        }
        if self.theta_power > twice {
            return Err(Unmet::Rising { theta_power: self.theta_power, twice });
        }
        if beta >= root && beta > 0.0 {
            return Err(Unmet::Momentum { beta, root });
        }
        Ok(())
    }
}
