//! Initial weights from keyed generators on the host.
//!
//! Burn's backends have separate random generators, so its initializers give different weights on every backend, and
//! within a process different weights to the thread that comes second. Here every parameter has a separate generator,
//! identified by the run's key and the parameter's path: a seed gives the same weights on every backend, rank and
//! thread count.
//!
//! The distributions are PyTorch's defaults, one rule for all models:
//!
//! | layer | parameters | drawn from |
//! |---|---|---|
//! | `Conv2d`, `Linear` | weight, bias | `U(-1/√fan_in, 1/√fan_in)` |
//! | `LstmDirection` | all | `U(-1/√hidden, 1/√hidden)` |
//! | `Embedding` | weight | `N(0, 1)`; row 0, the padding, is 0 |
//! | `BatchNorm` | gamma, beta, running mean and variance | left at 1, 0, 0 and 1 |
//! | `LayerNorm` | gamma, beta | left at 1 and 0 |
//!
//! (torchvision's networks use He's normal initialization for convolutions instead; BatchNorm makes either work.)

use std::error::Error;
use std::fmt;

use briquette::core::{BLOCK, Key, KeyRng};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Tensor, TensorData};
use rand::Rng;
use rand_distr::StandardNormal;

/// The module has parameters for which [`initialize`] has no rule.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownLayer {
    /// Path and layer of each parameter without a rule.
    pub parameters: Vec<String>,
}

impl fmt::Display for UnknownLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no rule for the initial values of {}; add the layer to `init.rs`", self.parameters.join(", "))
    }
}

impl Error for UnknownLayer {}

/// Overwrites the weights of a fresh module with values drawn from `key`.
///
/// Keeps parameter ids, devices and gradient settings. Paths are relative to `module`: a layer nested in another module
/// draws other values.
pub fn initialize<M: Module>(module: M, key: Key) -> Result<M, UnknownLayer> {
    let mut draw = Draw { key, path: Vec::new(), layer: Vec::new(), fan_in: 0, unknown: Vec::new() };
    let module = module.map(&mut draw);
    if draw.unknown.is_empty() { Ok(module) } else { Err(UnknownLayer { parameters: draw.unknown }) }
}

/// Calls [`initialize`] for this crate's own models, whose layers all have rules.
pub(super) fn known<M: Module>(module: M, key: Key) -> M {
    initialize(module, key).expect("every layer of the built-in models has a rule")
}

/// Returns whether `field` of `wrapper` is BatchNorm's running mean or variance. Burn presents these as float parameters.
pub(super) fn is_running_statistic(layer: &str, field: &str) -> bool {
    layer == "Struct:BatchNorm" && field.starts_with("running_")
}

#[derive(Clone, Copy)]
enum Rule {
    Keep,
    Uniform {
        bound: f32,
    },
    /// Rows of this many values, the first of them zero.
    Normal {
        row: usize,
    },
}

struct Draw {
    key: Key,
    path: Vec<String>,
    /// Types of the layers along the path: for each name in `path`, the type that has a field of this name.
    layer: Vec<String>,
    /// Fan-in of the last weight, for the bias that follows it.
    fan_in: usize,
    unknown: Vec<String>,
}

impl Draw {
    fn rule(&mut self, shape: &[usize]) -> Option<Rule> {
        let layer = self.layer.last()?.as_str();
        let field = self.path.last()?.as_str();
        let uniform = |fan: usize| Some(Rule::Uniform { bound: 1.0 / (fan as f32).sqrt() });
        match (layer, field) {
            ("Struct:BatchNorm" | "Struct:LayerNorm", _) => Some(Rule::Keep),
            ("Struct:Embedding", "weight") => Some(Rule::Normal { row: shape[1] }),
            ("Struct:LstmDirection", _) => uniform(shape[shape.len() - 1] / 4),
            ("Struct:Conv2d", "weight") => {
                self.fan_in = shape[1..].iter().product();
                uniform(self.fan_in)
            }
            ("Struct:Linear", "weight") => {
                self.fan_in = shape[0]; // Burn stores [input, output]
                uniform(self.fan_in)
            }
            ("Struct:Conv2d" | "Struct:Linear", "bias") => uniform(self.fan_in),
            _ => None,
        }
    }

    fn values(&self, len: usize, mut draw: impl FnMut(&mut KeyRng) -> f32) -> Vec<f32> {
        let key = self.key.purpose(&format!("init/{}", self.path.join(".")));
        let mut values = vec![0.0; len];
        for (index, block) in values.chunks_mut(BLOCK).enumerate() {
            let mut rng = key.block(index);
            block.fill_with(|| draw(&mut rng));
        }
        values
    }
}

impl ModuleMapper for Draw {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.push(name.to_owned());
        self.layer.push(container.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
        self.layer.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let shape = param.lazy_shape();
        let len = shape.num_elements();
        let values = match self.rule(&shape.dims::<D>()) {
            Some(Rule::Keep) => return param,
            Some(Rule::Uniform { bound }) => self.values(len, |rng| (2.0 * rng.random::<f32>() - 1.0) * bound),
            Some(Rule::Normal { row }) => {
                let mut values = self.values(len, |rng| rng.sample(StandardNormal));
                values[..row].fill(0.0);
                values
            }
            None => {
                self.unknown.push(format!("{} ({:?})", self.path.join("."), self.layer.last()));
                return param;
            }
        };
        let value = Tensor::from_data(TensorData::new(values, shape), &param.lazy_device());
        // As a checkpoint does: same id, same device, same gradient setting.
        let id = param.id;
        param.transform_for_load(value, id)
    }
}
