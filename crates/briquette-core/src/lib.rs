//! Gradient compression, reducers, controllers and synchronization strategies for data-parallel training.
//!
//! Every rank has a gradient, and all ranks need the mean. This crate computes an agreed average of flat `f32` vectors.
//! It moves fewer bytes than the vectors have, and keeps the part that was not sent as the residual. It depends on no
//! framework, no sockets, no clock and no globals. The `briquette` crate integrates it with Burn.
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
//! | [`step`] | the protocol of a step: header, exchange, commit |
//! | [`sync`] | synchronization strategies: the exchange schedule, of gradients or parameters; the step header that all ranks agree on first |
//! | [`wrapper`] | wrappers around reducers: error feedback, momentum correction, ratio control, buckets, metering |
//! | [`reduce`] | reducers: take a vector, return the agreed average and this rank's `sent` part |
//! | [`compress`], [`Message`] | compressors: take a vector, return a self-describing message |
//! | [`aggregate`] | aggregators: combine the messages of all ranks into one vector |
//! | [`control`] | controllers: take agreed observations, return a compression ratio |
//! | [`comm`] | byte frames between ranks: threads, a simulated network, a test double |
//! | [`state`], [`report`], [`error`] | saved state, metrics of an exchange, errors |
//! | [`shards`] | sharded sampling: assigns samples to ranks and steps |
//! | [`Layout`], [`Key`] | positions of the tensors in the flat vector; keyed randomness, a function of its position |
//!
//! # Design
//!
//! - A [`Reducer`](reduce::Reducer) owns its communication. An all-gather of messages, an all-reduce of shared coordinates
//!   and PowerSGD's two all-reduces are all reducers; a compressor never communicates.
//! - A reducer reports what it `sent`, so error feedback is a wrapper, written once.
//! - A [`Controller`](control::Controller) observes only numbers that all ranks agree on, so its replicas make the same
//!   decisions.
//! - State follows compute → communicate → commit: an error leaves the state unchanged.
//!
//! # The laws
//!
//! All algorithms are tested against these laws, in `tests/laws`, over [`config::representatives`]:
//!
//! 1. Replicas declared equal have the same bits on every rank.
//! 2. The mean over ranks of what they `sent` is the average that they receive.
//! 3. Input + residual = sent + new residual.
//! 4. A failure leaves the state unchanged.
//! 5. A resumed run is bit-identical.
//! 6. `decode(encode(m)) = m`, and no bytes make the decoder panic.
//! 7. The error of a compressor stays within the bound that it declares.
//! 8. The reported traffic equals the transport's count.
//! 9. Same observations, same decision.
//! 10. A non-finite value is rejected on every rank.
//!
//! # A complete exchange
//!
//! Two ranks with two parameters send one value each. The residual is added to the next step's gradient.
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
//! To use the crate, start at [`config::Config`], then [`sync::SyncStrategy`]. To add an algorithm, read one of
//! [`compress`], [`control`], [`reduce`], and `CONTRIBUTING.md`. `docs/wire.md` specifies the wire format, and
//! `docs/architecture.md` describes the architecture.
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
