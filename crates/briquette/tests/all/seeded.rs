//! Numbers, data and weights that follow from a seed, on any device.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Tensor, TensorData};

/// Numbers in [-1, 1) that follow from a seed.
#[derive(Clone)]
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    pub(crate) fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    }

    pub(crate) fn tensor<const D: usize>(&mut self, shape: [usize; D], device: &Device) -> Tensor<D> {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| self.next()).collect();
        Tensor::from_data(TensorData::new(values, shape), device)
    }
}

/// Fills every trainable parameter from a seed: Burn's own initializers draw from one generator per process.
pub(crate) fn seeded<M: Module>(module: M, seed: u64) -> M {
    struct Fill(Numbers);
    impl ModuleMapper for Fill {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|old| {
                if !old.is_require_grad() {
                    return old;
                }
                self.0.tensor(old.dims(), &old.device()).mul_scalar(0.5).require_grad()
            })
        }
    }
    module.map(&mut Fill(Numbers::new(seed)))
}

/// Every float tensor of a module by path, as f32. Pending BatchNorm updates of this thread are applied first.
pub(crate) fn values<M: Module>(module: &M) -> Vec<(String, Vec<f32>)> {
    #[derive(Default)]
    struct Read {
        path: Vec<String>,
        out: Vec<(String, Vec<f32>)>,
    }
    impl ModuleVisitor for Read {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.path.push(name.to_owned());
        }
        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let data = param.val().inner().cast(DType::F32).into_data();
            self.out.push((self.path.join("."), data.try_into_vec().expect("cast to f32 above")));
        }
    }
    let _ = module.valid();
    let mut read = Read::default();
    module.visit(&mut read);
    read.out
}
