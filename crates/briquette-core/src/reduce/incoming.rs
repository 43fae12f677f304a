//! Received frames of the other ranks, decoded part by part.

use crate::error::{AggregateError, WireError};
use crate::{Frame, Message};

/// Frames of one exchange, a read cursor per frame, and the excluded ranks.
#[derive(Debug, Default)]
pub struct Incoming {
    /// Frames by rank; this rank's own is empty.
    pub frames: Vec<Frame>,
    cursors: Vec<usize>,
    /// Set if ranks that send an invalid or non-finite message are excluded. All ranks have the same frames, and exclude the same ranks.
    excludes: bool,
    /// The excluded ranks; may contain duplicates.
    excluded: Vec<usize>,
}

impl Incoming {
    /// Starts an exchange, before its first part. `mine` holds this rank's messages by part: from the first non-finite message on, they are
    /// replaced by zeros and this rank is excluded.
    ///
    /// # Errors
    /// For a part that is too long to be encoded.
    pub fn begin(&mut self, excludes: bool, rank: usize, mine: &mut [Message]) -> Result<(), AggregateError> {
        self.excludes = excludes;
        self.cursors.clear();
        self.cursors.resize(self.frames.len(), 0);
        self.excluded.clear();
        let count = mine.iter().take_while(|mine| !excludes || mine.is_finite()).count();
        mine[count..].iter_mut().try_for_each(|mine| {
            self.excluded.push(rank);
            mine.write_sparse(mine.len(), []).map_err(|source| AggregateError::Message { rank, source })
        })
    }

    /// Decodes the next message of every other rank, which must have `len` values. Every aggregator therefore gets messages of equal
    /// length.
    ///
    /// # Errors
    /// Names the rank whose next bytes are not such a message, unless ranks are excluded.
    pub fn next(
        &mut self,
        rank: usize,
        decoded: &mut [Vec<Message>],
        (place, len): (usize, usize),
    ) -> Result<(), AggregateError> {
        for from in (0..self.frames.len()).filter(|from| *from != rank) {
            let message = &mut decoded[from][place];
            let read = next_message(&mut self.frames[from], &mut self.cursors[from], message);
            let fits = read.and_then(|()| match message.len() {
                got if got == len => Ok(()),
                got => Err(WireError::Length { expected: len, got }),
            });
            let fits = match self.excludes && (fits.is_err() || !message.is_finite()) {
                true => {
                    // The rest of this frame is not read.
                    self.cursors[from] = self.frames[from].len();
                    self.excluded.push(from);
                    message.write_sparse(len, [])
                }
                false => fits,
            };
            fits.map_err(|source| AggregateError::Message { rank: from, source })?;
        }
        Ok(())
    }

    /// Checks that no frame has bytes after the last part.
    ///
    /// # Errors
    /// Names the rank whose frame has more bytes, unless ranks are excluded.
    pub fn end(&mut self, rank: usize) -> Result<(), AggregateError> {
        let frames = self.frames.iter().zip(&self.cursors).enumerate();
        for (from, (frame, cursor)) in frames.filter(|(from, (frame, cursor))| *from != rank && frame.len() > **cursor)
        {
            if !self.excludes {
                let source = WireError::Trailing { extra: frame.len() - cursor };
                return Err(AggregateError::Message { rank: from, source });
            }
            self.excluded.push(from);
        }
        Ok(())
    }

    /// Returns the ranks whose contributions must not count, ascending; complete after [`end`](Self::end).
    pub fn excluded(&self) -> Vec<usize> {
        let mut excluded = self.excluded.clone();
        excluded.sort_unstable();
        excluded.dedup();
        excluded
    }

    /// Adds the ranks whose contributions did not count to the report.
    pub fn report(&self, excluded: &mut Vec<usize>) {
        excluded.extend(self.excluded());
        excluded.sort_unstable();
        excluded.dedup();
    }
}

/// Decodes the length-prefixed message at `cursor`. A message that fills the frame may keep its buffer.
pub fn next_message(frame: &mut Frame, cursor: &mut usize, out: &mut Message) -> Result<(), WireError> {
    let left = frame.len() - *cursor;
    let truncated = |what, needed| WireError::Truncated { what, needed, left };
    let prefix = frame[*cursor..].first_chunk::<4>().ok_or(truncated("length of a message", 4))?;
    let len = u32::from_le_bytes(*prefix) as usize;
    let start = *cursor + 4;
    if *cursor == 0 && frame.len() == start.saturating_add(len) {
        out.read_frame(frame)?;
        // The frame is used up, whether or not the message keeps its buffer.
        *cursor = frame.len();
        return Ok(());
    }
    let bytes = frame.get(start..start.saturating_add(len)).ok_or(truncated("message", len))?;
    *cursor = start + len;
    out.decode_from(bytes)
}
