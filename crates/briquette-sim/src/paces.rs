//! Given compute times of each rank at each step.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use briquette_core::Key;
use briquette_core::error::ConfigError;

/// Compute times of every rank and step, for clocks that do not measure them: those of a [simulated](super::Simulated)
/// world, and of a [stepped](super::SessionExt::stepped) session. A compute time depends on rank and step alone. A run
/// is therefore bit-reproducible, and a resumed run continues as if it had not been interrupted. With `samples`, it is proportional to the
/// samples of the rank, which agreed [shares](briquette_core::shards::Balance) may change; the progress of a step whose gradients are exchanged
/// during the backward pass is that of the full time.
///
/// As text it is a time for each rank in rank order (the last one also holds for all further ranks), then its
/// variation:
///
/// | part | meaning |
/// |---|---|
/// | `50ms`, `500ms,50ms` | constant; rank 0 ten times slower than the others |
/// | `;lognormal=0.3` | times `exp(0.3·z)`, `z` standard normal (0.3 can be at most 2): the median stays, the mean grows by `exp(0.3²/2)` |
/// | `;slow=0.03x10` | with probability 0.03, 10 times as long (1 to 1000): stragglers that change from step to step |
/// | `;samples=32` | times are those of 32 samples, and proportional to the samples of a step |
/// | `;seed=7` | seed of both draws, 0 if not given |
///
/// A draw above 10⁶ s counts as 10⁶ s.
///
/// Use [`trace`](Self::trace) for measured times.
///
/// ```
/// use briquette_sim::Paces;
///
/// let paces: Paces = "500ms,50ms;slow=0.5x10".parse()?;
/// let seconds: Vec<f64> = (0..6).map(|step| paces.seconds(3, step)).collect();
/// assert_eq!(seconds, [0.05, 0.5, 0.05, 0.05, 0.5, 0.05]);
/// assert_eq!(paces.to_string(), "500ms,50ms;slow=0.5x10");
/// # Ok::<_, briquette_core::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Paces {
    /// Times by step, repeated after the last step, and by rank.
    seconds: Arc<[Vec<f64>]>,
    sigma: f64,
    slow: Option<Slow>,
    /// Samples that take these times, if times are proportional to samples.
    samples: Option<u64>,
    seed: u64,
}

/// Occasional slow steps.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Slow {
    probability: f64,
    factor: f64,
}

/// Maximum seconds of a step: a clock stays precise enough over billions of steps.
const LONGEST: f64 = 1e6;
/// Largest lognormal parameter: a normal draw is below 8.6, so the factor is at most 3·10⁷.
const MOST_SIGMA: f64 = 2.0;
const MOST_TIMES: f64 = 1e3;
const FORM: &str = "50ms, or 500ms,50ms (rank 0 slower than the others), each from 0 s to 1000000 s, then of ;lognormal=0.3, ;slow=0.03x10 \
                    (probability, factor), ;samples=32 (times are proportional to samples), ;seed=7 what is wanted";

impl Paces {
    /// Creates times that are the same at every step, in rank order. The last one also holds for all further ranks.
    ///
    /// # Errors
    /// [`ConfigError::Range`] if there is no time.
    pub fn constant(each: &[Duration]) -> Result<Self, ConfigError> {
        Paces::trace(vec![each.iter().map(Duration::as_secs_f64).collect()])
    }

    /// Creates times from a trace: for each step, the measured seconds of each rank. After the last step the trace
    /// repeats. The last rank's time also holds for all further ranks.
    ///
    /// # Errors
    /// [`ConfigError::Range`] if a step has no time, or one that is negative, not a number, or above 10⁶ s.
    pub fn trace(seconds: Vec<Vec<f64>>) -> Result<Self, ConfigError> {
        let what = "compute times";
        ConfigError::unless(!seconds.is_empty(), what, "of at least one step", "none")?;
        for (step, row) in seconds.iter().enumerate() {
            let got = || format!("{row:?} at step {step}");
            ConfigError::unless(!row.is_empty(), what, "of at least one rank", got())?;
            let all = row.iter().all(|seconds| (0.0..=LONGEST).contains(seconds));
            ConfigError::unless(all, what, "from 0 s to 1000000 s", got())?;
        }
        Ok(Paces { seconds: seconds.into(), sigma: 0.0, slow: None, samples: None, seed: 0 })
    }

    /// Returns the compute seconds of `rank` at `step`.
    pub fn seconds(&self, rank: usize, step: u64) -> f64 {
        let row = &self.seconds[(step % self.seconds.len() as u64) as usize];
        let mut seconds = row[rank.min(row.len() - 1)];
        let key = Key::new(self.seed).purpose("pace").rank(rank).step(step);
        // In (0, 1).
        let uniform = |index| ((key.word(index) >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
        if self.sigma > 0.0 {
            let normal = (-2.0 * uniform(0).ln()).sqrt() * (std::f64::consts::TAU * uniform(1)).cos();
            seconds *= (self.sigma * normal).exp();
        }
        match self.slow {
            Some(slow) if uniform(2) < slow.probability => seconds * slow.factor,
            _ => seconds,
        }
        .min(LONGEST)
    }

    /// Returns the compute seconds of `rank` at `step` for this number of samples. If it is not known, the step is a full one.
    pub fn seconds_of(&self, rank: usize, step: u64, samples: Option<u64>) -> f64 {
        let full = self.seconds(rank, step);
        match self.samples.zip(samples) {
            Some((of, samples)) => (full * (samples as f64 / of as f64)).min(LONGEST),
            None => full,
        }
    }
}

impl From<Duration> for Paces {
    fn from(step: Duration) -> Self {
        Paces { seconds: vec![vec![step.as_secs_f64()]].into(), sigma: 0.0, slow: None, samples: None, seed: 0 }
    }
}

impl FromStr for Paces {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let wrong = || ConfigError::range("compute times", FORM, text);
        let mut parts = text.split(';').map(str::trim);
        let times = parts.next().unwrap_or_default().split(',').map(|time| seconds(time.trim()));
        let mut paces =
            times.collect::<Option<Vec<f64>>>().ok_or_else(wrong).and_then(|row| Paces::trace(vec![row]))?;
        for part in parts {
            let (name, value) = part.split_once('=').ok_or_else(wrong)?;
            let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
            match name.trim() {
                "lognormal" => {
                    paces.sigma = number(value).ok_or_else(wrong)?;
                    let is_bounded = (0.0..=MOST_SIGMA).contains(&paces.sigma);
                    ConfigError::unless(is_bounded, "lognormal of compute times", "from 0 to 2", value)?;
                }
                "slow" => {
                    let (probability, factor) = value.split_once('x').ok_or_else(wrong)?;
                    let [probability, factor] = [number(probability), number(factor)];
                    let (probability, factor) = probability.zip(factor).ok_or_else(wrong)?;
                    let is_share = (0.0..=1.0).contains(&probability);
                    ConfigError::unless(is_share, "probability in slow of compute times", "from 0 to 1", probability)?;
                    let is_bounded = (1.0..=MOST_TIMES).contains(&factor);
                    ConfigError::unless(is_bounded, "factor in slow of compute times", "from 1 to 1000", factor)?;
                    paces.slow = Some(Slow { probability, factor });
                }
                "samples" => {
                    let samples = value.parse().map_err(|_| wrong())?;
                    ConfigError::unless(samples > 0, "samples of compute times", "at least 1", samples)?;
                    paces.samples = Some(samples);
                }
                "seed" => paces.seed = value.parse().map_err(|_| wrong())?,
                _ => return Err(wrong()),
            }
        }
        Ok(paces)
    }
}

impl fmt::Display for Paces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [_, ..] = self.seconds[1..] {
            return write!(f, "trace of {} steps", self.seconds.len());
        }
        for (rank, seconds) in self.seconds[0].iter().enumerate() {
            // The text must parse to the same bits, so that a resumed run has the same times.
            let times = [seconds * 1e3, (seconds * 1e3).round()];
            let separator = if rank == 0 { "" } else { "," };
            match times.into_iter().find(|time| time * 1e-3 == *seconds) {
                Some(time) => write!(f, "{separator}{time}ms")?,
                None => write!(f, "{separator}{seconds}s")?,
            }
        }
        if self.sigma > 0.0 {
            write!(f, ";lognormal={}", self.sigma)?;
        }
        if let Some(Slow { probability, factor }) = self.slow {
            write!(f, ";slow={probability}x{factor}")?;
        }
        if let Some(samples) = self.samples {
            write!(f, ";samples={samples}")?;
        }
        if self.seed > 0 { write!(f, ";seed={}", self.seed) } else { Ok(()) }
    }
}

impl TryFrom<String> for Paces {
    type Error = ConfigError;

    fn try_from(text: String) -> Result<Self, ConfigError> {
        text.parse()
    }
}

impl From<Paces> for String {
    fn from(paces: Paces) -> String {
        paces.to_string()
    }
}

pub(crate) fn seconds(time: &str) -> Option<f64> {
    let (number, unit) = match (time.strip_suffix("ms"), time.strip_suffix('s')) {
        (Some(number), _) => (number, 1e-3),
        (None, number) => (number?, 1.0),
    };
    let seconds = number.parse::<f64>().ok()? * unit;
    (0.0..=LONGEST).contains(&seconds).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_go_back_and_forth_and_say_what_is_wrong() {
        for text in ["50ms", "500ms,50ms", "0.0123s,7ms", "0ms", "50ms;lognormal=0.3;slow=0.03x10;samples=32;seed=7"] {
            let paces: Paces = text.parse().unwrap();
            assert_eq!(paces.to_string().parse::<Paces>().unwrap(), paces, "{text}");
        }
        let error = |text: &str| text.parse::<Paces>().unwrap_err().to_string();
        for text in ["", "50", "ms", "-1ms", "1e9s", "nans", "50ms;slow=2", "50ms;slow=xx1", "50ms;fast=1", "50ms;seed"]
        {
            assert!(error(text).contains("0 s to 1000000 s"), "{text}: {}", error(text));
        }
        for (text, part) in [
            ("50ms;lognormal=1000", "lognormal of compute times must be from 0 to 2"),
            ("50ms;lognormal=-0.1", "lognormal of compute times"),
            ("50ms;slow=2x10", "probability in slow of compute times must be from 0 to 1"),
            ("50ms;slow=0.1x0.5", "factor in slow of compute times must be from 1 to 1000"),
            ("50ms;slow=0.1x1e300", "factor in slow of compute times"),
            ("50ms;samples=0", "samples of compute times must be at least 1"),
        ] {
            assert!(error(text).contains(part), "{text}: {}", error(text));
        }
        assert!(Paces::trace(vec![vec![1.0], vec![]]).unwrap_err().to_string().contains("step 1"));
    }

    #[test]
    fn a_trace_begins_again_and_its_last_rank_is_that_of_all_others() {
        let paces = Paces::trace(vec![vec![1.0, 2.0], vec![3.0]]).unwrap();
        let of = |rank| (0..3).map(|step| paces.seconds(rank, step)).collect::<Vec<_>>();
        assert_eq!((of(0), of(1), of(5)), (vec![1.0, 3.0, 1.0], vec![2.0, 3.0, 2.0], vec![2.0, 3.0, 2.0]));
    }

    /// 50 ms for 32 samples: 12.5 ms for 8, nothing for none, the full time if the samples are not known.
    #[test]
    fn times_may_be_proportional_to_samples() {
        let [whole, each]: [Paces; 2] = ["50ms", "50ms;samples=32"].map(|text| text.parse().unwrap());
        let of = |paces: &Paces| [Some(32), Some(8), Some(0), None].map(|samples| paces.seconds_of(1, 0, samples));
        assert_eq!((of(&each), of(&whole)), ([0.05, 0.0125, 0.0, 0.05], [0.05; 4]));
    }

    #[test]
    fn no_draw_is_longer_than_a_time_may_be() {
        let paces: Paces = "900000s;lognormal=2;slow=0.5x1000".parse().unwrap();
        let seconds: Vec<f64> = (0..1000).map(|step| paces.seconds(0, step)).collect();
        assert!(seconds.iter().all(|seconds| *seconds <= 1e6) && seconds.contains(&1e6));
    }

    /// For `exp(0.5 z)`, the median is 1 and the mean `exp(1/8) = 1.133`; 5 % of steps are 4 times slower.
    #[test]
    fn draws_have_the_distribution_that_is_said() {
        let draws = |text: &str| {
            let paces: Paces = text.parse().unwrap();
            let mut seconds: Vec<f64> = (0..8)
                .flat_map(|rank| (0..2000).map(move |step| (rank, step)))
                .map(|(rank, step)| paces.seconds(rank, step))
                .collect();
            seconds.sort_by(f64::total_cmp);
            (seconds[8000], seconds.iter().sum::<f64>() / 16000.0)
        };
        let (median, mean) = draws("1s;lognormal=0.5");
        assert!((median - 1.0).abs() < 0.02 && (mean - 1.133).abs() < 0.02, "{median} {mean}");
        let (median, mean) = draws("1s;slow=0.05x4");
        assert!(median == 1.0 && (mean - 1.15).abs() < 0.02, "{mean}");
        assert_ne!(draws("1s;lognormal=0.5;seed=1"), draws("1s;lognormal=0.5"));
    }
}
