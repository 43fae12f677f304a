//! Integer and boolean tensors of a module. They get no gradients, and joining copies rank 0's to every rank.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Bool, Int, Tensor, TensorData};

use crate::error::Error;

/// Paths, kinds and shapes, as text; empty if there are none.
pub(crate) fn describe<M: Module>(module: &M) -> String {
    struct Describe(Vec<String>, String);
    impl Describe {
        fn add(&mut self, kind: &str, shape: &[usize]) {
            self.1 += &format!("{}`{}` {kind} {shape:?}", if self.1.is_empty() { "" } else { ", " }, self.0.join("."));
        }
    }
    impl ModuleVisitor for Describe {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.0.push(name.to_owned());
        }
        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.0.pop();
        }
        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
            self.add("integer", &param.val().dims());
        }
        fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
            self.add("boolean", &param.val().dims());
        }
    }
    let mut walk = Describe(Vec::new(), String::new());
    module.visit(&mut walk);
    walk.1
}

/// Concatenates all values: integers in 8 bytes, because their width differs between backends, booleans in one.
pub(crate) fn read<M: Module>(module: &M) -> Result<Vec<u8>, Error> {
    struct Read(Result<Vec<u8>, Error>);
    impl Read {
        fn add(&mut self, data: Result<TensorData, impl ToString>, append: impl FnOnce(TensorData, &mut Vec<u8>)) {
            let Ok(out) = &mut self.0 else { return };
            match data {
                Ok(data) => append(data, out),
                Err(error) => self.0 = Err(Error::device(error.to_string())),
            }
        }
    }
    impl ModuleVisitor for Read {
        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
            let append =
                |data: TensorData, out: &mut Vec<u8>| out.extend(data.iter::<i64>().flat_map(i64::to_le_bytes));
            self.add(param.val().try_into_data(), append);
        }
        fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
            let append = |data: TensorData, out: &mut Vec<u8>| out.extend(data.iter::<bool>().map(u8::from));
            self.add(param.val().try_into_data(), append);
        }
    }
    let mut walk = Read(Ok(Vec::new()));
    module.visit(&mut walk);
    walk.0
}

/// Reverses [`read`]. Tensors beyond the end of `bytes` are unchanged.
pub(crate) fn write<M: Module>(module: M, bytes: &[u8]) -> M {
    struct Write<'a>(&'a [u8]);
    impl<'a> Write<'a> {
        fn take(&mut self, len: usize) -> Option<&'a [u8]> {
            let (own, others) = self.0.split_at_checked(len)?;
            self.0 = others;
            Some(own)
        }
    }
    impl ModuleMapper for Write<'_> {
        fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
            param.map(|old| {
                let Some(bytes) = self.take(8 * old.shape().num_elements()) else { return old };
                let values: Vec<i64> = bytes.as_chunks().0.iter().map(|value| i64::from_le_bytes(*value)).collect();
                let (device, dtype) = (old.device(), old.dtype());
                Tensor::from_data(TensorData::new(values, old.shape()).convert_dtype(dtype), (&device, dtype))
            })
        }
        fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
            param.map(|old| {
                let Some(bytes) = self.take(old.shape().num_elements()) else { return old };
                let values: Vec<bool> = bytes.iter().map(|byte| *byte != 0).collect();
                Tensor::from_data(TensorData::new(values, old.shape()), &old.device())
            })
        }
    }
    module.map(&mut Write(bytes))
}
