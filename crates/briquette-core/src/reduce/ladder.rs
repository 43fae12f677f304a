//! Ladder: a reducer whose encoding (*rung*) follows the compression ratio that a controller sets, from nearly dense to very sparse.
//!
//! **Why.** On fast networks, low ratios are best. Below about half the number of ranks `W`, gathered sparse messages take more bytes than the
//! dense ring, and a ring of 16- or 8-bit values takes fewer. With this reducer, a controller sets only a ratio. **Why not.** Without a
//! controller, only one of the rungs is used: choose that one directly.
//!
//! **Method.** With [`Rungs::Usual`], a ratio below 3x is sent by a [`Ring`] of bf16 sums, one below 6x by a ring of int8 sums, and any other by
//! [`Gather`](crate::reduce::gather::Gather) with the compressor. [`Rungs::Int4`] adds a ring of int4 sums below 9x, and [`Rungs::Lossless`] has
//! only a lossless ring. At 1x, [`Adaptive`](crate::wrapper::adaptive::Adaptive) uses its own dense ring instead.
//! All rungs share one residual, so the rung may change at any step.
//!
//! | ratio | sent | bytes into each of `W` ranks, `d` values |
//! |---|---|---|
//! | 1x | [`Dense`](crate::reduce::dense::Dense) | `2·(W−1)/W · 4d` |
//! | 2x | bf16 sums | `2·(W−1)/W · 2d` |
//! | 4x | int8 sums | `2·(W−1)/W · 1.016d` |
//! | 7x, with `int4` | int4 sums | `2·(W−1)/W · 0.547d` |
//! | 1.2x, with `lossless` | f32 sums in a lossless code | about `2·(W−1)/W · 3.4d` for gradients |
//! | above | messages | `(W−1)` messages |
//!
//! **State.** The compressor's. A ring keeps its contribution, one vector, if a wrapper subtracts it from a residual.
//!
//! **Probing.** The gain of a ring (the share of the energy that is sent) is assumed to be 1. With 16 and 8 bits, the error is less than 2⁻¹³ of the
//! energy. With 4 bits, it was about 2⁻⁵·⁵ of the energy of a gradient (`benches/results/hadamard.csv`).
//!
//! **Knobs.** `compressor`; `rungs`: `usual` (default), `int4` or `lossless`.
//!
//! **Source.** This project. The rungs are those of [`ring`](super::ring) and [`gather`](super::gather).
//!
//! ```
//! use briquette_core::config::Exchange;
//! use briquette_core::Layout;
//! let exchange = Exchange { reducer: "ladder:topk:100x:q8".parse()?, feedback: "error".parse()?, ..Exchange::default() };
//! exchange.build_reducer(&Layout::flat(1000), 4)?;
//! let error = "ladder:sign".parse::<briquette_core::config::ReducerConfig>().unwrap_err().to_string();
//! assert!(error.contains("needs a compressor with a ratio"), "{error}");
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use std::ops::Range;

use super::{
    gather::GatherConfig,
    ring::{Ring, Wire},
};
use crate::error::{ConfigError, ReduceError};
use crate::math::{SentStatistics, keep_unsent};
use crate::report::Report;
use crate::seam::{
    Arriving, CompleteVector, Energies, ErrorBound, Exchanged, Knob, OnDevice, Probe, ProbeInput, Ratios, Reducer,
    Round, SentInput,
};
use crate::settings::{CompressorConfig, Described, Exchange, ReducerSettings, ReducerTraits};
use crate::{CompressionRatio, Key, Layout, Session, Slot, stateful};

/// Rings of a ladder, and the ratios from which a controller chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Rungs {
    /// Rings in 16 and 8 bits, then the compressor.
    #[default]
    Usual,
    /// These, and a ring in 4 bits at 7x. In a large world it sends few bytes where messages of 10x are many.
    Int4,
    /// A lossless ring at 1.2x, and nothing that loses a bit.
    Lossless,
}

impl Rungs {
    /// Returns the ratios below which each ring is used, in order.
    fn rings(self) -> &'static [(f64, Wire)] {
        const RINGS: [(f64, Wire); 3] = [(3.0, Wire::Bf16), (6.0, Wire::Int8), (9.0, Wire::Int4)];
        match self {
            Rungs::Usual => &RINGS[..2],
            Rungs::Int4 => &RINGS,
            Rungs::Lossless => &[(f64::INFINITY, Wire::Lossless)],
        }
    }

    /// Returns the ratios up to the highest, `max`.
    pub(crate) fn ratios(self, max: CompressionRatio) -> Vec<CompressionRatio> {
        const USUAL: [f64; 11] = [1.0, 2.0, 4.0, INT4, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];
        const INT4: f64 = 7.0;
        let max = if self == Rungs::Lossless { CompressionRatio::constant(1.2) } else { max };
        let rungs = USUAL.into_iter().filter(|rung| self == Rungs::Int4 || *rung != INT4);
        rungs.map(CompressionRatio::constant).filter(|rung| *rung < max).chain([max]).collect()
    }
}

/// Rings and a sparse reducer; see the [module](self).
#[derive(Debug)]
pub struct Ladder<R> {
    rungs: Rungs,
    rings: Vec<Ring>,
    sparse: R,
    /// The ring in use; `None` for the sparse reducer.
    ring: Option<usize>,
    /// The contribution sent by a ring, for [`subtract_sent`](Reducer::subtract_sent).
    sent: Vec<f32>,
}

impl<R: Reducer> Ladder<R> {
    /// Creates a ladder that uses `sparse` for the high ratios.
    pub fn new(sparse: R, rungs: Rungs) -> Self {
        let rings = rungs.rings().iter().map(|(_, wire)| Ring::new(*wire)).collect();
        Ladder { rungs, rings, sparse, ring: None, sent: Vec::new() }
    }

    /// Returns the ring for a ratio.
    fn ring(&self, ratio: CompressionRatio) -> Option<usize> {
        self.rungs.rings().iter().position(|(below, _)| ratio.get() < *below)
    }
}

stateful! {
    impl<R: Reducer> Stateful for Ladder<R> { sparse: flatten() }
}

impl<R: Reducer> Reducer for Ladder<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let mut input = CompleteVector(round.input);
        self.reduce_arriving(round, &mut input, comm)
    }

    fn reduce_arriving(
        &mut self,
        round: Round<'_>,
        input: &mut dyn Arriving,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        let Some(ring) = self.ring else { return self.sparse.reduce_arriving(round, input, comm) };
        let input = input.wait(0..round.average.len(), comm);
        let Round { key, slots, agreed_step, average, sent, .. } = round;
        let takes_off = sent.is_none();
        self.sent.resize(if takes_off { input.len() } else { 0 }, 0.0);
        let sent = sent.or(takes_off.then_some(&mut self.sent[..]));
        self.rings[ring].reduce(Round { key, slots, agreed_step, input, average, sent }, comm)
    }

    fn start(
        &mut self,
        vector: (Key, &[Slot]),
        input: &mut dyn Arriving,
        comm: &mut Session,
    ) -> Result<(), ReduceError> {
        if self.ring.is_none() { self.sparse.start(vector, input, comm) } else { Ok(()) }
    }

    fn can_subtract_sent(&self) -> bool {
        self.sparse.can_subtract_sent()
    }

    fn subtracts_on_device(&self) -> bool {
        self.ring.is_none() && self.sparse.subtracts_on_device()
    }

    fn subtract_sent(&mut self, input: &mut SentInput<'_>) -> bool {
        if self.ring.is_none() {
            return self.sparse.subtract_sent(input);
        }
        let mut is_finite = true;
        for ((slot, kept), energy) in input.slots.iter().zip(&mut *input.kept).zip(input.energies) {
            let sent = &self.sent[slot.range()];
            let left = keep_unsent(&mut input.vector[slot.range()], sent, 1.0);
            is_finite &= left.is_finite();
            *kept = SentStatistics { energy: energy - left, values: sent.iter().filter(|sent| **sent != 0.0).count() };
        }
        is_finite
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        self.sparse.hold(absent);
    }

    fn report(&self, report: &mut Report) {
        match self.ring {
            Some(ring) => self.rings[ring].report(report),
            None => self.sparse.report(report),
        }
    }

    fn knob(&mut self) -> Option<&mut dyn Knob> {
        self.sparse.knob()?;
        Some(self)
    }
}

impl<R: Reducer> Knob for Ladder<R> {
    fn per_slot(&self) -> bool {
        false
    }

    fn set(&mut self, ratios: Ratios<'_>) {
        self.ring = match ratios {
            Ratios::All(ratio) => self.ring(ratio),
            Ratios::Own | Ratios::PerSlot(_) => None,
        };
        if self.ring.is_none() {
            self.sparse.knob().into_iter().for_each(|knob| knob.set(ratios));
        }
    }

    fn probe(&mut self, probe: &Probe<'_>, mut input: ProbeInput<'_>, out: &mut Energies) -> OnDevice<bool> {
        let in_rings = probe.ratios.iter().take_while(|ratio| self.ring(**ratio).is_some()).count();
        out.clear(probe.ratios.len());
        let (mut sparse, ratios) = (Energies::new(), &probe.ratios[in_rings..]);
        sparse.clear(ratios.len());
        match self.sparse.knob().filter(|_| !ratios.is_empty()) {
            Some(knob) => {
                if !knob.probe(&Probe { ratios, ..*probe }, input, &mut sparse)? {
                    return Ok(false);
                }
            }
            None => sparse.push(input.norm2()?),
        }
        for row in 0..sparse.rows() {
            out.push(sparse.norm2(row));
            let place = out.rows() - 1;
            let kept = out.kept_mut(place);
            kept[..in_rings].fill(sparse.norm2(row));
            kept[in_rings..].copy_from_slice(sparse.kept(row));
        }
        Ok(true)
    }
}

/// Settings of [`Ladder`].
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "ladder",
    help = "under a controller: rings in 16 and 8 bits below 6x, then messages (topk:20x:q8)",
    check = Self::check_compressor
)]
pub struct LadderConfig {
    /// The compressor for ratios beyond those of the rings. Without a controller, its own ratio is used.
    #[setting(default = "topk:20x:q8")]
    pub compressor: CompressorConfig,
    /// The rings.
    #[setting(syntax = "usual|int4|lossless")]
    pub rungs: Rungs,
}

impl LadderConfig {
    /// Returns whether it has a lossless ring alone.
    pub(crate) fn is_lossless(&self) -> bool {
        self.rungs == Rungs::Lossless
    }

    fn sparse(&self) -> GatherConfig {
        GatherConfig { compressor: self.compressor.clone(), per_slot: false }
    }

    fn check_compressor(&self) -> Result<(), ConfigError> {
        if self.compressor.has_knob() {
            return Ok(());
        }
        let (compressor, valid) = (&self.compressor, CompressorConfig::tunable().join(", "));
        Err(ConfigError::conflict(
            "reducer ladder",
            format!("compressor {compressor}"),
            "it needs a compressor with a ratio that can be set",
            format!("use one of {valid}"),
        ))
    }
}

impl ReducerSettings for LadderConfig {
    fn build(&self, exchange: &Exchange, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(Ladder::new(self.sparse().build(exchange, layout)?, self.rungs)))
    }

    fn accepts_any_ratio(&self) -> bool {
        true
    }

    fn has_knob(&self) -> bool {
        self.compressor.has_knob()
    }

    fn traits(&self) -> ReducerTraits {
        ReducerTraits { aggregates: false, ..self.sparse().traits() }
    }

    /// A ring's loss depends on a sum that includes other ranks' values.
    fn error_bound(&self, _len: usize) -> Option<ErrorBound> {
        None
    }
}

#[cfg(test)]
mod tests;
