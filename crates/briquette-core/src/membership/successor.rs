//! Decision of a coordinator about the next generation.

use std::collections::BTreeMap;

use super::{Candidate, Generation, MemberId, MembershipError, Next, Policy, Standing};

/// Decides on the generation after `generation` from the reports of its living members, on behalf of one of them, the coordinator.
/// `formed` is the last generation that was formed.
pub(super) fn successor(
    (generation, formed): (&Generation, &Generation),
    reports: &BTreeMap<MemberId, Standing>,
    policy: Policy,
    (coordinator, attempt): (MemberId, u64),
) -> Result<Next, MembershipError> {
    let has_state = || reports.values().filter(|standing| !standing.is_new);
    let highest = has_state().map(|standing| standing.step).max().unwrap_or_default();
    // A member at the step before is in doubt and commits. If it is not, it has discarded that step with others: those who
    // committed were out of reach then, and the discard stands.
    let discarded = has_state().any(|standing| standing.step + 1 == highest && !standing.in_doubt);
    let step = if discarded { highest - 1 } else { highest };
    let commits_to = |s: &Standing| !s.is_new && !discarded && s.in_doubt && s.step + 1 == step;
    let fits = |s: &Standing| !s.is_new && s.step == step || commits_to(s);
    let stays = |member: &MemberId| reports.get(member).is_some_and(fits);
    let number = generation.number;
    let rank = generation.rank_of(coordinator).unwrap_or(usize::MAX);
    let members: Vec<MemberId> = generation.members.iter().copied().filter(stays).collect();
    let is_new = |member: &MemberId| reports.get(member).is_some_and(|standing| standing.is_new);
    let living: Vec<MemberId> = generation.members.iter().copied().filter(|m| stays(m) || is_new(m)).collect();
    if !formed.is_quorum(&living) || members.len() < policy.fewest.max(1) {
        let [living, of] = [&living, &formed.members].map(Vec::len);
        return Err(MembershipError::Minority { rank, generation: number, living, members: of, fewest: policy.fewest });
    }
    if !stays(&coordinator) {
        let reason = format!("others have discarded exchange {step}, which it has committed");
        return Err(MembershipError::Fenced { rank, generation: number, reason });
    }
    let commits = members.iter().any(|member| commits_to(&reports[member]));
    let (generation, candidates) = (Generation { number: number + 1, members }, Vec::new());
    Ok(Next { generation, candidates, coordinator, attempt, step, commits })
}

impl Next {
    /// Adds candidates, in the order of their identities: at most three fewer than there are members, or one. If all of them and the first
    /// member, which has their state, are lost during the hand-over, more than half of this generation is left, unless it is smaller than five. New members that are alive count for the quorum.
    pub(super) fn admit(&mut self, mut candidates: Vec<Candidate>) {
        candidates.sort_by_key(|candidate| candidate.member);
        candidates.dedup_by_key(|candidate| candidate.member);
        candidates.retain(|candidate| self.generation.rank_of(candidate.member).is_none());
        candidates.truncate(self.generation.members.len().saturating_sub(3).max(1));
        self.generation.members.extend(candidates.iter().map(|candidate| candidate.member));
        self.candidates = candidates;
    }
}
