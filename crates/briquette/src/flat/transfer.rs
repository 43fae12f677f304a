//! Transfers from a device to the host.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use burn::tensor::{DType, ExecutionError, Tensor, TensorData, Transaction};
use futures_lite::future::block_on;

use crate::backend::in_host_memory;
use crate::error::Error;

/// Number of values that a device concatenates and transfers at a time: 16 MiB. While one such bucket is copied on the host, the
/// next is in transit.
const BUCKET: usize = 4 << 20;

/// Collects the tensors of a walk, then reads them.
#[derive(Default)]
pub(super) struct Pieces {
    tensors: Vec<Tensor<1>>,
    /// The number of values in a bucket; the device's default if absent.
    bucket: Option<usize>,
}

impl Pieces {
    pub(super) fn in_buckets_of(bucket: Option<usize>) -> Pieces {
        Pieces { tensors: Vec::new(), bucket }
    }

    pub(super) fn push<const D: usize>(&mut self, tensor: Tensor<D>) {
        let len = tensor.shape().num_elements();
        let flat = tensor.reshape([len]);
        // `cat` refuses mixed types.
        self.tensors.push(if flat.dtype() == DType::F32 { flat } else { flat.cast(DType::F32) });
    }

    /// Returns the tensors, flat and of f32 values.
    #[cfg(feature = "device")]
    pub(super) fn into_tensors(self) -> Vec<Tensor<1>> {
        self.tensors
    }

    /// Passes the values to `each` in the order of the traversal. Tensors in this process's memory are passed one by one, because
    /// each passes its own memory. A device's tensors are passed in buckets of whole tensors.
    pub(super) fn read(self, mut each: impl FnMut(TensorData) -> Result<(), Error>) -> Result<(), Error> {
        let Some(first) = self.tensors.first() else { return Ok(()) };
        let Some(len) = self.bucket.or((!in_host_memory(&first.device())).then_some(BUCKET)) else {
            let mut tensors = self.tensors.into_iter();
            return tensors.try_for_each(|tensor| each(tensor.try_into_data().map_err(Error::device)?));
        };
        let mut reads = Buckets { tensors: self.tensors.into_iter().peekable(), len }.map(Reading::begin);
        let mut next = reads.next();
        while let Some(reading) = next {
            next = reads.next();
            each(reading.end().map_err(Error::device)?)?;
        }
        Ok(())
    }
}

pub(super) fn as_f32(data: &TensorData) -> Result<&[f32], Error> {
    data.as_slice().map_err(Error::device)
}

/// Consecutive tensors, concatenated on the device, with at most `len` values, or a single tensor.
struct Buckets<I: Iterator<Item = Tensor<1>>> {
    tensors: std::iter::Peekable<I>,
    len: usize,
}

impl<I: Iterator<Item = Tensor<1>>> Iterator for Buckets<I> {
    type Item = Tensor<1>;

    fn next(&mut self) -> Option<Tensor<1>> {
        let mut bucket = vec![self.tensors.next()?];
        let mut len = bucket[0].dims()[0];
        while let Some(tensor) = self.tensors.next_if(|tensor| len + tensor.dims()[0] <= self.len) {
            len += tensor.dims()[0];
            bucket.push(tensor);
        }
        Some(if bucket.len() == 1 { bucket.remove(0) } else { Tensor::cat(bucket, 0) })
    }
}

type Outcome = Result<Vec<TensorData>, ExecutionError>;

/// A transfer in progress.
enum Reading {
    Pending(Pin<Box<dyn Future<Output = Outcome>>>),
    Done(Outcome),
}

impl Reading {
    /// Starts a transfer. Futures do nothing before the first poll, which queues it.
    fn begin(tensor: Tensor<1>) -> Reading {
        let mut transfer: Pin<Box<dyn Future<Output = Outcome>>> =
            Box::pin(Transaction::default().register(tensor).execute_async());
        match transfer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Reading::Done(outcome),
            Poll::Pending => Reading::Pending(transfer),
        }
    }

    fn end(self) -> Result<TensorData, ExecutionError> {
        let outcome = match self {
            Reading::Pending(transfer) => block_on(transfer),
            Reading::Done(outcome) => outcome,
        };
        Ok(outcome?.remove(0))
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn buckets_are_whole_tensors_in_order_whatever_their_type() {
        let mut pieces = Pieces::in_buckets_of(Some(8));
        let mut next = 0.0;
        for len in [3_usize, 4, 5, 1, 9] {
            let values: Vec<f32> = (0..len).map(|i| next + i as f32).collect();
            next += len as f32;
            let tensor = Tensor::<1>::from_data(TensorData::new(values, [len]), &Device::flex());
            // Small integers survive half precision.
            pieces.push(if len == 4 { tensor.cast(DType::F16) } else { tensor });
        }
        let (mut lens, mut all) = (Vec::new(), Vec::new());
        let taken = pieces.read(|block| {
            let values = as_f32(&block)?;
            lens.push(values.len());
            all.extend_from_slice(values);
            Ok(())
        });
        taken.unwrap();
        assert_eq!(lens, [3 + 4, 5 + 1, 9], "9 is more than a bucket and goes alone");
        assert_eq!(all, (0..22).map(|i| i as f32).collect::<Vec<_>>());
    }
}
