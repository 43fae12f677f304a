//! [`Compressed`]: gradient compression in a single process.

use briquette::Compressed;
use briquette::core::CompressionRatio;
use briquette::core::compress::{Compressor, Norm, ValueKind, qsgd::Qsgd, top_k::TopK};
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::{Adam, AdamConfig, ModuleOptimizer, Optimizer, Sgd, SgdConfig, momentum::MomentumConfig};
use burn::tensor::Tensor;

use crate::common::*;

fn top(ratio: f64) -> TopK {
    TopK::ratio(CompressionRatio::new(ratio).expect("at least 1"))
}

fn momentum() -> Sgd {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new())).build()
}

fn steps(optim: &mut ModuleOptimizer, mut model: Mlp, steps: std::ops::Range<u64>) -> Mlp {
    for step in steps {
        let gradients = grads(&model, &model.loss(step, 4));
        model = optim.step(0.05, model, gradients);
    }
    model
}

#[test]
fn keeping_every_value_is_the_inner_optimizer_to_the_bit() {
    let plain = [momentum().into(), AdamConfig::new().build().into()];
    let wrapped = [
        Compressed::new(momentum(), top(1.0), 7).into(),
        Compressed::new(AdamConfig::new().build(), top(1.0), 7).into_module_optimizer(),
    ];
    for (mut plain, mut wrapped) in plain.into_iter().zip::<[ModuleOptimizer; 2]>(wrapped) {
        let expected = steps(&mut plain, Mlp::new(5), 0..10);
        let got = steps(&mut wrapped, Mlp::new(5), 0..10);
        assert_eq!(bits(&got), bits(&expected));
        assert!(distance(&got, &Mlp::new(5)) > 0.01, "nothing was trained");
    }
}

#[test]
fn what_was_sent_and_what_stays_make_the_gradient_and_the_residual_before() {
    for (values, exact) in [(ValueKind::F32, true), (ValueKind::Q8, false)] {
        let optim = Compressed::new(SgdConfig::new().build(), top(4.0).with_values(values), 7);
        let device = device().inner();
        let mut numbers = Numbers::new(3);
        let mut state = None;
        let mut residual = vec![0.0; 40];
        let read = |t: Tensor<2>| t.into_data().try_into_vec::<f32>().expect("f32");
        for _ in 0..5 {
            let gradient = numbers.tensor([8, 5], &device);
            let zero = Tensor::<2>::zeros([8, 5], &device);
            // Plain SGD at a learning rate of 1 moves a zero parameter to minus the sent value.
            let (moved, next) = optim.step(1.0, zero, gradient.clone(), state);
            let sent: Vec<f32> = read(moved).iter().map(|v| -v).collect();
            let next = next.expect("a state");
            let after = read(next.residual().clone());
            let kept = sent.iter().filter(|v| **v != 0.0).count();
            assert_eq!(kept, 10);
            for (i, gradient) in read(gradient).iter().enumerate() {
                let (had, have) = (gradient + residual[i], sent[i] + after[i]);
                assert!(had == have || (!exact && (had - have).abs() <= 1e-6), "{had} {have}");
                assert!(exact == (sent[i] == 0.0 || after[i] == 0.0) || !exact, "sent exactly or not at all");
            }
            (residual, state) = (after, Some(next));
        }
        assert!(residual.iter().any(|v| *v != 0.0));
    }
}

fn round_trip<O: Optimizer>(make: impl Fn() -> Compressed<O>) {
    let mut whole: ModuleOptimizer = make().into();
    let middle = steps(&mut whole, Mlp::new(5), 0..5);
    let bytes = whole.into_bytes().unwrap();
    let expected = steps(&mut whole, middle.clone(), 5..10);
    let mut loaded = ModuleOptimizer::from(make()).from_bytes(bytes).unwrap();
    let got = steps(&mut loaded, middle.clone(), 5..10);
    assert_eq!(bits(&got), bits(&expected));
    let mut forgetful: ModuleOptimizer = make().into();
    let other = steps(&mut forgetful, middle, 5..10);
    assert_ne!(bits(&other), bits(&expected), "the state matters");
}

#[test]
fn a_burn_record_of_the_optimizer_continues_to_the_bit() {
    let adam = || -> Adam { AdamConfig::new().build() };
    round_trip(|| Compressed::new(momentum(), top(8.0), 7));
    round_trip(|| Compressed::new(adam(), top(8.0).with_values(ValueKind::Q8), 7));
    // Random bits follow from the slot and the step, which the record contains, too.
    round_trip(|| Compressed::new(adam(), qsgd(), 7));
}

fn qsgd() -> impl Compressor + 'static {
    Qsgd::new(3, 16, Norm::L2).expect("valid settings")
}

#[test]
fn a_compressed_adam_still_learns() {
    let loss = |model: &Mlp| (0..8).map(|data| number(&model.loss(data, 4))).sum::<f64>();
    let mut optim: ModuleOptimizer = Compressed::new(AdamConfig::new().build(), top(8.0), 7).into();
    let mut model = Mlp::new(5);
    let before = loss(&model);
    for _ in 0..30 {
        model = steps(&mut optim, model, 0..8);
    }
    let after = loss(&model);
    assert!(after < 0.5 * before, "{before} {after}");
}

#[test]
fn a_configurations_clipping_is_not_dropped() {
    let clip = Some(GradientClippingConfig::Norm(1e-3));
    let sgd = SgdConfig::new().with_gradient_clipping(clip.clone());
    let adam = AdamConfig::new().with_grad_clipping(clip);
    let plain = [sgd.init(), adam.init(), SgdConfig::new().init()];
    let wrapped = [
        Compressed::from_config(&sgd, SgdConfig::build, top(1.0), 7),
        Compressed::from_config(&adam, AdamConfig::build, top(1.0), 7),
        Compressed::from_config(&SgdConfig::new(), SgdConfig::build, top(1.0), 7),
    ];
    let trained: Vec<_> = plain.into_iter().map(|mut optim| steps(&mut optim, Mlp::new(5), 0..5)).collect();
    for (expected, mut wrapped) in trained.iter().zip(wrapped) {
        assert_eq!(bits(&steps(&mut wrapped, Mlp::new(5), 0..5)), bits(expected));
    }
    let moved = |model| distance(model, &Mlp::new(5));
    assert!(moved(&trained[0]) < 1e-3 && moved(&trained[2]) > 1e-2, "the norm of 1e-3 is one that matters");
}
