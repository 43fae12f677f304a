//! Hybrid parallelism: convolutions by data, fully connected layers by columns.
//!
//! Data-parallel training sends what a layer's *parameters* take, whatever the batch. A fully connected layer has many parameters and
//! few activations, a convolution the reverse. So the layers at the head of a VGG are better split: each of `W` ranks holds `1/W` of the
//! columns (outputs) of each fully connected layer, computes them for the samples of all ranks, and steps them by itself; what travels is
//! the layer's *activations* and their gradients. The convolutions stay data-parallel.
//!
//! # Method
//! Every rank has `B` samples. One step, with what a rank sends in values where the columns divide evenly:
//!
//! | | what | by | values |
//! |---|---|---|---|
//! | 1 | convolutions, on the rank's own samples: features `[B, F]` | | |
//! | 2 | features of all samples: `[W·B, F]` | [`gather_rows`](exchange::gather_rows) | `(W−1)·B·F` |
//! | 3 | own columns of a layer of width `H` for all samples, `[W·B, H/W]`, then all columns | [`gather_columns`](exchange::gather_columns) | `(W−1)·B·H` |
//! | 4 | own columns of the logits, then all `C` columns for the rank's own samples: `[B, C]` | [`columns_to_rows`](exchange::columns_to_rows) | `(W−1)/W·B·C` |
//! | 5 | loss of the rank's own samples; backwards each exchange is replaced by its adjoint, which sends as much | | as 2 to 4 |
//! | 6 | convolutions: backward from the features' gradient; their average as always | [`DistributedOptimizer`](briquette::DistributedOptimizer) | `2(W−1)/W·`parameters |
//!
//! Autodiff knows nothing of other ranks, so the graph is cut where ranks exchange: [`SplitHead`] is a chain of pieces, each an
//! ordinary graph of Burn from an input that requires a gradient.
//!
//! # On the wire
//! The head of two hidden layers of width `H` sends `2(W−1)·B·(F + 2H + C/W)` values a rank and step, 4 bytes each, on average over the
//! ranks: exactly, whether or not `W` divides the widths. In a dense ring the same head takes about `2(W−1)/W·P` values, `P` its parameters.
//! So splitting moves fewer bytes where `W·B·(F + 2H + C/W) < P`, which for wide layers is `H > 2·W·B`: a layer wider than twice the
//! global batch. `docs/hybrid.md` has the table.
//!
//! # Properties
//! The numbers are those of data-parallel training, and of one process with all samples, but for the order of sums. The convolutions have no
//! BatchNorm, whose statistics would be of each rank's own samples.
//!
//! # Deviations
//! All ranks are one group here. The paper also splits a layer over groups of ranks and averages between the groups, and overlaps
//! exchanges with computing; neither is done here.
//!
//! # Reference
//! D. Das, S. Avancha, D. Mudigere, K. Vaidynathan, S. Sridharan, D. Kalamkar, B. Kaul, P. Dubey, *Distributed Deep Learning Using
//! Synchronous Stochastic Gradient Descent*, 2016, <https://arxiv.org/abs/1602.06709>.

pub mod exchange;
mod network;
mod split;
mod train;

pub use network::{Convolutions, Head, Network, Plan, largest_difference};
pub use split::{Piece, SplitHead};
pub use train::{Parallelism, Settings, Trained, train, train_alone};
