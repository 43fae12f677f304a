//! Loads the model of a checkpoint alone, to evaluate it, to export it, or to start a second phase of training.

use burn::module::Module;
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
use safetensors::tensor::SafeTensors;

use super::{Checkpoint, fail, file, ids};
use crate::error::Error;
use crate::flat;

impl Checkpoint {
    /// Loads the saved model into `module`: parameters and running statistics, as means over the saved ranks. It needs no session
    /// and no optimizer, and works for any number of saved ranks. `module` keeps its parameter ids. If the run maintained an
    /// [average of iterates](crate::DistributedOptimizer::with_iterate_average), the loaded model is still the last iterate.
    ///
    /// ```no_run
    /// # use briquette::{Checkpoint, Error};
    /// # fn evaluate<M: burn::module::Module>(module: M) -> Result<M, Error> {
    /// let checkpoint = Checkpoint::latest(std::path::Path::new("runs/mine"))?;
    /// checkpoint.load_model(module)
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when a file is missing or damaged, or contains a model with other tensors.
    pub fn load_model<M: Module>(&self, module: M) -> Result<M, Error> {
        let record = ModuleRecord::from_bytes(self.model()?).map_err(|e| fail(self.path(), e.to_string()))?;
        // A pending update of BatchNorm would replace the loaded values.
        flat::drain(&module);
        let local = ids::ids(&module);
        let module = module.try_load_record(record).map_err(|e| fail(self.path(), e))?;
        Ok(ids::keep(module, &local).0)
    }

    /// Returns the model's record from the `common` file or, in a world of one rank, from the rank's file.
    fn model(&self) -> Result<Bytes, Error> {
        let bytes = self.read_common()?.map_or_else(|| self.read(0), Ok)?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| fail(self.path(), e))?;
        file::read_blobs(&file).remove("model").ok_or_else(|| fail(self.path(), "it has no `model`"))
    }
}
