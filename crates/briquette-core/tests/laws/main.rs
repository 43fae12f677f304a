//! Laws: the properties that every algorithm satisfies, of this crate and of `briquette-zoo`.
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
//! | `device.rs` | the same with vectors on a device |
//! | `both.rs` | the same for a strategy that exchanges gradients and parameters at one step |

mod arriving;
mod both;
mod bus;
mod class;
mod device;
mod elastic;
mod exchange;
mod failure;
mod memory;

use briquette_core::config::{self, Config, Exchange};
use briquette_core::laws::short;

/// Returns the representatives of every strategy, of this crate and of `briquette-zoo`.
fn representatives() -> Vec<Config> {
    briquette_zoo::install();
    config::representatives()
}

/// Returns the exchanges to test, of this crate and of `briquette-zoo`.
fn exchanges() -> Vec<Exchange> {
    briquette_zoo::install();
    config::exchanges()
}

/// Returns each of these exchanges at every step: as it is, and in small buckets if it can be split.
fn whole_and_in_buckets() -> impl Iterator<Item = Config> {
    let cut = |exchange: Exchange| Exchange { bucket_values: Some(32), ..exchange };
    let both = move |exchange: Exchange| [exchange.clone(), cut(exchange)];
    let works = |exchange: &Exchange| exchange.build_reducer(&short(), 5).is_ok();
    exchanges().into_iter().flat_map(both).filter(works).map(Config::every_step)
}
