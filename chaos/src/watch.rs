//! Memory and descriptors of a run's processes while it runs.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::world::children;

const EVERY: Duration = Duration::from_millis(200);
/// Processes that lived for fewer samples say nothing of growth.
const LONG: usize = 60;
/// Descriptors that are open for a moment: a checkpoint's file, its directory.
const MOMENTARY: usize = 4;
/// Memory that allocators keep, in kB.
const SLACK: u64 = 8_000;

/// A look at a process.
#[derive(Debug, Clone, Copy)]
struct Sample {
    resident_kb: u64,
    descriptors: usize,
}

/// Samples of every process by its number; the launcher's too.
type Lives = BTreeMap<u32, Vec<Sample>>;

/// Looks at a launcher and its ranks from a thread of its own.
#[derive(Debug)]
pub struct Watch {
    launcher: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    /// Until it has been asked for what it saw.
    thread: Option<JoinHandle<Lives>>,
}

/// What was seen.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Processes that were looked at, and the longest life in seconds.
    pub processes: usize,
    /// Seconds.
    pub longest: f64,
    /// The most memory and descriptors of any.
    pub most_kb: u64,
    /// Descriptors.
    pub most_descriptors: usize,
    /// What grew.
    pub growth: Vec<String>,
}

impl Watch {
    /// Begins; [`follow`](Watch::follow) says whom to look at.
    pub fn start() -> Watch {
        let (launcher, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (whom, ends) = (Arc::clone(&launcher), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let mut lives = Lives::new();
            while !ends.load(Ordering::Relaxed) {
                let launcher = whom.load(Ordering::Relaxed);
                let processes = children(launcher).into_iter().chain([launcher]).filter(|id| *id != 0);
                for id in processes {
                    if let Some(sample) = sample(id) {
                        lives.entry(id).or_default().push(sample);
                    }
                }
                thread::sleep(EVERY);
            }
            lives
        });
        Watch { launcher, stop, thread: Some(thread) }
    }

    /// Looks at this launcher from now on.
    pub fn follow(&self, launcher: u32) {
        self.launcher.store(launcher, Ordering::Relaxed);
    }

    /// Ends, and says what grew.
    pub fn end(&mut self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        let lives = self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        let all = || lives.values().flatten();
        Seen {
            processes: lives.len(),
            longest: lives.values().map(Vec::len).max().unwrap_or_default() as f64 * EVERY.as_secs_f64(),
            most_kb: all().map(|sample| sample.resident_kb).max().unwrap_or_default(),
            most_descriptors: all().map(|sample| sample.descriptors).max().unwrap_or_default(),
            growth: lives.iter().filter_map(|(id, samples)| growth(*id, samples)).collect(),
        }
    }
}

fn sample(id: u32) -> Option<Sample> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let descriptors = fs::read_dir(format!("/proc/{id}/fd")).ok()?.count();
    Some(Sample { resident_kb: line.trim().strip_suffix(" kB")?.parse().ok()?, descriptors })
}

/// The second quarter of a life against the last: what was needed to begin is there, what is needed later is not more.
fn growth(id: u32, samples: &[Sample]) -> Option<String> {
    if samples.len() < LONG {
        return None;
    }
    let quarter = samples.len() / 4;
    let (early, late) = (&samples[quarter..2 * quarter], &samples[samples.len() - quarter..]);
    let median = |part: &[Sample]| {
        let mut sorted: Vec<u64> = part.iter().map(|sample| sample.resident_kb).collect();
        sorted.sort_unstable();
        sorted[sorted.len() / 2]
    };
    let most = |part: &[Sample]| part.iter().map(|sample| sample.descriptors).max().unwrap_or_default();
    let (before, after) = (median(early), median(late));
    if after > before + before / 10 + SLACK {
        return Some(format!("process {id}: memory grew from {before} kB to {after} kB"));
    }
    let (before, after) = (most(early), most(late));
    (after > before + MOMENTARY).then(|| format!("process {id}: descriptors grew from {before} to {after}"))
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
