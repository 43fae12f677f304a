//! Laws: the properties that every algorithm of this crate satisfies.
//!
//! Own binary: the laws take most of the time of all tests, and scripts run them by name.
//!
//! One table over `config::representatives()` and `config::exchanges()`, on a short vector with 1, 2, 3 and 5 ranks, and on
//! longer ones, with more than one ring chunk, key block and range of 8 bits, with up to 3 ranks (`briquette_core::laws`). Law
//! 6 (round trip, hostile bytes) is tested next to the message and in `wire_format`, exact constants of law 7 next to each
//! compressor.
//!
//! | file | laws |
//! |---|---|
//! | `exchange.rs` | 1 agreement · 2 honesty · 8 accounting · 9 same observations, same decision |
//! | `memory.rs` | 3 conservation |
//! | `failure.rs` | 4 failure leaves no trace · 5 resume · 10 non-finite input is rejected everywhere |
//! | `class.rs` | 7 declared class |
//! | `arriving.rs` | the same with vectors that arrive slot by slot |
//! | `both.rs` | the same for a strategy that exchanges gradients and parameters at one step |

mod arriving;
mod both;
mod class;
mod exchange;
mod failure;
mod memory;
