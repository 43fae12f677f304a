//! Treatment of the inner optimizer's momenta after an exchange of parameters.

use std::collections::BTreeMap;

use briquette_core::sync::Momenta;
use burn::module::Module;
use burn::optim::OptimizerRecord;
use burn::tensor::{Bytes, DType};
use burn_pack::{Reader, Tensor, Writer};

use crate::checkpoint::ids;
use crate::error::Error;
use crate::synchronizer::Synchronizer;

impl Synchronizer {
    /// Returns the record that the inner optimizer must load at the end of a step, if any. `saved` returns its current record,
    /// as bytes.
    pub(crate) fn next_momenta<M: Module>(
        &mut self,
        module: &M,
        saved: impl FnOnce() -> Result<Bytes, String>,
    ) -> Result<Option<OptimizerRecord>, Error> {
        match self.momenta() {
            Momenta::Keep => Ok(None),
            Momenta::Reset => Ok(Some(OptimizerRecord::default())),
            _ if self.world() == 1 => Ok(None),
            which => {
                let (begin, before) = (self.comm.now(), self.comm.traffic());
                let averaged = self.average_momenta(module, saved, which);
                let averaged = averaged.inspect_err(|error| self.comm.abort(&error.to_string()))?;
                self.spent_on_momenta(self.comm.now() - begin, self.comm.traffic() - before);
                Ok(Some(averaged))
            }
        }
    }

    /// Averages the f32 tensors of the record over ranks, or those of the named kind; other values (step counters) stay rank-local.
    fn average_momenta<M: Module>(
        &mut self,
        module: &M,
        saved: impl FnOnce() -> Result<Bytes, String>,
        which: Momenta,
    ) -> Result<OptimizerRecord, Error> {
        let is_averaged = |tensor: &Tensor| {
            let of_kind = which == Momenta::Average || is_second(&tensor.name) == (which == Momenta::AverageSecond);
            tensor.dtype == DType::F32 && of_kind
        };
        let rank = self.comm.rank();
        let unusable = |problem: String| Error::Momenta { rank, problem };
        let reader =
            saved().and_then(|bytes| Reader::from_bytes(bytes).map_err(|e| e.to_string())).map_err(unusable)?;
        let (scalars, metadata) = (reader.scalars().clone(), reader.metadata().clone());
        let mut tensors = reader.into_tensors().map_err(|e| unusable(e.to_string()))?;
        // Names begin with ids, which are random in each process, so tensors are ordered by their parameter's place in
        // the module.
        let order: BTreeMap<u64, usize> = ids::ids(module).iter().map(|id| id.val()).zip(0..).collect();
        tensors.sort_by_key(|tensor| place(&order, &tensor.name));
        self.compare_momenta(&order, &tensors)?;
        let mut values = Vec::new();
        for tensor in tensors.iter().filter(|tensor| is_averaged(tensor)) {
            let bytes = tensor.to_bytes().map_err(|e| unusable(e.to_string()))?;
            values.extend(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        }
        self.comm.all_reduce_sum(&mut values)?;
        self.comm.scope().operation = "";
        let (world, mut rest) = (self.comm.world() as f32, &values[..]);
        let mut averaged = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            let is_averaged = is_averaged(&tensor);
            let (name, dtype, shape, id, mut bytes) = tensor.into_parts().map_err(|e| unusable(e.to_string()))?;
            if is_averaged {
                let (own, others) = rest.split_at(bytes.len() / 4);
                bytes = Bytes::from_bytes_vec(own.iter().flat_map(|sum| (sum / world).to_le_bytes()).collect());
                rest = others;
            }
            averaged.push(Tensor::new(name, dtype, shape, id, bytes));
        }
        let writer = scalars.into_iter().fold(Writer::new(averaged), |w, (key, value)| w.with_scalar(&key, value));
        let writer = metadata.iter().fold(writer, |w, (key, value)| w.with_metadata(key, value));
        let bytes = writer.into_bytes().map_err(|e| unusable(e.to_string()))?;
        OptimizerRecord::from_bytes(bytes).map_err(|e| unusable(e.to_string()))
    }
}

impl Synchronizer {
    /// Checks that every rank has the same tensors, with a type that can be averaged.
    fn compare_momenta(&mut self, order: &BTreeMap<u64, usize>, tensors: &[Tensor]) -> Result<(), Error> {
        let unusable = |rank: usize, problem: String| Err(Error::Momenta { rank, problem });
        let (rank, mut mine) = (self.comm.rank(), String::new());
        for tensor in tensors {
            let (index, name) = place(order, &tensor.name);
            if tensor.dtype.is_float() && tensor.dtype != DType::F32 {
                let problem = format!("those of parameter {index} are {:?}: only f32 can be averaged", tensor.dtype);
                return unusable(rank, problem);
            }
            mine += &format!("{index}{name} {:?} {:?}\n", tensor.shape, tensor.dtype);
        }
        self.comm.scope().operation = "average of momenta";
        let (mine, mut all) = (crc32fast::hash(mine.as_bytes()).to_le_bytes().to_vec(), Vec::new());
        self.comm.all_gather(&mine, &mut all)?;
        all[rank] = mine;
        match all.iter().position(|other| *other != all[0]) {
            None => Ok(()),
            // An optimizer has no state for a parameter that has never had a gradient.
            Some(other) => unusable(other, "they are of other parameters than rank 0's".into()),
        }
    }
}

/// Names of second moments in the states of Burn's optimizers and of this crate's.
const SECOND: [&str; 7] = ["moment_2", "max_moment_2", "square_avg", "exp_avg_sq", "sum", "v", "v_max"];

/// Returns whether a tensor of a record is a second moment.
fn is_second(name: &str) -> bool {
    SECOND.contains(&name.rsplit('.').next().unwrap_or(name))
}

/// The sort key of a tensor: its parameter's place, then its name within the parameter.
fn place(order: &BTreeMap<u64, usize>, name: &str) -> (usize, String) {
    let (id, rest) = name.split_at(name.find('.').unwrap_or(name.len()));
    let index = id.parse().ok().and_then(|id| order.get(&id).copied());
    (index.unwrap_or(usize::MAX), rest.to_owned())
}
