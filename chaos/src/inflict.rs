//! Faults of files and links.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::check::checkpoints;
use crate::plan::{Damage, Harm, Victim};

/// A small separate disk: a tmpfs, unmounted on drop.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
}

impl Disk {
    /// Mounts a disk of this many MiB.
    ///
    /// # Errors
    /// If this system does not permit it.
    pub fn mount(path: &Path, megabytes: usize) -> Result<Disk> {
        fs::create_dir_all(path)?;
        let size = format!("size={megabytes}m");
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(path).output()?;
        ensure!(done.status.success(), "mount: {}", String::from_utf8_lossy(&done.stderr));
        Ok(Disk { path: path.to_owned() })
    }

    /// Fills the disk.
    ///
    /// # Errors
    /// For any error but a full disk.
    pub fn fill(&self) -> Result<()> {
        let mut file = File::create(self.path.join("filler"))?;
        for size in [1 << 20, 1 << 12, 1] {
            loop {
                match file.write_all(&vec![0; size]) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// Frees the space again.
    ///
    /// # Errors
    /// If the file that fills it cannot be removed.
    pub fn empty(&self) -> Result<()> {
        Ok(fs::remove_file(self.path.join("filler"))?)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}

/// Consequences of damage for the rest of the run.
#[derive(Debug, Clone, Default)]
pub struct Damaged {
    /// Description of the damage.
    pub what: String,
    /// Steps whose records are lost.
    pub records: Vec<u64>,
}

/// Damages a file of a run while nothing uses it; returns `None` if the run would then have no intact checkpoint.
///
/// # Errors
/// If the file cannot be changed.
pub fn damage(run: &Path, damage: Damage) -> Result<Option<Damaged>> {
    let newest = || checkpoints(run).into_iter().next_back();
    let path = match damage.file {
        Victim::Metrics => run.join("metrics.jsonl"),
        _ if checkpoints(run).len() < 2 => return Ok(None),
        Victim::Manifest => newest().context("there are two")?.1.join("manifest.json"),
        Victim::Common => newest().context("there are two")?.1.join("common-0.safetensors"),
        Victim::Rank(rank) => newest().context("there are two")?.1.join(format!("rank-{rank}.safetensors")),
    };
    let before = match fs::read(&path) {
        Ok(bytes) if !bytes.is_empty() => bytes,
        _ => return Ok(None),
    };
    let place = ((before.len() as f64 * damage.place) as usize).min(before.len() - 1);
    let what = match damage.harm {
        Harm::Remove => fs::remove_file(&path).map(|()| "removed".to_owned())?,
        Harm::Truncate => {
            OpenOptions::new().write(true).open(&path)?.set_len(place as u64)?;
            format!("cut to {place} of {} bytes", before.len())
        }
        Harm::Flip(bit) => {
            let mut file = OpenOptions::new().write(true).open(&path)?;
            file.seek(SeekFrom::Start(place as u64))?;
            file.write_all(&[before[place] ^ 1 << bit])?;
            format!("bit {bit} of byte {place} of {} flipped", before.len())
        }
    };
    let records = if damage.file == Victim::Metrics { lost(&before, place, damage.harm) } else { Vec::new() };
    Ok(Some(Damaged { what, records }))
}

/// Returns the steps of the lines that the damage affects; both if it merges two lines.
fn lost(text: &[u8], place: usize, harm: Harm) -> Vec<u64> {
    let mut begin = 0;
    let mut steps = Vec::new();
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let end = begin + line.len();
        let touched = match harm {
            Harm::Remove => true,
            Harm::Truncate => end > place,
            // A newline that is lost belongs to both lines.
            Harm::Flip(_) => (begin..end).contains(&place) || (begin == place + 1),
        };
        let value: Option<serde_json::Value> = serde_json::from_slice(line).ok();
        let step = value.and_then(|value| value.get("step")?.as_u64());
        steps.extend(step.filter(|_| touched));
        begin = end;
    }
    steps
}

/// Opens connections by processes that are no ranks: some send nothing, some end at once, some send noise.
pub fn strangers(port: u16, count: usize) {
    for number in 0..count {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) else { continue };
        let noise: Vec<u8> = (0..number * 37).map(|i| (i * 31 + number * 7) as u8).collect();
        // Refused connections are expected.
        let _ = stream.set_read_timeout(Some(Duration::from_millis(20)));
        let _ = stream.write_all(&noise);
        let _ = stream.read(&mut [0; 64]);
    }
}
