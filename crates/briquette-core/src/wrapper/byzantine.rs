//! Some ranks lie: to try what bears them, with your own model, compressor and aggregator.
//!
//! **Why, and when not.** For experiments and tests alone. It goes around everything that a rank does to its vector, so a lie is compressed, remembered and
//! aggregated as a gradient is.
//!
//! **Method.** The last `liars` ranks send, in place of their vector `x`:
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
//! Liars of the middle three know what the others send: every rank sends its vector to all of them first, which no real attack would need.
//!
//! **On the wire.** What is inside sends; where liars know the others' vectors, `4d` bytes of every rank to every other besides.
//!
//! **State.** A stale liar's last vectors are not saved: a resumed run begins with zeros again.
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

/// What a liar sends; see the [module](self).
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

    /// The lie of one coordinate, from what the honest have there; [`knows_the_others`](Self::knows_the_others).
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

/// A reducer that the last ranks lie to; see the [module](self).
#[derive(Debug)]
pub struct Byzantine<R> {
    inner: R,
    attack: Attack,
    liars: usize,
    lie: Vec<f32>,
    before: VecDeque<Vec<f32>>,
    frames: Vec<Frame>,
}

impl<R: Reducer> Byzantine<R> {
    /// The last `liars` ranks lie.
    pub fn new(inner: R, attack: Attack, liars: usize) -> Self {
        let (lie, before, frames) = Default::default();
        Byzantine { inner, attack, liars, lie, before, frames }
    }

    /// What a rank that lies sends in place of `x`.
    fn lie(&mut self, x: &[f32], comm: &mut Session) -> Result<(), ReduceError> {
        let (rank, honest) = (comm.rank(), comm.world().saturating_sub(self.liars));
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
                self.before.push_back(x.to_vec());
                let old = if self.before.len() > steps { self.before.pop_front() } else { None };
                self.lie = old.unwrap_or_else(|| vec![0.0; x.len()]);
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
        self.inner.load(state)
    }
    fn commit(&mut self) {
        self.inner.commit();
    }
    fn discard(&mut self) {
        self.inner.discard();
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

    /// What comes of some steps, of five ranks near a vector that points to `(1, …)`; and whom reports name.
    fn averages(attack: Attack, aggregator: impl Fn() -> Box<dyn Aggregator> + Sync, steps: u64) -> Vec<Vec<f32>> {
        let all = run_ranks(Local::world(5), |mut comm| {
            let layout = Layout::flat(64);
            let mut reducer = Byzantine::new(Gather::new(Dense, aggregator()), attack, 1);
            let mut averages = Vec::new();
            for step in 0..steps {
                let near = |i: usize| 1.0 + 0.1 * ((7 * i + 13 * comm.rank() + step as usize) % 11) as f32 - 0.5;
                let (input, mut average): (Vec<f32>, _) = ((0..64).map(near).collect(), vec![0.0; 64]);
                let (key, slots, agreed_step) = (Key::new(step), layout.slots(), AgreedStep::default());
                let round =
                    Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None };
                reducer.reduce(round, &mut comm)?;
                averages.push(average);
            }
            Ok::<_, ReduceError>(averages)
        });
        let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
        assert!(all.iter().all(|one| *one == all[0]), "{attack}: the same bits on every rank");
        all.into_iter().next().unwrap()
    }

    #[test]
    fn lies_by_hand() {
        let honest = [1.0, 3.0, 5.0, 3.0];
        assert_eq!(Attack::InnerProduct(0.5).of_others(&honest), -1.5);
        // A variance of 2.
        assert!((Attack::Little(1.0).of_others(&honest) - (3.0 - 2.0f32.sqrt())).abs() < 1e-6);
        assert_eq!(Attack::Mimic.of_others(&honest), 1.0);
        let mean = |attack| averages(attack, || Box::new(Mean), 1)[0][0];
        // 0.5, 0.7, 0.9, 1.1 of the honest, 1.3 of the liar.
        for (attack, expected) in [
            (Attack::Large(-10.0), (3.2 - 13.0) / 5.0),
            (Attack::SignFlip, (3.2 - 1.3) / 5.0),
            (Attack::InnerProduct(1.0), (3.2 - 0.8) / 5.0),
            (Attack::Mimic, 3.7 / 5.0),
            (Attack::Crash, 3.2 / 5.0),
            (Attack::Stale(1), 3.2 / 5.0),
        ] {
            assert!((mean(attack) - expected).abs() < 1e-5, "{attack}: {} {expected}", mean(attack));
        }
        let stale = averages(Attack::Stale(1), || Box::new(Mean), 2);
        assert!((stale[1][0] - (0.6 + 0.8 + 1.0 + 1.2 + 1.3) / 5.0).abs() < 1e-5);
    }

    /// Threat R5.
    #[test]
    fn what_bears_liars_bears_these() {
        let aggregators: [fn() -> Box<dyn Aggregator>; 6] = [
            || Box::new(Krum { byzantine: 1, keep: 2 }),
            || Box::new(TrimmedMean { trim: 1 }),
            || Box::new(Median),
            || Box::new(GeometricMedian::default()),
            || Box::new(Cge { byzantine: 1 }),
            || Box::new(Licm::default()),
        ];
        for attack in Attack::ALL {
            for (at, aggregator) in aggregators.iter().enumerate() {
                for x in averages(attack, aggregator, 3).iter().flatten() {
                    assert!((0.0..=1.6).contains(x), "{attack}, {at}: {x}");
                }
            }
        }
        assert!(averages(Attack::Large(-1000.0), || Box::new(Mean), 1)[0].iter().all(|x| *x < -50.0));
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
