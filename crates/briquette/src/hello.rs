//! What ranks compare when they join.

use briquette_core::config::Config;
use briquette_core::{Communicator, Layout};

use crate::error::Error;
use crate::flat::Inventory;

/// What every rank of a run has in common, and a checkpoint with the run that saved it: field names and values, in a
/// fixed order. Text, so that a mismatch can be shown.
pub(crate) type Identity = Vec<(&'static str, String)>;

pub(crate) fn identity(inventory: &Inventory, config: &Config, seed: u64, local_weight_decay: f64) -> Identity {
    let layout = |layout: &Layout| format!("{layout} ({:016x})", layout.fingerprint());
    vec![
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("configuration", serde_json::to_string(config).unwrap_or_else(|_| format!("{config:?}"))),
        ("seed", seed.to_string()),
        ("local weight decay", local_weight_decay.to_string()),
        ("layout", layout(&inventory.layout)),
        ("buffers", layout(&inventory.buffers)),
    ]
}

/// Fails on every rank that sees another one differ. Whether the world is mixed, which it may be: `rounding` says how this
/// rank's devices round, and no two need to do it alike.
pub(crate) fn compare(
    comm: &mut dyn Communicator,
    mine: &[(&'static str, String)],
    rounding: &str,
) -> Result<bool, Error> {
    comm.scope().operation = "join";
    let (this, mut mixed) = (comm.rank(), false);
    let text = mine.iter().map(|(_, value)| value.as_str()).chain([rounding]).collect::<Vec<_>>().join("\n");
    let mut frames = Vec::new();
    comm.all_gather(text.as_bytes(), &mut frames)?;
    for (rank, frame) in frames.iter().enumerate().filter(|(rank, _)| *rank != this) {
        let theirs = String::from_utf8_lossy(frame);
        let mut theirs = theirs.split('\n');
        for (field, ours) in mine {
            let theirs = theirs.next().unwrap_or("absent");
            if theirs != ours {
                let (ours, theirs) = (ours.clone(), theirs.to_owned());
                return Err(Error::Mismatch { this, rank, field, ours, theirs });
            }
        }
        mixed |= theirs.next() != Some(rounding);
    }
    Ok(mixed)
}

#[cfg(test)]
mod tests {
    use briquette_core::comm::Local;

    use super::*;

    #[test]
    fn one_rank_that_rounds_differently_makes_the_world_mixed_for_all() {
        let mixed = |texts: [&'static str; 3]| {
            let told = Local::run(3, |mut comm| {
                let text = texts[comm.rank()];
                compare(&mut comm, &[("seed", "7".to_owned())], text)
            });
            told.into_iter().collect::<Result<Vec<bool>, Error>>().unwrap()
        };
        assert_eq!(mixed(["a", "a", "a"]), [false; 3]);
        assert_eq!(mixed(["a", "a", "b"]), [true; 3]);
        assert_eq!(mixed(["b", "a", "a"]), [true; 3]);
    }
}
