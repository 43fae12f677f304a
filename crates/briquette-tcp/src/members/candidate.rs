//! Joining a world that is running.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant as Wall};

use briquette_core::Session;
use briquette_core::membership::{Election, MemberId, Next, Policy};
use tokio::time::{Instant, timeout, timeout_at};

use super::{Members, draw_id, host, listen};
use crate::acceptor::{Calls, accept};
use crate::builder::TcpBuilder;
use crate::call::member;
use crate::error::JoinError;
use crate::handshake::Role;
use crate::lines::{Event, Lines, Message};
use crate::settings::Settings;

/// Time after which a candidate asks again: the member that noted it may have been lost.
const AGAIN: Duration = Duration::from_secs(10);
/// Connect timeout of a member.
const CONNECT: Duration = Duration::from_secs(5);
/// Pause between two rounds of calls to the members.
const PAUSE: Duration = Duration::from_millis(200);

/// The generation that admits a candidate.
struct Admission {
    next: Next,
    known: Vec<(MemberId, String)>,
    run: String,
}

impl TcpBuilder {
    /// Joins an [elastic world](briquette_core::membership) that is running, as a new member: asks the members at the addresses of
    /// [`members`](Self::members) in turn, and returns when one of its generations includes this process. The new member's rank is the
    /// last. It then receives the state of training from the others.
    ///
    /// # Errors
    /// [`JoinError::Incomplete`] if no member has admitted this process until the [rendezvous timeout](Self::join_deadline);
    /// [`JoinError::Refused`] if a member refuses it.
    pub fn join_running(mut self, policy: Policy) -> Result<(Session, Members), JoinError> {
        self.check()?;
        let (rank, world) = (self.settings.rank, self.settings.world);
        let system = |what| move |source| JoinError::system(rank, world, what)(source);
        self.run_name = self.settings.name.clone().unwrap_or_default();
        let me = draw_id().map_err(system("draw random numbers"))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(system("start its control thread"))?;
        let calls = Arc::new(self.of_calls());
        let deadline = Instant::now() + self.settings.join_deadline;
        let (listener, admission) = runtime.block_on(self.settings.unless_cancelled(self.ask(me, &calls, deadline)))?;
        drop(runtime);
        let Admission { next, known, run } = admission;
        let mut members = Members {
            me,
            election: Election::new(me, next.generation.clone(), policy),
            generation: next.generation.clone(),
            new: next.candidates.len(),
            builder: self,
            run,
            known,
            listener,
            calls,
            policy,
            start: Wall::now(),
            doorkeeper: None,
        };
        let session = members.form(&next)?;
        members.open_the_door();
        Ok((session, members))
    }

    /// Asks members until one calls back.
    async fn ask(
        &self,
        me: MemberId,
        settings: &Arc<Settings>,
        deadline: Instant,
    ) -> Result<(TcpListener, Admission), JoinError> {
        let (rank, world) = (self.settings.rank, self.settings.world);
        let (mut open, mut causes) = (None::<(TcpListener, u16, Calls)>, Vec::new());
        while Instant::now() < deadline {
            causes.clear();
            for seed in &self.members {
                // The route to a member is the one on which the others are likely to reach this process.
                let (listener, port, calls) = match &mut open {
                    Some(open) => open,
                    closed => match self.listen_towards(seed, settings).await {
                        Ok(opened) => closed.insert(opened),
                        Err(cause) => {
                            causes.push(format!("{seed}: {cause}"));
                            continue;
                        }
                    },
                };
                let role = Role::Candidate { member: me, port: *port };
                let until = deadline.min(Instant::now() + AGAIN);
                match member::call(settings, seed, role, until).await {
                    Ok(_) => {}
                    Err(cause) => {
                        causes.push(format!("{seed}: {cause}"));
                        continue;
                    }
                }
                if let Some(admission) = admitted(calls, me, deadline.min(Instant::now() + AGAIN)).await {
                    let listener = listener.try_clone();
                    return listener.map(|listener| (listener, admission)).map_err(JoinError::system(
                        rank,
                        world,
                        "share its listener",
                    ));
                }
                causes.push(format!("{seed}: it has noted this process, and no generation has begun since"));
            }
            tokio::time::sleep(PAUSE).await;
        }
        let missing = format!("no member has admitted this process ({})", causes.join("; "));
        let seconds = self.settings.join_deadline.as_secs_f64();
        Err(JoinError::Incomplete { rank, world, seconds, missing })
    }

    async fn listen_towards(
        &self,
        seed: &str,
        settings: &Arc<Settings>,
    ) -> Result<(TcpListener, u16, Calls), std::io::Error> {
        let connected = timeout(CONNECT, tokio::net::TcpStream::connect(seed)).await;
        let here = connected.map_err(|_| std::io::Error::other("no answer"))??.local_addr()?;
        let given = self.member_address(self.settings.rank).filter(|given| host(given) == host(&here.to_string()));
        // The port of the rank in whose place it joins may be in use.
        let listener = listen(&here.to_string(), given).or_else(|_| listen(&here.to_string(), None))?;
        let port = listener.local_addr()?.port();
        let clone = listener.try_clone()?;
        clone.set_nonblocking(true)?;
        let calls = accept(vec![tokio::net::TcpListener::from_std(clone)?], Arc::clone(settings));
        Ok((listener, port, calls))
    }
}

/// Waits until the coordinator of a generation calls.
async fn admitted(calls: &mut Calls, me: MemberId, until: Instant) -> Option<Admission> {
    while let Ok(Some(call)) = timeout_at(until, calls.recv()).await {
        let Ok((caller, _)) = call else { continue };
        if let Some(reason) = caller.introduction.role.misses(me) {
            drop(caller.refuse(reason).await);
            continue;
        }
        // A member that takes this process for one that it waits for.
        let Role::Member { .. } = caller.introduction.role else { continue };
        let Ok(stream) = caller.welcome().await else { continue };
        let mut line = Lines::new();
        line.add(0, stream);
        // The one before at this port may have been meant.
        if let Ok((_, Event::Said(Message::Admit { next, known, run }))) = timeout_at(until, line.next()).await
            && next.generation.rank_of(me).is_some()
        {
            return Some(Admission { next, known, run });
        }
    }
    None
}
