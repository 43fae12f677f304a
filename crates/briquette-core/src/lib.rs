//! Gradient compression, reducers, controllers and synchronization strategies for data-parallel training.
//!
//! Every rank has a gradient, and all ranks need the mean. This crate averages flat `f32` vectors over the ranks: every
//! rank obtains the same result. It sends fewer bytes than the vectors contain, and keeps the part that was not sent (the
//! *residual*) for the next step. It depends on no framework, no sockets and no clock. The `briquette`
//! crate integrates it with Burn.
//!
//! ```text
//! flat vector → wrappers → compressor → message → session → aggregate → average
//! ```
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | settings as values, text and TOML; [`Config::build`](config::Config::build) builds all the components below |
//! | [`step`] | the protocol of a training step: agree on a header, exchange, commit |
//! | [`sync`] | synchronization strategies: when ranks exchange gradients or parameters; the *step header*, which ranks agree on before an exchange |
//! | [`wrapper`] | wrappers around reducers: error feedback, momentum correction, ratio control, buckets, metering |
//! | [`reduce`] | reducers: take this rank's vector, return the average over ranks and `sent`, this rank's vector as the others received it |
//! | [`compress`], [`Message`] | compressors: take a vector, return a self-describing message |
//! | [`aggregate`] | aggregators: combine the messages of all ranks into one vector |
//! | [`control`] | controllers: take measurements that all ranks agree on, return a compression ratio |
//! | [`comm`] | sessions: collectives over byte frames, on any transport; ranks as threads, for tests and single machines |
//! | [`server`] | asynchronous training with a parameter server, in place of a strategy |
//! | [`state`], [`report`], [`error`] | saved state, metrics of an exchange, errors |
//! | [`shards`] | sharded sampling: assigns samples to ranks and steps |
//! | [`Layout`], [`Key`] | positions of the tensors in the flat vector; random numbers that depend only on seed, step, bucket and rank |
//!
//! # Design
//!
//! - A [`Reducer`](reduce::Reducer) owns its communication; a compressor never communicates. Reducers are, for example, an
//!   all-gather of messages, an all-reduce of shared coordinates, and PowerSGD's two all-reduces.
//! - A reducer reports what it `sent`. Error feedback is therefore written once, as a wrapper around any reducer.
//! - A [`Controller`](control::Controller) observes only numbers that all ranks agree on, so its copies on all ranks make
//!   the same decisions.
//! - An exchange first computes and communicates. It changes state only when it commits: an error leaves the state
//!   unchanged.
//!
//! # The laws
//!
//! All algorithms are tested against eleven laws, in `tests/laws`, with the settings in [`config::representatives`]:
//!
//! 1. Parameters that a strategy declares equal have the same bits on every rank.
//! 2. The mean over ranks of the `sent` vectors equals the average that every rank receives.
//! 3. Input + residual = sent + new residual.
//! 4. A failure leaves the state unchanged.
//! 5. A resumed run is bit-identical to an uninterrupted one.
//! 6. `decode(encode(m)) = m`, and no bytes make the decoder panic.
//! 7. The error of a compressor stays within the bound that it declares.
//! 8. The reported traffic equals the transport's count.
//! 9. Equal observations lead to equal decisions.
//! 10. A non-finite value is rejected on every rank.
//! 11. After the loss of a rank, the survivors have one of two histories: either all ranks took the step, or only the survivors did. Residuals
//!     keep their weight.
//!
//! # A complete exchange
//!
//! Two ranks with two parameters send one value each. Each rank adds its residual to its next gradient.
//!
//! ```
//! use briquette_core::error::ReduceError;
//! use briquette_core::reduce::{AgreedStep, gather::Gather, Reducer, Round};
//! use briquette_core::{Key, Layout};
//! use briquette_core::aggregate::mean::Mean;
//! use briquette_core::comm::Local;
//! use briquette_core::compress::top_k::TopK;
//! use briquette_core::wrapper::error_feedback::ErrorFeedback;
//!
//! let top_k = TopK::fraction(0.5)?;
//! let ranks = Local::run(2, |mut comm| {
//!     let gradient = [[4.0, 1.0], [2.0, 3.0]][comm.rank()]; // the mean is [3, 2]
//!     let layout = Layout::new([("linear.weight", vec![2])]);
//!     let mut reducer = ErrorFeedback::new(Gather::new(top_k, Mean));
//!     let mut averages = [[0.0; 2]; 2];
//!     for (step, average) in (0..).zip(&mut averages) {
//!         let agreed_step = AgreedStep { step, ..AgreedStep::default() };
//!         let key = Key::new(42).step(step);
//!         let (input, slots) = (&gradient, layout.slots());
//!         reducer.exchange(Round { key, slots, agreed_step: &agreed_step, input, average, sent: None }, &mut comm)?;
//!     }
//!     Ok::<_, ReduceError>((averages, reducer.residual().to_vec(), comm.traffic().sent))
//! });
//! let ranks: Vec<_> = ranks.into_iter().collect::<Result<_, _>>()?;
//! let [(averages, first, sent), (same, second, _)] = ranks.try_into().expect("two ranks");
//! assert_eq!(averages, [[2.0, 1.5], [4.0, 0.0]]);   // 4 and 3 are sent, then 4 and 2 + 2
//! assert_eq!(averages, same);                       // law 1
//! assert_eq!((first, second), (vec![0.0, 2.0], vec![0.0, 3.0]));
//! // Law 3, summed up: the averages [6, 1.5] and the mean residual [0, 2.5] make two means, [6, 4].
//! assert_eq!(sent, 2 * (4 + 17 + 1 + 4));           // a length and a message of one value, twice
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where to start
//!
//! To use the crate, start at [`config::Config`], then [`sync::SyncStrategy`]. To add an algorithm, read one of
//! [`compress`], [`control`], [`reduce`], and `CONTRIBUTING.md`. `docs/wire.md` specifies the wire format, and
//! `docs/architecture.md` describes the architecture.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

// For the derive macro of settings, whose code names this crate.
extern crate self as briquette_core;

pub mod aggregate;
mod binary16;
pub mod bits;
pub mod comm;
pub mod compress;
pub mod config;
pub mod control;
pub mod error;
pub mod files;
mod key;
#[cfg(feature = "testing")]
pub mod laws;
pub mod layout;
mod lossless;
pub mod manifest;
pub mod math;
pub mod membership;
pub mod message;
mod parallel;
mod ratio;
pub mod reduce;
pub mod report;
mod scope;
mod seam;
pub mod server;
mod settings;
pub mod shards;
pub mod state;
pub mod step;
pub mod sync;
mod text;
pub mod trace;
mod traffic;
mod wire;
pub mod wrapper;

pub use comm::{Frame, Session};
pub use key::{BLOCK, Key, KeyRng};
pub use layout::{AbsentSlots, Layout, Slot};
pub use message::Message;
pub use ratio::CompressionRatio;
pub use traffic::Traffic;
