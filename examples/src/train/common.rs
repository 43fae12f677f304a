//! Settings that the ranks of a run share, and that a run shares with its checkpoints.

use anyhow::{Result, bail};
use briquette::DistributedOptimizer;
use serde_json::Value;

use crate::settings::Settings;

/// Settings that may differ between ranks: they change no bits except by a device's rounding, or are used by rank 0 alone.
const OF_A_RANK: [&str; 9] =
    ["data", "out", "backend", "device", "threads", "record-gradient", "record-frames", "slots-every", "metrics-addr"];

/// Settings that the library compares as its configuration.
const NOT_FLAGS: [&str; 2] = ["config", "controller"];

/// Settings that are the same on every rank and may change when a run is resumed. (Re-broadcasting is also of this
/// kind, but the library compares it.)
const OF_A_PART: [&str; 6] = ["epochs", "steps", "eval-every", "checkpoint-every", "background-saving", "rebroadcast"];

/// Settings that depend on the number of ranks, and may change with it.
pub(crate) const OF_SIZE: [&str; 2] = ["ranks", "batch"];

/// Settings on which others depend: a difference in these is reported first.
const FIRST: [&str; 3] = ["dataset", "model", "optimizer"];

/// Registers everything that determines the computation of a step for comparison: each setting by its flag, and the
/// data of both splits.
pub(super) fn compared(
    mut optim: DistributedOptimizer,
    settings: &Settings,
    [train, test]: &[String; 2],
) -> Result<DistributedOptimizer> {
    let Value::Object(flags) = serde_json::to_value(settings)? else { bail!("settings are a table") };
    let flags = flags.into_iter().filter(|(flag, value)| !NOT_FLAGS.contains(&flag.as_str()) && !value.is_null());
    let mut flags: Vec<_> = flags.collect();
    // The number of ranks is compared as the size of the world, which changes in an elastic one.
    flags.retain(|(flag, _)| !OF_A_RANK.contains(&flag.as_str()) && flag != "ranks");
    flags.sort_by_key(|(flag, _)| !FIRST.contains(&flag.as_str()));
    for (flag, value) in flags {
        let (name, value) = (format!("--{flag}"), value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        optim = match flag.as_str() {
            flag if OF_A_PART.contains(&flag) => optim.with_world_setting(name, value),
            flag if OF_SIZE.contains(&flag) => optim.with_size_setting(name, value),
            _ => optim.with_run_setting(name, value),
        };
    }
    Ok(optim.with_run_setting("training data", train).with_run_setting("test data", test))
}
