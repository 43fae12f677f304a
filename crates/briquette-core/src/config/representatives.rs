//! One value per algorithm, behind exhaustive matches.

use super::{
    AggregatorConfig, CompressorConfig, Config, ControllerConfig, Described, Exchange, Feedback, Fixed, ReducerConfig,
    Rhythm, Rule, WarmUp,
};
use crate::CompressionFactor;
use crate::compress::{Dense as DenseCompressor, Qsgd, RandomK, ScaledSign, Spec, TopK, ValueKind};
use crate::control::GraVacConfig;
use crate::layer::Momentum;
use crate::reduce::Sketch;

/// Each chain starts at `None` and goes to the next variant until it ends: a new variant that is not linked in does not
/// compile.
trait Chain: Sized {
    fn next(current: Option<&Self>) -> Option<Self>;

    fn all() -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        while let Some(next) = Self::next(all.last()) {
            all.push(next);
        }
        all
    }
}

fn factor(value: f64) -> CompressionFactor {
    CompressionFactor::new(value).expect("a constant of at least 1")
}

impl Chain for ReducerConfig {
    fn next(current: Option<&Self>) -> Option<Self> {
        use ReducerConfig::*;
        Some(match current {
            None => Dense,
            Some(Dense) => Gather { compressor: DenseCompressor.into(), per_slot: false },
            Some(Gather { .. }) => SharedRandomK { factor: factor(8.0), scaled: false },
            Some(SharedRandomK { .. }) => PowerSgd { rank: 2 },
            Some(PowerSgd { .. }) => {
                MultiStep { rounds: 3, inner: Box::new(ReducerConfig::gather(ScaledSign::representative().into())) }
            }
            Some(MultiStep { .. }) => SparseAllReduce { factor: factor(8.0) },
            Some(SparseAllReduce { .. }) => {
                SketchedSgd(Sketch { factor: factor(8.0), rows: 3, width: 1.0, candidates: 2 })
            }
            Some(SketchedSgd(_)) => TernaryAllReduce { clip: 2.5 },
            Some(TernaryAllReduce { .. }) => return None,
        })
    }
}

impl Chain for ControllerConfig {
    fn next(current: Option<&Self>) -> Option<Self> {
        use ControllerConfig::*;
        Some(match current {
            Option::None => ControllerConfig::None,
            Some(ControllerConfig::None) => Constant(Fixed { factor: factor(10.0) }),
            Some(Constant(_)) => Schedule(WarmUp { from: factor(2.0), to: factor(16.0), steps: 4 }),
            Some(Schedule(_)) => Gravac(gravac(0.75)),
            Some(Gravac(_)) => Adaqs(representative()),
            Some(Adaqs(_)) => LGreco(representative()),
            Some(LGreco(_)) => return Option::None,
        })
    }
}

/// The first that the laws are tried on.
fn representative<T: Described>() -> T {
    T::representatives().swap_remove(0)
}

/// Where the gain swings about `epsilon`: dense, safe and bold by turns, and bolder after a window.
fn gravac(epsilon: f64) -> GraVacConfig {
    let (min, max, smoothing) = (factor(4.0), factor(16.0), Some(0.9));
    GraVacConfig { min, max, epsilon, smoothing, window: 4, ..GraVacConfig::default() }
}

impl Chain for Feedback {
    fn next(current: Option<&Self>) -> Option<Self> {
        Some(match current {
            None => Feedback::None,
            Some(Feedback::None) => Feedback::Error,
            Some(Feedback::Error) => Feedback::ErrorInside,
            Some(Feedback::ErrorInside) => Feedback::Momentum(Momentum { clip: Some(3.0), ..Momentum::default() }),
            Some(Feedback::Momentum(_)) => Feedback::Diana { alpha: None },
            Some(Feedback::Diana { .. }) => Feedback::Ef21,
            Some(Feedback::Ef21) => return None,
        })
    }
}

/// Whether a reducer with this feedback is worth a representative: compressors that lose energy want feedback.
fn feedback_of(reducer: &ReducerConfig) -> Feedback {
    match reducer {
        ReducerConfig::Dense | ReducerConfig::TernaryAllReduce { .. } => Feedback::None,
        ReducerConfig::PowerSgd { .. }
        | ReducerConfig::SharedRandomK { .. }
        | ReducerConfig::SparseAllReduce { .. }
        | ReducerConfig::SketchedSgd(_) => Feedback::Error,
        ReducerConfig::Gather { compressor, .. } if compressor.needs_feedback() => Feedback::Error,
        ReducerConfig::Gather { .. } => Feedback::None,
        ReducerConfig::MultiStep { inner, .. } => feedback_of(inner),
    }
}

fn top_k(values: ValueKind) -> ReducerConfig {
    ReducerConfig::gather(TopK::factor(factor(8.0)).with_values(values).into())
}

/// A compressor that a feedback can work with: DIANA wants an unbiased one.
fn compressed(feedback: Feedback, values: ValueKind) -> ReducerConfig {
    match feedback {
        Feedback::Diana { .. } => ReducerConfig::gather(Qsgd::representative().into()),
        Feedback::None | Feedback::Error | Feedback::ErrorInside | Feedback::Momentum(_) | Feedback::Ef21 => {
            top_k(values)
        }
    }
}

/// Where the factor changes, DIANA's step is a setting.
fn feedback_under(feedback: Feedback, controller: &ControllerConfig) -> Feedback {
    match (feedback, controller) {
        (Feedback::Diana { .. }, ControllerConfig::None) => feedback,
        (Feedback::Diana { .. }, _) => Feedback::Diana { alpha: Some(0.1) },
        _ => feedback,
    }
}

/// With a message for each slot where a ratio for each is decided.
fn reducer_under(controller: &ControllerConfig, reducer: ReducerConfig) -> ReducerConfig {
    match (controller, reducer) {
        (ControllerConfig::LGreco(_), ReducerConfig::Gather { compressor, .. }) => {
            ReducerConfig::Gather { compressor, per_slot: true }
        }
        (_, reducer) => reducer,
    }
}

/// One configuration per algorithm, and the combinations whose parts touch.
pub fn representatives() -> Vec<Config> {
    let mut exchanges = Vec::new();
    let diana = Feedback::Diana { alpha: None };
    let mut add = |exchange: Exchange| exchanges.push(exchange);
    for reducer in ReducerConfig::all() {
        let feedback = feedback_of(&reducer);
        add(Exchange { reducer, feedback, ..Exchange::default() });
    }
    for compressor in CompressorConfig::all() {
        for per_slot in [false, true] {
            let reducer = ReducerConfig::Gather { compressor, per_slot };
            let feedback = feedback_of(&reducer);
            add(Exchange { reducer, feedback, dense_below: Some(0), ..Exchange::default() });
        }
    }
    for values in [ValueKind::F16, ValueKind::Q8] {
        add(Exchange { reducer: top_k(values), feedback: Feedback::Error, ..Exchange::default() });
    }
    for aggregator in AggregatorConfig::all() {
        let dense = ReducerConfig::gather(DenseCompressor.into());
        let sign = ReducerConfig::Gather { compressor: ScaledSign::representative().into(), per_slot: true };
        for (reducer, feedback) in [(dense, Feedback::None), (sign, Feedback::Error)] {
            add(Exchange { reducer, aggregator, feedback, ..Exchange::default() });
        }
    }
    let random_k = CompressorConfig::from(RandomK::factor(factor(8.0)).scaled());
    add(Exchange { reducer: ReducerConfig::gather(random_k), ..Exchange::default() });
    for feedback in Feedback::all() {
        for controller in ControllerConfig::all() {
            let feedback = feedback_under(feedback, &controller);
            let reducer = reducer_under(&controller, compressed(feedback, ValueKind::F32));
            add(Exchange { reducer, feedback, controller, dense_below: Some(0), ..Exchange::default() });
        }
        add(Exchange { reducer: ReducerConfig::Dense, feedback, ..Exchange::default() });
        let bucket_values = Some(32);
        add(Exchange { reducer: compressed(feedback, ValueKind::Q8), feedback, bucket_values, ..Exchange::default() });
    }
    for (inner, feedback) in [
        (top_k(ValueKind::F32), Feedback::Error),
        (top_k(ValueKind::F32), Feedback::Ef21),
        (compressed(diana, ValueKind::F32), Feedback::None),
        (compressed(diana, ValueKind::F32), diana),
    ] {
        let reducer = ReducerConfig::MultiStep { rounds: 2, inner: Box::new(inner) };
        add(Exchange { reducer, feedback, bucket_values: Some(32), ..Exchange::default() });
    }
    let momentum = Feedback::Momentum(Momentum { clip: Some(3.0), ..Momentum::default() });
    for feedback in [Feedback::None, Feedback::Error, momentum] {
        let sketch = Sketch { factor: factor(10.0), candidates: 2, ..Sketch::default() };
        for reducer in [ReducerConfig::SparseAllReduce { factor: factor(4.0) }, ReducerConfig::SketchedSgd(sketch)] {
            add(Exchange { reducer, feedback, bucket_values: Some(32), ..Exchange::default() });
        }
    }
    // Bits and ratios that change, for slots of different buckets, with and without a residual.
    let bits = || ReducerConfig::gather(Qsgd::representative().into());
    for (controller, reducer, feedback) in [
        (ControllerConfig::Adaqs(representative()), bits(), Feedback::None),
        (ControllerConfig::LGreco(representative()), bits(), Feedback::None),
        (ControllerConfig::LGreco(representative()), top_k(ValueKind::Q8), Feedback::Error),
        (ControllerConfig::LGreco(representative()), top_k(ValueKind::F32), momentum),
    ] {
        let (reducer, bucket_values) = (reducer_under(&controller, reducer), Some(32));
        add(Exchange { reducer, feedback, controller, bucket_values, dense_below: Some(0), ..Exchange::default() });
    }
    // Random coordinates keep less: about 1/4 of the energy at 4x.
    let gravac = ControllerConfig::Gravac(GraVacConfig { dense_steps: 1, ..gravac(0.2) });
    let shared = ReducerConfig::SharedRandomK { factor: factor(8.0), scaled: false };
    let (controller, bucket_values) = (gravac, Some(32));
    add(Exchange { reducer: shared, feedback: Feedback::Error, controller, bucket_values, ..Exchange::default() });
    let scaled = ReducerConfig::SharedRandomK { factor: factor(8.0), scaled: true };
    for feedback in [Feedback::None, diana] {
        add(Exchange { reducer: scaled.clone(), feedback, ..Exchange::default() });
    }
    // Weights by themselves, what is very small dense, and the rest.
    let rules = |slots: &str, reducer| vec![Rule { slots: slots.parse().expect("a pattern"), reducer }];
    let mut ruled = |reducer, weights, feedback| {
        let (rules, dense_below) = (rules("*weight", weights), Some(5));
        exchanges.push(Exchange { reducer, feedback, rules, dense_below, ..Exchange::default() });
    };
    for feedback in Feedback::all() {
        let weights = compressed(feedback, ValueKind::Q8);
        ruled(compressed(feedback, ValueKind::F32), weights, feedback);
        ruled(ReducerConfig::Dense, compressed(feedback, ValueKind::F32), feedback);
    }
    ruled(ReducerConfig::PowerSgd { rank: 2 }, top_k(ValueKind::F32), Feedback::Error);
    let controller = ControllerConfig::Gravac(self::gravac(0.75));
    let (reducer, rules) = (top_k(ValueKind::F32), rules("*bias", top_k(ValueKind::F32)));
    exchanges.push(Exchange { reducer, feedback: momentum, controller, rules, ..Exchange::default() });
    for (clip, bucket_values) in [(f32::INFINITY, None), (2.5, Some(32))] {
        exchanges.push(Exchange {
            reducer: ReducerConfig::TernaryAllReduce { clip },
            bucket_values,
            ..Exchange::default()
        });
    }
    if cfg!(feature = "rayon") {
        let (reducer, feedback) = (top_k(ValueKind::Q8), Feedback::Error);
        exchanges.push(Exchange { reducer, feedback, threads: Some(2), ..Exchange::default() });
    }
    // Buckets that overlap: one gather a bucket, several calls that depend on each other, and decisions.
    let sketch = ReducerConfig::SketchedSgd(Sketch { factor: factor(10.0), candidates: 2, ..Sketch::default() });
    let gathered = compressed(diana, ValueKind::F32);
    for (reducer, feedback) in [(top_k(ValueKind::Q8), Feedback::Error), (sketch, momentum), (gathered, diana)] {
        let bucket_values = Some(32);
        exchanges.push(Exchange { reducer, feedback, bucket_values, overlap: true, ..Exchange::default() });
    }
    let (reducer, controller) = (top_k(ValueKind::F32), ControllerConfig::Gravac(self::gravac(0.75)));
    let (feedback, bucket_values) = (Feedback::Error, Some(32));
    exchanges.push(Exchange { reducer, feedback, controller, bucket_values, overlap: true, ..Exchange::default() });
    let mut all: Vec<Config> = exchanges.into_iter().map(Config::EveryStep).collect();
    all.extend([1, 5].map(|every| Config::Periodic(Rhythm { every })));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_representative_survives_toml() {
        for config in representatives() {
            let text = toml::to_string(&config).unwrap();
            assert_eq!(toml::from_str::<Config>(&text).unwrap(), config, "{text}");
        }
    }

    #[test]
    fn scaled_random_k_builds_without_a_residual_only() {
        let layout = crate::Layout::new([("weight", vec![64])]);
        for feedback in Feedback::all() {
            let diana = matches!(feedback, Feedback::Diana { .. });
            for (text, refused) in [("randk:8x", diana), ("randk:8x:scaled", !diana && feedback != Feedback::None)] {
                let reducer = ReducerConfig::gather(text.parse().unwrap());
                let built = Exchange { reducer, feedback, ..Exchange::default() }.build_reducer(&layout, 1);
                assert_eq!(built.is_err(), refused, "{text}, {feedback:?}");
            }
        }
    }

    #[test]
    fn overlap_needs_buckets() {
        let layout = crate::Layout::new([("weight", vec![64])]);
        let built =
            |bucket_values| Exchange { overlap: true, bucket_values, ..Exchange::default() }.build_reducer(&layout, 2);
        let error = built(None).map(drop).unwrap_err().to_string();
        assert!(error.contains("bucket values"), "{error}");
        assert!(built(Some(8)).is_ok());
    }

    #[test]
    fn a_controller_needs_a_knob_and_for_each_slot_a_message_of_its_own() {
        let layout = crate::Layout::new([("weight", vec![64]), ("bias", vec![8])]);
        let built = |text: &str, controller| {
            let reducer = toml::from_str(text).unwrap();
            let exchange = Exchange { reducer, controller, dense_below: Some(0), ..Exchange::default() };
            exchange.build_reducer(&layout, 2).map(drop).map_err(|error| error.to_string())
        };
        let [for_all, for_each] =
            [ControllerConfig::Adaqs(representative()), ControllerConfig::LGreco(representative())];
        let whole = "kind = 'gather'\ncompressor = 'topk:8x'";
        let per_slot = format!("{whole}\nper_slot = true");
        assert!(built(whole, for_each.clone()).unwrap_err().contains("per_slot = true"));
        for (text, controller) in [(whole, &for_all), (&per_slot, &for_all), (&per_slot, &for_each)] {
            assert_eq!(built(text, controller.clone()), Ok(()));
        }
        let sign = built("kind = 'gather'\ncompressor = 'sign'", for_all.clone()).unwrap_err();
        assert!(sign.contains("compressor sign has none; use one of topk, threshold-topk"), "{sign}");
        let power = built("kind = 'power-sgd'\nrank = 1", for_all).unwrap_err();
        assert!(power.contains("reducer power-sgd has none; use gather"), "{power}");
    }

    #[test]
    fn unknown_settings_are_refused() {
        for text in [
            "strategy = \"every-step\"\nreducre = { kind = \"dense\" }",
            "strategy = \"periodic\"\nevery = 2\nsome = 1",
            "strategy = \"every-step\"\nreducer = { kind = \"power-sgd\", rank = 1, ranks = 1 }",
            "strategy = \"sometimes\"",
        ] {
            assert!(toml::from_str::<Config>(text).is_err(), "{text}");
        }
    }
}
