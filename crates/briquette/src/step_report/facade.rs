//! Export of a step's numbers through the [`metrics`](https://docs.rs/metrics) facade, for any exporter.

use metrics::Unit::{Bytes, Count, Seconds};
use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

use super::StepReport;

/// A number of the last step: name, unit if it has one, description, and its value if there is one.
type Gauge = (&'static str, Option<Unit>, &'static str, fn(&StepReport) -> Option<f64>);

const GAUGES: [Gauge; 16] = [
    ("briquette_step", Some(Count), "The last step, counted from 0", |r| Some(r.step as f64)),
    ("briquette_loss", None, "Mean training loss over all ranks' samples", |r| r.loss),
    ("briquette_ratio", None, "Compression ratio without overhead; 1 is dense", |r| {
        r.exchange.ratio.map(|ratio| ratio.get())
    }),
    ("briquette_wire_ratio", None, "Dense bytes over bytes sent", |r| Some(r.wire_ratio())),
    ("briquette_gain", None, "Share of the vector's energy that was sent", |r| r.exchange.gain),
    ("briquette_relative_error", None, "Norm of what was not sent over that of the vector", |r| {
        r.exchange.relative_error()
    }),
    ("briquette_delay_steps", Some(Count), "Effective delay: norm of the residual over that of the gradient", |r| {
        r.exchange.delay()
    }),
    ("briquette_residual_norm", None, "Norm of the residual", |r| {
        r.exchange.residual_energy.map(|w| w.residual_norm())
    }),
    ("briquette_compute_seconds", Some(Seconds), "Computing, the slowest rank's", |r| Some(r.compute_seconds)),
    ("briquette_compress_seconds", Some(Seconds), "Reading, encoding, decoding, writing back", |r| {
        Some(r.compress_seconds)
    }),
    ("briquette_encode_seconds", Some(Seconds), "Probing and encoding", |r| Some(r.encode_seconds())),
    ("briquette_decode_seconds", Some(Seconds), "Decoding", |r| Some(r.decode_seconds())),
    ("briquette_exchange_seconds", Some(Seconds), "Communicating and waiting", |r| Some(r.exchange_seconds)),
    ("briquette_wait_seconds", Some(Seconds), "In the step header, waiting for the slowest rank", |r| {
        Some(r.wait_seconds)
    }),
    ("briquette_overlapped_seconds", Some(Seconds), "Exchanging in the background", |r| Some(r.overlapped_seconds())),
    ("briquette_clock_seconds", Some(Seconds), "The session's clock", |r| Some(r.clock)),
];

/// A sum over steps: name, unit, description, and the step's part.
type Counter = (&'static str, Unit, &'static str, fn(&StepReport) -> u64);

const COUNTERS: [Counter; 6] = [
    ("briquette_steps_total", Count, "Steps taken", |_| 1),
    ("briquette_samples_total", Count, "Samples of all ranks", |r| r.samples),
    ("briquette_sent_bytes_total", Bytes, "Bytes this rank sent", |r| r.traffic.sent),
    ("briquette_received_bytes_total", Bytes, "Bytes this rank received", |r| r.traffic.received),
    ("briquette_dense_bytes_total", Bytes, "Bytes the dense ring would have sent", |r| r.dense_traffic.sent),
    ("briquette_ratio_changes_total", Count, "Changes of what is sent: the ratio, a layer's ratio, the carrier", |r| {
        u64::from(r.ratio_changed)
    }),
];

impl StepReport {
    /// Passes the step's numbers to the installed or scoped recorder of the [`metrics`](https://docs.rs/metrics) facade, if
    /// there is one. Call it after every step, on one rank only, because names do not contain the rank. A gauge keeps its value
    /// at a step that has none. `docs/telemetry.md` lists names and units.
    pub fn record_metrics(&self) {
        for (name, _, _, value) in GAUGES {
            value(self).into_iter().for_each(|value| gauge!(name).set(value));
        }
        COUNTERS.into_iter().for_each(|(name, _, _, part)| counter!(name).increment(part(self)));
    }

    /// Registers names, units and descriptions of everything that [`record_metrics`](Self::record_metrics) records. Call it
    /// once.
    pub fn describe_metrics() {
        for (name, unit, help, _) in GAUGES {
            describe_gauge!(name, unit.unwrap_or(Count), help);
        }
        COUNTERS.into_iter().for_each(|(name, unit, help, _)| describe_counter!(name, unit, help));
    }
}
