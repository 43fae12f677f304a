//! Candidates between elections: a thread that accepts their calls.

use std::io;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use briquette_core::membership::{Candidate, MemberId};
use tokio::sync::oneshot;

use crate::acceptor::accept;
use crate::handshake::Role;
use crate::settings::Settings;

/// The thread, and the candidates that it has noted.
#[derive(Debug)]
pub(super) struct Doorkeeper {
    noted: Arc<Noted>,
    /// Dropped to end the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Noted {
    any: AtomicBool,
    candidates: Mutex<Vec<Candidate>>,
}

impl Doorkeeper {
    pub(super) fn start(me: MemberId, listener: TcpListener, settings: Arc<Settings>) -> io::Result<Doorkeeper> {
        let (stop, stopped) = oneshot::channel();
        let noted = Arc::new(Noted::default());
        listener.set_nonblocking(true)?;
        let notes = Arc::clone(&noted);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let body = move || {
            runtime.block_on(async {
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
                tokio::select! {
                    _ = stopped => {}
                    () = notes.write(me, listener, settings) => {}
                }
            });
        };
        let thread = thread::Builder::new().name("candidates".to_owned()).spawn(body)?;
        Ok(Doorkeeper { noted, stop: Some(stop), thread: Some(thread) })
    }

    pub(super) fn has_candidates(&self) -> bool {
        self.noted.any.load(Ordering::Relaxed)
    }

    /// Stops accepting calls, and returns the candidates.
    pub(super) fn end(mut self) -> Vec<Candidate> {
        self.stop();
        std::mem::take(&mut *self.noted.candidates.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn stop(&mut self) {
        drop(self.stop.take());
        // It ends at once; if it has panicked, there are no further candidates.
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Drop for Doorkeeper {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Noted {
    /// Notes candidates for as long as it is polled. A member that calls gets no answer, and calls again.
    async fn write(&self, me: MemberId, listener: tokio::net::TcpListener, settings: Arc<Settings>) {
        let mut calls = accept(vec![listener], settings);
        while let Some(call) = calls.recv().await {
            let Ok((caller, from)) = call else { continue };
            if let Some(reason) = caller.introduction.role.misses(me) {
                drop(caller.refuse(reason).await);
                continue;
            }
            let Role::Candidate { member, port } = caller.introduction.role else { continue };
            let address = std::net::SocketAddr::new(from.ip(), port).to_string();
            if caller.welcome().await.is_err() {
                continue;
            }
            tracing::info!("{member} at {address} asks to join");
            let mut candidates = self.candidates.lock().unwrap_or_else(PoisonError::into_inner);
            candidates.retain(|candidate| candidate.member != member);
            candidates.push(Candidate { member, address });
            self.any.store(true, Ordering::Relaxed);
        }
    }
}
