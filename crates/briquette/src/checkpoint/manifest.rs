//! What makes a checkpoint complete. Knows nothing of Burn: the fuzz targets read this very file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Written when every rank's file is in place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    pub(super) step: u64,
    pub(super) world: usize,
    /// CRC-32 of each rank's file.
    pub(super) checksums: Vec<u32>,
    /// CRC-32 of what is the same on every rank, by the rank that wrote it; absent in older files, where each rank's file has it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) common: BTreeMap<usize, u32>,
    /// What the training loop wants to know before it loads.
    pub(super) notes: BTreeMap<String, String>,
    /// CRC-32 of all of the above, as JSON without white space; absent in older files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) crc32: Option<u32>,
}

impl Manifest {
    fn checksum(&self) -> serde_json::Result<u32> {
        serde_json::to_vec(&Manifest { crc32: None, ..self.clone() }).map(|bytes| crc32fast::hash(&bytes))
    }

    /// With its checksum, as it is written.
    pub(super) fn to_text(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(&Manifest { crc32: Some(self.checksum()?), ..self.clone() })
    }

    pub(super) fn parse(text: &[u8]) -> Result<Manifest, String> {
        let manifest: Manifest = serde_json::from_slice(text).map_err(|e| e.to_string())?;
        let sum = manifest.checksum().map_err(|e| e.to_string())?;
        match manifest.crc32 {
            Some(written) if written != sum => Err("damaged: its checksum is not that of what it says".to_owned()),
            _ => Ok(manifest),
        }
    }
}
