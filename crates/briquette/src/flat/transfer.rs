//! From a device to the host.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use burn::tensor::{DType, ExecutionError, Tensor, TensorData, Transaction};
use futures_lite::future::block_on;

use crate::backend::in_host_memory;
use crate::error::Error;

/// Values that a device concatenates and hands over at a time: 16 MiB. While one such bucket is copied on the host, the
/// next is on its way.
const BUCKET: usize = 4 << 20;

/// Collects what a walk finds, then reads it.
#[derive(Default)]
pub(super) struct Pieces {
    tensors: Vec<Tensor<1>>,
}

impl Pieces {
    pub(super) fn push<const D: usize>(&mut self, tensor: Tensor<D>) {
        let len = tensor.shape().num_elements();
        let flat = tensor.reshape([len]);
        // `cat` refuses mixed types.
        self.tensors.push(if flat.dtype() == DType::F32 { flat } else { flat.cast(DType::F32) });
    }

    /// Hands the values to `each` in the order of the walk: tensors that live in this process's memory one by one, since
    /// each gives its memory away, and a device's by the bucket, each of whole tensors.
    pub(super) fn read(self, mut each: impl FnMut(TensorData) -> Result<(), Error>) -> Result<(), Error> {
        let failed = |error: ExecutionError| Error::Device(error.to_string());
        let Some(first) = self.tensors.first() else { return Ok(()) };
        if in_host_memory(&first.device()) {
            return self.tensors.into_iter().try_for_each(|tensor| each(tensor.try_into_data().map_err(failed)?));
        }
        let mut reads = Buckets { tensors: self.tensors.into_iter().peekable() }.map(Reading::begin);
        let mut next = reads.next();
        while let Some(reading) = next {
            next = reads.next();
            each(reading.end().map_err(failed)?)?;
        }
        Ok(())
    }
}

pub(super) fn as_f32(data: &TensorData) -> Result<&[f32], Error> {
    data.as_slice().map_err(|error| Error::Device(error.to_string()))
}

/// Tensors in a row, concatenated where they are.
struct Buckets<I: Iterator<Item = Tensor<1>>> {
    tensors: std::iter::Peekable<I>,
}

impl<I: Iterator<Item = Tensor<1>>> Iterator for Buckets<I> {
    type Item = Tensor<1>;

    fn next(&mut self) -> Option<Tensor<1>> {
        let mut bucket = vec![self.tensors.next()?];
        let mut len = bucket[0].dims()[0];
        while let Some(tensor) = self.tensors.next_if(|tensor| len + tensor.dims()[0] <= BUCKET) {
            len += tensor.dims()[0];
            bucket.push(tensor);
        }
        Some(if bucket.len() == 1 { bucket.remove(0) } else { Tensor::cat(bucket, 0) })
    }
}

type Outcome = Result<Vec<TensorData>, ExecutionError>;

/// A transfer on its way.
enum Reading {
    Pending(Pin<Box<dyn Future<Output = Outcome>>>),
    Done(Outcome),
}

impl Reading {
    /// Futures do nothing before they are asked: the first question queues the transfer.
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
