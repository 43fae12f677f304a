//! Hybrid parallelism: data-parallel convolutions, fully connected layers split by columns.
//!
//! Data-parallel training sends as many values as a layer has *parameters*, whatever the batch. A fully connected layer
//! has many parameters and few activations, a convolution the reverse. It is therefore better to split the layers at
//! the head of a VGG: each of `W` ranks holds `1/W` of the columns (outputs) of each fully connected layer, computes
//! them for the samples of all ranks, and steps them alone; only the layer's *activations* and their gradients are
//! sent. The convolutions stay data-parallel.
//!
//! # Method
//! Every rank has `B` samples. The table shows one step, with the number of values that a rank sends if the columns divide evenly:
//!
//! | | operation | by | values |
//! |---|---|---|---|
//! | 1 | convolutions, on the rank's own samples: features `[B, F]` | | |
//! | 2 | features of all samples: `[W·B, F]` | [`gather_rows`](exchange::gather_rows) | `(W−1)·B·F` |
//! | 3 | own columns of a layer of width `H` for all samples, `[W·B, H/W]`, then all columns | [`gather_columns`](exchange::gather_columns) | `(W−1)·B·H` |
//! | 4 | own columns of the logits, then all `C` columns for the rank's own samples: `[B, C]` | [`columns_to_rows`](exchange::columns_to_rows) | `(W−1)/W·B·C` |
//! | 5 | loss of the rank's own samples; backwards each exchange is replaced by its adjoint, which sends as much | | as 2 to 4 |
//! | 6 | convolutions: backward from the features' gradient; their average as always | [`DistributedOptimizer`](briquette::DistributedOptimizer) | `2(W−1)/W·`parameters |
//!
//! Autodiff does not cross ranks, so the graph is cut at every exchange: [`SplitHead`] is a chain of pieces, each an
//! ordinary graph of Burn from an input that requires a gradient.
//!
//! # On the wire
//! The head of two hidden layers of width `H` sends `2(W−1)·B·(F + 2H + C/W)` values per rank and step, 4 bytes each,
//! on average over the ranks. This is exact, whether or not `W` divides the widths. In a dense ring the same head takes
//! about `2(W−1)/W·P` values, `P` its parameters. Splitting therefore sends fewer bytes if `W·B·(F + 2H + C/W) < P`,
//! which for wide layers is `H > 2·W·B`: a layer wider than twice the global batch. `docs/evidence/hybrid.md` has the table.
//!
//! # Properties
//! Results equal those of data-parallel training, and of one process with all samples, except for the order of sums.
//! The convolutions have no BatchNorm, whose statistics would be specific to each rank's own samples.
//!
//! # Deviations
//! All ranks form one group here. The paper also splits a layer over groups of ranks and averages between the groups,
//! and overlaps exchanges with computing; neither is implemented here.
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
