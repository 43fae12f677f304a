//! A compressor of your own, under error feedback, compared with the exact mean: `cargo run --example custom_compressor`.

use briquette::DistributedConfig;
use briquette::core::aggregate::mean::Mean;
use briquette::core::reduce::gather::Gather;
use briquette::core::sync::every_step::EveryStep;
use briquette::core::wrapper::{error_feedback::ErrorFeedback, metered::Metered};
use briquette::strategy::custom;
use custom::{FirstBits, Outcome, Saved, train};

fn main() -> Result<(), String> {
    let levels = 3;
    let compressed = || {
        // The settings that ranks compare, and the instance, are made from the same numbers.
        custom(format!("first-bits, {levels} levels, error feedback"), move |_, _| {
            let gather = Gather::new(FirstBits::new(levels), Mean);
            Ok(EveryStep::new(ErrorFeedback::new(Metered::new(gather))))
        })
    };
    show("dense", &train(DistributedConfig::dense, 200, Saved::No)?[0]);
    show("first bits", &train(compressed, 200, Saved::No)?[0]);
    Ok(())
}

fn show(name: &str, outcome: &Outcome) {
    println!("{name:>12}: loss {:.5}, {} kB sent", outcome.losses[outcome.losses.len() - 1], outcome.sent / 1000);
}
