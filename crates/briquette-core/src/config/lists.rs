//! Lists of the algorithms of each family. They are the only place that names all of them: a new algorithm adds one name.

use super::family::family;
use super::{AggregatorSettings, ControllerSettings, FeedbackSettings, ReducerSettings, StrategySettings};
use crate::aggregate::*;
use crate::control::*;
use crate::reduce::*;
use crate::server::*;
use crate::sync::*;
use crate::wrapper::*;

family! {
    /// The strategy: decides when ranks exchange, and whether they exchange gradients or parameters.
    StrategyConfig = EveryStep, "strategy", dyn StrategySettings {
        EveryStep = EveryStepConfig,
        LocalSgd(LocalSgdConfig),
        Slowmo(SlowMoConfig),
        Bmuf(BmufConfig),
        Diloco(DiLoCoConfig),
        StreamingDiloco(StreamingDiLoCoConfig),
        Easgd(EasgdConfig),
        Lsgd(LsgdConfig),
        Sgp(SgpConfig),
        OverlapLocalSgd(OverlapConfig),
        Cocod(CoCoDConfig),
        Minibatch(MinibatchConfig),
        Parle(ParleConfig),
        TwoLevel(TwoLevelConfig),
        Delayed = DelayedConfig,
    }
}

family! {
    /// The reducer: combines vectors.
    ReducerConfig = Dense, "reducer", dyn ReducerSettings {
        Dense = Dense,
        Gather(GatherConfig),
        SharedRandomK(SharedRandomKConfig),
        PowerSgd(PowerSgdConfig),
        MultiStep(MultiStepConfig),
        SparseAllReduce(SparseAllReduceConfig),
        SketchedSgd(Sketch),
        TernaryAllReduce(TernaryAllReduceConfig),
        TwoWay(TwoWayConfig),
        Artemis(ArtemisConfig),
        Mcm(McmConfig),
        Smooth(SmoothConfig),
        Ring(RingConfig),
        Ladder(LadderConfig),
        Hierarchical(HierarchicalConfig),
        Byzantine(ByzantineConfig),
    }
}

family! {
    /// The aggregator: combines contributions into one vector.
    ///
    /// ```
    /// use briquette_core::aggregate::Krum;
    /// use briquette_core::config::AggregatorConfig;
    /// assert_eq!("krum:1,keep=2".parse(), Ok(AggregatorConfig::Krum(Krum { byzantine: 1, keep: 2 })));
    /// let error = "krum:1,kep=2".parse::<AggregatorConfig>().unwrap_err().to_string();
    /// assert!(error.contains("unknown field `kep`, expected `byzantine` or `keep`"), "{error}");
    /// ```
    #[derive(Copy)]
    AggregatorConfig = Mean, "aggregator", dyn AggregatorSettings {
        Mean = Mean,
        Krum(Krum),
        TrimmedMean(TrimmedMean),
        Median = Median,
        GeometricMedian(GeometricMedian),
        Cge(Cge),
        Licm(Licm),
    }
}

family! {
    /// The feedback: handles the residual.
    #[derive(Copy)]
    Feedback = None, "feedback", dyn FeedbackSettings {
        None = NoFeedback,
        Error = ErrorFeedbackConfig,
        ErrorInside = ErrorInsideConfig,
        Momentum(Momentum),
        InnerMomentum(InnerMomentumConfig),
        ByOptimizer = ByOptimizer,
        Diana(DianaConfig),
        Ef21 = Ef21Config,
        RankMomentum(RankMomentumConfig),
        OneBitAdam(OneBitAdamConfig),
    }
}

family! {
    /// The controller: chooses the compression ratio.
    ControllerConfig = None, "controller", dyn ControllerSettings {
        None = NoController,
        Schedule(ScheduleConfig),
        Gravac(GraVacConfig),
        Adaqs(Adaqs),
        LGreco(LGreco),
        Dqsgd(DqSgd),
        Accordion(Accordion),
        CostAware(CostAwareConfig),
        LossGuard(LossGuardConfig),
        DelayLimit(DelayLimitConfig),
        Auto(AutoConfig),
    }
}

family! {
    /// The server policy: applies arriving gradients if ranks do not step together.
    #[derive(Copy)]
    ServerConfig = AsyncSgd, "server", dyn PolicySettings {
        AsyncSgd = AsyncSgd,
        Backup(BackupConfig),
        Picky(PickyConfig),
        AsyncLocalSgd(AsyncLocalSgdConfig),
        Synthesis(SynthesisConfig),
        AsyncLsgd(AsyncLsgdConfig),
        Qsvrg(QsvrgConfig),
    }
}
