//! A strategy of your own: `cargo run --example custom_strategy`.

use briquette::strategy::custom;
use custom::{Doubling, Saved, train};

fn main() -> Result<(), String> {
    let strategy = || custom("averages after 1, 2, 4, 8, 16, 32, … steps", |_, _| Ok(Doubling::new(16)));
    let outcome = &train(strategy, 200, Saved::No)?[0];
    println!("loss {:.5}, {} kB sent", outcome.losses[outcome.losses.len() - 1], outcome.sent / 1000);
    Ok(())
}
