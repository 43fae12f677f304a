//! What a rank does when, as spans of [`tracing`] at level trace: for profilers, such as Perfetto through `tracing-chrome`.
//!
//! | span | fields | what a rank does in it |
//! |---|---|---|
//! | `exchange` | `operation`, `step`, `bucket` | a call of its [`Session`](crate::Session): a collective, a frame, waiting for other ranks included |
//! | `wait` | | waiting for an exchange in the background |
//! | `arrive` | | in an exchange in the background, waiting for its own gradients |
//! | `bucket` | `bucket` | everything of one bucket: what is not inside of the others is encoding, decoding, or memories |
//! | `encode`, `decode` | | a gather's compressor and aggregator |
//! | `read`, `commit`, `optimizer` | `slot` for `read` | of the Burn plugin: gradients to the host; the average back to the device; the inner optimizer |
//!
//! Spans of one exchange are on the thread that does it; those of a channel are named `rank R channel C`. Where no subscriber wants
//! them, one costs a load and a branch.

/// The target of all spans, for a subscriber's filter.
pub const TARGET: &str = "briquette::trace";

/// Enters a span of [`TARGET`]; it ends with what it returns.
macro_rules! phase {
    ($name:literal $(, $($field:tt)*)?) => {
        tracing::trace_span!(target: $crate::trace::TARGET, $name $(, $($field)*)?).entered()
    };
}
pub(crate) use phase;
