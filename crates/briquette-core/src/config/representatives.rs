//! Configurations with which the laws are tested: representatives of every algorithm, from the lists, and combinations.

use super::{
    AggregatorConfig, AggregatorSettings, CompressorConfig, CompressorSettings, Config, ControllerConfig,
    ControllerSettings, Described, Exchange, Family, Feedback, FeedbackRequirement, FeedbackSettings, ReducerConfig,
    ReducerSettings, Rule, StrategyConfig, StrategySettings,
};
use crate::CompressionRatio;
use crate::compress::{
    ValueKind, dense::Dense as DenseCompressor, qsgd::Qsgd, random_k::RandomK, scaled_sign::ScaledSign, top_k::TopK,
};
use crate::control::{cost_aware::CostAwareConfig, schedule::ScheduleConfig};
use crate::reduce::{
    gather::GatherConfig, hierarchical::HierarchicalConfig, ladder::Rungs, power_sgd::PowerSgdConfig, ring::RingConfig,
    shared_random_k::SharedRandomKConfig,
};
use crate::wrapper::momentum_correction::MomentumCorrectionConfig;

fn ratio(value: f64) -> CompressionRatio {
    CompressionRatio::constant(value)
}

/// Returns the feedback with which a reducer is tested: error feedback if the reducer needs one.
fn feedback_of(reducer: &ReducerConfig) -> Feedback {
    if reducer.get().traits().needs_feedback { Feedback::error() } else { Feedback::none() }
}

fn top_k(values: ValueKind) -> ReducerConfig {
    ReducerConfig::gather(TopK::ratio(ratio(8.0)).with_values(values).into())
}

/// Returns a compressing reducer that the feedback can work with. Some feedbacks need an unbiased compressor.
fn compressed(feedback: &Feedback, values: ValueKind) -> ReducerConfig {
    match feedback.get().requirement() {
        FeedbackRequirement::Unbiased => ReducerConfig::gather(representative::<Qsgd>().into()),
        FeedbackRequirement::Nothing | FeedbackRequirement::Bounded | FeedbackRequirement::Contractive => top_k(values),
    }
}

/// Returns the settings of a feedback under a controller, if those differ.
fn feedback_under(feedback: &Feedback, controller: &ControllerConfig) -> Feedback {
    let changed = Some(feedback.get()).filter(|_| !controller.is_none());
    changed.and_then(|feedback| feedback.under_controller()).unwrap_or_else(|| feedback.clone())
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
        let named = strategy.get().exchanges();
        let exchanges = if named.is_empty() { exchanges() } else { named };
        exchanges.into_iter().map(move |exchange| Config { strategy: strategy.clone(), exchange })
    };
    StrategyConfig::all().into_iter().flat_map(with).collect()
}

/// Returns one exchange per algorithm, and combinations of parts that interact. The laws test them with an exchange at every step.
pub fn exchanges() -> Vec<Exchange> {
    let mut exchanges = Vec::new();
    let mut add = |exchange: Exchange| exchanges.push(exchange);
    for reducer in ReducerConfig::all() {
        let feedback = feedback_of(&reducer);
        add(Exchange { reducer, feedback, ..Exchange::default() });
    }
    for compressor in CompressorConfig::all() {
        for per_slot in [false, true] {
            let reducer = ReducerConfig::from(GatherConfig { compressor: compressor.clone(), per_slot });
            let feedback = feedback_of(&reducer);
            add(Exchange { reducer, feedback, dense_below: Some(0), ..Exchange::default() });
        }
    }
    for values in [ValueKind::F16, ValueKind::Q8] {
        add(Exchange { reducer: top_k(values), feedback: Feedback::error(), ..Exchange::default() });
    }
    for aggregator in AggregatorConfig::all() {
        let dense = ReducerConfig::gather(DenseCompressor.into());
        let sign = ReducerConfig::gather_per_slot(ScaledSign::default().into());
        for (reducer, feedback) in [(dense, Feedback::none()), (sign, Feedback::error())] {
            add(Exchange { reducer, aggregator: aggregator.clone(), feedback, ..Exchange::default() });
        }
    }
    let random_k = CompressorConfig::from(RandomK::ratio(ratio(8.0)).scaled());
    add(Exchange { reducer: ReducerConfig::gather(random_k), ..Exchange::default() });
    for feedback in Feedback::all() {
        for controller in ControllerConfig::all() {
            let feedback = feedback_under(&feedback, &controller);
            let reducer = reducer_under(&controller, compressed(&feedback, ValueKind::F32));
            add(Exchange { reducer, feedback, controller, dense_below: Some(0), ..Exchange::default() });
        }
        add(Exchange { reducer: ReducerConfig::dense(), feedback: feedback.clone(), ..Exchange::default() });
        let bucket_values = Some(32);
        add(Exchange { reducer: compressed(&feedback, ValueKind::Q8), feedback, bucket_values, ..Exchange::default() });
    }
    let momentum = Feedback::from(MomentumCorrectionConfig { clip: Some(3.0), ..MomentumCorrectionConfig::default() });
    // Compression per machine, under a feedback on each of its ranks.
    for hierarchical in HierarchicalConfig::representatives() {
        add(Exchange { reducer: hierarchical.clone().into(), feedback: momentum.clone(), ..Exchange::default() });
        let (reducer, bucket_values) = (hierarchical.into(), Some(32));
        add(Exchange { reducer, feedback: momentum.clone(), bucket_values, ..Exchange::default() });
    }
    // Alternating rings, messages and dense exchanges, with one residual.
    for feedback in [Feedback::none(), Feedback::error(), momentum.clone()] {
        for rungs in [Rungs::Usual, Rungs::Int4, Rungs::Lossless] {
            let controller = CostAwareConfig { rungs, ..representative() };
            let reducer = controller.reducer().expect("a controller of ladders");
            add(Exchange { reducer, feedback: feedback.clone(), controller: controller.into(), ..Exchange::default() });
        }
    }
    let scaled = ReducerConfig::from(SharedRandomKConfig { ratio: ratio(8.0), scaled: true });
    add(Exchange { reducer: scaled, ..Exchange::default() });
    // A rule for weights, dense exchanges for very small slots, and the main reducer for the rest.
    let rules = |slots: &str, reducer| vec![Rule { slots: slots.parse().expect("a pattern"), reducer }];
    let mut ruled = |reducer, weights, feedback| {
        let (rules, dense_below) = (rules("*weight", weights), Some(5));
        exchanges.push(Exchange { reducer, feedback, rules, dense_below, ..Exchange::default() });
    };
    for feedback in Feedback::all() {
        let weights = compressed(&feedback, ValueKind::Q8);
        ruled(compressed(&feedback, ValueKind::F32), weights, feedback.clone());
        ruled(ReducerConfig::dense(), compressed(&feedback, ValueKind::F32), feedback);
    }
    ruled(PowerSgdConfig { rank: 2 }.into(), top_k(ValueKind::F32), Feedback::error());
    ruled(top_k(ValueKind::F32), PowerSgdConfig { rank: 1 }.into(), Feedback::error());
    let controller = representative::<ScheduleConfig>().into();
    let (reducer, rules) = (top_k(ValueKind::F32), rules("*bias", top_k(ValueKind::F32)));
    exchanges.push(Exchange { reducer, feedback: momentum.clone(), controller, rules, ..Exchange::default() });
    // The rounding error of a hop under feedback, and rings of buckets.
    for (ring, feedback) in RingConfig::representatives().into_iter().zip([
        Feedback::error(),
        Feedback::error(),
        Feedback::error(),
        momentum.clone(),
    ]) {
        exchanges.push(Exchange { reducer: ring.into(), feedback, bucket_values: Some(2000), ..Exchange::default() });
    }
    if cfg!(feature = "rayon") {
        let (reducer, feedback) = (top_k(ValueKind::Q8), Feedback::error());
        exchanges.push(Exchange { reducer, feedback, threads: Some(2), ..Exchange::default() });
    }
    // A memory per bucket.
    let (reducer, feedback) = (ReducerConfig::from(PowerSgdConfig { rank: 1 }), Feedback::error());
    exchanges.push(Exchange { reducer, feedback, bucket_values: Some(32), ..Exchange::default() });
    // Buckets: one gather per bucket.
    let (reducer, feedback) = (top_k(ValueKind::Q8), Feedback::error());
    exchanges.push(Exchange { reducer, feedback, bucket_values: Some(32), ..Exchange::default() });
    exchanges.extend(combinations::<dyn StrategySettings>());
    exchanges.extend(combinations::<dyn ReducerSettings>());
    exchanges.extend(combinations::<dyn CompressorSettings>());
    exchanges.extend(combinations::<dyn AggregatorSettings>());
    exchanges.extend(combinations::<dyn FeedbackSettings>());
    exchanges.extend(combinations::<dyn ControllerSettings>());
    exchanges
}

/// Returns the exchanges that a family's algorithms name themselves.
fn combinations<T: Family + ?Sized>() -> impl Iterator<Item = Exchange> {
    let texts = T::entries().into_iter().flat_map(|entry| entry.combinations);
    texts.map(|text| text.parse::<Config>().unwrap_or_else(|error| panic!("{error}")).exchange)
}

#[cfg(test)]
mod tests {
    use super::*;

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
