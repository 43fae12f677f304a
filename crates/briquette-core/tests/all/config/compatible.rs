//! Parts of an exchange that cannot work together, and the errors that name them.

use briquette_core::config::{
    Config, ControllerConfig, Described, Exchange, Feedback, FeedbackRequirement, ReducerConfig, Rule,
};
use briquette_core::control::schedule::ScheduleConfig;
use briquette_core::wrapper::{error_feedback::ErrorInside, momentum_correction::MomentumCorrectionConfig};
use briquette_core::{CompressionRatio, Layout};
use briquette_zoo::control::{adaqs::Adaqs, l_greco::LGreco};
use briquette_zoo::wrapper::shifted::{Diana, Ef21};

fn exchange(reducer: &str, feedback: Feedback) -> Exchange {
    let reducer: Config = toml::from_str(&format!("strategy = 'every-step'\nreducer = {{ {reducer} }}")).unwrap();
    Exchange { feedback, dense_below: Some(0), ..reducer.exchange }
}

#[test]
fn memories_refuse_compressors_they_cannot_work_with() {
    briquette_zoo::install();
    let diana = |alpha| Feedback::from(Diana { alpha });
    let qsgd = "kind = 'gather', compressor = 'qsgd:2:512:l2'";
    let (top_k, power) = ("kind = 'gather', compressor = 'topk:0.1'", "kind = 'power-sgd', rank = 1");
    for (reducer, feedback, says) in [
        (top_k, diana(None), "use feedback ef21"),
        (power, diana(None), "use feedback ef21"),
        (qsgd, diana(Some(0.5)), "at most 1/(1+omega)"),
        (qsgd, diana(Some(0.0)), "in (0, 1]"),
        (qsgd, diana(Some(f32::NAN)), "in (0, 1]"),
        (qsgd, Ef21.into(), "use feedback diana"),
        (power, Ef21.into(), "use feedback error"),
        ("kind = 'shared-random-k', ratio = 10.0, scaled = true", Ef21.into(), "use feedback diana"),
    ] {
        let error = exchange(reducer, feedback.clone())
            .build_reducer(&Layout::flat(1000), 2)
            .map(drop)
            .unwrap_err()
            .to_string();
        assert!(error.contains(says), "{reducer}, {feedback}: {error}");
    }
    let momentum = Feedback::from(MomentumCorrectionConfig::default());
    for (reducer, omega) in [
        (qsgd, "22.6"),
        ("kind = 'gather', compressor = 'qsgd:2:512:l2', per_slot = true", "22.6"),
        // A table's row without feedback: s = 4 and n = 512, so min(512/16, sqrt(512)/4).
        ("kind = 'gather', compressor = 'qsgd:s4:512:l2:elias'", "5.66"),
        ("kind = 'gather', compressor = 'terngrad:none'", "15.3"),
        ("kind = 'gather', compressor = 'topk:10x+qsgd:2:512:l2'", ""),
        ("kind = 'multi-step', rounds = 1, inner = { kind = 'gather', compressor = 'qsgd:2:512:l2' }", "22.6"),
        ("kind = 'ternary-all-reduce', clip = 2.5", ""),
    ] {
        for feedback in [Feedback::error(), ErrorInside.into(), momentum.clone()] {
            let built = exchange(reducer, feedback.clone()).build_reducer(&Layout::flat(1000), 2);
            let error = built.map(drop).expect_err(reducer).to_string();
            assert!(error.contains("not contractive") && error.contains(omega), "{reducer}, {feedback}: {error}");
        }
    }
    // A compressor that is not contractive is refused in a rule as well; a contractive one is not.
    let ruled = format!("reducer = 'dense'\nrules = [{{ slots = '*', reducer = {{ {qsgd} }} }}]");
    let ruled: Config = toml::from_str(&ruled).unwrap();
    let ruled = Exchange { feedback: Feedback::error(), dense_below: Some(0), ..ruled.exchange };
    assert!(ruled.build_reducer(&Layout::flat(1000), 2).map(drop).unwrap_err().to_string().contains("not contractive"));
    for reducer in [top_k, power, "kind = 'gather', compressor = 'qsgd:8'", "kind = 'gather', compressor = 'natural'"] {
        exchange(reducer, Feedback::error()).build_reducer(&Layout::flat(1000), 2).map(drop).unwrap();
    }
    // A controller sets the ratio of the main reducer, and not that of a rule.
    let ratio = CompressionRatio::new(8.0).unwrap();
    let turned = |reducer| Exchange {
        controller: ScheduleConfig::constant(ratio).into(),
        ..exchange(reducer, Feedback::error())
    };
    let (q8, layout) = ("kind = 'gather', compressor = 'qsgd:8'", Layout::new([("w", vec![900]), ("b", vec![100])]));
    let error = turned(q8).build_reducer(&layout, 2).map(drop).unwrap_err().to_string();
    assert!(error.contains("under a controller"), "{error}");
    let rule = Rule::compressor("b", "qsgd:8".parse().unwrap()).unwrap();
    Exchange { rules: vec![rule], ..turned(top_k) }.build_reducer(&layout, 2).map(drop).unwrap();
    let controller = ScheduleConfig::constant(ratio).into();
    let adaptive = Exchange { controller, ..exchange(qsgd, diana(None)) };
    let error = adaptive.build_reducer(&Layout::flat(1000), 2).map(drop).unwrap_err().to_string();
    assert!(error.contains("set alpha"), "{error}");
}

#[test]
fn scaled_random_k_builds_without_a_residual_only() {
    briquette_zoo::install();
    let layout = Layout::new([("weight", vec![64])]);
    for feedback in Feedback::all() {
        let requirement = feedback.get().requirement();
        let diana = requirement == FeedbackRequirement::Unbiased;
        for (text, refused) in [("randk:8x", diana), ("randk:8x:scaled", !diana && requirement.keeps_state())] {
            let reducer = ReducerConfig::gather(text.parse().unwrap());
            let exchange = Exchange { reducer, feedback: feedback.clone(), ..Exchange::default() };
            assert_eq!(exchange.build_reducer(&layout, 1).is_err(), refused, "{text}, {feedback}");
        }
    }
}

#[test]
fn a_controller_needs_a_knob_and_for_each_slot_a_message_of_its_own() {
    briquette_zoo::install();
    let layout = Layout::new([("weight", vec![64]), ("bias", vec![8])]);
    let built = |text: &str, controller| {
        let reducer = toml::from_str(text).unwrap();
        let exchange = Exchange { reducer, controller, dense_below: Some(0), ..Exchange::default() };
        exchange.build_reducer(&layout, 2).map(drop).map_err(|error| error.to_string())
    };
    let [for_all, for_each]: [ControllerConfig; 2] =
        [Adaqs::representatives().remove(0).into(), LGreco::representatives().remove(0).into()];
    let whole = "kind = 'gather'\ncompressor = 'topk:8x'";
    let per_slot = format!("{whole}\nper_slot = true");
    assert!(built(whole, for_each.clone()).unwrap_err().contains("per_slot = true"));
    for (text, controller) in [(whole, &for_all), (&per_slot, &for_all), (&per_slot, &for_each)] {
        assert_eq!(built(text, controller.clone()), Ok(()));
    }
    let sign = built("kind = 'gather'\ncompressor = 'sign'", for_all.clone()).unwrap_err();
    assert!(sign.contains("compressor sign has no adjustable ratio; use one of topk, threshold-topk"), "{sign}");
    let power = built("kind = 'power-sgd'\nrank = 1", for_all).unwrap_err();
    assert!(power.contains("reducer power-sgd:1: it") && power.contains("no adjustable ratio; use gather"), "{power}");
}

#[test]
fn a_limit_decides_for_all_slots() {
    briquette_zoo::install();
    let text = "cost-aware:50x,limit=l-greco".parse::<ControllerConfig>().unwrap();
    let error = text.get().build(&Feedback::error(), 4).map(drop).unwrap_err().to_string();
    assert!(error.contains("a limit that decides for each slot"), "{error}");
}

#[test]
fn strategies_that_exchange_differences_refuse_feedback_in_units_of_a_rate() {
    briquette_zoo::install();
    // A residual in units of the rate would be multiplied by the ratio of two rates, but differences already contain the rates.
    for strategy in ["local-sgd:4", "slowmo:4", "bmuf:4", "diloco:4", "streaming-diloco:4,fragments=1", "cocod:4"] {
        for (feedback, what) in [("error-inside", "learning rates included"), ("momentum", "momentum included")] {
            let text = format!("strategy = '{strategy}'\nreducer = 'gather:topk:5x'\nfeedback = '{feedback}'");
            let config: Config = toml::from_str(&text).unwrap();
            let error = config.build(&Layout::flat(10), 2).map(drop).unwrap_err().to_string();
            assert!(error.contains(what) && error.contains("use feedback error"), "{strategy}: {error}");
        }
    }
}

/// With ratios of another ladder, a run that may lose no bit would send bf16 sums or the largest values.
#[test]
fn lossless_ratios_belong_to_a_lossless_ladder() {
    let build = |text: &str| text.parse::<Config>().and_then(|config| config.build(&Layout::flat(10), 4).map(drop));
    for text in
        ["reducer=ladder:rungs=lossless controller=auto:rungs=lossless", "reducer=ladder controller=auto:rungs=int4"]
    {
        build(text).unwrap();
    }
    for (text, instead) in [
        ("reducer=ladder controller=auto:rungs=lossless", "use reducer ladder:rungs=lossless"),
        ("reducer=gather:topk:20x controller=cost-aware:rungs=lossless", "use reducer ladder:rungs=lossless"),
        ("reducer=ladder:rungs=lossless controller=auto", "use controller auto:rungs=lossless"),
        ("reducer=ladder:rungs=lossless", "use controller auto:rungs=lossless"),
    ] {
        let error = build(text).unwrap_err().to_string();
        assert!(error.contains(instead), "{text}: {error}");
    }
}
