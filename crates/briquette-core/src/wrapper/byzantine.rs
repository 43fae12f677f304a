//! Byzantine ranks on purpose: to try what tolerates them, with your own model, compressor and aggregator.
//!
//! **Why, and when not.** For experiments and tests alone. It goes around everything that a rank does to its vector, so a false one is compressed, remembered and
//! aggregated as a gradient is.
//!
//! **Method.** The last `byzantine` ranks send, in place of their vector `x`:
//!
//! | attack | sends | source |
//! |---|---|---|
//! | `large:C` | `C·x`, 1000 | |
//! | `sign-flip` | `−x` | |
//! | `inner-product:E` | `−E` times the mean of the honest, 0.5 | Xie, Koyejo, Gupta, *Fall of Empires*, UAI 2019 |
//! | `little:Z` | the mean of the honest less `Z` of their standard deviations in every coordinate, 1 | Baruch, Baruch, Goldberg, *A Little Is Enough*, NeurIPS 2019 |
//! | `mimic` | what rank 0 sends | Karimireddy, He, Jaggi, ICLR 2022 |
//! | `crash` | zeros | |
//! | `stale:STEPS` | its vector of so many steps ago, 10; zeros until there is one | |
//! | `not-finite` | not a number | |
//!
//! Ranks of the three attacks that use them know the others' vectors: every rank sends its own to all first, which no real attack would need.
//!
//! **On the wire.** What is inside sends; where the others' vectors are used, `4d` bytes of every rank to every other besides.
//!
//! **Properties.** It has no knob, so [`Adaptive`](super::Adaptive) refuses it: what is inside would send the message that was made of the true
//! vector while probing.
//!
//! **State.** The vectors that `stale` sends later: they are staged and committed as any memory, but not saved. A resumed run begins with
//! zeros again.
//!
//! ```
//! use briquette_core::aggregate::Median;
//! use briquette_core::comm::{Local, run_ranks};
//! use briquette_core::compress::Dense;
//! use briquette_core::error::ReduceError;
//! use briquette_core::reduce::{AgreedStep, Gather, Reducer, Round};
//! use briquette_core::wrapper::Byzantine;
//! use briquette_core::{Key, Layout};
//!
//! let medians = run_ranks(Local::world(3), |mut comm| {
//!     let (layout, mut average) = (Layout::flat(1), [0.0]);
//!     let input = [1.0 + comm.rank() as f32];
//!     let mut reducer = Byzantine::new(Gather::new(Dense, Median), "large:-1000".parse()?, 1);
//!     let round = Round { key: Key::new(0), slots: layout.slots(), agreed_step: &AgreedStep::default(),
//!         input: &input, average: &mut average, sent: None };
//!     reducer.reduce(round, &mut comm)?;
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(average[0])
//! });
//! // 1, 2 and -3000.
//! assert!(medians.into_iter().all(|median| median.unwrap() == 1.0));
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

use crate::error::{AggregateError, ConfigError, ReduceError, StateError, WireError};
use crate::reduce::{Exchanged, Reducer, Round};
use crate::report::Report;
use crate::state::{State, Stateful};
use crate::{Frame, Session};

/// What a Byzantine rank sends; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Attack {
    /// Its vector times this.
    Large(f32),
    /// Its vector reversed.
    SignFlip,
    /// The mean of the honest, times minus this.
    InnerProduct(f32),
    /// The mean of the honest less this many standard deviations.
    Little(f32),
    /// What rank 0 sends.
    Mimic,
    /// Zeros.
    Crash,
    /// Its vector of this many steps ago.
    Stale(usize),
    /// Not a number.
    NotFinite,
}

impl Attack {
    /// One of each, with its default.
    pub const ALL: [Attack; 8] = [
        Attack::Large(1000.0),
        Attack::SignFlip,
        Attack::InnerProduct(0.5),
        Attack::Little(1.0),
        Attack::Mimic,
        Attack::Crash,
        Attack::Stale(10),
        Attack::NotFinite,
    ];

    fn name(self) -> &'static str {
        match self {
            Attack::Large(_) => "large",
            Attack::SignFlip => "sign-flip",
            Attack::InnerProduct(_) => "inner-product",
            Attack::Little(_) => "little",
            Attack::Mimic => "mimic",
            Attack::Crash => "crash",
            Attack::Stale(_) => "stale",
            Attack::NotFinite => "not-finite",
        }
    }

    fn knows_the_others(self) -> bool {
        matches!(self, Attack::InnerProduct(_) | Attack::Little(_) | Attack::Mimic)
    }

    /// The false value of one coordinate, from what the honest have there; [`knows_the_others`](Self::knows_the_others).
    fn of_others(self, honest: &[f32]) -> f32 {
        let count = honest.len() as f64;
        let mean = honest.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
        let variance = honest.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count;
        (match self {
            Attack::InnerProduct(by) => -f64::from(by) * mean,
            Attack::Little(deviations) => mean - f64::from(deviations) * variance.sqrt(),
            _ => f64::from(honest[0]),
        }) as f32
    }
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attack::Large(by) | Attack::InnerProduct(by) | Attack::Little(by) => write!(f, "{}:{by}", self.name()),
            Attack::Stale(steps) => write!(f, "stale:{steps}"),
            _ => f.write_str(self.name()),
        }
    }
}

impl FromStr for Attack {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let (name, setting) = text.split_once(':').map_or((text, None), |(name, setting)| (name, Some(setting)));
        let Some(default) = Attack::ALL.into_iter().find(|attack| attack.name() == name) else {
            let valid = Attack::ALL.map(Attack::name).join(", ");
            return Err(ConfigError::Unknown { what: "attack", got: text.to_owned(), valid });
        };
        let Some(setting) = setting else { return Ok(default) };
        let finite = setting.parse::<f32>().ok().filter(|by| by.is_finite());
        let read = match default {
            Attack::Large(_) => finite.map(Attack::Large),
            Attack::InnerProduct(_) => finite.map(Attack::InnerProduct),
            Attack::Little(_) => finite.map(Attack::Little),
            Attack::Stale(_) => setting.parse().ok().filter(|steps| *steps > 0).map(Attack::Stale),
            _ => None,
        };
        read.ok_or_else(|| ConfigError::Conflict(format!("attack `{text}`: {setting} is no setting of {name}")))
    }
}

/// A reducer that the last ranks attack; see the [module](self).
#[derive(Debug)]
pub struct Byzantine<R> {
    inner: R,
    attack: Attack,
    byzantine: usize,
    /// What is sent.
    lie: Vec<f32>,
    /// The vectors of the last steps, oldest first.
    before: VecDeque<Vec<f32>>,
    /// That of this step, until it is committed.
    staged: Option<Vec<f32>>,
    frames: Vec<Frame>,
}

impl<R: Reducer> Byzantine<R> {
    /// The last `byzantine` ranks attack.
    pub fn new(inner: R, attack: Attack, byzantine: usize) -> Self {
        let (lie, before, staged, frames) = Default::default();
        Byzantine { inner, attack, byzantine, lie, before, staged, frames }
    }

    /// What this rank sends in place of `x`.
    fn lie(&mut self, x: &[f32], comm: &mut Session) -> Result<(), ReduceError> {
        let (rank, honest) = (comm.rank(), comm.world().saturating_sub(self.byzantine));
        self.lie.clear();
        if self.attack.knows_the_others() {
            let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
            comm.all_gather(&bytes, &mut self.frames)?;
            if let Some(from) = (0..honest).find(|from| *from != rank && self.frames[*from].len() != bytes.len()) {
                let source = WireError::Length { expected: x.len(), got: self.frames[from].len() / 4 };
                return Err(AggregateError::Message { rank: from, source }.into());
            }
        }
        match self.attack {
            _ if rank < honest => self.lie.extend_from_slice(x),
            Attack::Large(by) => self.lie.extend(x.iter().map(|x| by * x)),
            Attack::SignFlip => self.lie.extend(x.iter().map(|x| -x)),
            Attack::Crash => self.lie.resize(x.len(), 0.0),
            Attack::NotFinite => self.lie.resize(x.len(), f32::NAN),
            Attack::Stale(steps) => {
                self.staged = Some(x.to_vec());
                match self.before.front().filter(|_| self.before.len() == steps) {
                    Some(old) => self.lie.extend_from_slice(old),
                    None => self.lie.resize(x.len(), 0.0),
                }
            }
            attack => {
                let values = |from: usize| self.frames[from].as_chunks::<4>().0;
                let of =
                    |i: usize| (0..honest).map(move |from| f32::from_le_bytes(values(from)[i])).collect::<Vec<_>>();
                self.lie.extend((0..x.len()).map(|i| if honest == 0 { x[i] } else { attack.of_others(&of(i)) }));
            }
        }
        Ok(())
    }
}

impl<R: Reducer> Stateful for Byzantine<R> {
    fn save(&self, state: &mut State) {
        self.inner.save(state);
    }
    fn load(&mut self, state: &State) -> Result<(), StateError> {
        self.before.clear();
        self.staged = None;
        self.inner.load(state)
    }
    fn commit(&mut self) {
        self.inner.commit();
        if let (Some(vector), Attack::Stale(steps)) = (self.staged.take(), self.attack) {
            self.before.push_back(vector);
            self.before.drain(..self.before.len().saturating_sub(steps));
        }
    }
    fn discard(&mut self) {
        self.inner.discard();
        self.staged = None;
    }
}

impl<R: Reducer> Reducer for Byzantine<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        self.lie(round.input, comm)?;
        let Round { key, slots, agreed_step, average, sent, .. } = round;
        self.inner.reduce(Round { key, slots, agreed_step, input: &self.lie, average, sent }, comm)
    }

    fn report(&self, report: &mut Report) {
        self.inner.report(report);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::{Aggregator, Cge, GeometricMedian, Krum, Licm, Mean, Median, TrimmedMean};
    use crate::comm::{Local, run_ranks};
    use crate::compress::Dense;
    use crate::reduce::{AgreedStep, Gather};
    use crate::{Key, Layout};

    type Rule<'a> = &'a (dyn Fn() -> Box<dyn Aggregator> + Sync);

    /// One value's averages in some steps of five ranks, the last of which attacks.
    fn averages(attack: Attack, rule: Rule<'_>, values: &(dyn Fn(usize, u64) -> f32 + Sync), steps: u64) -> Vec<f32> {
        let all = run_ranks(Local::world(5), |mut comm| {
            let layout = Layout::flat(1);
            let mut reducer = Byzantine::new(Gather::new(Dense, rule()), attack, 1);
            let mut averages = Vec::new();
            for step in 0..steps {
                // A step that fails is done again, with other values first.
                for value in [99.0, values(comm.rank(), step)] {
                    reducer.discard();
                    let (input, mut average) = ([value], [0.0]);
                    let (key, slots, agreed_step) = (Key::new(step), layout.slots(), &AgreedStep::default());
                    let round = Round { key, slots, agreed_step, input: &input, average: &mut average, sent: None };
                    match reducer.reduce(round, &mut comm) {
                        Err(error) if value != 99.0 => return Err(error),
                        _ => averages.push(average[0]),
                    }
                }
                averages.remove(step as usize);
                reducer.commit();
            }
            Ok::<_, ReduceError>(averages)
        });
        let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
        assert!(all.iter().all(|one| *one == all[0]), "{attack}: the same bits on every rank");
        all.into_iter().next().unwrap()
    }

    #[test]
    fn attacks_by_hand() {
        let honest = [1.0, 3.0, 5.0, 3.0];
        assert_eq!(Attack::InnerProduct(0.5).of_others(&honest), -1.5);
        // A variance of 2.
        assert!((Attack::Little(1.0).of_others(&honest) - (3.0 - 2.0f32.sqrt())).abs() < 1e-6);
        assert_eq!(Attack::Mimic.of_others(&honest), 1.0);
        let values = |rank: usize, step: u64| 1.0 + rank as f32 + 10.0 * step as f32;
        let means = |attack, steps| averages(attack, &|| Box::new(Mean), &values, steps);
        // 1, 2, 3, 4 of the honest, 5 of the other.
        for (attack, expected) in [
            (Attack::Large(-10.0), (10.0 - 50.0) / 5.0),
            (Attack::SignFlip, (10.0 - 5.0) / 5.0),
            (Attack::InnerProduct(1.0), (10.0 - 2.5) / 5.0),
            (Attack::Mimic, 11.0 / 5.0),
            (Attack::Crash, 10.0 / 5.0),
            (Attack::Stale(1), 10.0 / 5.0),
        ] {
            let mean = means(attack, 1)[0];
            assert!((mean - expected).abs() < 1e-5, "{attack}: {mean} {expected}");
        }
        // 40 more of the honest in each step; 5 and 15 of the other, from two steps before. What a failed step had is forgotten.
        let expected = [10.0, 50.0, 90.0 + 5.0, 130.0 + 15.0].map(|sum: f32| sum / 5.0);
        for (mean, expected) in means(Attack::Stale(2), 4).iter().zip(expected) {
            assert!((mean - expected).abs() < 1e-5, "{mean} {expected}");
        }
    }

    /// Threat R5. What each rule makes of 1, 2, 3, 4 and an attack: of one that lies far off, of four; never more than what an honest rank
    /// in its place could do.
    #[test]
    fn what_tolerates_byzantine_ranks_gives_these() {
        // The mean of the honest less their standard deviation.
        let little = 2.5 - 1.25f32.sqrt();
        let attacks =
            [Attack::Large(1000.0), Attack::SignFlip, Attack::InnerProduct(0.5), Attack::Little(1.0), Attack::Mimic];
        let others = [Attack::Crash, Attack::Stale(10), Attack::NotFinite];
        // Sent: 5000, -5, -1.25, little, 1, 0, 0, nothing that counts.
        let expected: [(Rule<'_>, [f32; 8]); 6] = [
            (
                // The two nearest to their two neighbours.
                &|| Box::new(Krum { byzantine: 1, keep: 2 }),
                [2.5, 2.5, 2.5, (1.0 + little) / 2.0, 1.0, 1.5, 1.5, 2.5],
            ),
            (&|| Box::new(TrimmedMean { trim: 1 }), [3.0, 2.0, 2.0, (little + 5.0) / 3.0, 2.0, 2.0, 2.0, 2.5]),
            (&|| Box::new(Median), [3.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.5]),
            (&|| Box::new(GeometricMedian::default()), [3.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.5]),
            // Where what is sent is small, the 4 is left out.
            (&|| Box::new(Cge { byzantine: 1 }), [2.5, 2.5, 4.75 / 4.0, (6.0 + little) / 4.0, 1.75, 1.5, 1.5, 2.0]),
            (&|| Box::new(Licm::default()), [2.5, 2.5, 2.5, (10.0 + little) / 5.0, 2.2, 2.0, 2.0, 2.5]),
        ];
        for (at, (rule, expected)) in expected.iter().enumerate() {
            for (attack, expected) in attacks.into_iter().chain(others).zip(expected) {
                let got = averages(attack, rule, &|rank, _| 1.0 + rank as f32, 1)[0];
                assert!((got - expected).abs() < 1e-4, "{attack}, {at}: {got}, not {expected}");
            }
        }
        let mean = averages(Attack::Large(-1000.0), &|| Box::new(Mean), &|rank, _| 1.0 + rank as f32, 1)[0];
        assert!((mean - (10.0 - 5000.0) / 5.0).abs() < 1e-2, "{mean}");
    }

    #[test]
    fn texts() {
        for attack in Attack::ALL {
            assert_eq!(attack.to_string().parse(), Ok(attack));
        }
        for (text, says) in
            [("larg", "valid"), ("large:nan", "no setting"), ("stale:0", "no setting"), ("crash:1", "no setting")]
        {
            let error = text.parse::<Attack>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
