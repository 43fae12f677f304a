//! All-reduce of the format `lossless`: exact sums in [lossless codes](crate::lossless), in the order of the dense all-reduce.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::comm::{Hop, Hops, SMALL_ALL_REDUCE, expect_size};
use crate::error::{AggregateError, ReduceError, WireError};
use crate::lossless;
use crate::seam::{Exchanged, Round, Selection, check_average};
use crate::{Frame, Session};

/// The exact mean, as of the dense all-reduce.
pub(super) fn reduce(round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
    let Round { slots, input, average, sent, .. } = round;
    average.copy_from_slice(input);
    let exchanged = Exchanged::count(comm, Selection::All, |comm| all_reduce(average, comm))?;
    let weight = 1.0 / comm.world() as f32;
    if weight != 1.0 {
        average.iter_mut().for_each(|v| *v *= weight);
    }
    check_average(average, slots)?;
    if let Some(sent) = sent {
        sent.copy_from_slice(input);
    }
    Ok(exchanged)
}

/// Returns whether a frame of this many bytes may hold this many values.
fn fits(values: usize, bytes: usize) -> bool {
    (lossless::least_bytes(values)..=lossless::most_bytes(values)).contains(&bytes)
}

/// Sums `average` over all ranks, with the bits of [`all_reduce_sum`](Session::all_reduce_sum).
fn all_reduce(average: &mut [f32], comm: &mut Session) -> Result<(), ReduceError> {
    if comm.world() == 1 {
        return Ok(());
    }
    if average.len() <= SMALL_ALL_REDUCE {
        return sum_gathered(average, comm);
    }
    let mut sums = Sums { sums: average, term: Vec::new(), onward: BTreeMap::new(), wrong: None };
    comm.all_reduce_by(sums.sums.len(), &mut sums)?;
    let previous = (comm.rank() + comm.world() - 1) % comm.world();
    sums.wrong.map_or(Ok(()), |source| Err(refuse(comm, previous, source)))
}

/// Stops every rank.
fn refuse(comm: &mut Session, from: usize, source: WireError) -> ReduceError {
    let rank = comm.number(from);
    comm.abort(&format!("the frame of rank {rank} in a lossless ring: {source}"));
    AggregateError::Message { rank, source }.into()
}

/// Gathers the values of all ranks and sums them in rank order.
fn sum_gathered(average: &mut [f32], comm: &mut Session) -> Result<(), ReduceError> {
    let (rank, mut own, mut frames) = (comm.rank(), Frame::new(), Vec::new());
    lossless::encode(average, &mut own);
    comm.all_gather(&own, &mut frames)?;
    let mut term = vec![0.0; average.len()];
    for (from, frame) in frames.iter().enumerate() {
        // The session leaves this rank's own frame empty.
        let frame = if from == rank { &own } else { frame };
        if !fits(term.len(), frame.len()) {
            expect_size(comm, from, lossless::most_bytes(term.len()), frame)?;
        }
        lossless::decode(frame, &mut term).map_err(|source| refuse(comm, from, source))?;
        match from {
            0 => average.copy_from_slice(&term),
            _ => average.iter_mut().zip(&term).for_each(|(sum, term)| *sum += term),
        }
    }
    Ok(())
}

struct Sums<'a> {
    /// This rank's values, then the sum with those before this rank, then the sum of all.
    sums: &'a mut [f32],
    term: Vec<f32>,
    /// Delivered frames that are sent onward as they are, by their first value.
    onward: BTreeMap<usize, Frame>,
    wrong: Option<WireError>,
}

impl Sums<'_> {
    /// A frame that cannot be decoded makes its sums NaN, so no rank commits them.
    fn decode(&mut self, frame: &[u8], len: usize) {
        self.term.resize(len, 0.0);
        if let Err(wrong) = lossless::decode(frame, &mut self.term) {
            self.term.fill(f32::NAN);
            self.wrong = Some(wrong);
        }
    }
}

impl Hops for Sums<'_> {
    fn bytes(&self, values: usize) -> usize {
        lossless::most_bytes(values)
    }

    fn fits(&self, values: usize, bytes: usize) -> bool {
        fits(values, bytes)
    }

    fn send(&mut self, place: Range<usize>, hop: Hop, frame: &mut Frame) {
        match self.onward.remove(&place.start).filter(|_| hop == Hop::Onward) {
            Some(delivered) => *frame = delivered,
            None => {
                frame.clear();
                lossless::encode(&self.sums[place], frame);
            }
        }
    }

    fn collect(&mut self, place: Range<usize>, frame: &[u8]) {
        self.decode(frame, place.len());
        self.sums[place].iter_mut().zip(&self.term).for_each(|(sum, term)| *sum += term);
    }

    fn deliver(&mut self, place: Range<usize>, frame: &[u8]) {
        self.decode(frame, place.len());
        self.sums[place.clone()].copy_from_slice(&self.term);
        if self.wrong.is_none() {
            self.onward.insert(place.start, frame.to_vec());
        }
    }
}
