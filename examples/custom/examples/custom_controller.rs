//! A controller of your own that sets the ratio of an existing compressor: `cargo run --example custom_controller`.

use briquette::core::aggregate::Mean;
use briquette::core::compress::TopK;
use briquette::core::reduce::Gather;
use briquette::core::sync::EveryStep;
use briquette::core::wrapper::{Adaptive, ErrorFeedback, Metered};
use briquette::strategy::custom;
use custom::{Saved, WhileItHelps, train};

fn main() -> Result<(), String> {
    let (window, limit) = (10, 32.0);
    let strategy = || {
        custom(format!("top-k, while it helps: windows of {window}, up to {limit}x"), move |_, _| {
            let gather = Gather::new(TopK::fraction(0.1)?, Mean);
            let adaptive = Adaptive::new(gather, WhileItHelps::new(window, limit))?;
            Ok(EveryStep::new(ErrorFeedback::new(Metered::new(adaptive))))
        })
    };
    let outcome = &train(strategy, 200, Saved::No)?[0];
    let (loss, ratio) = (outcome.losses[outcome.losses.len() - 1], outcome.ratio.unwrap_or(1.0));
    println!("loss {loss:.5}, {} kB sent, the last step at {ratio}x", outcome.sent / 1000);
    Ok(())
}
