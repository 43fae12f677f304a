//! Ctrl-C, SIGTERM and a terminal that closes: what they mean depends on how far a run is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use anyhow::{Context, Result};

use crate::train::Control;

/// The exit code of a program that was interrupted: as shells say that SIGINT ended it.
pub const INTERRUPTED: u8 = 130;

/// Stage of a run, and whether this process reports on the run.
#[derive(Debug, Clone, Default)]
pub struct Stage(Arc<AtomicU8>, Arc<AtomicBool>);

impl Stage {
    /// Ranks come together from here on: what fails was begun.
    pub(crate) fn join(&self) {
        self.0.store(1, Ordering::SeqCst);
    }

    /// All ranks are there.
    pub(crate) fn train(&self) {
        self.0.store(2, Ordering::SeqCst);
    }

    /// Nothing has been begun: data is read, settings are checked.
    pub fn prepares(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }

    /// Another process shows what becomes of the run.
    pub(crate) fn hush(&self) {
        self.1.store(true, Ordering::SeqCst);
    }

    fn is_quiet(&self) -> bool {
        self.1.load(Ordering::SeqCst)
    }

    fn trains(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 2
    }
}

/// From here on a first signal to stop ends the process at once while nothing has been begun, ends the wait for the other ranks,
/// or ends training after the step. A second one ends the process.
///
/// To be called before anything else: a script starts what runs in its background with SIGINT ignored, and what such a process is
/// sent before its handler is there, the system throws away.
///
/// # Errors
/// The system does not let signals be watched for.
pub fn catch(control: &Control) -> Result<()> {
    let Control { stop, output, stage, .. } = control.clone();
    watch(move || {
        let is_second = stop.swap(true, Ordering::SeqCst);
        if stage.prepares() && !stage.is_quiet() {
            output.err("interrupted before anything was begun");
        }
        if is_second || stage.prepares() {
            output.finish();
            std::process::exit(INTERRUPTED.into());
        }
        if stage.trains() && !stage.is_quiet() {
            output.err("\nstopping after this step, with a checkpoint; once more to stop now");
        }
    })
}

/// Calls `handler` for each signal to stop, in a thread of its own. SIGHUP is none where the process was started to outlive its
/// terminal, as `nohup` does.
#[cfg(unix)]
fn watch(handler: impl Fn() + Send + 'static) -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut wanted = vec![SIGINT, SIGTERM];
    if !briquette_cli::signals::hangup_is_ignored() {
        wanted.push(SIGHUP);
    }
    let failed = "cannot watch for Ctrl-C";
    let mut signals = signal_hook::iterator::Signals::new(wanted).context(failed)?;
    let body = move || signals.forever().for_each(|_| handler());
    std::thread::Builder::new().name("signals".to_owned()).spawn(body).map(drop).context(failed)
}

#[cfg(not(unix))]
fn watch(handler: impl Fn() + Send + 'static) -> Result<()> {
    ctrlc::set_handler(handler).context("cannot watch for Ctrl-C")
}
