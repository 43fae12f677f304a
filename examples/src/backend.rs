//! Where a run's ranks compute: `--backend` and `--device`.

use anyhow::{Context, Result, bail};
use briquette::{Backend, BackendError};
use burn::tensor::Device;
use comfy_table::{Table, presets::UTF8_BORDERS_ONLY};

use crate::settings::Settings;

/// What `--backend` says: one backend for all ranks, or one for each in turn.
///
/// # Errors
/// Names the backends there are, and the feature of one that is not in this build.
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

/// The device of a rank, which is number `local_rank` on its machine.
///
/// # Errors
/// The device cannot be had: what is there, and what to do.
pub fn device(settings: &Settings, rank: usize, local_rank: usize) -> Result<Device> {
    let backends = backends(settings)?;
    let backend = backends[rank % backends.len()];
    let device = match settings.device {
        Some(index) => backend.device(index).context("--device"),
        None => backend.device_for(local_rank).context("--backend"),
    };
    device.with_context(|| format!("rank {rank}"))
}

/// What `--backend list` prints: what this build has and what it finds, and how to get the rest.
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
