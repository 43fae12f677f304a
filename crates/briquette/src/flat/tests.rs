//! Devices without host memory are read in buckets. Here flex is forced to do so, and must give the same result.

use burn::module::{Module, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor};

use super::*;

#[derive(Module, Debug)]
struct Four {
    a: Param<Tensor<1>>,
    unused: Param<Tensor<2>>,
    half: Param<Tensor<1>>,
    b: Param<Tensor<2>>,
}

/// One weight in two places, as a clone.
#[test]
fn two_trained_fields_with_one_id_are_named() {
    let Four { a, half, b, .. } = module();
    let tied = Four { a, unused: b.clone(), half, b };
    let caution = |module: &Four| Inventory::of(module).unwrap().caution();
    let text = caution(&tied).unwrap();
    assert!(text.contains("`unused` and `b` are parameters with one id"), "{text}");
    // Frozen parameters are only read.
    assert_eq!(caution(&tied.no_grad()), None);
    let Four { a, unused, half, b } = module();
    assert_eq!(caution(&Four { a, unused, half, b }), None);
}

fn module() -> Four {
    let device = Device::flex().autodiff();
    let ramp =
        |len: usize| Tensor::<1>::from_data(TensorData::new((1..=len).map(|i| i as f32).collect(), [len]), &device);
    Four {
        a: Param::from_tensor(ramp(5).require_grad()),
        unused: Param::from_tensor(ramp(6).reshape([2, 3]).detach().require_grad()),
        half: Param::from_tensor(ramp(4).cast(DType::F16).detach().require_grad()),
        b: Param::from_tensor(ramp(6).reshape([3, 2]).detach().require_grad()),
    }
}

/// d(Σ x²) / dx = 2 x, except for `unused`.
fn gradients(module: &Four) -> GradientsParams {
    let square = |x: Tensor<1>| x.cast(DType::F32).square().sum();
    let loss = square(module.a.val()) + square(module.half.val()) + square(module.b.val().reshape([6]));
    GradientsParams::from_grads(loss.backward(), module)
}

#[test]
fn gradients_go_out_and_back_in_buckets_of_any_length() {
    for bucket in [None, Some(1), Some(6), Some(9), Some(100)] {
        let module = module();
        let layout = Inventory::of(&module).unwrap().layout;
        let mut taken = Gradients { bucket, ..Gradients::default() };
        taken.collect(&module, gradients(&module), &layout, 0.0).unwrap();
        assert_eq!(taken.present, [true, false, true, true]);
        let twice = |len: usize| (1..=len).map(|i| 2.0 * i as f32).collect::<Vec<_>>();
        assert_eq!(taken.flat, [twice(5), vec![0.0; 6], twice(4), twice(6)].concat(), "bucket {bucket:?}");
        taken.flat.iter_mut().for_each(|v| *v *= 0.5);
        let mut back = taken.restore(&module, &layout).unwrap();
        assert!(back.remove::<2>(module.unused.id).is_none(), "what nobody has stays absent");
        let a = back.remove::<1>(module.a.id).unwrap();
        let half = back.remove::<1>(module.half.id).unwrap();
        assert_eq!((a.dtype(), half.dtype()), (DType::F32, DType::F16), "each has its type again");
        assert_eq!(a.into_data().as_slice::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(half.cast(DType::F32).into_data().as_slice::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
        let b = back.remove::<2>(module.b.id).unwrap();
        assert_eq!((b.dims(), b.into_data().as_slice::<f32>().unwrap()[5]), ([3, 2], 6.0));
    }
}
