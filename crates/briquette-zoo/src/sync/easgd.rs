//! EASGD: elastic averaging couples each rank's parameters to a shared center.
//!
//! **Why, and when not.** Local SGD makes ranks equal at every average, so they explore one region. Here each rank keeps its
//! own parameters and is only pulled towards a center, which follows their mean: ranks explore, and the evaluated model changes
//! smoothly. If the pull is weaker than the slopes between two valleys, ranks stay in both valleys and the center lies between
//! them, where the loss may be high. To reproduce the trajectory of one process with a large batch, exchange gradients instead.
//!
//! **Method.** All ranks hold the center `x̃`, at first the initial model. After every `τ` local steps, with `m` the mean over
//! ranks of `x_i − x̃`:
//!
//! ```text
//! x_i ← x_i − α·(x_i − x̃)        x̃ ← x̃ + β·m        both of the x̃ of before
//! ```
//!
//! `α = β/W` makes the coupling symmetric: the center gains what the ranks lose, and only local steps move `Σ x_i + x̃`. A
//! larger `α` ties ranks closer to the center.
//!
//! | setting | equivalent to |
//! |---|---|
//! | `α = β = 1` | ranks swap places with the center: from then on the center is Local SGD's mean, delayed by one period |
//! | `β = 0`, as `α` | ranks train without communication |
//!
//! **On the wire.** The reducer's messages for `d` values, every `τ` steps; no rank is a server. Values that a compressor omits
//! remain in the next difference, so error feedback would count them twice and is rejected.
//!
//! **Properties.** Replicas differ; the center is the same on every rank, and is the model to evaluate. With a dense reducer
//! the mean over ranks of `β·x_i + α·x̃` is conserved.
//!
//! **State.** `x̃`, the same on every rank.
//!
//! **Knobs.** `period` `τ`, steps, by default 10, or less if the run is known to have fewer than 20 pulls; `beta` in (0, 1],
//! default 0.43; `alpha` in (0, 1], by default `β/W`: the baseline in the LSGD authors' code.
//!
//! **Deviations.** The paper's server receives from one rank at a time; this is its synchronous form, in which all ranks move
//! at once.
//!
//! Equation 5 takes both forces at `x_t`: `x_{t+1} = x_t − ηg − α·(x_t − x̃)`, and equation 6 moves the center to the mean of
//! the `x_t`. Here the optimizer steps first, and the pull starts from its result:
//!
//! ```text
//! (1 − α)·(x_t − ηg) + α·x̃  =  x_t − (1 − α)·ηg − α·(x_t − x̃)
//! ```
//!
//! A rank's step is therefore that of equation 5 with the learning rate multiplied by `1 − α` at the steps that pull. The
//! center follows the mean of the ranks after that step, so it is delayed by one step less. The reason for this order is that a
//! strategy acts after the optimizer's step, whichever optimizer that is. Starting from `x_t` would need a copy of the
//! parameters from before the step, and the learning rate, which Adam's step does not reveal. To reproduce the paper's step
//! with SGD at period 1, divide the rate by `1 − α`.
//!
//! **Reference.** S. Zhang, A. Choromanska, Y. LeCun, *Deep Learning with Elastic Averaging SGD*, NeurIPS 2015 (arXiv 1412.6651), equations 5
//! and 6.
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::comm::Local;
//! use briquette_core::reduce::{dense::Dense, AgreedStep};
//! use briquette_core::state::Stateful;
//! use briquette_core::sync::{Context, SyncStrategy};
//! use briquette_zoo::sync::easgd::{Easgd, EasgdConfig};
//! let mut comm = Local::world(1).remove(0);
//! let layout = Layout::flat(1);
//! let mut easgd = Easgd::new(EasgdConfig { period: Some(1), beta: 0.5, alpha: Some(0.25) }, Dense)?;
//! let mut x = vec![0.0];
//! easgd.begin(&x);
//! x[0] = 8.0;
//! let agreed_step = AgreedStep::default();
//! easgd.after_step(&mut x, &Context::new(Key::new(0), layout.slots(), &agreed_step), &mut comm)?;
//! easgd.commit();
//! assert_eq!((x[0], easgd.centre()), (6.0, &[4.0][..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use briquette_core::config::{Described, Exchange, ReducerConfig, StrategyConfig, StrategySettings, StrategyTraits};
use briquette_core::error::{ConfigError, ReduceError, SyncError};
use briquette_core::reduce::{Reducer, Round, check_average};
use briquette_core::report::Report;
use briquette_core::state::Staged;
use briquette_core::sync::{
    Agrees, Context, Momenta, Plan, SyncStrategy, check_own,
    rounds::{in_rounds, period_of},
};
use briquette_core::{Layout, Session, stateful};

/// Settings of [`Easgd`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "easgd",
    help = "ranks of their own, pulled towards a common center after every PERIOD steps (10)",
    representatives("easgd:3", "easgd:1,beta=0.5,alpha=0.125")
)]
pub struct EasgdConfig {
    /// Steps between pulls. If absent, it follows from the [number of steps](StrategySettings::for_steps).
    #[setting(range = "[1, inf)")]
    pub period: Option<u64>,
    /// Fraction of the distance to the mean of the ranks by which the center moves, in (0, 1].
    #[setting(default = 0.43, range = "(0, 1]")]
    pub beta: f32,
    /// Fraction of the distance to the center by which a rank moves, in (0, 1]. If absent, `β/W`.
    #[setting(range = "(0, 1]")]
    pub alpha: Option<f32>,
}

/// The default period.
const USUAL: u64 = 10;

impl EasgdConfig {
    /// Returns the steps of a period.
    fn steps(&self) -> u64 {
        self.period.unwrap_or(USUAL)
    }
}

impl StrategySettings for EasgdConfig {
    fn traits(&self) -> StrategyTraits {
        StrategyTraits::without_feedback("exchanges differences that keep what was not sent")
    }

    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        let easgd = Easgd::new(*self, exchange.build_reducer(layout, world)?)?;
        let is_exact = exchange.reducers().all(|reducer| reducer.get().traits().is_dense);
        Ok(Box::new(Easgd { conserving: is_exact.then_some(world), ..easgd }))
    }

    fn min_ranks(&self, exchange: &Exchange) -> usize {
        exchange.min_ranks()
    }

    fn exchanges(&self) -> Vec<Exchange> {
        let reducer = ReducerConfig::gather("topk:8x".parse().expect("a compressor's text"));
        vec![Exchange::default(), Exchange { reducer, ..Exchange::default() }]
    }

    fn no_feedback_because(&self) -> Option<&'static str> {
        Some("exchanges differences that keep what was not sent")
    }

    fn local_steps(&self) -> Option<u64> {
        Some(self.steps())
    }

    fn for_steps(&self, steps: Option<u64>) -> Option<(StrategyConfig, String)> {
        in_rounds(self.period, (USUAL, period_of(USUAL, steps)), steps, |period| {
            EasgdConfig { period: Some(period), ..*self }.into()
        })
    }
}

/// Elastic averaging; see the [module](self).
pub struct Easgd<R> {
    settings: EasgdConfig,
    reducer: R,
    centre: Staged<Vec<f32>>,
    /// `x_i − x̃`, during the exchange.
    difference: Vec<f32>,
    report: Report,
    /// Number of ranks, if the reducer sends everything.
    conserving: Option<usize>,
    /// Last step of the run, if known. The center then follows the progress since the previous pull.
    last: Option<u64>,
}

impl<R: std::fmt::Debug> std::fmt::Debug for Easgd<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Easgd")
            .field("settings", &self.settings)
            .field("reducer", &self.reducer)
            .finish_non_exhaustive()
    }
}

impl<R: Reducer> Easgd<R> {
    /// Creates the strategy; differences to the center are exchanged through `reducer`.
    ///
    /// # Errors
    /// [`ConfigError`] for a setting that is out of range.
    pub fn new(settings: EasgdConfig, reducer: R) -> Result<Self, ConfigError> {
        settings.check()?;
        let (centre, difference, report) = Default::default();
        Ok(Easgd { settings, reducer, centre, difference, report, conserving: None, last: None })
    }

    /// Returns the center, the same on every rank; empty before a run begins.
    pub fn centre(&self) -> &[f32] {
        self.centre.now()
    }

    fn alpha(&self, world: usize) -> f32 {
        self.settings.alpha.unwrap_or(self.settings.beta / world as f32)
    }

    /// Computes the next center from the mean of `difference`.
    fn exchange(&mut self, cx: &Context<'_>, comm: &mut Session) -> Result<(), ReduceError> {
        let (centre, mean) = self.centre.both();
        mean.resize(centre.len(), 0.0);
        let round = Round {
            key: cx.key.step(cx.agreed_step.step).purpose("easgd"),
            slots: cx.slots,
            agreed_step: cx.agreed_step,
            input: &self.difference,
            average: mean,
            sent: None,
        };
        self.reducer.reduce(round, comm)?;
        mean.iter_mut().zip(centre).for_each(|(mean, centre)| *mean = centre + self.settings.beta * *mean);
        check_average(mean, cx.slots)
    }
}

stateful! {
    impl<R: Reducer> Stateful for Easgd<R> {
        centre: vector("centre"),
        reducer: part("reducer"),
    }
}

impl<R: Reducer> SyncStrategy for Easgd<R> {
    fn plan(&self, step: u64) -> Plan {
        let pulls = (step + 1).is_multiple_of(self.settings.steps()) || self.last == Some(step);
        if pulls { Plan::ALONE.agreeing(Agrees::World).with_parameters(true) } else { Plan::ALONE }
    }

    fn ends_at(&mut self, last: u64) {
        self.last = Some(last);
    }

    fn begin(&mut self, parameters: &[f32]) {
        self.centre.set(parameters.to_vec());
    }

    fn after_step(
        &mut self,
        parameters: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<Momenta, SyncError> {
        let (step, before, alpha) = (cx.agreed_step.step, comm.traffic(), self.alpha(comm.world()));
        self.difference.clear();
        self.difference.extend(parameters.iter().zip(self.centre.now()).map(|(x, centre)| x - centre));
        check_own(&self.difference, cx, comm)?;
        self.exchange(cx, comm).map_err(|source| SyncError::Reduce { step, source })?;
        self.report = Report::default();
        self.reducer.report(&mut self.report);
        self.report.traffic = Some(comm.traffic() - before);
        parameters.iter_mut().zip(&self.difference).for_each(|(x, difference)| *x -= alpha * difference);
        self.centre.stage();
        Ok(Momenta::Keep)
    }

    /// Writes the center.
    fn view(&self, parameters: &mut [f32]) {
        parameters.copy_from_slice(self.centre.latest());
    }

    fn conserved(&self, parameters: &[f32]) -> Option<Vec<f32>> {
        let (alpha, beta) = (self.alpha(self.conserving?), self.settings.beta);
        Some(parameters.iter().zip(self.centre.now()).map(|(x, centre)| beta * x + alpha * centre).collect())
    }

    fn report(&self, report: &mut Report) {
        report.clone_from(&self.report);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::laws::train::{Sgd, mean, noisy, train};
    use briquette_core::reduce::dense::Dense;

    const SGD: Sgd = Sgd { rate: 0.05, momentum: 0.0, steps: 24 };

    /// Checks equations 5 and 6 against a recursion in one thread.
    #[test]
    fn it_is_the_papers_recursion() {
        let settings = EasgdConfig { period: Some(3), ..EasgdConfig::default() };
        let ours = train(3, || Easgd::new(settings, Dense).unwrap(), &[3.0; 10], (SGD, &noisy));
        let (mut x, mut centre) = (vec![vec![3.0_f32; 10]; 3], vec![3.0_f64; 10]);
        let alpha = 0.43 / 3.0;
        for step in 0..SGD.steps {
            for (rank, x) in x.iter_mut().enumerate() {
                let gradient = noisy(rank, step, x);
                x.iter_mut().zip(gradient).for_each(|(x, g)| *x -= SGD.rate * g);
            }
            if (step + 1) % 3 == 0 {
                let (before, mean) = (centre.clone(), mean(&x));
                let pull = |x: &mut f32, c: &f64| *x -= (alpha * (f64::from(*x) - c)) as f32;
                x.iter_mut().for_each(|x| x.iter_mut().zip(&before).for_each(|(x, c)| pull(x, c)));
                centre.iter_mut().zip(mean).for_each(|(c, mean)| *c += 0.43 * (mean - *c));
            }
        }
        // The center is evaluated, on every rank.
        assert!(ours.iter().all(|view| view.iter().zip(&centre).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-5)));
    }

    /// Checks equation 5 as published, with both forces at `x_t`, at the smaller learning rate of the steps that pull. The
    /// center follows the mean of the ranks after the whole step.
    #[test]
    fn a_pull_is_equation_5_at_a_learning_rate_that_is_smaller_by_alpha() {
        let settings = EasgdConfig { period: Some(2), beta: 0.9, alpha: Some(0.25) };
        let ours = train(3, || Easgd::new(settings, Dense).unwrap(), &[3.0; 10], (SGD, &noisy));
        let (mut x, mut centre) = (vec![vec![3.0_f32; 10]; 3], vec![3.0_f32; 10]);
        for step in 0..SGD.steps {
            let pulls = (step + 1) % 2 == 0;
            let (before, mut ends) = (centre.clone(), Vec::new());
            for (rank, x) in x.iter_mut().enumerate() {
                let gradient = noisy(rank, step, x);
                ends.push(x.iter().zip(&gradient).map(|(x, g)| x - SGD.rate * g).collect::<Vec<f32>>());
                for ((x, g), centre) in x.iter_mut().zip(gradient).zip(&before) {
                    let (rate, alpha) = if pulls { (0.75 * SGD.rate, 0.25) } else { (SGD.rate, 0.0) };
                    *x = *x - rate * g - alpha * (*x - centre);
                }
            }
            if pulls {
                centre.iter_mut().zip(mean(&ends)).for_each(|(c, mean)| *c += 0.9 * (mean as f32 - *c));
            }
        }
        assert!(ours.iter().all(|view| view.iter().zip(&centre).all(|(a, b)| (a - b).abs() < 1e-4)), "{ours:?}");
    }

    #[test]
    fn where_nothing_moves_the_centre_comes_to_the_mean() {
        let gradient = |rank: usize, _: u64, x: &[f32]| vec![x[0] - rank as f32];
        let settings = EasgdConfig { period: Some(1), beta: 0.9, alpha: Some(0.1) };
        let x = train(3, || Easgd::new(settings, Dense).unwrap(), &[10.0], (Sgd { steps: 400, ..SGD }, &gradient));
        assert!((x[0][0] - 1.0).abs() < 1e-4, "{x:?}");
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        let good = EasgdConfig::default();
        for (settings, words) in [
            (EasgdConfig { period: Some(0), ..good }, "period of easgd must be at least 1"),
            (EasgdConfig { beta: 0.0, ..good }, "beta of easgd must be in (0, 1]"),
            (EasgdConfig { alpha: Some(f32::NAN), ..good }, "alpha of easgd"),
        ] {
            let error = settings.check().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
