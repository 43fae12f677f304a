//! Tracing spans of a rank's activity, through [`tracing`] at level trace: for profilers, such as Perfetto through
//! `tracing-chrome`.
//!
//! | span | fields | activity of the rank |
//! |---|---|---|
//! | `exchange` | `operation`, `step`, `bucket` | a call of its [`Session`](crate::Session) (collective, frame), with the wait for others |
//! | `wait` | | waits for an exchange in the background |
//! | `arrive` | | waits for its own gradients, in an exchange in the background |
//! | `bucket` | `bucket` | all work of one bucket; its time outside the other spans is encoding, decoding or error feedback |
//! | `encode`, `decode` | | a gather's compressor and aggregator |
//! | `read`, `commit`, `optimizer` | `slot` for `read` | Burn plugin: gradients to the host; average to the device; inner optimizer |
//!
//! The spans of an exchange are on the thread that runs it; the threads of a channel are named `rank R channel C`.
//! Without a subscriber for them, a span costs a load and a branch.

/// Target of all spans, for a subscriber's filter.
pub const TARGET: &str = "briquette::trace";

/// Enters a span of [`TARGET`]; the span ends when the returned guard is dropped.
macro_rules! phase {
    ($name:literal $(, $($field:tt)*)?) => {
        tracing::trace_span!(target: $crate::trace::TARGET, $name $(, $($field)*)?).entered()
    };
}
pub(crate) use phase;
