//! Data-parallel training by pressing what ranks tell each other.
//!
//! Every rank has a gradient; all of them want the mean. This crate computes an agreed average of flat `f32` vectors
//! while moving fewer bytes than the vectors have, and remembers what was not sent. It knows no framework, no sockets,
//! no clock and no globals. The `briquette` crate puts it under Burn.
//!
//! ```text
//! flat vector → wrappers → compressor → message → session → aggregate → average
//! ```
//!
//! # The map
//!
//! | module | what it holds |
//! |---|---|
//! | [`config`] | settings as values, text and TOML; [`Config::build`](config::Config::build) makes everything below |
//! | [`step`] | the protocol of a step: header, exchange, commit |
//! | [`sync`] | when ranks exchange, gradients or parameters; the header all ranks agree on first |
//! | [`wrapper`] | reducers around reducers: error feedback, momentum correction, control, buckets, meters |
//! | [`reduce`] | vector in, agreed average out, and what this rank `sent` |
//! | [`compress`], [`Message`] | vector to message; a message decodes by itself |
//! | [`aggregate`] | the messages of all ranks to one vector |
//! | [`control`] | agreed observations in, compression ratio out |
//! | [`comm`] | byte frames between ranks: threads, a simulated network, a test double |
//! | [`state`], [`report`], [`error`] | what is saved, what is shown, what can go wrong |
//! | [`shards`] | who sees which sample in which step |
//! | [`Layout`], [`Key`] | where each tensor lies; randomness that is a function of its place |
//!
//! # Why it is cut like this
//!
//! - A [`Reducer`](reduce::Reducer) owns its communication. An all-gather of messages, an all-reduce of shared coordinates
//!   and PowerSGD's two all-reduces are all reducers; a compressor never communicates.
//! - A reducer reports what it `sent`, so memory of what was not sent is a wrapper, written once.
//! - A [`Controller`](control::Controller) sees only numbers all ranks agree on, so its copies decide alike.
//! - State follows compute → communicate → commit: an error leaves it as it was.
//!
//! # The laws
//!
//! Every algorithm is held to them, in `tests/laws`, over [`config::representatives`]:
//! 1 replicas declared equal have the same bits on every rank · 2 the mean of `sent` is the average · 3 input + residual = sent + new
//! residual · 4 a failure leaves no trace · 5 a resumed run continues to the bit · 6 decode(encode(m)) = m, and no bytes make
//! it panic · 7 the declared class holds · 8 traffic is what the transport counted · 9 same observations, same decision ·
//! 10 a value that is not finite is refused on every rank.
//!
//! # A complete exchange
//!
//! Two ranks, two parameters, one value sent each. What stays behind goes with the next step.
//!
//! ```
//! use briquette_core::error::ReduceError;
//! use briquette_core::reduce::{AgreedStep, Gather, Reducer, Round};
//! use briquette_core::{Key, Layout};
//! use briquette_core::{aggregate::Mean, comm::Local, compress::TopK, wrapper::ErrorFeedback};
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
//! To use it: [`config::Config`], then [`sync::SyncStrategy`]. To add an algorithm: one of [`compress`], [`control`],
//! [`reduce`], and `CONTRIBUTING.md`. The bytes are in `docs/wire.md`, the whole picture in `docs/architecture.md`.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod aggregate;
mod binary16;
mod bits;
pub mod comm;
pub mod compress;
pub mod config;
pub mod control;
pub mod error;
mod factor;
pub mod files;
mod key;
#[cfg(feature = "testing")]
pub mod laws;
mod layout;
pub mod manifest;
mod math;
mod message;
mod parallel;
pub mod reduce;
pub mod report;
pub mod server;
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
pub use factor::CompressionFactor;
pub use key::{BLOCK, Key, KeyRng};
pub use layout::{AbsentSlots, Layout, Slot};
pub use message::Message;
pub use traffic::Traffic;
