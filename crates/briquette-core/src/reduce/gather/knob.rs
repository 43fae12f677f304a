//! The knob of [`Gather`]: its setting, and messages made while probing.

use super::{Gather, Grain, Place};
use crate::seam::{Aggregator, Compressor, DevicePart, Encoding, Energies, Knob, OnDevice, Probe, ProbeInput, Ratios};
use crate::{CompressionRatio, Key, Message};

/// Messages made while probing, kept for the next exchange.
#[derive(Debug, Default)]
pub(super) struct Staged {
    pub(super) key: Option<Key>,
    /// One entry per ratio; entries beyond `ratios` are storage for later.
    pub(super) messages: Vec<Vec<Message>>,
    pub(super) ratios: Vec<CompressionRatio>,
}

/// Current setting of the compressor's knob.
#[derive(Debug)]
pub(super) struct Setting {
    /// The compressor's own ratio.
    pub(super) own: CompressionRatio,
    /// Empty for `own`, one entry for all parts, or one entry per part.
    pub(super) ratios: Vec<CompressionRatio>,
    /// The ratio over all parts of the last exchange, if parts have different ratios.
    pub(super) mean: Option<CompressionRatio>,
}

impl Setting {
    pub(super) fn of(&self, part: usize) -> Option<CompressionRatio> {
        match &self.ratios[..] {
            [] => None,
            [all] => Some(*all),
            each => Some(each[part]),
        }
    }
}

/// Compresses one part of `x`, by refining the coarser message `coarse` if there is one.
fn compress<C: Compressor>(
    compressor: &mut C,
    place: Place<'_>,
    (part, x): (usize, &[f32]),
    coarse: Option<&Message>,
    out: &mut Message,
) {
    let (x, key) = (&x[place.range(part, x.len())], place.key.bucket(part));
    match coarse {
        Some(coarse) => compressor.refine_into(x, coarse, key, out),
        None => compressor.compress_into(x, key, out),
    }
}

/// Sets the compressor's knob, if there is a ratio and a knob.
pub(super) fn tune<C: Compressor>(compressor: &mut C, ratio: Option<CompressionRatio>) {
    if let (Some(ratio), Some(knob)) = (ratio, compressor.knob()) {
        knob.tune(ratio);
    }
}

impl<C: Compressor, A: Aggregator> Knob for Gather<C, A> {
    fn per_slot(&self) -> bool {
        self.grain == Grain::PerSlot
    }

    fn set(&mut self, ratios: Ratios<'_>) {
        let was_own = self.setting.ratios.is_empty();
        self.setting.ratios.clear();
        match ratios {
            Ratios::Own if was_own => {}
            Ratios::Own => tune(&mut self.compressor, Some(self.setting.own)),
            Ratios::All(ratio) => self.setting.ratios.push(ratio),
            Ratios::PerSlot(ratios) => {
                assert!(self.per_slot(), "one message of the whole vector cannot have a ratio for each slot");
                self.setting.ratios.extend_from_slice(ratios);
            }
        }
    }

    fn probe(&mut self, probe: &Probe<'_>, mut input: ProbeInput<'_>, out: &mut Energies) -> OnDevice<bool> {
        assert!(self.per_slot() || !probe.per_slot, "slots have no energies of their own in one message");
        if matches!(input, ProbeInput::Device(_)) && !self.probes_on_device(probe.ratios) {
            return Ok(false);
        }
        out.clear(probe.ratios.len());
        match probe.per_slot {
            false => out.push(input.norm2()?),
            true => input.energies(probe.slots)?.into_iter().for_each(|energy| out.push(energy)),
        }
        // After an exchange, the report states the ratio that was sent.
        let sent = self.compressor.nominal();
        let is_measured = match input {
            ProbeInput::Host(input) => Ok(self.kept_on_host(probe, input, out)),
            ProbeInput::Device(device) => self.kept_on_device(probe, device, out),
        };
        tune(&mut self.compressor, Some(sent));
        is_measured
    }
}

impl<C: Compressor, A: Aggregator> Gather<C, A> {
    /// Returns whether fewer bytes are read from a device than by copying the vector: a kept value is read with its position.
    fn probes_on_device(&self, ratios: &[CompressionRatio]) -> bool {
        self.compressor.selects() && ratios.iter().map(|ratio| 2.0 / ratio.get()).sum::<f64>() <= 1.0
    }

    /// Writes what each ratio keeps, and stages the messages. Returns true.
    fn kept_on_host(&mut self, probe: &Probe<'_>, input: &[f32], out: &mut Energies) -> bool {
        let Probe { slots, ratios, .. } = *probe;
        let place = Place { grain: self.grain, slots, key: probe.key.rank(probe.rank) };
        let parts = self.grain.parts(slots);
        self.staged.messages.resize_with(ratios.len().max(self.staged.messages.len()), Vec::new);
        for (index, &ratio) in ratios.iter().enumerate() {
            tune(&mut self.compressor, Some(ratio));
            let (before, now) = self.staged.messages.split_at_mut(index);
            now[0].resize_with(parts, Message::default);
            for (part, message) in now[0].iter_mut().enumerate() {
                let coarse = before.last().map(|before| &before[part]);
                compress(&mut self.compressor, place, (part, input), coarse, message);
                let row = if probe.per_slot { part } else { 0 };
                out.kept_mut(row)[index] += message.kept_energy(&input[place.range(part, input.len())]);
            }
        }
        self.staged.key = Some(probe.key);
        self.staged.ratios.clear();
        self.staged.ratios.extend_from_slice(ratios);
        true
    }

    /// Writes what each ratio keeps of a vector on a device. Returns false at the first ratio for which the device has no kernel.
    fn kept_on_device(&mut self, probe: &Probe<'_>, mut device: DevicePart<'_>, out: &mut Energies) -> OnDevice<bool> {
        let Probe { slots, ratios, .. } = *probe;
        let place = Place { grain: self.grain, slots, key: probe.key.rank(probe.rank) };
        let len = device.len();
        for (index, &ratio) in ratios.iter().enumerate() {
            tune(&mut self.compressor, Some(ratio));
            // On the host, random-k refines a message to other coordinates, so that the numbers would differ.
            if matches!(self.compressor.encoding(), None | Some(Encoding::RandomK { .. })) {
                return Ok(false);
            }
            for part in 0..self.grain.parts(slots) {
                let mut values = device.reborrow().part(place.range(part, len));
                let kept = values.kept_energy(&mut self.compressor, place.key.bucket(part))?;
                let Some(kept) = kept else { return Ok(false) };
                out.kept_mut(if probe.per_slot { part } else { 0 })[index] += kept;
            }
        }
        Ok(true)
    }
}
