//! An average as bytes, in the format of Burn's records.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::store::RecordError;
use burn::tensor::{Bytes, Tensor, TensorData};
use burn_pack::{Reader, Writer};

use super::IterateAverage;
use crate::flat;

/// Prefix of names in a record.
const PREFIX: &str = "iterate-average";

impl IterateAverage {
    /// Serializes mean and counters, for [`load_bytes`](Self::load_bytes).
    ///
    /// # Errors
    /// The errors of Burn's format.
    pub fn to_bytes(&self) -> Result<Bytes, RecordError> {
        let tensor = |(i, mean): (usize, &Tensor<1>)| {
            let (bytes, shape, dtype) = mean.clone().into_data().into_parts();
            burn_pack::Tensor::new(format!("{PREFIX}.mean.{i}"), dtype, shape, None, bytes)
        };
        let writer = Writer::new(self.mean.iter().enumerate().map(tensor).collect());
        let counts = [("offered", self.offered), ("taken", self.taken)];
        let put =
            |writer: Writer, (name, count): (&str, u64)| writer.with_scalar(&format!("{PREFIX}.{name}"), count.into());
        Ok(counts.into_iter().fold(writer, put).into_bytes()?)
    }

    /// Restores the average of [`to_bytes`](Self::to_bytes), under the settings of `self`, for `model`.
    ///
    /// # Errors
    /// The bytes are not those of an average, or of one with other parameters.
    pub fn load_bytes<M: Module>(self, bytes: Bytes, model: &M) -> Result<Self, RecordError> {
        let reader = Reader::from_bytes(bytes)?;
        let count = |name: &str| {
            let count = reader.scalars().get(&format!("{PREFIX}.{name}")).and_then(|count| u64::try_from(*count).ok());
            count.ok_or_else(|| {
                RecordError::Validation(format!("this is no record of an IterateAverage: it has no {name}"))
            })
        };
        let (offered, taken) = (count("offered")?, count("taken")?);
        let mut tensors: BTreeMap<String, _> =
            reader.into_tensors()?.into_iter().map(|t| (t.name.clone(), t)).collect();
        let parameters = if taken == 0 { Vec::new() } else { flat::flat_parameters(model) };
        let load = |(i, parameter): (usize, &Tensor<1>)| {
            let wrong = |got: String| {
                let expected = format!("{} values of {:?}", parameter.dims()[0], parameter.dtype());
                RecordError::Validation(format!("average of parameter {i}: expected {expected}, got {got}"))
            };
            let tensor = tensors.remove(&format!("{PREFIX}.mean.{i}")).ok_or_else(|| wrong("none".into()))?;
            let (_, dtype, shape, _, bytes) = tensor.into_parts()?;
            if shape.num_elements() != parameter.dims()[0] || dtype != parameter.dtype() {
                return Err(wrong(format!("{} values of {dtype:?}", shape.num_elements())));
            }
            Ok(Tensor::from_data(TensorData::from_bytes(bytes, shape, dtype), (&parameter.device(), dtype)))
        };
        let mean = parameters.iter().enumerate().map(load).collect::<Result<Vec<_>, _>>()?;
        match tensors.len() {
            0 => Ok(IterateAverage { config: self.config, offered, taken, mean }),
            more => Err(RecordError::Validation(format!("average of {more} parameters that the model does not have"))),
        }
    }
}
