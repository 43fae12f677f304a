//! Lists of this crate's algorithms, by family. They are the only place that names all of them: a new algorithm adds one name. The
//! first of a list is the default of its family.

use super::{
    AggregatorSettings, Algorithm, CompressorKind, CompressorSettings, ControllerConfig, ControllerSettings, Entry,
    Feedback, FeedbackSettings, ReducerConfig, ReducerSettings, StrategyConfig, StrategySettings,
};
use crate::control::no_controller::NoController;
use crate::reduce::dense::Dense;
use crate::server::PolicySettings;
use crate::sync::every_step::EveryStepConfig;
use crate::wrapper::{by_optimizer::ByOptimizer, error_feedback::ErrorFeedbackConfig, no_feedback::NoFeedback};
use crate::{aggregate, compress, control, reduce, server, sync, wrapper};

/// The server policy: treats arriving contributions in asynchronous training.
pub type ServerConfig = Algorithm<dyn PolicySettings>;

impl StrategyConfig {
    /// Gradients are exchanged at every step.
    pub fn every_step() -> Self {
        EveryStepConfig.into()
    }

    /// Returns whether gradients are exchanged at every step.
    pub fn is_every_step(&self) -> bool {
        self.is::<EveryStepConfig>()
    }
}

impl ReducerConfig {
    /// All values are sent exactly.
    pub fn dense() -> Self {
        Dense.into()
    }
}

impl CompressorKind {
    /// Returns whether the compressor selects coordinates.
    pub fn is_sparse(&self) -> bool {
        self.get().traits().is_sparse
    }
}

impl Feedback {
    /// The residual is dropped.
    pub fn none() -> Self {
        NoFeedback.into()
    }

    /// Error feedback: the residual is added to the next vector.
    pub fn error() -> Self {
        ErrorFeedbackConfig::default().into()
    }

    /// The feedback that depends on the optimizer.
    pub fn by_optimizer() -> Self {
        ByOptimizer.into()
    }
}

impl ControllerConfig {
    /// The ratio is the reducer's configured one.
    pub fn none() -> Self {
        NoController.into()
    }

    /// Returns whether the ratio is always the configured one.
    pub fn is_none(&self) -> bool {
        self.is::<NoController>()
    }
}

macro_rules! entries {
    ($($settings:path),* $(,)?) => {
        vec![$(Entry::new::<$settings>()),*]
    };
}

pub(super) fn strategies() -> Vec<Entry<dyn StrategySettings>> {
    entries! {
        sync::every_step::EveryStepConfig,
        sync::periodic::LocalSgd,
        sync::diloco::DiLoCo,
    }
}

pub(super) fn reducers() -> Vec<Entry<dyn ReducerSettings>> {
    entries! {
        reduce::dense::Dense,
        reduce::gather::GatherConfig,
        reduce::shared_random_k::SharedRandomKConfig,
        reduce::power_sgd::PowerSgdConfig,
        reduce::ring::RingConfig,
        reduce::ladder::LadderConfig,
        reduce::hierarchical::HierarchicalConfig,
    }
}

pub(super) fn compressors() -> Vec<Entry<dyn CompressorSettings>> {
    entries! {
        compress::dense::Dense,
        compress::half::F16,
        compress::half::Bf16,
        compress::top_k::TopK,
        compress::threshold_top_k::ThresholdTopK,
        compress::hard_threshold::HardThreshold,
        compress::random_k::RandomK,
        compress::min_max::MinMax,
        compress::natural::Natural,
        compress::qsgd::Qsgd,
        compress::tern_grad::TernGrad,
        compress::scaled_sign::ScaledSign,
        compress::plain_sign::PlainSign,
    }
}

pub(super) fn aggregators() -> Vec<Entry<dyn AggregatorSettings>> {
    entries! {
        aggregate::mean::Mean,
    }
}

pub(super) fn feedbacks() -> Vec<Entry<dyn FeedbackSettings>> {
    entries! {
        wrapper::no_feedback::NoFeedback,
        wrapper::error_feedback::ErrorFeedbackConfig,
        wrapper::error_feedback::ErrorInside,
        wrapper::momentum_correction::MomentumCorrectionConfig,
        wrapper::inner_momentum::InnerMomentumConfig,
        wrapper::by_optimizer::ByOptimizer,
    }
}

pub(super) fn controllers() -> Vec<Entry<dyn ControllerSettings>> {
    entries! {
        control::no_controller::NoController,
        control::schedule::ScheduleConfig,
        control::cost_aware::CostAwareConfig,
        control::loss_guard::LossGuardConfig,
        control::delay_limit::DelayLimitConfig,
        control::auto::Auto,
    }
}

pub(super) fn servers() -> Vec<Entry<dyn PolicySettings>> {
    entries! {
        server::async_sgd::AsyncSgd,
    }
}
