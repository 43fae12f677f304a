//! Sufficient condition for convergence, for the schedules that the settings allow.
//!
//! | paper | for `α_t = η/t^s`, `1 − θ_t ∝ t^−r` |
//! |---|---|
//! | 1. `β_t ≤ β < 1`, and `β < √θ₁` | as it stands |
//! | 2. `θ_t` in (0, 1) does not decrease | holds for all settings |
//! | 3. `χ_t = α_t/√(1 − θ_t)` almost does not increase | `χ_t ∝ t^(r/2 − s)`: `r ≤ 2s` |
//! | 4. `Σ α_t·√(1 − θ_t)/(T·α_T) → 0` | goes with `T^−min(r/2, 1 − s)`: `r > 0` and `s < 1` |
//!
//! The paper's `0 ≤ r ≤ 2s < 2` allows `r = 0`, a constant `θ`. Then the bound of condition 4 does not vanish: the iterates only
//! reach a neighborhood. It is refused here. `θ₁ = 0` is allowed if `β = 0`, which is AdaGrad.

use super::GenericAdamConfig;

/// The part of the condition that settings do not meet.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Unmet {
    /// Condition 1: momentum is too large for the second moment.
    #[error(
        "condition 1: beta_1 must be below the root of θ₁, {root}, got {beta}; make theta_from larger, or beta_1 smaller"
    )]
    Momentum {
        /// `β`.
        beta: f64,
        /// `√θ₁`.
        root: f64,
    },
    /// Condition 3: the rates of coordinates increase.
    #[error("condition 3: theta_power must be at most twice rate_power, {twice}, got {theta_power}")]
    Rising {
        /// `r`.
        theta_power: f64,
        /// `2s`.
        twice: f64,
    },
    /// Condition 4: the decay rate of the second moment is constant.
    #[error("condition 4: theta_power must be above 0: with a constant θ of {theta} only a neighbourhood is reached")]
    Constant {
        /// `θ`.
        theta: f64,
    },
    /// Condition 4: rates decrease too fast.
    #[error("condition 4: rate_power must be below 1, got {rate_power}")]
    Falling {
        /// `s`.
        rate_power: f64,
    },
}

impl GenericAdamConfig {
    /// Checks that convergence is proven for these schedules, for bounded gradients and a smooth loss.
    ///
    /// # Errors
    /// The first part of the condition that is not met.
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
