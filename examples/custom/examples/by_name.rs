//! Trains with a configuration from a TOML file and flags, with algorithms of this crate and Briquette's:
//! `cargo run --example by_name -- --set controller=while-it-helps:10 --set reducer=ladder`.

use std::process::ExitCode;

use briquette::DistributedConfig;
use briquette::core::Layout;
use briquette::core::config::{ControllerConfig, ReducerConfig, StrategyConfig};
use custom::{RANKS, Saved, catalogue, train};

const USAGE: &str = "Usage: by_name [--config FILE] [--set KEY=VALUE]...

Keys are strategy, reducer, controller, feedback and the others of a configuration. What is not named is chosen.
";

fn help() -> String {
    let families = [
        ("strategy", StrategyConfig::help()),
        ("reducer", ReducerConfig::help()),
        ("controller", ControllerConfig::help()),
    ];
    let lines = families.into_iter().flat_map(|(key, entries)| {
        entries.into_iter().map(move |(syntax, help)| format!("\n  {key}={syntax}\n      {help}"))
    });
    USAGE.to_owned() + &lines.collect::<String>()
}

/// Reads a file and flags, which are lines of that file too.
fn config(arguments: &[String]) -> Result<DistributedConfig, String> {
    let (mut file, mut flags) = (String::new(), toml::Table::new());
    for pair in arguments.chunks(2) {
        match pair {
            [flag, path] if flag == "--config" => {
                file = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
            }
            [flag, setting] if flag == "--set" => {
                let (key, value) = setting.split_once('=').ok_or(format!("--set {setting}: expected KEY=VALUE"))?;
                // A value that is not valid TOML is a text.
                let read = toml::from_str::<toml::Table>(&format!("value = {value}")).ok();
                let value = read.and_then(|mut table| table.remove("value")).unwrap_or_else(|| value.into());
                flags.insert(key.to_owned(), value);
            }
            _ => return Err(help()),
        }
    }
    let mut table: toml::Table = toml::from_str(&file).map_err(|error| error.to_string())?;
    table.extend(flags);
    table.try_into().map_err(|error| error.to_string())
}

fn run(arguments: &[String]) -> Result<(), String> {
    catalogue().and_then(|catalogue| catalogue.install()).map_err(|error| error.to_string())?;
    let config = config(arguments)?;
    // What cannot be built is said before any training.
    config.build(&Layout::flat(1), RANKS).map_err(|error| error.to_string())?;
    let exchange = &config.exchange;
    println!(
        "strategy {}, reducer {}, feedback {}, controller {}",
        config.strategy, exchange.reducer, exchange.feedback, exchange.controller
    );
    let outcome = &train(|| config.clone(), 200, Saved::No)?[0];
    let (loss, ratio) = (outcome.losses[outcome.losses.len() - 1], outcome.ratio.unwrap_or(1.0));
    println!("loss {loss:.5}, {} kB sent, the last step at {ratio}x", outcome.sent / 1000);
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Err(text) if text.starts_with(USAGE) && arguments.iter().any(|argument| argument == "--help") => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
