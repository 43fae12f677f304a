//! Backends and devices of a run's ranks: `--backend` and `--device`.

use anyhow::{Context, Result, anyhow, bail};
use briquette::{Backend, BackendError};
use burn::tensor::Device;
use comfy_table::{Table, presets::UTF8_BORDERS_ONLY};

use crate::settings::Settings;

/// Default backend of trainers: the first backend of this build.
pub fn default() -> &'static str {
    Backend::ALL.into_iter().find(|backend| backend.is_compiled()).unwrap_or(Backend::Flex).name()
}

/// Parses `--backend`: one backend for all ranks, or one for each in turn.
///
/// # Errors
/// Names the available backends, and the feature of one that is not in this build.
pub fn backends(settings: &Settings) -> Result<Vec<Backend>> {
    let names = settings.backend.split(',').map(str::trim);
    let backends = names.map(str::parse).collect::<Result<Vec<Backend>, _>>().context("--backend")?;
    if let Some(backend) = backends.iter().copied().find(|backend| !backend.is_compiled()) {
        return Err(BackendError::NotCompiled { backend }).context("--backend");
    }
    if backends.len() > settings.ranks {
        bail!("--backend {}: {} backends for --ranks {}", settings.backend, backends.len(), settings.ranks);
    }
    Ok(backends)
}

/// Returns the device of a rank, which is number `local_rank` on its machine.
///
/// # Errors
/// If the device is not available: lists the available ones, and the remedy.
pub fn device(settings: &Settings, rank: usize, local_rank: usize) -> Result<Device> {
    let backends = backends(settings)?;
    let backend = backends[rank % backends.len()];
    let device = match numbers(settings)? {
        Some(numbers) => backend.device(numbers[rank % numbers.len()]).context("--device"),
        None => backend.device_for(before(&backends, rank, local_rank)).context("--backend"),
    };
    device.with_context(|| format!("rank {rank}"))
}

/// Parses `--device`: one number for all ranks, or one for each in turn.
fn numbers(settings: &Settings) -> Result<Option<Vec<usize>>> {
    let Some(text) = &settings.device else { return Ok(None) };
    let numbers = text.split(',').map(|number| number.trim().parse()).collect::<Result<Vec<usize>, _>>();
    numbers
        .map(Some)
        .map_err(|_| anyhow!("--device {text}: it is a number of `--backend list`, or several with commas"))
}

/// Returns the number of ranks before this one with the same backend on the same machine: these share the GPUs.
fn before(backends: &[Backend], rank: usize, local_rank: usize) -> usize {
    let of = |rank: usize| backends[rank % backends.len()];
    (rank - local_rank.min(rank)..rank).filter(|other| of(*other) == of(rank)).count()
}

/// Returns the output of `--backend list`: the backends of this build, the devices found, and how to get other backends.
pub fn list() -> String {
    let mut table = Table::new();
    table.load_preset(UTF8_BORDERS_ONLY).set_header(["--backend", "--device", "is"]);
    for backend in Backend::ALL {
        match backend.devices() {
            Ok(found) => {
                for (index, device) in found.iter().enumerate() {
                    let kind = if device.is_cpu { "CPU" } else { "GPU" };
                    table.add_row([backend.name().into(), index.to_string(), format!("{kind}: {}", device.name)]);
                }
            }
            Err(BackendError::NotCompiled { .. }) => {
                let add = format!("not in this build; add --features {backend}");
                table.add_row([backend.name().into(), "-".into(), add]);
            }
            Err(error) => {
                table.add_row([backend.name().into(), "-".into(), error.to_string()]);
            }
        }
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machines_gpus_are_shared_out_among_the_ranks_of_their_backend() {
        let mixed = [Backend::Cuda, Backend::Flex];
        let places: Vec<_> = (0..6).map(|rank| before(&mixed, rank, rank)).collect();
        assert_eq!(places, [0, 0, 1, 1, 2, 2]);
        // The second of two machines with three ranks each restarts the sequence: ranks 3, 4, 5 are flex, cuda, flex.
        assert_eq!([3, 4, 5].map(|rank| before(&mixed, rank, rank - 3)), [0, 0, 1]);
    }
}
