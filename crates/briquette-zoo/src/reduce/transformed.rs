//! Exchange of a transformed vector: a transform of blocks before an inner reducer, and its inverse after it.

use std::ops::Range;

use briquette_core::error::ReduceError;
use briquette_core::reduce::{Exchanged, Reducer, Round, Selection, check_average};
use briquette_core::{Session, Slot};

/// A linear transform that keeps the length of vectors, is the same on all ranks, and mixes no values of different slots.
pub(super) trait Transform {
    /// Transforms a vector.
    fn forward(&self, x: &mut [f32], slots: &[Slot]);

    /// Applies the inverse of [`forward`](Self::forward).
    fn inverse(&self, x: &mut [f32], slots: &[Slot]);

    /// Exchanges the transformed vector through `inner`, and applies the inverse to the average and to what was sent. `buffer` holds the
    /// transformed vector.
    fn reduce(
        &self,
        (inner, buffer): (&mut impl Reducer, &mut Vec<f32>),
        mut round: Round<'_>,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        let slots = round.slots;
        buffer.clear();
        buffer.extend_from_slice(round.input);
        self.forward(buffer, slots);
        let transformed = Round {
            key: round.key,
            slots,
            agreed_step: round.agreed_step,
            input: buffer,
            average: &mut *round.average,
            sent: round.sent.as_deref_mut(),
        };
        let exchanged = inner.reduce(transformed, comm)?;
        self.inverse(round.average, slots);
        if let Some(sent) = round.sent {
            self.inverse(sent, slots);
        }
        check_average(round.average, slots)?;
        Ok(Exchanged { selection: Selection::All, ..exchanged })
    }
}

/// Returns the ranges of blocks, which do not cross slots. `size` returns the size of the next block, from the number of values that are
/// left in the slot.
pub(super) fn blocks(slots: &[Slot], size: impl Fn(usize) -> usize + Copy) -> impl Iterator<Item = Range<usize>> {
    slots.iter().flat_map(move |slot| {
        let Range { mut start, end } = slot.range();
        std::iter::from_fn(move || {
            let left = end - start;
            let len = if left == 0 { return None } else { size(left) };
            start += len;
            Some(start - len..start)
        })
    })
}

#[cfg(test)]
pub(super) mod testkit {
    use super::*;
    use briquette_core::comm::Local;
    use briquette_core::config::Config;
    use briquette_core::error::CommError;
    use briquette_core::reduce::AgreedStep;
    use briquette_core::{Key, Layout};

    /// Returns the average of the ranks' vectors and what each has sent.
    pub(in crate::reduce) fn reduced(text: &str, layout: &Layout, inputs: &[Vec<f32>]) -> Vec<[Vec<f32>; 2]> {
        crate::install();
        let config: Config = text.parse().unwrap();
        let ranks = Local::run(inputs.len(), |mut comm| {
            let mut reducer = config.exchange.build_reducer(layout, comm.world()).unwrap();
            let input = &inputs[comm.rank()];
            let [mut average, mut sent] = [vec![0.0; input.len()], vec![0.0; input.len()]];
            let agreed_step = AgreedStep::default();
            let (key, slots) = (Key::new(3), layout.slots());
            let round =
                Round { key, slots, agreed_step: &agreed_step, input, average: &mut average, sent: Some(&mut sent) };
            reducer.exchange(round, &mut comm).unwrap();
            Ok::<_, CommError>([average, sent])
        });
        ranks.into_iter().map(Result::unwrap).collect()
    }
}
