//! Signals to the launcher: stop requests, and ended children.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use nix::sys::signal::Signal;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use super::LaunchError;
use crate::signals::hangup_is_ignored;

/// Receives the process's signals until it is dropped. While there is no rank, a stop signal ends the process.
#[derive(Debug)]
pub struct Listening {
    received: Receiver<i32>,
    handle: Handle,
    /// Set while there is no rank to forward a signal to.
    idle: Arc<AtomicBool>,
}

impl Listening {
    /// Starts listening. Must be called before anything else: an earlier signal is lost if the process was started with
    /// signals ignored (in the background of a script).
    ///
    /// # Errors
    /// [`LaunchError::System`] if the system does not allow listening for signals.
    pub fn start() -> Result<Listening, LaunchError> {
        let what = "signals cannot be listened for";
        let mut wanted = vec![SIGINT, SIGTERM, SIGQUIT, SIGCHLD];
        if !hangup_is_ignored() {
            wanted.push(SIGHUP);
        }
        let mut signals = Signals::new(wanted).map_err(|source| LaunchError::System { what, source })?;
        let (handle, idle) = (signals.handle(), Arc::new(AtomicBool::new(true)));
        let (sender, received) = mpsc::channel();
        let nobody = Arc::clone(&idle);
        std::thread::spawn(move || {
            for signal in signals.forever() {
                // The launcher is only writing its pending output, whose reader may have stopped.
                if signal != SIGCHLD && nobody.load(Ordering::SeqCst) {
                    std::process::exit(exit_code(signal).into());
                }
                if sender.send(signal).is_err() {
                    return;
                }
            }
        });
        Ok(Listening { received, handle, idle })
    }

    /// Returns the next stop signal, or `None` if a child may have ended or `limit` has passed.
    pub(super) fn wait(&self, limit: Duration) -> Option<i32> {
        match self.received.recv_timeout(limit) {
            Ok(signal) => Some(signal).filter(|signal| *signal != SIGCHLD),
            Err(RecvTimeoutError::Timeout) => None,
            // The thread ends only when this value is dropped; without the thread, polling is the fallback.
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(limit.min(Duration::from_millis(100)));
                None
            }
        }
    }

    /// Returns a pending stop signal that no call has taken yet.
    pub(super) fn asked_to_stop(&self) -> Option<i32> {
        self.received.try_iter().find(|signal| *signal != SIGCHLD)
    }

    /// Runs work that may never end while there are no ranks. Meanwhile, a stop signal ends the launcher immediately.
    pub(super) fn while_idle(&self, work: impl FnOnce()) {
        self.idle.store(true, Ordering::SeqCst);
        work();
        self.end_idleness();
    }

    /// Ends the idle state: from now on a stop signal is received, and does not end the launcher.
    pub(super) fn end_idleness(&self) {
        self.idle.store(false, Ordering::SeqCst);
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.handle.close();
    }
}

/// Returns the shell exit code of a process ended by `signal`.
pub(super) fn exit_code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// Returns the name of a signal, such as `SIGTERM` for 15.
pub(super) fn name(signal: i32) -> &'static str {
    Signal::try_from(signal).map_or("a signal without a name", Signal::as_str)
}
