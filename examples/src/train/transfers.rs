//! Records of the ranks' last transfers, in the run's directory: of ranks that fail, and of all ranks of a process that receives SIGUSR1.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use briquette::core::comm::{Recorder, Session};

use crate::directory::TRANSFERS;
use crate::output::Output;

/// The recorders of this process's ranks.
#[derive(Debug, Clone, Default)]
pub struct Recorders(Arc<Mutex<Vec<Recorder>>>);

impl Recorders {
    /// Forgets the ranks of an earlier run of this process.
    pub(super) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Names the file of a rank, and removes that of an earlier run.
    pub(super) fn add(&self, out: &Path, session: &Session) {
        let file = out.join(TRANSFERS).join(format!("rank-{}.json", session.rank()));
        // Most runs have none.
        let _ = std::fs::remove_file(&file);
        session.recorder().write_at_failure(file);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(session.recorder().clone());
    }

    /// Writes all records when SIGUSR1 arrives. A system that cannot watch for it leaves the signal as it is.
    #[cfg(unix)]
    pub(crate) fn write_on_request(&self, output: Output) {
        let Ok(mut signals) = signal_hook::iterator::Signals::new([signal_hook::consts::SIGUSR1]) else { return };
        let recorders = self.clone();
        let write = move || {
            for _ in signals.forever() {
                let all = recorders.0.lock().unwrap_or_else(PoisonError::into_inner);
                match all.iter().try_for_each(Recorder::write) {
                    Ok(()) if all.is_empty() => output.err("no record of transfers yet, or the world is elastic"),
                    Ok(()) => {
                        output.err(format_args!("wrote the last transfers to {TRANSFERS}/ of the run's directory"))
                    }
                    Err(error) => output.err(format_args!("cannot write the last transfers: {error}")),
                }
            }
        };
        // Without the thread, nothing is written on request.
        drop(std::thread::Builder::new().name("requests".to_owned()).spawn(write));
    }

    #[cfg(not(unix))]
    pub(crate) fn write_on_request(&self, _output: Output) {}
}
