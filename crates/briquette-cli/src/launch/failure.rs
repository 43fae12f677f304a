//! Attribution of failures: the rank that failed first, and the cause.
//!
//! When one rank fails, the others fail a moment later because they lost it, so the rank that ends first is often a
//! victim. Of the ranks that fail within [`WINDOW`] of the first, the launcher therefore reports the likeliest cause,
//! in this order: a rank killed by a signal, one whose request was invalid, one that reports its own error, ranks
//! stopped by others, and last, ranks that only report that another one was lost.

use std::fmt;
use std::time::Duration;

use super::signals;

/// Time after the first failure within which another failure may still be its cause.
pub(super) const WINDOW: Duration = Duration::from_secs(2);

/// Termination of a rank's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// It exited with this code.
    Exit(i32),
    /// A signal ended it.
    Signal(i32),
}

/// Last output of a rank before it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Words {
    /// The last line on stderr that begins with `error:`, without that prefix.
    Error(String),
    /// The last lines on stderr; empty if it wrote nothing there.
    Lines(Vec<String>),
}

/// A rank that has ended.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    pub(super) rank: usize,
    pub(super) end: End,
    /// Time since the world's start.
    pub(super) at: Duration,
    /// Set if the launcher ended it, or tried to, because another rank failed.
    pub(super) by_launcher: bool,
    pub(super) words: Words,
}

/// A failed rank, and the cause of its failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    rank: usize,
    end: End,
    words: Words,
}

/// Attribution of a failure, likeliest causes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Blame {
    /// A signal killed it.
    Killed,
    /// Its request was invalid. Ranked before [`Own`](Blame::Own), as the others only report that it did not join.
    Refused,
    /// It reports its own error, or nothing.
    Own,
    /// It stopped on request: the exit code of an interrupted program.
    Stopped,
    /// It lost another rank, or was stopped by it.
    Another,
}

impl End {
    pub(super) fn failed(self) -> bool {
        self != End::Exit(0)
    }

    /// Returns the launcher's exit code for this end.
    pub(super) fn exit_code(self) -> u8 {
        match self {
            End::Exit(code) => u8::try_from(code).unwrap_or(1),
            End::Signal(signal) => signals::exit_code(signal),
        }
    }

    /// Returns whether this is the exit code for an invalid request: another attempt would be refused in the same way.
    pub(super) fn refused(self) -> bool {
        self == End::Exit(2)
    }

    /// Returns whether this is the exit code of a program that stopped on request: 128 + SIGHUP, SIGINT or SIGTERM.
    pub(super) fn stopped(self) -> bool {
        matches!(self, End::Exit(129 | 130 | 143))
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Exit(code) => write!(f, "failed (exit code {code})"),
            End::Signal(signal) => write!(f, "was killed by signal {signal} ({})", signals::name(*signal)),
        }
    }
}

impl Ended {
    pub(super) fn blame(&self) -> Blame {
        match (self.end, &self.words) {
            (End::Signal(_), _) => Blame::Killed,
            (end, _) if end.stopped() => Blame::Stopped,
            (end, _) if end.refused() => Blame::Refused,
            (_, Words::Error(text)) if blames_another(self.rank, text) => Blame::Another,
            (_, Words::Lines(lines)) if lines.iter().any(|line| blames_another(self.rank, line)) => Blame::Another,
            _ => Blame::Own,
        }
    }

    pub(super) fn failure(&self) -> Failure {
        Failure { rank: self.rank, end: self.end, words: self.words.clone() }
    }
}

/// Returns the rank that failed first, preferring ranks that did not fail because of another one, if that is known.
pub(super) fn first<'a>(ended: impl Iterator<Item = &'a Ended> + Clone) -> Option<&'a Ended> {
    let failed = ended.filter(|e| e.end.failed() && !e.by_launcher);
    let start = failed.clone().map(|e| e.at).min()?;
    failed.filter(|e| e.at - start <= WINDOW).min_by_key(|e| (e.blame(), e.at, e.rank))
}

/// Returns whether `text`, written by `rank`, reports that another rank was lost or stopped the run:
/// `rank 3 (10.0.0.4:40112) lost during …`, `rank 3 stopped the run during …`. These are the texts of
/// `briquette-core`'s communication errors.
fn blames_another(rank: usize, text: &str) -> bool {
    [" lost during ", " stopped the run during "].iter().filter_map(|words| text.find(words)).any(|at| {
        let before = &text[..at];
        let number = before.rfind("rank ").and_then(|rank| before[rank + 5..].split([' ', '(']).next()?.parse().ok());
        number.is_some_and(|number: usize| number != rank)
    })
}

impl Failure {
    /// Returns the launcher's exit code.
    pub fn exit_code(&self) -> u8 {
        self.end.exit_code()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} {}", self.rank, self.end)?;
        match &self.words {
            Words::Error(text) => write!(f, ": {text}"),
            Words::Lines(lines) if lines.is_empty() => write!(f, " and wrote nothing to stderr"),
            Words::Lines(lines) => {
                write!(f, "; the last it wrote to stderr:")?;
                lines.iter().try_for_each(|line| write!(f, "\n    {line}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use briquette_core::comm::Scope;
    use briquette_core::error::{CommError, ReduceError, SyncError};

    use super::*;

    fn ended(rank: usize, end: End, after: f64, error: &str) -> Ended {
        let at = Duration::from_secs_f64(after);
        Ended { rank, end, at, by_launcher: false, words: Words::Error(error.into()) }
    }

    fn first_of(ended: &[Ended]) -> Option<usize> {
        first(ended.iter()).map(|e| e.rank)
    }

    const LOST: &str = "step 7: rank 2 (10.0.0.3:40112) lost during the exchange of bucket 0";
    const STOPPED: &str = "rank 2 stopped the run during step 7: the loss is not finite";

    #[test]
    fn the_earliest_failure_is_first_among_equals() {
        let ranks = [
            ended(0, End::Exit(0), 0.0, ""),
            ended(1, End::Exit(1), 0.2, "late"),
            ended(2, End::Exit(3), 0.1, "early"),
        ];
        assert_eq!(first_of(&ranks), Some(2));
        assert_eq!(first_of(&ranks[..1]), None);
    }

    #[test]
    fn ranks_that_lost_another_give_way_to_it_within_the_window() {
        for text in [LOST, STOPPED] {
            let ranks = [ended(0, End::Exit(1), 0.0, text), ended(2, End::Exit(3), 1.9, "the loss is not finite")];
            assert_eq!(first_of(&ranks), Some(2), "{text}");
            let ranks = [ended(0, End::Exit(1), 0.0, text), ended(2, End::Exit(3), 2.1, "the loss is not finite")];
            assert_eq!(first_of(&ranks), Some(0), "{text}");
        }
    }

    #[test]
    fn a_signal_goes_before_words_and_words_before_having_been_stopped() {
        let mut ranks = vec![ended(0, End::Exit(1), 0.0, LOST), ended(1, End::Exit(130), 0.1, "")];
        assert_eq!(first_of(&ranks), Some(1));
        ranks.push(ended(2, End::Exit(1), 0.2, "no space left"));
        assert_eq!(first_of(&ranks), Some(2));
        ranks.push(ended(3, End::Exit(2), 0.2, "--batch must be at least 1, got 0"));
        assert_eq!(first_of(&ranks), Some(3), "the others say that the world did not come together");
        ranks.push(ended(4, End::Signal(9), 0.3, ""));
        assert_eq!(first_of(&ranks), Some(4));
    }

    #[test]
    fn ranks_that_the_launcher_ended_are_not_blamed() {
        let mut ranks = [ended(0, End::Exit(1), 0.0, LOST), ended(1, End::Signal(15), 0.1, "")];
        ranks[1].by_launcher = true;
        assert_eq!(first_of(&ranks), Some(0));
    }

    #[test]
    fn only_words_about_another_rank_blame_one() {
        assert!(blames_another(0, LOST) && blames_another(0, STOPPED));
        assert!(!blames_another(2, STOPPED), "the rank that stopped the run says so of itself");
        assert!(!blames_another(0, "3 values lost during rounding"));
        assert!(!blames_another(0, "rank of the matrix lost during compression"));
    }

    /// Checks core's own error texts, as rank 0 writes them, so that a change of their wording is noticed here.
    #[test]
    fn of_all_communication_errors_lost_and_stopped_ones_blame_another() {
        let (rank, during) = (0, Scope { operation: "all_gather", step: 7, bucket: Some(1) });
        let lost = |other: usize, address: Option<&str>| {
            let (address, cause) = (address.map(str::to_owned), "connection closed".to_owned());
            CommError::Lost { rank, other, address, during, cause }
        };
        let stopped = |by: usize| CommError::Aborted { by, during, reason: "the loss is not finite".to_owned() };
        let overdue = |last_seen: Option<String>| CommError::Deadline {
            rank,
            others: [2].into(),
            during,
            seconds: 4.0,
            last_seen,
        };
        let seen = Some("rank 2 was heard of 0.1 s ago, its last exchange was idle at step 0".to_owned());
        let theirs = "broadcast at step 7".to_owned();
        for (error, blames) in [
            (lost(2, Some("10.0.0.3:40112")), true),
            (lost(12, Some("[fe80::1]:40112")), true),
            (lost(2, None), true),
            (stopped(2), true),
            // An error in which a rank names itself is its own.
            (stopped(0), false),
            // It is unknown whether the other rank will fail too.
            (overdue(None), false),
            (overdue(seen), false),
            (CommError::OutOfStep { rank, other: 2, during, theirs }, false),
            (CommError::Size { rank, other: 2, during, expected: 4, got: 8 }, false),
        ] {
            let synced = SyncError::Reduce { step: 7, source: ReduceError::Comm(error.clone()) };
            for text in [error.to_string(), synced.to_string()] {
                let blame = ended(0, End::Exit(1), 0.0, &text).blame();
                assert_eq!(blame, if blames { Blame::Another } else { Blame::Own }, "{text}");
            }
        }
    }

    #[test]
    fn a_failure_says_rank_end_and_reason() {
        let mut failure = ended(2, End::Exit(3), 0.0, "no such file: data").failure();
        assert_eq!(failure.to_string(), "rank 2 failed (exit code 3): no such file: data");
        failure.end = End::Signal(9);
        failure.words = Words::Lines(vec![]);
        assert_eq!(failure.to_string(), "rank 2 was killed by signal 9 (SIGKILL) and wrote nothing to stderr");
        assert_eq!(failure.exit_code(), 137);
        failure.words = Words::Lines(vec!["a".into(), "b".into()]);
        assert!(failure.to_string().ends_with("; the last it wrote to stderr:\n    a\n    b"));
    }
}
