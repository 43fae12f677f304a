//! Models of the trainers, chosen by name.
//!
//! | kind | names | input | file |
//! |---|---|---|---|
//! | [`ImageModelKind`] | `resnet8` … `resnet101`, `vgg11`, `vgg11-slim`, `vgg16` | `[batch, 3, 32, 32]` | [`resnet`], [`vgg`] |
//! | [`TextModelKind`] | `lstm`, `bilstm` | token ids `[batch, words]`, 0 = padding | [`text`], [`lstm`] |
//! | [`CharLmConfig`] | `transformer` | codes of characters `[batch, characters]` | [`char_lm`] |
//!
//! Every model is built from a [`Key`](briquette::core::Key): equal keys give equal initial weights on every
//! backend and every rank (see [`init`]).
//!
//! ```
//! use briquette::core::Key;
//! use briquette_examples::models::{ImageModelKind, trainable_parameters};
//!
//! let kind: ImageModelKind = "resnet8".parse()?;
//! let model = kind.build(10, Key::new(7), &burn::tensor::Device::flex());
//! assert_eq!(trainable_parameters(&model), 77_850);
//! # Ok::<(), briquette_examples::models::UnknownModel>(())
//! ```

pub mod char_lm;
mod conv_norm;
mod image;
pub mod init;
pub mod lstm;
mod matrices;
mod names;
pub mod resnet;
pub mod text;
pub mod vgg;

#[cfg(all(test, feature = "flex"))]
mod tests;

pub use char_lm::{CharLm, CharLmConfig};
pub use conv_norm::ConvNorm;
pub use image::{ImageModel, ImageModelKind};
pub use matrices::hidden_matrices;
pub use names::UnknownModel;
pub use text::{TextConfig, TextModel, TextModelKind};

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

/// Returns the number of floats that an optimizer may change: all but BatchNorm's running statistics, which
/// [`Module::num_params`] counts too.
pub fn trainable_parameters<M: Module>(module: &M) -> usize {
    let mut count = Count::default();
    module.visit(&mut count);
    count.total
}

#[derive(Default)]
struct Count {
    running: bool,
    total: usize,
}

impl ModuleVisitor for Count {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.running = init::is_running_statistic(container, name);
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.running {
            self.total += param.lazy_shape().num_elements();
        }
    }
}
