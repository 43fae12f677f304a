//! What a communicator around another one passes on as it is.

/// Methods of [`Communicator`](super::Communicator), by name, answered by `$inner`.
macro_rules! forward {
    ($self:ident => $inner:expr; $($method:ident)+) => { $(forward!(@$method $self $inner);)+ };
    (@rank $self:ident $inner:expr) => { fn rank(&$self) -> usize { $inner.rank() } };
    (@world $self:ident $inner:expr) => { fn world(&$self) -> usize { $inner.world() } };
    (@send $self:ident $inner:expr) => {
        fn send(&mut $self, to: usize, frame: $crate::Frame) -> Result<(), $crate::error::CommError> {
            $inner.send(to, frame)
        }
    };
    (@recv $self:ident $inner:expr) => {
        fn recv(&mut $self, from: usize) -> Result<$crate::Frame, $crate::error::CommError> { $inner.recv(from) }
    };
    (@flush $self:ident $inner:expr) => {
        fn flush(&mut $self) -> Result<(), $crate::error::CommError> { $inner.flush() }
    };
    (@abort $self:ident $inner:expr) => { fn abort(&mut $self, reason: &str) { $inner.abort(reason); } };
    (@verdict $self:ident $inner:expr) => { fn verdict(&$self) -> $crate::comm::Verdict { $inner.verdict() } };
    (@now $self:ident $inner:expr) => { fn now(&$self) -> f64 { $inner.now() } };
    (@set_clock $self:ident $inner:expr) => { fn set_clock(&mut $self, seconds: f64) { $inner.set_clock(seconds); } };
    (@traffic $self:ident $inner:expr) => { fn traffic(&$self) -> $crate::Traffic { $inner.traffic() } };
    (@scope $self:ident $inner:expr) => { fn scope(&mut $self) -> &mut $crate::comm::Scope { $inner.scope() } };
    (@pool $self:ident $inner:expr) => { fn pool(&mut $self) -> &mut $crate::comm::FramePool { $inner.pool() } };
    (@overlaps $self:ident $inner:expr) => { fn overlaps(&$self) -> bool { $inner.overlaps() } };
    (@finished $self:ident $inner:expr) => { fn finished(&mut $self) { $inner.finished(); } };
    (@begin_step $self:ident $inner:expr) => { fn begin_step(&mut $self, step: u64) { $inner.begin_step(step); } };
    (@collectives $self:ident $inner:expr) => {
        fn all_gather(
            &mut $self,
            mine: &[u8],
            parts: &mut Vec<$crate::Frame>,
        ) -> Result<(), $crate::error::CommError> {
            $inner.all_gather(mine, parts)
        }
        fn all_reduce_sum(&mut $self, x: &mut [f32]) -> Result<(), $crate::error::CommError> {
            $inner.all_reduce_sum(x)
        }
        fn all_reduce_sum_f64(&mut $self, x: &mut [f64]) -> Result<(), $crate::error::CommError> {
            $inner.all_reduce_sum_f64(x)
        }
        fn broadcast(&mut $self, root: usize, bytes: &mut Vec<u8>) -> Result<(), $crate::error::CommError> {
            $inner.broadcast(root, bytes)
        }
        fn barrier(&mut $self) -> Result<(), $crate::error::CommError> { $inner.barrier() }
    };
}
pub(crate) use forward;
