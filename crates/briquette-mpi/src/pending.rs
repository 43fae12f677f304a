//! Frames that MPI is reading or writing: the only `unsafe` code that touches memory.
#![allow(unsafe_code, reason = "MPI's requests borrow their buffers, and here the two are kept together")]

use briquette_core::Frame;
use mpi::Tag;
use mpi::point_to_point::Message;
use mpi::request::{Request, StaticScope};
use mpi::topology::Process;
use mpi::traits::Destination;

type Borrowed = Request<'static, [u8], StaticScope>;

/// A frame lent to MPI, and the request that reports completion. No other code sees the frame before completion.
///
/// The crate `mpi` requires buffers borrowed from an enclosing scope; queues that outlive the call need buffers that
/// they own. Dropping an incomplete one leaves the frame to MPI permanently: memory is leaked, not reused.
pub(crate) struct Pending {
    request: Option<Borrowed>,
    frame: Frame,
}

impl Pending {
    /// Starts sending a frame; complete once the other side has begun to receive it.
    pub(crate) fn synchronous(frame: Frame, to: &Process<'_>, tag: Tag) -> Pending {
        let request = to.immediate_synchronous_send_with_tag(StaticScope, lent(&frame), tag);
        Pending { request: Some(request), frame }
    }

    /// Starts sending a frame; complete once MPI has taken its bytes.
    pub(crate) fn send(frame: Frame, to: &Process<'_>, tag: Tag) -> Pending {
        let request = to.immediate_send_with_tag(StaticScope, lent(&frame), tag);
        Pending { request: Some(request), frame }
    }

    /// Starts receiving a matched message into a frame of its length.
    pub(crate) fn receive(message: Message, mut frame: Frame) -> Pending {
        let request = message.immediate_matched_receive_into(StaticScope, lent_mut(&mut frame));
        Pending { request: Some(request), frame }
    }

    /// Returns the frame once MPI is done with it; must not be called again after that.
    pub(crate) fn test(&mut self) -> Option<Frame> {
        match self.request.take()?.test() {
            Ok(_) => Some(std::mem::take(&mut self.frame)),
            Err(request) => {
                self.request = Some(request);
                None
            }
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            std::mem::forget(request);
            std::mem::forget(std::mem::take(&mut self.frame));
        }
    }
}

/// Returns the frame's bytes, for a request that is stored next to it.
fn lent(frame: &Frame) -> &'static [u8] {
    // SAFETY: the bytes are on the heap and stay where they are when the `Vec` moves into `Pending`. From then on it is
    // reachable only through `Pending::test`, which gives it away after the request is done, and `Pending::drop`,
    // which leaks it if the request is not. So the memory is neither freed nor changed while the request exists.
    unsafe { std::slice::from_raw_parts(frame.as_ptr(), frame.len()) }
}

/// Returns the same bytes for writing.
fn lent_mut(frame: &mut Frame) -> &'static mut [u8] {
    // SAFETY: as in `lent`; nothing else reads the bytes either before the request is done.
    unsafe { std::slice::from_raw_parts_mut(frame.as_mut_ptr(), frame.len()) }
}
