//! Signals to the launcher: requests to stop, and children that ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use nix::sys::signal::Signal;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use super::LaunchError;
use crate::signals::hangup_is_ignored;

/// Receives the process's signals until it is dropped. While no rank is there, a signal to stop ends the process.
#[derive(Debug)]
pub struct Listening {
    received: Receiver<i32>,
    handle: Handle,
    /// No rank is there that a signal could be passed on to.
    idle: Arc<AtomicBool>,
}

impl Listening {
    /// Listens from now on: to be called before anything else, as a signal that came before is lost where the process was
    /// started with signals ignored (in the background of a script).
    ///
    /// # Errors
    /// [`LaunchError::System`] where the system does not let signals be listened for.
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
                // The launcher only writes what is still to be written, and whoever reads that may have stopped.
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

    /// The next signal to stop, or `None` when a child may have ended or `limit` has passed.
    pub(super) fn wait(&self, limit: Duration) -> Option<i32> {
        match self.received.recv_timeout(limit) {
            Ok(signal) => Some(signal).filter(|signal| *signal != SIGCHLD),
            Err(RecvTimeoutError::Timeout) => None,
            // The thread ends with this value only; without it, polling is what is left.
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(limit.min(Duration::from_millis(100)));
                None
            }
        }
    }

    /// A signal to stop that has come and that no call has taken yet.
    pub(super) fn asked_to_stop(&self) -> Option<i32> {
        self.received.try_iter().find(|signal| *signal != SIGCHLD)
    }

    /// Does what may never end while there are no ranks: a signal to stop then ends the launcher where it is.
    pub(super) fn while_idle(&self, work: impl FnOnce()) {
        self.idle.store(true, Ordering::SeqCst);
        work();
        self.end_idleness();
    }

    /// From here on a signal to stop is received, and does not end the launcher.
    pub(super) fn end_idleness(&self) {
        self.idle.store(false, Ordering::SeqCst);
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.handle.close();
    }
}

/// Shells' exit code of a process that `signal` ended.
pub(super) fn exit_code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// `SIGTERM` for 15.
pub(super) fn name(signal: i32) -> &'static str {
    Signal::try_from(signal).map_or("a signal without a name", Signal::as_str)
}
