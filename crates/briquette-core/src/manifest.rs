//! Checkpoint manifest, `manifest.json`. A checkpoint that has one is complete.
//!
//! ```
//! use briquette_core::manifest::Manifest;
//! let manifest = Manifest { step: 7, world: 1, checksums: vec![1], ..Manifest::default() };
//! let text = manifest.to_text()?;
//! assert_eq!(Manifest::parse(text.as_bytes()).map(|read| read.step), Ok(7));
//! let damaged = text.replace("\"step\": 7", "\"step\": 8");
//! assert!(Manifest::parse(damaged.as_bytes()).unwrap_err().starts_with("damaged"));
//! # Ok::<_, serde_json::Error>(())
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Contents of `manifest.json`, which is written after every rank's file is in place.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Number of steps that the run had completed.
    pub step: u64,
    /// Number of ranks that saved.
    pub world: usize,
    /// CRC-32 of each rank's file.
    pub checksums: Vec<u32>,
    /// CRC-32 of the files of replicated state, by the rank that wrote them.
    pub common: BTreeMap<usize, u32>,
    /// Notes of the training loop, readable before a load.
    pub notes: BTreeMap<String, String>,
    /// CRC-32 of all fields above, as JSON without white space; absent until the text is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crc32: Option<u32>,
}

impl Manifest {
    fn checksum(&self) -> serde_json::Result<u32> {
        serde_json::to_vec(&Manifest { crc32: None, ..self.clone() }).map(|bytes| crc32fast::hash(&bytes))
    }

    /// Returns the text of the file, with the checksum.
    ///
    /// # Errors
    /// Errors of the JSON writer; a manifest causes none.
    pub fn to_text(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(&Manifest { crc32: Some(self.checksum()?), ..self.clone() })
    }

    /// Parses the text of the file. It does not compare the step with the directory's name.
    ///
    /// # Errors
    /// The reason why the text cannot be trusted: invalid JSON, a missing or unknown field, or a checksum mismatch.
    pub fn parse(text: &[u8]) -> Result<Manifest, String> {
        let manifest: Manifest = serde_json::from_slice(text).map_err(|e| e.to_string())?;
        let sum = manifest.checksum().map_err(|e| e.to_string())?;
        match manifest.crc32 {
            Some(written) if written == sum => Ok(manifest),
            Some(_) => Err("damaged: its checksum is not that of what it says".to_owned()),
            None => Err("damaged: it has no checksum".to_owned()),
        }
    }
}
