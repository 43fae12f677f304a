//! SPARTA: after every step, ranks average a small random share of their parameters.
//!
//! **Why, and when not.** For slow links and long runs: with one parameter in 1000 per step, replicas stay close to each other without an exchange
//! of all parameters. Between two outer steps of DiLoCo, SPARTA keeps replicas close, so that periods can be much longer. Every step waits for
//! all ranks. A parameter is averaged in one of `c` steps (the ratio): with few steps, or a large learning rate, replicas drift too far apart.
//!
//! **Method.** All ranks draw the same random positions `S` at a step, `d/c` of `d`, and average these:
//!
//! ```text
//! x_i ← the inner optimizer's step of x_i        x_i[S] ← mean over ranks of x_j[S]
//! ```
//!
//! With a `period` of `H`, the outer step of [DiLoCo](briquette_core::sync::diloco) follows at every `H`-th step.
//!
//! | setting | equivalent to |
//! |---|---|
//! | `ratio` 1, equal numbers of samples | Local SGD with a period of one step |
//!
//! **On the wire.** A ring of `d/c` values of four bytes at every step; positions follow from the seed. With a `period`, the reducer's messages for `d`
//! values every `H` steps.
//!
//! **Properties.** Conserves `Σ x` in all exchanges but outer steps, up to rounding. Replicas differ; the model to evaluate is their mean. Ranks agree on a
//! header only at every hundredth step and at outer steps. A rank whose values are not finite stops all ranks.
//!
//! **State.** None; with a `period`, DiLoCo's.
//!
//! **Knobs.** `ratio` `c` at least 1, default 1000 (the paper: 200 to 2000); `period` `H`, steps, none by default; `rate` and `momentum` of the outer
//! step, by default 0.7 and 0.9.
//!
//! **Deviations.** The paper draws every position independently with probability `1/c`; here exactly `d/c` positions are drawn, so that messages have one
//! size. The paper's averages may arrive up to ten steps late; here every step waits for its own. Ranks count equally, whatever their numbers of samples; in
//! outer steps they count by the samples of that step.
//!
//! **Reference.** M. Beton, M. Baioumy, T. van der Ouderaa, M. Reed, S. Howes, A. Cheema, G. Vrabie, *Improving the Efficiency of Distributed
//! Training using Sparse Parameter Averaging*, ICLR 2025 Workshop on Modularity for Collaborative, Decentralized, and Continual Deep Learning.
//!
//! ```
//! use briquette_core::config::{Config, StrategySettings};
//! use briquette_core::Layout;
//! use briquette_zoo::sync::sparta::Sparta;
//! briquette_zoo::install();
//! assert_eq!(Sparta::default().values(1_000_000), 1000);
//! let config: Config = "strategy=sparta:200,period=1000".parse()?;
//! assert!(config.build(&Layout::flat(8), 4)?.plan(999).replicas_equal);
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use briquette_core::config::{Described, Exchange, Sends, StrategySettings, StrategyTraits};
use briquette_core::error::{ConfigError, SyncError};
use briquette_core::reduce::shared_random_k::SharedRandomK;
use briquette_core::report::{ExchangeSeconds, Report};
use briquette_core::state::Stateful;
use briquette_core::sync::{
    Agrees, Context, HEADER_STEPS, Momenta, Plan, SyncStrategy, check_own,
    diloco::DiLoCo,
    outer::{self, Outer},
};
use briquette_core::{Layout, Session, Traffic};

/// Settings of SPARTA; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "sparta",
    help = "a random share of the parameters, one in RATIO (1000), averaged after every step; with period=STEPS, and DiLoCo's outer step",
    representatives("sparta:4", "sparta:4,period=3")
)]
pub struct Sparta {
    /// One parameter in this many is averaged.
    #[setting(default = 1000.0, range = "[1, inf)")]
    pub ratio: f64,
    /// Steps between two outer steps of DiLoCo. If absent, there are none.
    #[setting(range = "[1, inf)")]
    pub period: Option<u64>,
    /// The outer learning rate.
    #[setting(default = 0.7, range = "(0, inf)")]
    pub rate: f32,
    /// The outer momentum.
    #[setting(default = 0.9, range = "[0, 1)")]
    pub momentum: f32,
}

/// Reason why parameters have no compressor and no feedback.
const UNCOMPRESSED: &str = "averages a share of the parameters uncompressed";

impl Sparta {
    /// Returns the number of values that are averaged after a step, of `len`.
    pub fn values(&self, len: usize) -> usize {
        ((len as f64 / self.ratio).round() as usize).clamp(usize::from(len > 0), len)
    }

    fn outer(&self) -> Option<DiLoCo> {
        self.period.map(|period| DiLoCo {
            period: Some(period),
            rate: self.rate,
            momentum: self.momentum,
            adapt: false,
        })
    }
}

impl StrategySettings for Sparta {
    fn traits(&self) -> StrategyTraits {
        match self.outer() {
            Some(diloco) => diloco.traits(),
            None => StrategyTraits { uses: Some((&[], UNCOMPRESSED)), sends: Sends::AsTheyAre },
        }
    }

    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        self.check()?;
        let (indices, values, seconds, traffic) = Default::default();
        let averages = Averages { settings: *self, indices, values, seconds, traffic };
        let Some(diloco) = self.outer() else { return Ok(Box::new(averages)) };
        Ok(Box::new(Outer::new(diloco, exchange.build_reducer(layout, world)?, Some(Box::new(averages)))?))
    }

    fn min_ranks(&self, exchange: &Exchange) -> usize {
        self.outer().map_or(1, |diloco| diloco.min_ranks(exchange))
    }

    fn exchanges(&self) -> Vec<Exchange> {
        if self.period.is_some() { outer::exchanges() } else { vec![Exchange::default()] }
    }

    fn no_feedback_because(&self) -> Option<&'static str> {
        self.period.is_none().then_some(UNCOMPRESSED)
    }

    fn dense_reason(&self) -> Option<&'static str> {
        Some(if self.period.is_some() { "exchanges parameters, once in a period" } else { UNCOMPRESSED })
    }

    fn local_steps(&self) -> Option<u64> {
        self.period
    }
}

/// Averages of random shares of the parameters.
#[derive(Debug)]
struct Averages {
    settings: Sparta,
    indices: Vec<u32>,
    values: Vec<f32>,
    seconds: ExchangeSeconds,
    traffic: Traffic,
}

impl Stateful for Averages {}

impl SyncStrategy for Averages {
    fn plan(&self, step: u64) -> Plan {
        let agrees = if (step + 1).is_multiple_of(HEADER_STEPS) { Agrees::World } else { Agrees::NoRank };
        Plan::ALONE.agreeing(agrees).with_parameters(true)
    }

    fn after_step(
        &mut self,
        parameters: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<Momenta, SyncError> {
        let (step, before, start) = (cx.agreed_step.step, comm.traffic(), comm.now());
        check_own(parameters, cx, comm)?;
        let key = cx.key.step(step).purpose("sparta");
        SharedRandomK::choose(key, parameters.len(), self.settings.values(parameters.len()), &mut self.indices);
        // Scaled before the sum, which cannot overflow then.
        let weight = 1.0 / comm.world() as f32;
        self.values.clear();
        self.values.extend(self.indices.iter().map(|&index| weight * parameters[index as usize]));
        let summed = comm.all_reduce_sum(&mut self.values);
        summed.map_err(|error| SyncError::Reduce { step, source: error.into() })?;
        self.indices.iter().zip(&self.values).for_each(|(&index, mean)| parameters[index as usize] = *mean);
        self.seconds = ExchangeSeconds::exchanging(comm.now() - start);
        self.traffic = comm.traffic() - before;
        Ok(Momenta::Keep)
    }

    fn conserved(&self, parameters: &[f32]) -> Option<Vec<f32>> {
        Some(parameters.to_vec())
    }

    fn report(&self, report: &mut Report) {
        (report.seconds, report.traffic) = (Some(self.seconds), Some(self.traffic));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::Key;
    use briquette_core::comm::Local;
    use briquette_core::config::Config;
    use briquette_core::laws::train::{Sgd, loss, mean, noisy, train};
    use briquette_core::reduce::AgreedStep;
    use briquette_core::sync::periodic::Periodic;

    const SGD: Sgd = Sgd { rate: 0.05, momentum: 0.0, steps: 24 };
    const START: [f32; 64] = [3.0; 64];

    fn run(text: &str, sgd: Sgd) -> Vec<Vec<f32>> {
        crate::install();
        let config: Config = text.parse().unwrap();
        train(4, || config.build(&Layout::flat(START.len()), 4).unwrap(), &START, (sgd, &noisy))
    }

    /// Mean over coordinates of the variance between ranks.
    fn spread(ranks: &[Vec<f32>]) -> f64 {
        let centre = mean(ranks);
        let squares = ranks.iter().flat_map(|x| x.iter().zip(&centre)).map(|(x, m)| (f64::from(*x) - m).powi(2));
        squares.sum::<f64>() / (ranks.len() * centre.len()) as f64
    }

    /// Two ranks, four values, two of them at each step.
    #[test]
    fn golden() {
        let ranks = Local::run(2, |mut comm| {
            let layout = Layout::flat(4);
            let mut sparta =
                Sparta { ratio: 2.0, ..Sparta::default() }.build(&Exchange::default(), &layout, 2).unwrap();
            let mut x = if comm.rank() == 0 { vec![1.0, 2.0, 3.0, 4.0] } else { vec![5.0, 6.0, 7.0, 8.0] };
            let agreed_step = AgreedStep { step: 3, ..AgreedStep::default() };
            let cx = Context::new(Key::new(1), layout.slots(), &agreed_step);
            sparta.after_step(&mut x, &cx, &mut comm).unwrap();
            Ok::<_, briquette_core::error::CommError>(x)
        });
        let ranks: Vec<Vec<f32>> = ranks.into_iter().map(Result::unwrap).collect();
        let mut drawn = Vec::new();
        SharedRandomK::choose(Key::new(1).step(3).purpose("sparta"), 4, 2, &mut drawn);
        assert_eq!(drawn.len(), 2);
        for (index, (a, b)) in ranks[0].iter().zip(&ranks[1]).enumerate() {
            let own = [1.0 + index as f32, 5.0 + index as f32];
            let mean = 3.0 + index as f32;
            let expected = if drawn.contains(&(index as u32)) { [mean; 2] } else { own };
            assert_eq!([*a, *b], expected);
        }
    }

    /// In f64, in one thread.
    #[test]
    fn it_is_the_papers_recursion() {
        let ours = run("strategy=sparta:8", SGD);
        let mut x = vec![vec![3.0_f64; START.len()]; 4];
        for step in 0..SGD.steps {
            for (rank, x) in x.iter_mut().enumerate() {
                let here: Vec<f32> = x.iter().map(|x| *x as f32).collect();
                let gradient = noisy(rank, step, &here);
                x.iter_mut().zip(gradient).for_each(|(x, g)| *x -= f64::from(SGD.rate) * f64::from(g));
            }
            let mut drawn = Vec::new();
            SharedRandomK::choose(Key::new(5).step(step).purpose("sparta"), 64, 8, &mut drawn);
            for index in drawn {
                let mean = x.iter().map(|x| x[index as usize]).sum::<f64>() / 4.0;
                x.iter_mut().for_each(|x| x[index as usize] = mean);
            }
        }
        let near = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs() < 1e-4;
        assert!(ours.iter().zip(&x).all(|(ours, x)| ours.iter().zip(x).all(near)), "{ours:?}");
    }

    #[test]
    fn of_ratio_1_it_is_local_sgd_with_a_period_of_one_step() {
        let local = train(4, || Periodic::new(1).unwrap(), &START, (SGD, &noisy));
        let close = |a: &Vec<f32>, b: &Vec<f32>| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(run("strategy=sparta:1", SGD).iter().zip(&local).all(|(a, b)| close(a, b)));
    }

    /// Claim: averages of a small share keep replicas close. Their spread no longer grows with the steps.
    #[test]
    fn replicas_stay_close() {
        let sgd = Sgd { steps: 400, ..SGD };
        let alone = spread(&run("strategy=local-sgd:1000", sgd));
        let averaged = spread(&run("strategy=sparta:8", sgd));
        assert!(averaged < 0.1 * alone, "{averaged} against {alone}");
        let (diloco, both) = (run("strategy=diloco:100", sgd), run("strategy=sparta:8,period=100", sgd));
        // Averages do not move the mean of linear gradients.
        let (diloco, both) = (loss(&mean(&diloco)), loss(&mean(&both)));
        assert!((both - diloco).abs() < 0.01 * diloco, "{both} against {diloco}");
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        for (settings, words) in [
            (Sparta { ratio: 0.5, ..Sparta::default() }, "ratio of sparta must be at least 1"),
            (Sparta { period: Some(0), ..Sparta::default() }, "period of sparta must be at least 1"),
            (Sparta { momentum: 1.0, ..Sparta::default() }, "momentum of sparta must be in [0, 1)"),
        ] {
            let error = settings.check().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
