//! Configurations on which the laws are tested: representatives of every algorithm, from the lists, and combinations.

use super::{
    AggregatorConfig, CompressorConfig, Config, ControllerConfig, Described, Exchange, Feedback, FeedbackRequirement,
    FeedbackSettings, ReducerConfig, Rule, StrategyConfig,
};
use crate::CompressionFactor;
use crate::compress::{Dense as DenseCompressor, Qsgd, RandomK, ScaledSign, Spec, TopK, ValueKind};
use crate::control::{Adaqs, CostAwareConfig, GraVacConfig, LGreco};
use crate::reduce::{
    ArtemisConfig, GatherConfig, HierarchicalConfig, LadderConfig, MultiStepConfig, PowerSgdConfig, RingConfig,
    SharedRandomKConfig, Sketch, SparseAllReduceConfig, TernaryAllReduceConfig, TwoWayConfig,
};
use crate::wrapper::{DianaConfig, Momentum};

fn factor(value: f64) -> CompressionFactor {
    CompressionFactor::constant(value)
}

/// Returns the feedback with which a reducer is tested: error feedback if the reducer needs one.
fn feedback_of(reducer: &ReducerConfig) -> Feedback {
    if reducer.get().traits().needs_feedback { Feedback::Error } else { Feedback::None }
}

fn top_k(values: ValueKind) -> ReducerConfig {
    ReducerConfig::gather(TopK::factor(factor(8.0)).with_values(values).into())
}

/// Returns a compressor that the feedback can work with. Some need an unbiased one.
fn compressed(feedback: Feedback, values: ValueKind) -> ReducerConfig {
    match feedback.get().requirement() {
        FeedbackRequirement::Unbiased => ReducerConfig::gather(Qsgd::representative().into()),
        FeedbackRequirement::Nothing | FeedbackRequirement::Bounded | FeedbackRequirement::Contractive => top_k(values),
    }
}

/// Returns the settings of a feedback under a controller, if those differ.
fn feedback_under(feedback: Feedback, controller: &ControllerConfig) -> Feedback {
    let changed = Some(feedback.get()).filter(|_| *controller != ControllerConfig::None);
    changed.and_then(FeedbackSettings::under_controller).unwrap_or(feedback)
}

/// The representative of GraVAC, with another `epsilon`.
fn gravac(epsilon: f64) -> GraVacConfig {
    GraVacConfig { epsilon, ..representative() }
}

/// Returns the reducer, with a message per slot if the controller decides a ratio per slot.
fn reducer_under(controller: &ControllerConfig, reducer: ReducerConfig) -> ReducerConfig {
    let compressor = reducer.get().compressor().filter(|_| controller.get().per_slot());
    compressor.map_or(reducer, ReducerConfig::gather_per_slot)
}

/// Returns the first representative.
fn representative<T: Described>() -> T {
    T::representatives().swap_remove(0)
}

/// Returns every strategy with the exchanges on which it is tested.
pub fn representatives() -> Vec<Config> {
    let with = |strategy: StrategyConfig| {
        let exchanges = strategy.get().exchanges();
        exchanges.into_iter().map(move |exchange| Config { strategy: strategy.clone(), exchange })
    };
    StrategyConfig::all().into_iter().flat_map(with).collect()
}

/// Returns one exchange per algorithm, and combinations of parts that interact. The laws test them with an exchange at every step.
pub fn exchanges() -> Vec<Exchange> {
    let mut exchanges = Vec::new();
    let diana = Feedback::from(DianaConfig::default());
    let mut add = |exchange: Exchange| exchanges.push(exchange);
    for reducer in ReducerConfig::all() {
        let feedback = feedback_of(&reducer);
        add(Exchange { reducer, feedback, ..Exchange::default() });
    }
    for compressor in CompressorConfig::all() {
        for per_slot in [false, true] {
            let reducer = ReducerConfig::from(GatherConfig { compressor, per_slot });
            let feedback = feedback_of(&reducer);
            add(Exchange { reducer, feedback, dense_below: Some(0), ..Exchange::default() });
        }
    }
    for values in [ValueKind::F16, ValueKind::Q8] {
        add(Exchange { reducer: top_k(values), feedback: Feedback::Error, ..Exchange::default() });
    }
    for aggregator in AggregatorConfig::all() {
        let dense = ReducerConfig::gather(DenseCompressor.into());
        let sign = ReducerConfig::gather_per_slot(ScaledSign::representative().into());
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
        let reducer = MultiStepConfig { rounds: 2, inner: Box::new(inner) }.into();
        add(Exchange { reducer, feedback, bucket_values: Some(32), ..Exchange::default() });
    }
    let momentum = Feedback::Momentum(Momentum { clip: Some(3.0), ..Momentum::default() });
    for feedback in [Feedback::None, Feedback::Error, momentum] {
        let sketch = Sketch { factor: factor(10.0), candidates: 2, ..Sketch::default() };
        for reducer in [SparseAllReduceConfig { factor: factor(4.0) }.into(), ReducerConfig::from(sketch)] {
            add(Exchange { reducer, feedback, bucket_values: Some(32), ..Exchange::default() });
        }
    }
    // Compression per machine, under a feedback on each of its ranks.
    for hierarchical in HierarchicalConfig::representatives() {
        add(Exchange { reducer: hierarchical.clone().into(), feedback: momentum, ..Exchange::default() });
        let (reducer, bucket_values) = (hierarchical.into(), Some(32));
        add(Exchange { reducer, feedback: momentum, bucket_values, ..Exchange::default() });
    }
    // Variable bits and ratios, for slots in different buckets, with and without a residual.
    let bits = || ReducerConfig::gather(Qsgd::representative().into());
    for (controller, reducer, feedback) in [
        (ControllerConfig::from(representative::<Adaqs>()), bits(), Feedback::None),
        (representative::<LGreco>().into(), bits(), Feedback::None),
        (representative::<LGreco>().into(), top_k(ValueKind::Q8), Feedback::Error),
        (representative::<LGreco>().into(), top_k(ValueKind::F32), momentum),
    ] {
        let (reducer, bucket_values) = (reducer_under(&controller, reducer), Some(32));
        add(Exchange { reducer, feedback, controller, bucket_values, dense_below: Some(0), ..Exchange::default() });
    }
    // Alternating rings, messages and dense exchanges, with one residual.
    for feedback in [Feedback::None, Feedback::Error, momentum] {
        let (reducer, controller) = (LadderConfig::default().into(), representative::<CostAwareConfig>().into());
        add(Exchange { reducer, feedback, controller, ..Exchange::default() });
    }
    // Random coordinates keep less energy: about 1/4 of it at 4x.
    let gravac = ControllerConfig::from(GraVacConfig { dense_steps: 1, ..gravac(0.2) });
    let shared = SharedRandomKConfig { factor: factor(8.0), scaled: false }.into();
    let (controller, bucket_values) = (gravac, Some(32));
    add(Exchange { reducer: shared, feedback: Feedback::Error, controller, bucket_values, ..Exchange::default() });
    let scaled = ReducerConfig::from(SharedRandomKConfig { factor: factor(8.0), scaled: true });
    for feedback in [Feedback::None, diana] {
        add(Exchange { reducer: scaled.clone(), feedback, ..Exchange::default() });
    }
    // A rule for weights, dense exchanges for very small slots, and the main reducer for the rest.
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
    ruled(PowerSgdConfig { rank: 2 }.into(), top_k(ValueKind::F32), Feedback::Error);
    ruled(top_k(ValueKind::F32), PowerSgdConfig { rank: 1 }.into(), Feedback::Error);
    let controller = ControllerConfig::from(self::gravac(0.75));
    let (reducer, rules) = (top_k(ValueKind::F32), rules("*bias", top_k(ValueKind::F32)));
    exchanges.push(Exchange { reducer, feedback: momentum, controller, rules, ..Exchange::default() });
    for (clip, bucket_values) in [(f32::INFINITY, None), (2.5, Some(32))] {
        exchanges.push(Exchange {
            reducer: TernaryAllReduceConfig { clip }.into(),
            bucket_values,
            ..Exchange::default()
        });
    }
    // The loss of a hop under feedback, and rings of buckets.
    for (ring, feedback) in
        RingConfig::representatives().into_iter().zip([Feedback::Error, Feedback::Error, Feedback::Error, momentum])
    {
        exchanges.push(Exchange { reducer: ring.into(), feedback, bucket_values: Some(2000), ..Exchange::default() });
    }
    if cfg!(feature = "rayon") {
        let (reducer, feedback) = (top_k(ValueKind::Q8), Feedback::Error);
        exchanges.push(Exchange { reducer, feedback, threads: Some(2), ..Exchange::default() });
    }
    // A memory per bucket, and one per round.
    let low_rank = ReducerConfig::from(PowerSgdConfig { rank: 1 });
    let rounds = MultiStepConfig { rounds: 2, inner: Box::new(low_rank.clone()) }.into();
    for reducer in [low_rank, rounds] {
        let (feedback, bucket_values) = (Feedback::Error, Some(32));
        exchanges.push(Exchange { reducer, feedback, bucket_values, ..Exchange::default() });
    }
    for artemis in ArtemisConfig::representatives() {
        exchanges.push(Exchange { reducer: artemis.into(), bucket_values: Some(32), ..Exchange::default() });
    }
    let reducer = ReducerConfig::from(TwoWayConfig { per_slot: true, ..TwoWayConfig::default() });
    for bucket_values in [None, Some(32)] {
        let (reducer, feedback, dense_below) = (reducer.clone(), Feedback::Error, Some(0));
        exchanges.push(Exchange { reducer, feedback, dense_below, bucket_values, ..Exchange::default() });
    }
    let (reducer, aggregator) =
        ("two-way:sign,down=dense".parse().expect("settings"), "median".parse().expect("a name"));
    exchanges.push(Exchange { reducer, aggregator, feedback: Feedback::Error, ..Exchange::default() });
    // Buckets: one gather per bucket, several dependent calls, and controller decisions.
    let sketch = Sketch { factor: factor(10.0), candidates: 2, ..Sketch::default() }.into();
    let gathered = compressed(diana, ValueKind::F32);
    for (reducer, feedback) in [(top_k(ValueKind::Q8), Feedback::Error), (sketch, momentum), (gathered, diana)] {
        let bucket_values = Some(32);
        exchanges.push(Exchange { reducer, feedback, bucket_values, ..Exchange::default() });
    }
    let (reducer, controller) = (top_k(ValueKind::F32), ControllerConfig::from(self::gravac(0.75)));
    let (feedback, bucket_values) = (Feedback::Error, Some(32));
    exchanges.push(Exchange { reducer, feedback, controller, bucket_values, ..Exchange::default() });
    exchanges
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
            let requirement = feedback.get().requirement();
            let diana = requirement == FeedbackRequirement::Unbiased;
            for (text, refused) in [("randk:8x", diana), ("randk:8x:scaled", !diana && requirement.remembers())] {
                let reducer = ReducerConfig::gather(text.parse().unwrap());
                let built = Exchange { reducer, feedback, ..Exchange::default() }.build_reducer(&layout, 1);
                assert_eq!(built.is_err(), refused, "{text}, {feedback:?}");
            }
        }
    }

    #[test]
    fn a_controller_needs_a_knob_and_for_each_slot_a_message_of_its_own() {
        let layout = crate::Layout::new([("weight", vec![64]), ("bias", vec![8])]);
        let built = |text: &str, controller| {
            let reducer = toml::from_str(text).unwrap();
            let exchange = Exchange { reducer, controller, dense_below: Some(0), ..Exchange::default() };
            exchange.build_reducer(&layout, 2).map(drop).map_err(|error| error.to_string())
        };
        let [for_all, for_each] = [ControllerConfig::Adaqs(representative()), representative::<LGreco>().into()];
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
            "strategy = \"local-sgd:2\"\nsome = 1",
            "strategy = \"every-step\"\nreducer = { kind = \"power-sgd\", rank = 1, ranks = 1 }",
            "strategy = \"sometimes\"",
        ] {
            assert!(toml::from_str::<Config>(text).is_err(), "{text}");
        }
    }
}
