//! Calls between members of an elastic world.

use std::time::Duration;

use briquette_core::membership::MemberId;
use tokio::time::{Instant, sleep, timeout_at};

use super::{FIRST_PAUSE, Setback, connect, handshake_with, longer, reason, slow};
use crate::acceptor::HANDSHAKE;
use crate::handshake::{HandshakeError, Role};
use crate::secure::Secure;
use crate::settings::Settings;

/// Longest pause between two looks at a member that has not reported.
const WATCH: Duration = Duration::from_secs(1);

/// Connects to a member of an elastic world. A member that is busy does not answer yet, and is called again until the deadline; one
/// whose address refuses connections is lost.
pub(crate) async fn call(settings: &Settings, address: &str, role: Role, deadline: Instant) -> Result<Secure, String> {
    loop {
        let socket = match connect(settings, address, deadline).await {
            Ok((socket, _)) => socket,
            Err(Setback::Silence(cause)) => return Err(cause),
            Err(Setback::Name(error)) => return Err(error.to_string()),
            Err(Setback::Elsewhere(error) | Setback::Final(error) | Setback::Exhausted(error)) => {
                return Err(error.to_string());
            }
        };
        let until = deadline.min(Instant::now() + HANDSHAKE);
        let cause = match timeout_at(until, handshake_with(socket, settings, 0, role.clone())).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error @ HandshakeError::Refused(_))) => return Err(reason(error)),
            Ok(Err(error)) => reason(error),
            Err(_) => slow().to_string(),
        };
        if Instant::now() + longer(FIRST_PAUSE) >= deadline {
            return Err(cause);
        }
        sleep(longer(FIRST_PAUSE)).await;
    }
}

/// Watches a member until the deadline: returns the reason if its address refuses connections or belongs to another process. The sockets of
/// a killed process may accept connections for a moment after the loss is noticed.
pub(crate) async fn watch(settings: &Settings, address: &str, to: MemberId, deadline: Instant) -> String {
    let mut pause = FIRST_PAUSE;
    loop {
        match connect(settings, address, deadline).await {
            Ok((socket, _)) => {
                let until = deadline.min(Instant::now() + HANDSHAKE);
                let handshake = handshake_with(socket, settings, 0, Role::Probe { to });
                if let Ok(Err(error @ HandshakeError::Refused(_))) = timeout_at(until, handshake).await {
                    return reason(error);
                }
            }
            // This process has no descriptor to call with.
            Err(Setback::Exhausted(_)) => {}
            Err(Setback::Silence(cause)) => return cause,
            Err(setback) => return format!("{setback:?}"),
        }
        if Instant::now() + pause >= deadline {
            return "it has not reported".to_owned();
        }
        sleep(pause).await;
        pause = (2 * pause).min(WATCH);
    }
}
