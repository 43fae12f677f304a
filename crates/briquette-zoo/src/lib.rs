//! Algorithms from the literature, in addition to those of `briquette-core`.
//!
//! They implement the public traits of [`briquette_core`], as algorithms of any other crate would, and pass the same laws. A
//! [`catalogue()`] lists them. Once it is [installed](install()), texts, tables and flags may name them like core's own.
//!
//! ```
//! use briquette_core::config::Config;
//! assert!("strategy=cocod:8".parse::<Config>().is_err());
//! briquette_zoo::install();
//! let config: Config = "strategy=cocod:8".parse()?;
//! assert_eq!(config.strategy.get().local_steps(), Some(8));
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```
//!
//! | family | algorithms |
//! |---|---|
//! | [strategies](sync) | BMUF, CoCoD-SGD, delayed averaging, DeMo, DES-LOC, EASGD, eager DiLoCo, LSGD, minibatches of rounds, NoLoCo, overlap local SGD, Parle, SGP, SlowMo, SPARTA, SparseLoCo, streaming DiLoCo, two levels |
//! | [reducers](reduce) | Artemis, DCT of blocks, Hadamard rotation, MCM, multi-step, SketchedSGD, smoothness-aware, sparse all-reduce, ternary all-reduce, two-way |
//! | [compressors](compress) | adaptive random, biased random, bins, exponential dithering, 4-bit floats, lossless, min-max, 1-bit, chunk-wise top-k, Redsync, rounding to powers, SIDCo |
//! | [aggregators](aggregate) | CGE, geometric median, Krum, LICM, median, trimmed mean |
//! | [feedbacks](wrapper) | 1-bit Adam, DIANA, Dion, EF21, EF21-SGDM, momentum per rank; attacks |
//! | [controllers](control) | Accordion, AdaQS, DQ-SGD, GraVAC, L-GreCo |
//! | [server policies](server) | asynchronous Local SGD and LSGD, backup workers, picky, QSVRG, synthesis |

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod aggregate;
pub mod compress;
pub mod control;
pub mod reduce;
pub mod server;
pub mod sync;
pub mod wrapper;

use briquette_core::config::Catalogue;
use briquette_core::error::ConfigError;

/// Returns the algorithms of this crate. To add algorithms of your own, combine both catalogues with [`Catalogue::with`] and install
/// the result.
///
/// ```
/// use briquette_core::config::Catalogue;
/// Catalogue::new().with(&briquette_zoo::catalogue())?;
/// # Ok::<(), briquette_core::error::ConfigError>(())
/// ```
pub fn catalogue() -> Catalogue {
    list().expect("the tests of this crate build every representative")
}

/// Installs the [`catalogue()`] for the process. Does nothing if its algorithms are installed already. Call it before any
/// configuration or flag is read.
///
/// # Panics
/// If a catalogue without these algorithms is installed. Add [`catalogue()`] to that catalogue with [`Catalogue::with`]
/// instead.
pub fn install() {
    let is_there = || Catalogue::is_installed_with(NAME);
    // Another thread may be first.
    if is_there().is_none() && catalogue().install().is_ok() {
        return;
    }
    assert_eq!(
        is_there(),
        Some(true),
        "another catalogue is installed: add `briquette_zoo::catalogue()` to it instead"
    );
}

const NAME: &str = "briquette-zoo";

/// Returns the catalogue. An algorithm is listed after those that its representatives name.
fn list() -> Result<Catalogue, ConfigError> {
    Catalogue::of(NAME)
        .with_compressor::<compress::redsync::Redsync>()?
        .with_compressor::<compress::sidco::Sidco>()?
        .with_compressor::<compress::chunk_top_k::ChunkTopK>()?
        .with_compressor::<compress::biased_random::BiasedRandom>()?
        .with_compressor::<compress::adaptive_random::AdaptiveRandom>()?
        .with_compressor::<compress::exponential_dithering::ExponentialDithering>()?
        .with_compressor::<compress::rounding::Rounding>()?
        .with_compressor::<compress::one_bit::OneBit>()?
        .with_compressor::<compress::bins::Bins>()?
        .with_compressor::<compress::lossless::Lossless>()?
        .with_compressor::<compress::float4::Float4>()?
        .with_strategy::<sync::streaming_diloco::StreamingDiLoCoConfig>()?
        .with_strategy::<sync::eager_diloco::EagerDiLoCo>()?
        .with_strategy::<sync::sparse_loco::SparseLoCo>()?
        .with_strategy::<sync::no_loco::NoLoCo>()?
        .with_strategy::<sync::des_loc::DesLoc>()?
        .with_strategy::<sync::sparta::Sparta>()?
        .with_strategy::<sync::sgp::SgpConfig>()?
        .with_strategy::<sync::slow_mo::SlowMoConfig>()?
        .with_strategy::<sync::bmuf::Bmuf>()?
        .with_strategy::<sync::easgd::EasgdConfig>()?
        .with_strategy::<sync::lsgd::LsgdConfig>()?
        .with_strategy::<sync::overlap_local_sgd::OverlapLocalSgdConfig>()?
        .with_strategy::<sync::cocod::CoCoDConfig>()?
        .with_strategy::<sync::minibatch::MinibatchConfig>()?
        .with_strategy::<sync::parle::ParleConfig>()?
        .with_strategy::<sync::two_level::TwoLevelConfig>()?
        .with_strategy::<sync::delayed::DelayedConfig>()?
        .with_strategy::<sync::demo::DeMoConfig>()?
        .with_reducer::<reduce::multi_step::MultiStepConfig>()?
        .with_reducer::<reduce::hadamard::HadamardConfig>()?
        .with_reducer::<reduce::dct::DctConfig>()?
        .with_reducer::<reduce::sparse_all_reduce::SparseAllReduceConfig>()?
        .with_reducer::<reduce::sketched_sgd::SketchedSgdConfig>()?
        .with_reducer::<reduce::ternary_all_reduce::TernaryAllReduceConfig>()?
        .with_reducer::<reduce::two_way::TwoWayConfig>()?
        .with_reducer::<reduce::artemis::ArtemisConfig>()?
        .with_reducer::<reduce::mcm::Mcm>()?
        .with_reducer::<reduce::smooth::Smooth>()?
        .with_reducer::<wrapper::byzantine::ByzantineConfig>()?
        .with_aggregator::<aggregate::krum::Krum>()?
        .with_aggregator::<aggregate::trimmed_mean::TrimmedMean>()?
        .with_aggregator::<aggregate::median::Median>()?
        .with_aggregator::<aggregate::geometric_median::GeometricMedian>()?
        .with_aggregator::<aggregate::cge::Cge>()?
        .with_aggregator::<aggregate::licm::Licm>()?
        .with_feedback::<wrapper::shifted::Diana>()?
        .with_feedback::<wrapper::shifted::Ef21>()?
        .with_feedback::<wrapper::ef21_sgdm::Ef21Sgdm>()?
        .with_feedback::<wrapper::rank_momentum::RankMomentumConfig>()?
        .with_feedback::<wrapper::one_bit_adam::OneBitAdamConfig>()?
        .with_feedback::<wrapper::dion::DionConfig>()?
        .with_controller::<control::gravac::GraVacConfig>()?
        .with_controller::<control::adaqs::Adaqs>()?
        .with_controller::<control::l_greco::LGreco>()?
        .with_controller::<control::dq_sgd::DqSgd>()?
        .with_controller::<control::accordion::Accordion>()?
        .with_server::<server::backup::Backup>()?
        .with_server::<server::picky::Picky>()?
        .with_server::<server::async_local_sgd::AsyncLocalSgd>()?
        .with_server::<server::synthesis::Synthesis>()?
        .with_server::<server::async_lsgd::AsyncLsgd>()?
        .with_server::<server::qsvrg::Qsvrg>()?
        .with_server::<server::decoupled_diloco::DecoupledDiLoCo>()
}
