//! A communicator for what is one of several.

use super::{Communicator, forward};

/// Another communicator, but for [`finished`](Communicator::finished), which it keeps to itself: for a reducer that runs
/// others inside it, as the end of one of them is not its own.
#[expect(missing_debug_implementations, reason = "communicators need not have one")]
pub struct Unfinished<'a>(pub &'a mut dyn Communicator);

impl Communicator for Unfinished<'_> {
    forward!(self => self.0; rank world send recv flush abort verdict now set_clock traffic scope pool overlaps begin_step
        collectives);
}
