//! Connections of an election.

use briquette_core::membership::{Event, MemberId, Message};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use crate::acceptor::Calls;
use crate::handshake::Role;
use crate::lines::{self, Lines};
use crate::secure::Secure;

/// Result of a call to a member: a line, or the reason of the failure.
pub(super) type Called = (usize, Result<Secure, String>);

/// Connections of an election.
pub(super) struct Talk {
    calls: Calls,
    /// Lines by place in [`Members::known`].
    pub(super) lines: Lines,
    /// Messages that wait for their line.
    pub(super) unsent: Vec<(usize, Message)>,
    pub(super) sender: UnboundedSender<Called>,
    called: UnboundedReceiver<Called>,
}

/// An input of the election, or a new line.
pub(super) enum Heard {
    Line(usize, Secure),
    Event(Event),
    Nothing,
}

impl Talk {
    pub(super) fn new(calls: Calls) -> Talk {
        let (sender, called) = unbounded_channel();
        Talk { calls, lines: Lines::new(), unsent: Vec::new(), sender, called }
    }

    /// Returns the messages that wait for a line.
    pub(super) fn take(&mut self, place: usize) -> Vec<Message> {
        let (taken, left) = std::mem::take(&mut self.unsent).into_iter().partition(|(of, _)| *of == place);
        self.unsent = left;
        let taken: Vec<(usize, Message)> = taken;
        taken.into_iter().map(|(_, message)| message).collect()
    }

    /// Waits for the next input until `until`.
    pub(super) async fn next(&mut self, me: MemberId, known: &[(MemberId, String)], until: Instant) -> Heard {
        tokio::select! {
            () = sleep_until(until) => Heard::Event(Event::Time),
            (place, event) = self.lines.next() => {
                let from = known[place].0;
                match event {
                    lines::Event::Said(lines::Message::Membership(message)) => Heard::Event(Event::Heard { from, message }),
                    lines::Event::Said(_) => Heard::Nothing,
                    lines::Event::Closed(_) => {
                        self.lines.remove(place);
                        Heard::Event(Event::Unreachable { member: from, may_have_arrived: true })
                    }
                }
            }
            Some((place, called)) = self.called.recv() => match called {
                Ok(stream) => Heard::Line(place, stream),
                // It has reported. If it is lost, its line closes.
                Err(_) if self.lines.has(place) => Heard::Nothing,
                Err(cause) => {
                    tracing::debug!("{} cannot be reached: {cause}", known[place].0);
                    Heard::Event(Event::Unreachable { member: known[place].0, may_have_arrived: false })
                }
            },
            Some(Ok((caller, from))) = self.calls.recv() => {
                if let Some(reason) = caller.introduction.role.misses(me) {
                    drop(caller.refuse(reason).await);
                    return Heard::Nothing;
                }
                let Role::Member { member, .. } = caller.introduction.role else { return Heard::Nothing };
                let Some(place) = known.iter().position(|(known, _)| *known == member) else {
                    tracing::warn!("refused a process at {from}: {member} is not of this run");
                    drop(caller.refuse("it is not a member of this run").await);
                    return Heard::Nothing;
                };
                match caller.welcome().await {
                    Ok(stream) => Heard::Line(place, stream),
                    Err(_) => Heard::Nothing,
                }
            }
        }
    }
}
