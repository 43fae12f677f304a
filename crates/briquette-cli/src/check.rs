//! `briquette check`: checks, before a run, that the settings of an exchange can be combined.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use briquette_core::config::{
    Choice, Config, Parts, ServerConfig,
    combine::{self, InnerOptimizer},
};
use briquette_core::error::ConfigError;
use briquette_core::files;
use clap::Args;
use serde::Deserialize;

use crate::terminal::{printable, show};

const HELP: &str = "\
Example:
  printf 'strategy = \"diloco\"\\nfeedback = \"momentum\"\\n' > exchange.toml
  briquette check --config exchange.toml --world 8
  briquette check --config runs/mine/config.toml --optimizer adam

The file has the keys of an exchange (strategy, reducer, aggregator, feedback, controller, ...), as in
docs/combinations.md, or is the config.toml of a run, which has them in its table [config]. Of the other keys of a run,
ranks, optimizer, momentum and server are read if no flag gives them, and the rest is ignored.

Exits with 0 if the settings can be combined, with 2 if not, and with 1 if the file cannot be read.";

/// Keys of a trainer that stand for keys of the exchange.
const SHORT_FORMS: [&str; 16] = [
    "strategy",
    "reducer",
    "momentum-correction",
    "compressor",
    "per-slot",
    "aggregator",
    "rules",
    "dense-below",
    "feedback",
    "controller",
    "local-steps",
    "staleness",
    "bucket-values",
    "overlap",
    "threads",
    "set",
];

/// Checks the settings of an exchange: prints each with its reason, and whether they can be combined.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct Check {
    /// The settings, as TOML.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The number of ranks; unknown if not given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub world: Option<u16>,
    /// The optimizer: sgd, sgd-momentum[:0.9], adam, one-bit-adam, or other for one without momentum; unknown if not given.
    #[arg(long, value_name = "NAME", value_parser = optimizer)]
    pub optimizer: Option<InnerOptimizer>,
}

/// The keys of a run's config.toml that decide what can be combined.
#[derive(Debug, Default, Deserialize)]
struct RunFile {
    config: Parts,
    ranks: Option<usize>,
    optimizer: Option<String>,
    momentum: Option<f32>,
    server: Option<ServerConfig>,
    /// A warm-up that becomes a controller once the steps of an epoch are known.
    controller: Option<String>,
}

impl Check {
    /// Prints the settings and the verdict. Returns the exit code.
    ///
    /// # Errors
    /// If the file cannot be read: names the file, the line and the key.
    pub fn run(&self) -> Result<u8> {
        let file = read(&self.config)?;
        let world = self.world.map(usize::from).or(file.ranks);
        let (mut config, mut choices) = file.config.choose();
        let optimizer = self.optimizer.or_else(|| of_run(file.optimizer.as_deref(), file.momentum, &config));
        if let Some(optimizer) = optimizer
            && let Some(decided) = config.choose_feedback(optimizer.momentum(), &optimizer.to_string())
        {
            choices.retain(|choice| choice.part != decided.part);
            choices.push(decided);
        }
        if let Some(warm_up) = file.controller {
            choices.retain(|choice| choice.part != "controller");
            choices.push(Choice::named("controller", warm_up));
        }
        choices.iter().try_for_each(|choice| show(printable(&choice.to_string())))?;
        match verdict(&config, world, optimizer, file.server.as_ref()) {
            Ok(()) => {
                show("ok")?;
                Ok(0)
            }
            Err(error) => {
                let kind = if matches!(error, ConfigError::Conflict(_)) { "conflict" } else { "error" };
                show(printable(&format!("{kind}: {error}")))?;
                Ok(2)
            }
        }
    }
}

fn verdict(
    config: &Config,
    world: Option<usize>,
    optimizer: Option<InnerOptimizer>,
    server: Option<&ServerConfig>,
) -> Result<(), ConfigError> {
    let mut run = combine::Run::default();
    run.world = world;
    run.optimizer = optimizer;
    run.server = server;
    match (server, world) {
        (Some(server), Some(world)) => {
            combine::check(config, &run)?;
            server.get().build(world.saturating_sub(1)).map(drop)
        }
        _ => combine::check_without_model(config, &run),
    }
}

/// Parses the value of `--optimizer`.
fn optimizer(text: &str) -> Result<InnerOptimizer> {
    let (name, momentum) = text.split_once(':').map_or((text, None), |(name, momentum)| (name, Some(momentum)));
    match (name, momentum) {
        ("sgd", None) => Ok(InnerOptimizer::Sgd),
        ("sgd-momentum", momentum) => {
            let read = momentum.unwrap_or("0.9").parse().ok().filter(|momentum| *momentum > 0.0 && *momentum < 1.0);
            let momentum = read.with_context(|| format!("the momentum of `{text}` must be a number in (0, 1)"))?;
            Ok(InnerOptimizer::HeavyBall { momentum })
        }
        ("adam", None) => Ok(InnerOptimizer::OtherMomentum),
        ("one-bit-adam", None) => Ok(InnerOptimizer::OneBitAdam),
        ("other", None) => Ok(InnerOptimizer::Other),
        _ => bail!("valid are: sgd, sgd-momentum, sgd-momentum:0.9, adam, one-bit-adam, other"),
    }
}

/// Returns the optimizer that a trainer's config.toml names. SGD has momentum 0.9 by default, and none if the feedback has it.
fn of_run(name: Option<&str>, momentum: Option<f32>, config: &Config) -> Option<InnerOptimizer> {
    Some(match name? {
        "sgd" => match momentum.unwrap_or(0.9) {
            momentum if momentum > 0.0 && !requires_plain_sgd(config) => InnerOptimizer::HeavyBall { momentum },
            _ => InnerOptimizer::Sgd,
        },
        "adam" | "comp-ams" | "padamw" | "generic-adam" | "sign-sgd" | "delayed-adagrad-momentum" | "ftrl-sgd" => {
            InnerOptimizer::OtherMomentum
        }
        "one-bit-adam" => InnerOptimizer::OneBitAdam,
        _ => InnerOptimizer::Other,
    })
}

fn requires_plain_sgd(config: &Config) -> bool {
    config.exchange.feedback.get().optimizer() == Some(InnerOptimizer::Sgd)
}

fn read(path: &Path) -> Result<RunFile> {
    let shown = path.display();
    let text = files::read_to_string(path).with_context(|| format!("cannot read --config {shown}"))?;
    parse(&text).map_err(|(line, why)| match line {
        Some(line) => anyhow!("--config {shown}, line {line}: {why}"),
        None => anyhow!("--config {shown}: {why}"),
    })
}

/// Reads a file of settings. An error has the number of its line, if it is known.
fn parse(text: &str) -> Result<RunFile, (Option<usize>, String)> {
    let wrong = |error: toml::de::Error| (place(text, &error), error.message().to_owned());
    let table: toml::Table = toml::from_str(text).map_err(wrong)?;
    if !table.contains_key("config") {
        let config = toml::from_str::<Parts>(text).map_err(|error| {
            let (line, why) = wrong(error);
            let hint = if why.starts_with("unknown field") {
                "; the file of a run has these keys in a table [config]"
            } else {
                ""
            };
            (line, format!("{why}{hint}"))
        })?;
        return Ok(RunFile { config, ..RunFile::default() });
    }
    let file: RunFile = toml::from_str(text).map_err(wrong)?;
    let is_warm_up = file.controller.as_ref().is_some_and(|controller| controller.starts_with("schedule"));
    match SHORT_FORMS.iter().find(|key| table.contains_key(**key) && !(**key == "controller" && is_warm_up)) {
        None => Ok(file),
        Some(key) => Err((
            line_of(text, key),
            format!(
                "`{key}` is a trainer's short form, which this command does not read: write its key under [config]"
            ),
        )),
    }
}

/// Returns the line of an error: that of the key that it names first, or else that of its span.
fn place(text: &str, error: &toml::de::Error) -> Option<usize> {
    let named = error.message().split('`').nth(1).and_then(|key| line_of(text, key));
    named.or_else(|| error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1))
}

/// Returns the first line on which `key` is given a value.
fn line_of(text: &str, key: &str) -> Option<usize> {
    let gives = |line: &str| {
        line.match_indices(key).any(|(start, _)| {
            let (before, after) = (&line[..start], line[start + key.len()..].trim_start());
            let is_part = |c: char| c.is_alphanumeric() || "_-".contains(c);
            !key.is_empty() && !before.ends_with(is_part) && after.starts_with(['=', ']'])
        })
    };
    text.lines().position(gives).map(|index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_an_error_is_that_of_its_key() {
        let text = "# fedback\nreducer = \"dense\"\nrules = [{ slots = \"fedback\", reducer = \"dense\" }]\nfedback = \"none\"\n";
        let (line, why) = parse(text).map(drop).unwrap_err();
        assert_eq!(line, Some(4), "{why}");
        assert!(why.contains("`fedback`") && why.contains("feedback"), "{why}");
        let (line, why) =
            parse("strategy = \"every-step\"\n\nreducer = { kind = \"power-sgd\", rnk = 4 }\n").map(drop).unwrap_err();
        assert_eq!(line, Some(3), "{why}");
        assert_eq!(parse("reducer = \"dense\"\nthreads = [").map(drop).unwrap_err().0, Some(2));
    }

    #[test]
    fn optimizers_are_read_by_name() {
        briquette_zoo::install();
        assert_eq!(optimizer("sgd-momentum").unwrap(), InnerOptimizer::HeavyBall { momentum: 0.9 });
        assert_eq!(optimizer("sgd-momentum:0.5").unwrap(), InnerOptimizer::HeavyBall { momentum: 0.5 });
        assert!(optimizer("sgd-momentum:1").is_err() && optimizer("sgd:0.9").is_err());
        assert!(optimizer("adm").unwrap_err().to_string().contains("one-bit-adam"));
    }
}
