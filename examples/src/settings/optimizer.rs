//! Optimizers, chosen by name.

use serde::{Deserialize, Serialize};

/// Burn's SGD and Adam, and those of [`briquette::optim`], with their default settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerKind {
    /// Momentum SGD.
    Sgd,
    /// Adam.
    Adam,
    /// Muon for hidden matrices, Adam for embeddings, output layer, biases and norms.
    Muon,
    /// AMSGrad as Comp-AMS has it.
    CompAms,
    /// Generalized SignSGD.
    SignSgd,
    /// Adam with schedules: --lr over the root of the step.
    GenericAdam,
    /// Delayed AdaGrad.
    DelayedAdagrad,
    /// Delayed AdaGrad with momentum 0.9.
    DelayedAdagradMomentum,
    /// SGD by FTRL: momentum grows, updates shrink, and --lr is divided by the root of the step.
    FtrlSgd,
    /// Adam with the eighth root of the second moment.
    Padamw,
    /// Adam, then steps of the momentum that --feedback one-bit-adam:WARM_UP exchanges.
    OneBitAdam,
}

impl OptimizerKind {
    /// Returns the learning rate that it needs, if it differs from SGD's: its steps do not have the gradient's size.
    pub(crate) fn other_rate(self) -> Option<&'static str> {
        match self {
            OptimizerKind::SignSgd => Some("every value moves by about the learning rate: about a hundredth of SGD's"),
            OptimizerKind::Adam | OptimizerKind::Muon | OptimizerKind::CompAms | OptimizerKind::OneBitAdam => {
                Some("every value moves by about the learning rate: about a fiftieth of SGD's")
            }
            OptimizerKind::Sgd
            | OptimizerKind::GenericAdam
            | OptimizerKind::DelayedAdagrad
            | OptimizerKind::DelayedAdagradMomentum
            | OptimizerKind::FtrlSgd
            | OptimizerKind::Padamw => None,
        }
    }

    /// Returns its name for --optimizer.
    pub(crate) fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map_or_else(String::new, |value| value.get_name().to_owned())
    }
}
