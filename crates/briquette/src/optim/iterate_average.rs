//! Running mean of a model's parameters, to evaluate instead of the last iterate.
//!
//! **Why, and when not.** At a learning rate that stays large, iterates move around the minimum, and their mean is much closer to
//! it. With AdamW the method is called Gadam, with [`PAdamW`](super::PAdamW) GadamX. Not if the rate decreases to 0, because the
//! last iterate is then as good. Not from the start of training, because the mean would contain iterates from before the plateau.
//!
//! **Method.** [`update`](IterateAverage::update) is called regularly; in the source, once an epoch. From the call with
//! number `from` on (counted from 0), every `every`-th call adds the model to the mean:
//!
//! | source | here |
//! |---|---|
//! | `w_IA ← w_IA·n/(n + 1) + w/(n + 1)` | `update` |
//! | BatchNorm's statistics estimated again under `w_IA` | [`evaluation_model_with`](IterateAverage::evaluation_model_with) |
//! | `lr` constant, linear, constant | [`PlateauDecayConfig`](super::PlateauDecayConfig) |
//!
//! **Properties.** The mean is arithmetic, in the parameters' own type. Training is unaffected, bit for bit: neither parameters
//! nor running statistics change. A [`DistributedOptimizer`](crate::DistributedOptimizer::with_iterate_average) maintains a mean
//! of the parameters after each step and saves it with its checkpoints. It needs no communication for the mean.
//!
//! **State.** One vector for each trainable parameter, and two counters.
//!
//! **Deviations.** In the estimation of statistics all passes have equal weights. The source weights them by samples, which is
//! the same for batches of one size. A module does not expose the momentum of its running statistics, which is the share of a
//! batch's statistics in them; one or two passes from very large statistics determine it. Burn's running variance has `n − 1` or
//! `n` in the denominator, as Burn's own forward pass does.
//!
//! **Reference.** D. Granziol, X. Wan, S. Albanie, S. Roberts, *Iterate Averaging in the Quest for Best Test Error* (arXiv 2003.01247),
//! and its code; the statistics as in P. Izmailov et al., *Averaging Weights Leads to Wider Optima and Better Generalization*, UAI 2018 (arXiv
//! 1803.05407).
//!
//! ```
//! use briquette::optim::IterateAverageConfig;
//! use burn::module::Param;
//! use burn::tensor::{Device, Tensor};
//! let device = Device::flex().autodiff();
//! let iterate = |x: f32| Param::from_tensor(Tensor::<1>::from_floats([x], &device).require_grad());
//! let mut average = IterateAverageConfig::new().with_from(1).init();
//! for x in [100.0, 1.0, 2.0, 6.0] {
//!     average.update(&iterate(x)); // the first does not count
//! }
//! let evaluated = average.evaluation_model(&iterate(7.0)).unwrap();
//! assert_eq!(evaluated.val().into_scalar::<f32>(), 3.0);
//! ```

mod record;

use std::collections::HashSet;
use std::slice::Iter;

use burn::config::Config;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

use super::settings::check;
use crate::error::Error;
use crate::flat::{self, Inventory, Part};

/// Settings of [`IterateAverage`].
#[derive(Config, Debug)]
pub struct IterateAverageConfig {
    /// The number of initial calls that are skipped.
    #[config(default = 0)]
    from: u64,
    /// Of the other calls, every `every`-th counts; at least 1.
    #[config(default = 1)]
    every: u64,
}

impl IterateAverageConfig {
    /// Creates an empty average.
    ///
    /// # Panics
    /// If `every` is 0.
    pub fn init(&self) -> IterateAverage {
        check(self.every >= 1, "every of IterateAverage", "at least 1", self.every);
        IterateAverage { config: self.clone(), offered: 0, taken: 0, mean: Vec::new() }
    }
}

/// The running mean of a model's parameters; see the [module](self).
#[derive(Debug, Clone)]
pub struct IterateAverage {
    config: IterateAverageConfig,
    offered: u64,
    taken: u64,
    /// The mean of each trainable parameter, flat.
    mean: Vec<Tensor<1>>,
}

impl IterateAverage {
    /// Adds the model to the mean if it is due, and returns whether it was.
    ///
    /// # Panics
    /// If the parameters of the model differ from those of previous calls.
    pub fn update<M: Module>(&mut self, model: &M) -> bool {
        let since = self.offered.checked_sub(self.config.from);
        self.offered += 1;
        let is_due = since.is_some_and(|since| since.is_multiple_of(self.config.every));
        if is_due {
            let n = self.taken as f64;
            let iterate = flat::flat_parameters(model);
            self.mean = if self.taken == 0 {
                iterate
            } else {
                assert_eq!(
                    lens(&self.mean),
                    lens(&iterate),
                    "the parameters of an IterateAverage's model have changed"
                );
                let pairs = std::mem::take(&mut self.mean).into_iter().zip(iterate);
                pairs.map(|(mean, w)| mean.mul_scalar(n / (n + 1.0)) + w.mul_scalar(1.0 / (n + 1.0))).collect()
            };
            self.taken += 1;
        }
        is_due
    }

    /// Resets the mean, but not the call count.
    pub(crate) fn forget(&mut self) {
        (self.taken, self.mean) = (0, Vec::new());
    }

    /// The number of iterates in the mean.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns the model with the mean as its parameters, in Burn's inference form, and with the model's own running
    /// statistics. `None` before the first iterate has been added. For models with BatchNorm use
    /// [`evaluation_model_with`](Self::evaluation_model_with).
    ///
    /// # Panics
    /// If the parameters of the model differ from those of previous calls.
    pub fn evaluation_model<M: Module>(&self, model: &M) -> Option<M> {
        (self.taken > 0).then(|| self.put(model, model.valid()))
    }

    /// As [`evaluation_model`](Self::evaluation_model), with running statistics estimated as the mean over `passes` forward
    /// passes. `forward(model, i)` must run the model on batch `i` of `passes`, in training form, on the autodiff form of the
    /// device. Batch 0 is run once or twice more. A model without running statistics is not run.
    ///
    /// # Errors
    /// If the device cannot be read.
    ///
    /// # Panics
    /// If the parameters of the model differ from those of previous calls, or `passes` is 0.
    pub fn evaluation_model_with<M: Module>(
        &self,
        model: &M,
        passes: u64,
        mut forward: impl FnMut(&M, u64),
    ) -> Result<Option<M>, Error> {
        check(passes > 0, "passes of evaluation_model_with", "at least 1", passes);
        if self.taken == 0 {
            return Ok(None);
        }
        // A clone would share running statistics with the model; the inference form has its own.
        let averaged = self.put(model, model.valid().train());
        let inventory = Inventory::of(&averaged)?;
        let mut own = Vec::new();
        flat::read_values(&averaged, Part::Buffers, &mut own)?;
        if own.is_empty() {
            return Ok(Some(averaged.valid()));
        }
        let mut pass = |begin: &[f32], batch: u64| {
            let model = flat::write_values(averaged.clone(), Part::Buffers, begin, &inventory);
            forward(&model, batch);
            flat::drain(&model);
            let mut after = Vec::new();
            flat::read_values(&model, Part::Buffers, &mut after).map(|()| after)
        };
        let shares = shares(&own, &mut pass)?;
        let is_kept = |i: usize| shares[i] == 0.0;
        let begin: Vec<f32> = own.iter().enumerate().map(|(i, own)| if is_kept(i) { *own } else { 0.0 }).collect();
        let mut sums = vec![0.0; own.len()];
        for batch in 0..passes {
            let after = pass(&begin, batch)?;
            sums.iter_mut().zip(after).for_each(|(sum, after)| *sum += f64::from(after));
        }
        let mean = |(i, sum): (usize, f64)| if is_kept(i) { own[i] } else { (sum / shares[i] / passes as f64) as f32 };
        let estimated: Vec<f32> = sums.into_iter().enumerate().map(mean).collect();
        Ok(Some(flat::write_values(averaged, Part::Buffers, &estimated, &inventory).valid()))
    }

    /// Returns `copy`, a form of the model, with the mean as its parameters.
    fn put<M: Module>(&self, model: &M, copy: M) -> M {
        let ids = trainable(model);
        assert_eq!(lens(&self.mean), lens(&flat::flat_parameters(model)), "an IterateAverage is of another model");
        copy.map(&mut Put { ids, mean: self.mean.iter() })
    }
}

/// A value so large that a batch's statistics are negligible.
const FAR: f32 = (1_u64 << 40) as f32;

/// Returns the share of a batch's statistics in each running statistic; 0 if no forward pass changes it (frozen layers).
fn shares(own: &[f32], pass: &mut impl FnMut(&[f32], u64) -> Result<Vec<f32>, Error>) -> Result<Vec<f64>, Error> {
    let share = |(after, begin): (f32, &f32)| if after == *begin { 0.0 } else { 1.0 - f64::from(after / FAR) };
    let far = vec![FAR; own.len()];
    let shares: Vec<f64> = pass(&far, 0)?.into_iter().zip(&far).map(share).collect();
    if shares.iter().all(|share| *share != 0.0) {
        return Ok(shares);
    }
    // Frozen statistics are used unchanged, because the previous pass used meaningless ones.
    let begin: Vec<f32> = own.iter().zip(shares).map(|(own, share)| if share == 0.0 { *own } else { FAR }).collect();
    Ok(pass(&begin, 0)?.into_iter().zip(&begin).map(share).collect())
}

fn lens(tensors: &[Tensor<1>]) -> Vec<usize> {
    tensors.iter().map(|tensor| tensor.dims()[0]).collect()
}

/// Returns the trainable parameters, by id, because the inference form does not distinguish them from others.
fn trainable<M: Module>(model: &M) -> HashSet<ParamId> {
    struct Walk(HashSet<ParamId>);
    impl ModuleVisitor for Walk {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.val().is_require_grad() {
                self.0.insert(param.id);
            }
        }
    }
    let mut walk = Walk(HashSet::new());
    model.visit(&mut walk);
    walk.0
}

/// Replaces parameters by the mean.
struct Put<'a> {
    ids: HashSet<ParamId>,
    mean: Iter<'a, Tensor<1>>,
}

impl ModuleMapper for Put<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !self.ids.contains(&param.id) {
            return param;
        }
        let Some(mean) = self.mean.next() else { unreachable!("lengths have been compared") };
        param.map(|old| flat::like(&old, mean.clone().to_device(&old.device().inner()).reshape(old.shape())))
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests;
