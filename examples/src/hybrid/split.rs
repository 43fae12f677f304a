//! Columns of the head that belong to one rank.

use std::fmt;
use std::ops::Range;

use anyhow::Result;
use briquette::core::comm::Session;
use burn::module::Param;
use burn::nn::Linear;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;
use burn::tensor::activation::relu;

use super::Head;
use super::exchange::{
    columns_to_rows, gather_columns, gather_rows, rows_to_columns, share, sum_to_columns, sum_to_rows,
};
use super::network::check_widths;

/// This rank's columns of every layer of a [`Head`], and their optimizer: no other rank has or needs their gradients.
pub struct SplitHead {
    layers: Vec<Linear>,
    /// Numbers of columns of the whole layers.
    widths: Vec<usize>,
    optimizer: ModuleOptimizer,
}

/// Piece of the graph between two exchanges: one layer, from an input that requires a gradient.
#[derive(Debug)]
pub struct Piece {
    input: Tensor<2>,
    output: Tensor<2>,
}

impl SplitHead {
    /// Takes the columns of `head` that `rank` of `world` holds.
    ///
    /// # Errors
    /// A layer has fewer columns than there are ranks.
    pub fn new(head: &Head, optimizer: ModuleOptimizer, rank: usize, world: usize) -> Result<SplitHead> {
        let widths: Vec<_> = head.layers.iter().map(|layer| layer.weight.dims()[1]).collect();
        check_widths(&widths, world)?;
        let own = |(layer, width): (_, &usize)| columns(layer, share(*width, world, rank));
        let layers = head.layers.iter().zip(&widths).map(own).collect();
        Ok(SplitHead { layers, widths, optimizer })
    }

    /// Computes the logits `[B, C]` of this rank's samples from their features `[B, F]`, and the pieces for
    /// [`backward`](Self::backward).
    ///
    /// # Errors
    /// Those of the session; ranks have different numbers of samples.
    pub fn forward(&self, comm: &mut Session, features: Tensor<2>) -> Result<(Tensor<2>, Vec<Piece>)> {
        let mut pieces = Vec::new();
        let mut x = gather_rows(comm, features.detach())?;
        for (index, (layer, width)) in self.layers.iter().zip(&self.widths).enumerate() {
            let input = x.require_grad();
            let output = layer.forward(input.clone());
            // ReLU acts column by column, so it can be applied to a part; a layer ends with it if another one follows.
            let is_last = index + 1 == self.layers.len();
            let output = if is_last { output } else { relu(output) };
            let columns = output.clone().detach();
            x = match is_last {
                true => columns_to_rows(comm, columns, *width)?,
                false => gather_columns(comm, columns, *width)?,
            };
            pieces.push(Piece { input, output });
        }
        Ok((x, pieces))
    }

    /// Computes the gradient of this rank's features from the gradient of its logits, and the gradients of this rank's
    /// columns, last layer first, summed over the samples of all ranks.
    ///
    /// # Errors
    /// As for [`forward`](Self::forward).
    pub fn backward(
        &self,
        comm: &mut Session,
        pieces: Vec<Piece>,
        logits: Tensor<2>,
    ) -> Result<(Tensor<2>, Vec<GradientsParams>)> {
        let mut gradients = Vec::new();
        let mut gradient = rows_to_columns(comm, logits)?;
        for (index, (piece, layer)) in pieces.into_iter().zip(&self.layers).enumerate().rev() {
            // Gradients have no autodiff, but the outputs do.
            let gradient_of_output = gradient.autodiff();
            // A scalar with the same gradients as the loss: the outputs weighted by their gradient, which is treated as constant.
            let mut grads = (piece.output * gradient_of_output).sum().backward();
            let input = piece.input.grad_remove(&mut grads).expect("the input requires a gradient");
            gradients.push(GradientsParams::from_grads(grads, layer));
            // This rank's columns contribute one part of the input's gradient; the sum over the ranks is the whole.
            gradient = if index == 0 { sum_to_rows(comm, input)? } else { sum_to_columns(comm, input)? };
        }
        Ok((gradient.autodiff(), gradients))
    }

    /// Steps this rank's columns with the result of [`backward`](Self::backward).
    #[must_use]
    pub fn step(mut self, lr: f64, gradients: Vec<GradientsParams>) -> SplitHead {
        let step = |(layer, gradients)| self.optimizer.step(lr, layer, gradients);
        self.layers = self.layers.into_iter().zip(gradients.into_iter().rev()).map(step).collect();
        self
    }

    /// Returns the whole head on every rank, for evaluation or saving.
    ///
    /// # Errors
    /// Those of the session.
    pub fn join(&self, comm: &mut Session) -> Result<Head> {
        let mut layers = Vec::new();
        for (layer, width) in self.layers.iter().zip(&self.widths) {
            let weight = gather_columns(comm, layer.weight.val().inner(), *width)?;
            let bias = layer.bias.as_ref().map(|bias| gather_columns(comm, bias.val().inner().unsqueeze(), *width));
            let bias = bias.transpose()?.map(|bias| Param::from_tensor(bias.squeeze_dim::<1>(0).autodiff()));
            layers.push(Linear { weight: Param::from_tensor(weight.autodiff()), bias });
        }
        Ok(Head { layers })
    }
}

/// Returns some columns of a layer, as a separate layer.
fn columns(layer: &Linear, own: Range<usize>) -> Linear {
    let weight = layer.weight.val().narrow(1, own.start, own.len()).detach();
    let bias = layer.bias.as_ref().map(|bias| bias.val().narrow(0, own.start, own.len()).detach());
    Linear { weight: Param::from_tensor(weight), bias: bias.map(Param::from_tensor) }
}

impl fmt::Debug for SplitHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SplitHead").field("widths", &self.widths).finish_non_exhaustive()
    }
}
