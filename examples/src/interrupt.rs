//! Handling of Ctrl-C, SIGTERM and a closing terminal, depending on the stage of a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use anyhow::{Context, Result};

use crate::train::Control;

/// Exit code of an interrupted program, as shells report an end by SIGINT.
pub const INTERRUPTED: u8 = 130;

/// Stage of a run, and whether this process reports on the run.
#[derive(Debug, Clone, Default)]
pub struct Stage(Arc<AtomicU8>, Arc<AtomicBool>);

impl Stage {
    /// Marks the start of rendezvous: later failures are no longer refusals.
    pub(crate) fn join(&self) {
        self.0.store(1, Ordering::SeqCst);
    }

    /// Marks the start of training: all ranks have joined.
    pub(crate) fn train(&self) {
        self.0.store(2, Ordering::SeqCst);
    }

    /// Returns whether the run is still being prepared: data is read, settings are checked.
    pub fn prepares(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }

    /// Leaves reporting to another process.
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

/// Installs the handler. A first stop signal ends the process at once before the run has started, ends the wait for the
/// other ranks, or ends training after the current step. A second one ends the process.
///
/// Must be called before anything else: a script starts background processes with SIGINT ignored, and the system
/// discards a signal that such a process receives before its handler is installed.
///
/// # Errors
/// The system does not allow watching for signals.
pub fn catch(control: &Control) -> Result<()> {
    let Control { stop, output, stage, recorders, .. } = control.clone();
    recorders.write_on_request(output.clone());
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

/// Calls `handler` for each stop signal, in a separate thread. SIGHUP is not one if the process was started to outlive
/// its terminal, as by `nohup`.
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
