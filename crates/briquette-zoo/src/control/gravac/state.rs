//! Saved state of GraVAC: the complete state, to the bit, for a resumed run.

use super::average::Gain;
use super::event::Event;
use super::search::Search;
use super::throughput::Throughput;
use super::{GraVac, Sent};
use briquette_core::CompressionRatio;
use briquette_core::error::StateError;
use briquette_core::state::{State, Stateful};

/// By hand, because most entries exist only in some states of the search.
impl Stateful for GraVac {
    fn save(&self, state: &mut State) {
        let search = &self.search;
        // Not needed to resume, but it identifies the state of another configuration.
        state.put("candidates", self.candidates.iter().map(|f| f.get()).collect::<Vec<f64>>());
        state.put("safe", search.safe.get());
        state.put("bold", search.bold.get());
        state.put("steps_in_window", search.steps_in_window);
        state.put("check_due", u64::from(search.check_due));
        state.put("dense_left", search.dense_left);
        state.put("rest", search.rest);
        let put = |state: &mut State, name: &str, numbers: Option<Vec<f64>>| {
            if let Some(numbers) = numbers {
                state.put(name, numbers);
            }
        };
        put(state, "safe_gain", search.safe_gain.map(Gain::to_numbers));
        put(state, "bold_gain", search.bold_gain.map(Gain::to_numbers));
        put(state, "held", search.held.map(|t| vec![t]));
        put(state, "last", search.last.map(|f| vec![f.get()]));
        put(state, "sent", search.sent.map(|s| vec![s.ratio.get(), s.gain]));
        put(state, "note", search.note.map(|n| n.to_numbers().to_vec()));
        put(state, "throughput", (!search.throughput.is_empty()).then(|| search.throughput.to_numbers()));
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        let ours: Vec<f64> = self.candidates.iter().map(|f| f.get()).collect();
        let saved = state.f64s("candidates")?;
        if saved != ours {
            return Err(mismatch("candidates", &format!("{ours:?}"), saved));
        }
        let search = Search {
            safe: ratio("safe", state.f64("safe")?)?,
            bold: ratio("bold", state.f64("bold")?)?,
            safe_gain: numbers(state, "safe_gain")?.map(Gain::from_numbers),
            bold_gain: numbers(state, "bold_gain")?.map(Gain::from_numbers),
            throughput: throughput(state)?,
            steps_in_window: state.u64("steps_in_window")?,
            check_due: state.u64("check_due")? != 0,
            dense_left: state.u64("dense_left")?,
            rest: state.u64("rest")?,
            held: numbers(state, "held")?.map(|[t]| t),
            last: numbers(state, "last")?.map(|[last]| ratio("last", last)).transpose()?,
            sent: numbers(state, "sent")?.map(|[f, gain]| Ok(Sent { ratio: ratio("sent", f)?, gain })).transpose()?,
            note: note(state)?,
        };
        self.search = search;
        self.list_probes();
        Ok(())
    }
}

fn throughput(state: &State) -> Result<Throughput, StateError> {
    if !state.contains("throughput") {
        return Ok(Throughput::default());
    }
    let saved = state.f64s("throughput")?;
    Throughput::from_numbers(saved)
        .ok_or_else(|| mismatch("throughput", "ratio, value, samples, age of each entry", saved))
}

fn note(state: &State) -> Result<Option<Event>, StateError> {
    let Some(saved) = numbers(state, "note")? else { return Ok(None) };
    Event::from_numbers(saved).map(Some).ok_or_else(|| mismatch("note", "a known kind", &saved))
}

/// Returns the numbers of an entry, which may be absent.
fn numbers<const N: usize>(state: &State, name: &str) -> Result<Option<[f64; N]>, StateError> {
    if !state.contains(name) {
        return Ok(None);
    }
    let saved = state.f64s(name)?;
    saved.try_into().map(Some).map_err(|_| mismatch(name, &format!("{N} numbers"), saved))
}

fn ratio(name: &str, value: f64) -> Result<CompressionRatio, StateError> {
    CompressionRatio::new(value).map_err(|_| mismatch(name, "ratios of at least 1", &[value]))
}

fn mismatch(name: &str, expected: &str, got: &[f64]) -> StateError {
    StateError::Mismatch { name: name.to_owned(), expected: expected.to_owned(), got: format!("{got:?}") }
}
