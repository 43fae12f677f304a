//! Membership of ranks that are threads of one process.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::successor::successor;
use super::{Generation, MemberId, MembershipError, Next, Policy, Regroup, Regrouped, Standing};
use crate::comm::Session;

/// One thread's membership. A thread that drops it is lost.
///
/// ```
/// use briquette_core::comm::Local;
/// use briquette_core::membership::{Policy, Regroup, Standing, Threads};
///
/// let members = Threads::world(3, Policy::default(), Local::world);
/// let worlds = std::thread::scope(|threads| {
///     let ranks: Vec<_> = members.into_iter().map(|(session, mut member)| threads.spawn(move || {
///         // The first rank is lost; the others become ranks 0 and 1.
///         if session.rank() == 0 {
///             return None;
///         }
///         drop(session);
///         let next = member.regroup(Standing::default(), false).expect("two of three");
///         Some((next.session.rank(), next.session.world(), next.before))
///     })).collect();
///     ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect::<Vec<_>>()
/// });
/// assert_eq!(worlds, [None, Some((0, 2, vec![1, 2])), Some((1, 2, vec![1, 2]))]);
/// ```
#[derive(Debug)]
pub struct Threads {
    me: MemberId,
    generation: Generation,
    shared: Arc<Shared>,
}

struct Shared {
    policy: Policy,
    state: Mutex<World>,
    changed: Condvar,
    sessions: Box<dyn Fn(usize) -> Vec<Session> + Send + Sync>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("policy", &self.policy).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct World {
    /// Number of the last generation that was decided.
    decided: u64,
    dead: Vec<MemberId>,
    reports: BTreeMap<MemberId, Standing>,
    /// The generation that is being formed, with the sessions that its members have not taken yet.
    next: Option<(Next, BTreeMap<MemberId, Session>)>,
    ended: Option<MembershipError>,
}

impl World {
    /// Ends the formation of a generation once every member has its session.
    fn taken(&mut self) {
        if self.next.as_ref().is_some_and(|(_, sessions)| sessions.is_empty()) {
            self.next = None;
            self.reports.clear();
        }
    }
}

impl Threads {
    /// Creates a world of `ranks` members with their sessions, in rank order. `sessions` creates the sessions of a world, also of
    /// later generations.
    pub fn world(
        ranks: usize,
        policy: Policy,
        sessions: impl Fn(usize) -> Vec<Session> + Send + Sync + 'static,
    ) -> Vec<(Session, Threads)> {
        let members: Vec<MemberId> = (0..ranks as u64).map(MemberId).collect();
        let generation = Generation { number: 0, members: members.clone() };
        let (first, state) = (sessions(ranks), Mutex::default());
        let shared = Arc::new(Shared { policy, state, changed: Condvar::new(), sessions: Box::new(sessions) });
        let member = |me| Threads { me, generation: generation.clone(), shared: Arc::clone(&shared) };
        first.into_iter().zip(members.into_iter().map(member)).collect()
    }

    fn state(&self) -> MutexGuard<'_, World> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the last member that reports, or the loss of the last that has not, decide for all.
    fn decide(&self, world: &mut World) {
        if world.next.is_some() || world.ended.is_some() || !world.reports.contains_key(&self.me) {
            return;
        }
        let coordinator = *world.reports.keys().next().unwrap_or(&self.me);
        let generations = (&self.generation, &self.generation);
        match successor(generations, &world.reports, self.shared.policy, (coordinator, 1)) {
            Ok(next) => {
                let sessions = (self.shared.sessions)(next.generation.members.len());
                let sessions = next.generation.members.iter().copied().zip(sessions).collect();
                world.decided = next.generation.number;
                world.next = Some((next, sessions));
            }
            Err(error) => world.ended = Some(error),
        }
        self.shared.changed.notify_all();
    }

    fn take(&mut self, world: &mut World, standing: Standing) -> Option<Result<Regrouped, MembershipError>> {
        let (rank, number) = (self.generation.rank_of(self.me).unwrap_or_default(), self.generation.number);
        if let Some(error) = &world.ended {
            return Some(Err(error.clone()));
        }
        let (next, sessions) = world.next.as_mut().filter(|(next, _)| next.generation.number == number + 1)?;
        let Some(session) = sessions.remove(&self.me) else {
            let reason = format!("generation {} is without it", next.generation.number);
            return Some(Err(MembershipError::Fenced { rank, generation: number, reason }));
        };
        let before = next.generation.members.iter().filter_map(|member| self.generation.rank_of(*member)).collect();
        let (generation, commits) = (next.generation.clone(), next.commits_for(standing));
        self.generation.clone_from(&generation);
        world.taken();
        Some(Ok(Regrouped { session, generation, before, commits }))
    }
}

impl Regroup for Threads {
    fn regroup(&mut self, standing: Standing, _admits: bool) -> Result<Regrouped, MembershipError> {
        let shared = Arc::clone(&self.shared);
        let until = Instant::now() + Duration::from_secs_f64(shared.policy.patience);
        let mut world = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Members of the generation before may not have left it yet.
        while world.next.is_some() {
            world = shared.changed.wait(world).unwrap_or_else(PoisonError::into_inner);
        }
        if world.decided > self.generation.number {
            let (rank, generation) = (self.generation.rank_of(self.me).unwrap_or_default(), self.generation.number);
            let reason = format!("generation {} is without it", world.decided);
            return Err(MembershipError::Fenced { rank, generation, reason });
        }
        world.reports.insert(self.me, standing);
        loop {
            let known = |member: &MemberId| world.reports.contains_key(member) || world.dead.contains(member);
            let all_known = self.generation.members.iter().all(known);
            if all_known || Instant::now() >= until {
                self.decide(&mut world);
            }
            if let Some(taken) = self.take(&mut world, standing) {
                shared.changed.notify_all();
                return taken;
            }
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            world = shared.changed.wait_timeout(world, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn generation(&self) -> &Generation {
        &self.generation
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let mut world = self.state();
        world.dead.push(self.me);
        world.reports.remove(&self.me);
        if let Some((_, sessions)) = &mut world.next {
            sessions.remove(&self.me);
        }
        world.taken();
        drop(world);
        self.shared.changed.notify_all();
    }
}
