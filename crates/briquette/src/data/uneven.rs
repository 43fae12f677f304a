//! Steps in which some ranks have no more data.

use briquette_core::Session;

use crate::error::Error;
use crate::optimizer::DistributedOptimizer;

/// A rank's role in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn<I> {
    /// The rank has a batch.
    Batch(I),
    /// Only other ranks have a batch. This rank steps with no gradient, and records [0
    /// samples](DistributedOptimizer::record_samples).
    Idle,
}

/// Returns this rank's next batch, or [`Turn::Idle`] if only other ranks have one, or `None` if no rank has one. Call it on every
/// rank before every step.
///
/// ```
/// use briquette::data::{Turn, next_batch};
/// use briquette::{DistributedConfig, DistributedOptimizer, Error};
/// use burn::module::Param;
/// use burn::nn::LinearConfig;
/// use burn::optim::{GradientsParams, SgdConfig};
/// use burn::tensor::{Device, Tensor};
///
/// // Three batches on rank 0, two on rank 1.
/// let losses = briquette::run(2, |session| {
///     let device = Device::flex().autodiff();
///     let mut batches = (0..3 - session.rank()).map(|i| Tensor::<2>::full([4, 2], i as f32, &device));
///     let mut optim = DistributedOptimizer::new(SgdConfig::new().init(), session, DistributedConfig::dense(), 1);
///     let mut model = optim.join(LinearConfig::new(2, 1).init(&device))?;
///     let mut seen = 0;
///     while let Some(turn) = next_batch(&mut optim, &mut batches)? {
///         let gradients = match turn {
///             Turn::Batch(batch) => {
///                 seen += 1;
///                 optim.record_samples(4);
///                 GradientsParams::from_grads(model.forward(batch).mean().backward(), &model)
///             }
///             Turn::Idle => {
///                 optim.record_samples(0);
///                 GradientsParams::new()
///             }
///         };
///         model = optim.step(0.1, model, gradients)?;
///     }
///     assert_eq!((seen, optim.synchronizer().step()), (3 - optim.rank(), 3));
///     Ok::<_, Error>(())
/// })?;
/// # Ok::<_, briquette::RunError>(())
/// ```
///
/// **Bytes.** Each rank sends one byte to each other rank before every step.
///
/// # Errors
/// Those of the transport; the session is then unusable.
pub fn next_batch<I>(
    optim: &mut DistributedOptimizer,
    batches: &mut impl Iterator<Item = I>,
) -> Result<Option<Turn<I>>, Error> {
    let batch = batches.next();
    let heard = optim.synchronizer_mut().gather_bytes("batch count", &[u8::from(batch.is_some())])?;
    let any = heard.iter().any(|byte| byte.first() == Some(&1));
    Ok(any.then(|| batch.map_or(Turn::Idle, Turn::Batch)))
}

/// Checks, before the first step, that every rank will take `steps` steps. Otherwise some ranks would wait in the middle of an
/// epoch for ranks that have finished, until the latter [leave the run](briquette_core::error::CommError::Lost).
///
/// # Errors
/// [`Error::Mismatch`] with a rank and both numbers, on every rank for which another one differs; those of the transport.
pub fn check_steps(session: &mut Session, steps: usize) -> Result<(), Error> {
    let (this, mut heard) = (session.rank(), Vec::new());
    session.scope().operation = "comparison of steps";
    session.all_gather(&(steps as u64).to_le_bytes(), &mut heard)?;
    let others = heard.iter().enumerate().filter(|(rank, _)| *rank != this);
    let mut numbers = others.filter_map(|(rank, bytes)| Some((rank, u64::from_le_bytes(*bytes.first_chunk()?))));
    match numbers.find(|(_, theirs)| *theirs != steps as u64) {
        None => Ok(()),
        Some((rank, theirs)) => Err(Error::Mismatch {
            this,
            rank,
            field: "number of steps (give every rank as many, or call `data::next_batch` before each)".to_owned(),
            ours: steps.to_string(),
            theirs: theirs.to_string(),
        }),
    }
}
