//! Shares in flight: sent at one step, added some steps later.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Graph, swap};
use briquette_core::comm::{Pending, SessionId};
use briquette_core::error::{CommError, StateError};
use briquette_core::state::{OnResize, Place, Staged, State, Stateful};
use briquette_core::sync::in_background::CHANNEL;
use briquette_core::{Session, Traffic};

/// One step's share that a rank sends.
#[derive(Debug, Clone, PartialEq)]
struct Share {
    /// `p·x`, then `p·w`: the values that each peer receives.
    values: Arc<Vec<f32>>,
    /// Number of peers that receive it; 0 for a part of the start, which returns to this rank.
    peers: usize,
    /// Time at which it was sent, on the session's clock.
    started: f64,
}

/// The received result of one step.
struct Arrived {
    sum: Vec<f32>,
    traffic: Traffic,
    /// Set if a step has counted its bytes: the step that adds the sum, even if a checkpoint has waited for the share before.
    counted: bool,
    /// Time of arrival, on the session's clock.
    at: f64,
}

/// Shares that a rank sent in the last steps, and the shares that arrived. A run that is resumed, or continues in another
/// session, sends them again.
#[derive(Default)]
pub(super) struct InFlight {
    /// Steps between sending and adding; 0 for the same step.
    pub(super) staleness: usize,
    /// Oldest first, one per step.
    sent: Staged<VecDeque<Share>>,
    /// Shares in flight before the first step.
    before_first: VecDeque<Share>,
    /// Results of the sent shares that have arrived, oldest first; `pending` holds the outstanding ones.
    arrived: VecDeque<Arrived>,
    pending: VecDeque<Pending<Result<Vec<f32>, CommError>>>,
    /// Session that they belong to.
    session: Option<SessionId>,
    /// Set if the staged state includes the oldest of these.
    landed: bool,
}

impl Share {
    fn is_sent(&self) -> bool {
        self.peers > 0
    }
}

impl InFlight {
    /// Starts with nothing sent.
    pub(super) fn begin(&mut self) {
        *self = InFlight { staleness: self.staleness, ..InFlight::default() };
    }

    /// Adds the shares that this rank has sent and no rank has added, without the weights.
    pub(super) fn add_to(&self, x: &mut [f32], latest: bool) {
        let sent = if latest { self.sent.latest() } else { self.sent.now() };
        for share in sent {
            let times = share.peers.max(1) as f32;
            x.iter_mut().zip(&*share.values).for_each(|(x, share_of_x)| *x += times * share_of_x);
        }
    }

    /// At the very first step, subtracts from `x` and its weight the amount that would be in flight if messages had always
    /// travelled. It returns in equal parts, one per step, until the first message arrives. Returns the remaining weight.
    pub(super) fn begin_with(&mut self, x: &mut [f32], weight: f32, peers: usize) -> f32 {
        self.before_first.clear();
        if !self.sent.now().is_empty() {
            return weight;
        }
        let whole = (1 + peers + self.staleness * peers) as f32;
        let (kept, part) = ((1 + peers) as f32 / whole, peers as f32 / whole);
        let values = Arc::new(x.iter().map(|x| x * part).chain([weight * part]).collect());
        let part = Share { values, peers: 0, started: 0.0 };
        self.before_first.extend(std::iter::repeat_n(part, self.staleness));
        x.iter_mut().for_each(|x| *x *= kept);
        weight * kept
    }

    /// Stages a share at `step`, and adds the shares that the others sent `staleness` steps before. Returns their weight and
    /// bytes.
    pub(super) fn exchange(
        &mut self,
        (x, weight, peers): (&mut [f32], f32, usize),
        step: u64,
        graph: &Graph,
        comm: &mut Session,
    ) -> Result<(f32, Traffic), CommError> {
        self.resume(step, graph, comm);
        let (sent, next) = self.sent.both();
        next.clone_from(if sent.is_empty() { &self.before_first } else { sent });
        let values = Arc::new(x.iter().copied().chain([weight]).collect());
        next.push_back(Share { values, peers, started: comm.now() });
        let (mut came, mut traffic) = (0.0, Traffic::default());
        let due = if next.len() > self.staleness { next.pop_front() } else { None };
        self.landed = due.as_ref().is_some_and(Share::is_sent);
        if let Some(back) = due.filter(|share| !share.is_sent()) {
            x.iter_mut().zip(&*back.values).for_each(|(x, part)| *x += part);
            came = back.values.last().copied().unwrap_or_default();
        } else if self.landed {
            if self.arrived.is_empty() {
                self.wait(comm)?;
            }
            let arrived = &mut self.arrived[0];
            if arrived.at > comm.now() {
                comm.set_clock(arrived.at);
            }
            if !std::mem::replace(&mut arrived.counted, true) {
                comm.count(arrived.traffic);
            }
            x.iter_mut().zip(&arrived.sum).for_each(|(x, sum)| *x += sum);
            (came, traffic) = (arrived.sum.last().copied().unwrap_or_default(), arrived.traffic);
        }
        self.sent.stage();
        Ok((came, traffic))
    }

    /// Sends the newest share, that of `step`, which is committed.
    pub(super) fn send(&mut self, step: u64, graph: &Graph, comm: &mut Session) {
        if let Some(newest) = self.sent.now().back().cloned() {
            self.start(&newest, step, graph, comm);
        }
    }

    fn start(&mut self, share: &Share, step: u64, graph: &Graph, comm: &mut Session) {
        let (values, graph) = (Arc::clone(&share.values), graph.clone());
        self.session = Some(comm.identity().clone());
        self.pending.push_back(comm.start_on_free_link(CHANNEL, move |comm| push(&values, step, &graph, comm)));
    }

    /// Sends all outstanding shares again if this session has not sent them. At `step` the newest is that of the previous step.
    fn resume(&mut self, step: u64, graph: &Graph, comm: &mut Session) {
        if self.session.as_ref().is_some_and(|session| session == comm.identity()) {
            return;
        }
        self.pending.clear();
        self.arrived.clear();
        let (now, mut sent) = (comm.now(), self.sent.now().clone());
        sent.retain(Share::is_sent);
        let first = step - sent.len() as u64;
        for (share, step) in sent.iter().zip(first..) {
            comm.set_clock(share.started);
            self.start(share, step, graph, comm);
        }
        comm.set_clock(now);
    }

    /// Waits for the oldest share that has not arrived.
    fn wait(&mut self, comm: &mut Session) -> Result<(), CommError> {
        let Some(pending) = self.pending.pop_front() else { return Ok(()) };
        let (sum, ended, traffic) = pending.finish_uncounted(comm);
        match ended.and(sum) {
            Ok(sum) => self.arrived.push_back(Arrived { sum, traffic, counted: false, at: comm.now() }),
            Err(error) => {
                comm.count(traffic);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits for all shares; the clock does not advance.
    pub(super) fn settle(&mut self, comm: &mut Session) -> Result<(), CommError> {
        let now = comm.now();
        while !self.pending.is_empty() {
            self.wait(comm)?;
            if comm.now() > now {
                comm.set_clock(now);
            }
        }
        Ok(())
    }
}

/// By hand, because each share in flight is an entry of its own.
impl Stateful for InFlight {
    fn save(&self, state: &mut State) {
        let place = Place::PerRank(OnResize::Drop);
        let started = (0..self.staleness).map(|i| self.sent.now().get(i).map_or(0.0, |share| share.started));
        state.put_at(place, "in_flight_since", started.collect::<Vec<f64>>());
        for i in 0..self.staleness {
            let share = self.sent.now().get(i);
            let values: Option<Vec<f32>> =
                share.map(|share| share.values.iter().copied().chain([share.peers as f32]).collect());
            state.put_at(place, &format!("in_flight_{i}"), values.unwrap_or_default());
        }
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        let started = state.f64s("in_flight_since")?;
        let mut sent = VecDeque::new();
        for (i, started) in started.iter().enumerate().take(self.staleness) {
            // Empty: not sent yet, or dropped because the world size changed.
            if let [values @ .., peers] = state.f32s(&format!("in_flight_{i}"), None)? {
                sent.push_back(Share { values: Arc::new(values.to_vec()), peers: *peers as usize, started: *started });
            }
        }
        self.begin();
        self.sent.set(sent);
        Ok(())
    }

    fn commit(&mut self) {
        self.sent.commit();
        if std::mem::take(&mut self.landed) {
            self.arrived.pop_front();
        }
    }

    fn discard(&mut self) {
        self.sent.discard();
        self.landed = false;
    }
}

/// Sends a share to its peers. Returns the sum of the received shares, followed by the sum of their weights.
fn push(values: &[f32], step: u64, graph: &Graph, comm: &mut Session) -> Result<Vec<f32>, CommError> {
    let Some((weight, x)) = values.split_last() else { return Ok(Vec::new()) };
    let mut sum = vec![0.0; x.len()];
    let weight = swap((Some(x), *weight), &mut sum, (step, graph), comm)?;
    sum.push(weight);
    Ok(sum)
}

impl std::fmt::Debug for InFlight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InFlight").field("sent", &self.sent.now().len()).finish_non_exhaustive()
    }
}
