//! Steps of a session, counted from event to event.

/// A session that trains. Its steps are counted when an event asks for them.
#[derive(Debug, Clone)]
pub(super) struct Training {
    /// Number that no other session has.
    pub(super) id: u64,
    /// Processes by rank. The last ones are new.
    pub(super) members: Vec<usize>,
    /// Number of new members, which receive their state first.
    pub(super) new: usize,
    /// Time at which all members have the state.
    pub(super) ready: f64,
    /// Number of committed steps.
    pub(super) step: u64,
    /// Seconds of a step of its slowest member.
    pub(super) seconds: f64,
    /// Begin of the step under way. If the pace has changed in this step, the begin that it would have at the present pace.
    begin: f64,
    /// Time up to which committed steps are counted.
    counted: f64,
    /// Time of the first loss or division.
    pub(super) broken: Option<f64>,
    /// Set if the network is divided, and no member was lost.
    pub(super) may_heal: bool,
    /// Number of interruptions.
    pub(super) breaks: u64,
    /// Number of committed steps at which candidates are admitted.
    pub(super) admits_at: Option<u64>,
}

/// Rounding error of times, in steps: 10⁻¹⁰ s after 10⁶ s, of steps of at least 1 ms.
const ROUNDING: f64 = 1e-6;

impl Training {
    pub(super) fn new(id: u64, (members, new): (Vec<usize>, usize), (ready, seconds): (f64, f64), step: u64) -> Self {
        Training {
            id,
            members,
            new,
            ready,
            step,
            seconds,
            begin: ready,
            counted: ready,
            broken: None,
            may_heal: false,
            breaks: 0,
            admits_at: None,
        }
    }

    /// Counts the steps that end until `now`. Returns their rank-seconds, and the end of the first one; `None` without one.
    pub(super) fn advance(&mut self, now: f64) -> Option<(f64, f64)> {
        let steps = ((now - self.begin) / self.seconds + ROUNDING).floor();
        if self.broken.is_some() || steps < 1.0 {
            return None;
        }
        let first = self.begin + self.seconds;
        self.begin += steps * self.seconds;
        self.step += steps as u64;
        let useful = (self.begin - self.counted) * self.members.len() as f64;
        self.counted = self.begin;
        Some((useful, first))
    }

    /// Returns the end of the step after which `step` steps are committed, at the present pace.
    pub(super) fn end_of(&self, step: u64) -> f64 {
        self.begin + step.saturating_sub(self.step) as f64 * self.seconds
    }

    /// Returns the number of committed steps after the first whole step that begins from `now` on.
    pub(super) fn after_next(&self, now: f64) -> u64 {
        self.step + if now <= self.begin { 1 } else { 2 }
    }

    /// Changes the pace; the rest of the step under way has the new one.
    pub(super) fn retime(&mut self, now: f64, seconds: f64) {
        if now > self.begin {
            let left = (self.begin + self.seconds - now) / self.seconds;
            self.begin = now + (left - 1.0) * seconds;
        }
        self.seconds = seconds;
    }

    /// Interrupts the step under way.
    pub(super) fn interrupt(&mut self, now: f64) {
        self.broken = Some(now);
        self.breaks += 1;
        self.admits_at = None;
    }

    /// Continues the step that a division of the network has interrupted.
    pub(super) fn heal(&mut self, now: f64) {
        if let Some(since) = self.broken.take() {
            let pause = now - since;
            (self.begin, self.counted, self.ready) = (self.begin + pause, self.counted + pause, self.ready + pause);
        }
    }
}
