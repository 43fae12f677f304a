use super::*;
use burn::module::Param;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, TensorData};

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: BatchNorm,
    second: Linear,
    last: BatchNorm,
}

impl Net {
    fn new() -> Net {
        let device = device();
        let (first, second) = (LinearConfig::new(2, 3).init(&device), LinearConfig::new(3, 2).init(&device));
        let (norm, last) = (BatchNormConfig::new(3), BatchNormConfig::new(2).with_momentum(0.3));
        Net { first, norm: norm.init(&device), second, last: last.init(&device) }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.last.forward(self.second.forward(self.norm.forward(self.first.forward(x))))
    }

    fn step(self, optimizer: &mut burn::optim::ModuleOptimizer, i: u64) -> Net {
        let loss = (self.forward(batch(i)) - batch(i + 100)).square().mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &self);
        optimizer.step(0.05, self, gradients)
    }
}

fn device() -> Device {
    Device::flex().autodiff()
}

/// A batch of eight samples.
fn batch(i: u64) -> Tensor<2> {
    let values: Vec<f32> = (0..16).map(|j| ((i * 16 + j) as f32 * 1.7).sin() * 3.0 + 1.0).collect();
    Tensor::from_data(TensorData::new(values, [8, 2]), &device())
}

fn values<M: Module>(model: &M, part: Part) -> Vec<f32> {
    let mut values = Vec::new();
    flat::drain(model);
    flat::read_values(model, part, &mut values).unwrap();
    values
}

fn near(a: &[f32], b: &[f32], by: f32) {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).for_each(|(a, b)| assert!((a - b).abs() <= by * b.abs().max(1.0), "{a}, expected {b}"));
}

/// Seven steps, with an average of every `every`-th from the third on; also returns the averaged iterates.
fn trained(every: u64) -> (Net, IterateAverage, Vec<Vec<f32>>) {
    let (mut net, mut optimizer) = (Net::new(), AdamWConfig::new().init());
    let mut average = IterateAverageConfig::new().with_from(2).with_every(every).init();
    let mut taken = Vec::new();
    for i in 0..7 {
        net = net.step(&mut optimizer, i);
        if average.update(&net) {
            taken.push(values(&net, Part::Trainable));
        }
    }
    (net, average, taken)
}

#[test]
fn the_running_mean_is_the_arithmetic_one_of_those_whose_turn_it_is() {
    for (every, expected) in [(1, 5), (2, 3), (3, 2), (100, 1)] {
        let (net, average, taken) = trained(every);
        assert_eq!((taken.len(), average.taken()), (expected, expected as u64));
        let mean: Vec<f32> =
            (0..taken[0].len()).map(|i| taken.iter().map(|w| w[i]).sum::<f32>() / expected as f32).collect();
        near(&values(&average.evaluation_model(&net).unwrap().train(), Part::Trainable), &mean, 1e-6);
    }
    assert!(IterateAverageConfig::new().init().evaluation_model(&Net::new()).is_none());
}

#[test]
fn training_is_not_touched_by_evaluating() {
    let (net, average, _) = trained(1);
    let before = [Part::Trainable, Part::Buffers].map(|part| values(&net, part));
    let evaluated = average.evaluation_model_with(&net, 3, |model, i| drop(model.forward(batch(i)))).unwrap().unwrap();
    assert_eq!([Part::Trainable, Part::Buffers].map(|part| values(&net, part)), before);
    assert_ne!(values(&evaluated, Part::Rest), [before[0].clone(), before[1].clone()].concat());
    // Running the model does not change the evaluated one, either.
    let shown = values(&evaluated, Part::Rest);
    let _ = net.forward(batch(9));
    assert_eq!(values(&evaluated, Part::Rest), shown);
    assert_ne!(values(&net, Part::Buffers), before[1]);
}

/// Statistics of the first layer's outputs, by hand; under the mean, not under the last iterate.
#[test]
fn statistics_are_the_mean_over_batches_of_the_averaged_model() {
    let (net, average, _) = trained(1);
    let evaluated = average.evaluation_model_with(&net, 4, |model, i| drop(model.forward(batch(i)))).unwrap().unwrap();
    let inputs: Vec<Tensor<2>> = (0..4).map(|i| evaluated.first.forward(batch(i).inner())).collect();
    let means = inputs.iter().map(|x| x.clone().mean_dim(0).squeeze::<1>());
    let mean = means.reduce(|a, b| a + b).unwrap().div_scalar(4.0);
    let got: Vec<f32> = evaluated.norm.running_mean.value().into_data().try_into_vec().unwrap();
    near(&got, &mean.into_data().try_into_vec::<f32>().unwrap(), 1e-5);
    // A momentum of 1 keeps one batch's statistics, in both layers.
    let mut sure = net.clone().valid().train();
    (sure.norm.momentum, sure.last.momentum) = (1.0, 1.0);
    let mut sums = vec![0.0; values(&sure, Part::Buffers).len()];
    for i in 0..4 {
        let model = average.put(&net, sure.clone());
        let _ = model.forward(batch(i));
        values(&model, Part::Buffers).iter().zip(&mut sums).for_each(|(v, sum)| *sum += v / 4.0);
    }
    near(&values(&evaluated.train(), Part::Buffers), &sums, 1e-5);
}

#[test]
fn layers_that_are_frozen_keep_their_statistics_and_work_with_them() {
    let (mut net, ..) = trained(1);
    net.norm = net.norm.freeze();
    let mut average = IterateAverageConfig::new().init();
    average.update(&net);
    let own = values(&net.norm, Part::Buffers);
    let evaluated = average.evaluation_model_with(&net, 2, |model, i| drop(model.forward(batch(i)))).unwrap().unwrap();
    assert_eq!(values(&evaluated.norm.clone().train(), Part::Buffers), own);
    let means = [0, 1].map(|i| {
        let hidden = evaluated.norm.forward(evaluated.first.forward(batch(i).inner()));
        evaluated.second.forward(hidden).mean_dim(0).squeeze::<1>()
    });
    let [a, b] = means;
    let got: Vec<f32> = evaluated.last.running_mean.value().into_data().try_into_vec().unwrap();
    near(&got, &((a + b) / 2.0).into_data().try_into_vec::<f32>().unwrap(), 1e-5);
}

#[test]
fn an_average_goes_on_where_it_was_saved_to_the_bit() {
    let (net, mut whole, _) = trained(2);
    let bytes = whole.to_bytes().unwrap();
    let config = IterateAverageConfig::new().with_from(2).with_every(2);
    let mut resumed = config.init().load_bytes(bytes, &net).unwrap();
    let (mut net, mut optimizer) = (net, AdamWConfig::new().init());
    for i in 7..12 {
        net = net.step(&mut optimizer, i);
        assert_eq!(whole.update(&net), resumed.update(&net));
    }
    let [a, b] = [whole, resumed].map(|average| {
        let shown = values(&average.evaluation_model(&net).unwrap(), Part::Rest);
        (shown.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), average.taken())
    });
    assert_eq!(a, b);
    let nothing = config.init().to_bytes().unwrap();
    assert_eq!(config.init().load_bytes(nothing, &net).unwrap().taken(), 0);
}

#[test]
fn what_is_wrong_with_a_record_is_said() {
    let (net, average, _) = trained(1);
    let load =
        |bytes, model: &Net| IterateAverageConfig::new().init().load_bytes(bytes, model).unwrap_err().to_string();
    let foreign = AdamWConfig::new().init().into_bytes().unwrap();
    assert!(load(foreign, &net).contains("no record of an IterateAverage: it has no offered"));
    let mut other = Net::new();
    other.second = LinearConfig::new(3, 5).init(&device());
    let said = load(average.to_bytes().unwrap(), &other);
    assert!(said.contains("average of parameter 4: expected 15 values of F32, got 6 values of F32"), "{said}");
    let one = Param::from_tensor(Tensor::<1>::zeros([6], &device()).require_grad());
    let said =
        IterateAverageConfig::new().init().load_bytes(average.to_bytes().unwrap(), &one).unwrap_err().to_string();
    assert!(said.contains("average of 7 parameters that the model does not have"), "{said}");
}

#[test]
#[should_panic(expected = "every of IterateAverage must be at least 1, got 0")]
fn an_average_of_no_turn_is_refused() {
    IterateAverageConfig::new().with_every(0).init();
}
