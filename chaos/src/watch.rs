//! Memory and descriptors of a run's processes over its duration.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::world::children;

const EVERY: Duration = Duration::from_millis(200);
/// Minimum number of samples of a process for a statement about growth.
const LONG: usize = 60;
/// Descriptors that are open briefly: a checkpoint's file, its directory.
const MOMENTARY: usize = 4;
/// Memory that allocators retain, in kB.
const SLACK: u64 = 8_000;

/// A sample of a process.
#[derive(Debug, Clone, Copy)]
struct Sample {
    resident_kb: u64,
    descriptors: usize,
}

/// Samples of every process by its number, including the launcher.
type Lives = BTreeMap<u32, Vec<Sample>>;

/// Samples a launcher and its ranks in a separate thread.
#[derive(Debug)]
pub struct Watch {
    launcher: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    /// Present until the results have been taken.
    thread: Option<JoinHandle<Lives>>,
}

/// Observations.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Number of observed processes.
    pub processes: usize,
    /// Longest lifetime in seconds.
    pub longest: f64,
    /// Maximum memory of any process, in kB.
    pub most_kb: u64,
    /// Maximum descriptors of any process.
    pub most_descriptors: usize,
    /// Growth that was found.
    pub growth: Vec<String>,
}

impl Watch {
    /// Starts sampling; [`follow`](Watch::follow) sets the launcher.
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

    /// Samples this launcher from now on.
    pub fn follow(&self, launcher: u32) {
        self.launcher.store(launcher, Ordering::Relaxed);
    }

    /// Ends sampling, and returns the results.
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

/// Compares the second quarter of a lifetime with the last: initial allocations are done by then, and later ones must not grow.
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
