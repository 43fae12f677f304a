use briquette::core::Key;
use burn::module::ModuleMapper;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{LinearConfig, PReluConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, GradientsParams, SgdConfig};
use burn::tensor::{Device, Int, TensorData};
use clap::ValueEnum;

use super::*;

const SMALL_TEXT: TextConfig = TextConfig { vocab: 50, embedding: 6, hidden: 5, classes: 4 };

/// Creates noise images `[batch, 3, 32, 32]`. Global average pooling cannot distinguish them; it can distinguish
/// [`labelled_images`].
fn images(batch: usize, device: &Device) -> Tensor<4> {
    let len = batch * 3 * 32 * 32;
    let values = (0..len).map(|i| ((i * 2_654_435_761) % 1009) as f32 / 504.0 - 1.0).collect::<Vec<_>>();
    Tensor::from_data(TensorData::new(values, [batch, 3, 32, 32]), device)
}

/// Creates noise images with one of four colors added: for image `i`, that of class `i % 4`.
fn labelled_images(batch: usize, device: &Device) -> Tensor<4> {
    const COLOURS: [[f32; 3]; 4] = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, -1.0, -1.0]];
    let colours = (0..batch).flat_map(|i| COLOURS[i % 4]).collect::<Vec<_>>();
    images(batch, device) + Tensor::from_data(TensorData::new(colours, [batch, 3, 1, 1]), device)
}

fn tokens<const W: usize>(rows: &[[i64; W]], device: &Device) -> Tensor<2, Int> {
    Tensor::from_data(TensorData::new(rows.concat(), [rows.len(), W]), device)
}

fn labels(batch: usize, classes: usize, device: &Device) -> Tensor<1, Int> {
    let values = (0..batch).map(|i| (i % classes) as i64).collect::<Vec<_>>();
    Tensor::from_data(TensorData::new(values, [batch]), device)
}

fn vector<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().convert::<f32>().try_to_vec().expect("f32 was asked for")
}

/// Path, bits and gradient setting of every float parameter, running statistics included.
#[derive(Default)]
struct Weights {
    path: Vec<String>,
    seen: Vec<(String, Vec<f32>, bool)>,
}

impl Weights {
    fn of<M: Module>(module: &M) -> Vec<(String, Vec<f32>, bool)> {
        let mut weights = Self::default();
        module.visit(&mut weights);
        weights.seen
    }
}

impl ModuleVisitor for Weights {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.seen.push((self.path.join("."), vector(param.val()), param.is_require_grad()));
    }
}

/// Embeddings, output layers, biases and convolutions are not among them.
#[test]
fn hidden_matrices_lie_between_the_first_and_the_last_layer() {
    let bilstm = TextModelKind::BiLstm.build(&TextConfig::default(), Key::new(0), &Device::flex());
    let matrices = ["forward", "reverse"].map(|way| ["input", "hidden"].map(|of| format!("lstm.{way}.weight_{of}")));
    assert_eq!(hidden_matrices(&bilstm), matrices.concat());
    for kind in [ImageModelKind::ResNet8, ImageModelKind::Vgg11Slim] {
        assert_eq!(hidden_matrices(&kind.build(10, Key::new(0), &Device::flex())), [""; 0], "{kind}");
    }
}

#[test]
fn image_models_have_the_known_parameter_counts() {
    let counts = [
        (ImageModelKind::ResNet8, 77_850),
        (ImageModelKind::ResNet20, 272_282),
        (ImageModelKind::ResNet32, 466_714),
        (ImageModelKind::ResNet56, 855_578),
        (ImageModelKind::ResNet18, 11_173_962),
        (ImageModelKind::ResNet34, 21_282_122),
        (ImageModelKind::ResNet50, 23_520_842),
        (ImageModelKind::ResNet101, 42_512_970),
        (ImageModelKind::Vgg11, 9_228_362),
        (ImageModelKind::Vgg11Slim, 579_098),
        (ImageModelKind::Vgg16, 14_724_042),
    ];
    assert_eq!(counts.map(|(kind, _)| kind), ImageModelKind::ALL);
    for (kind, expected) in counts {
        let model = kind.build(10, Key::new(0), &Device::flex());
        assert_eq!(trainable_parameters(&model), expected, "{kind}");
    }
}

#[test]
fn text_models_have_pytorchs_parameter_counts() {
    let count =
        |kind: TextModelKind| trainable_parameters(&kind.build(&TextConfig::default(), Key::new(0), &Device::flex()));
    // 20 002 · 64 + d · (4 · 96 · (64 + 96) + 2 · 4 · 96) + d · 96 · 4 + 4 for d directions.
    assert_eq!(count(TextModelKind::BiLstm), 1_405_316);
    assert_eq!(count(TextModelKind::Lstm), 1_280_128 + 62_208 + 388);
}

#[test]
fn every_name_parses_prints_and_serializes_alike() {
    for kind in ImageModelKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
        assert_eq!(kind.to_possible_value().expect("not hidden").get_name(), kind.name());
        assert_eq!(serde_json::to_value(kind).expect("a name"), kind.name());
    }
    assert_eq!(ImageModelKind::value_variants(), ImageModelKind::ALL);
    for kind in TextModelKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
        assert_eq!(kind.to_possible_value().expect("not hidden").get_name(), kind.name());
        assert_eq!(serde_json::to_value(kind).expect("a name"), kind.name());
    }
    assert_eq!(TextModelKind::value_variants(), TextModelKind::ALL);
}

#[test]
fn an_unknown_name_is_answered_with_the_known_ones() {
    let error = "gru".parse::<TextModelKind>().expect_err("there is no such model");
    assert_eq!(error.to_string(), r#"no model is named "gru"; choose one of lstm, bilstm"#);
}

#[test]
fn image_models_give_one_logit_per_class() {
    let device = Device::flex();
    for kind in [ImageModelKind::ResNet8, ImageModelKind::ResNet18, ImageModelKind::ResNet50, ImageModelKind::Vgg11] {
        let logits = kind.build(7, Key::new(1), &device).forward(images(1, &device));
        assert_eq!(logits.dims(), [1, 7], "{kind}");
        assert!(vector(logits).iter().all(|x| x.is_finite()), "{kind}");
    }
}

#[test]
fn equal_keys_give_equal_weights_and_others_do_not() {
    let build = |seed| Weights::of(&ImageModelKind::ResNet8.build(10, Key::new(seed), &Device::flex().autodiff()));
    let (first, again, other) = (build(3), build(3), build(4));
    assert_eq!(first, again);
    for ((path, a, trained), (_, b, _)) in first.iter().zip(&other) {
        let norm = path.contains("norm");
        assert_eq!(a == b, norm, "{path}");
        assert_eq!(*trained, !path.contains("running_"), "{path}");
    }
}

#[test]
fn initial_weights_are_pinned() {
    // A change here gives every recorded run other initial weights.
    let weights = Weights::of(&ImageModelKind::ResNet8.build(10, Key::new(42), &Device::flex()));
    let (path, values, _) = &weights[0];
    assert_eq!(path, "ResNet.stem.conv.weight");
    assert_eq!(values[..3], PINNED);
}
const PINNED: [f32; 3] = [-0.08323501, 0.061067365, -0.14350274];

#[test]
fn weights_follow_pytorchs_default_distributions() {
    let resnet = ImageModelKind::ResNet20.build(10, Key::new(5), &Device::flex());
    for (path, values, _) in Weights::of(&resnet) {
        let expected = match path.rsplit('.').next() {
            Some("gamma" | "running_var") => 1.0,
            Some("beta" | "running_mean") => 0.0,
            _ => {
                let bound = bound_of(&path);
                assert_uniform(&path, &values, bound);
                continue;
            }
        };
        assert!(values.iter().all(|x| *x == expected), "{path}");
    }
    let text = TextModelKind::BiLstm.build(&TextConfig::default(), Key::new(5), &Device::flex());
    for (path, values, _) in Weights::of(&text) {
        if path == "embedding.weight" {
            assert!(values[..64].iter().all(|x| *x == 0.0));
            assert!((deviation(&values) - 1.0).abs() < 0.01); // sd of the estimate: 0.0006
        } else {
            let fan: f32 = if path.starts_with("head") { 192.0 } else { 96.0 };
            assert_uniform(&path, &values, fan.sqrt().recip());
        }
    }
}

/// Returns `1/√fan_in` in ResNet-20.
fn bound_of(path: &str) -> f32 {
    let fan: usize = match path {
        "ResNet.stem.conv.weight" => 3 * 9,
        "ResNet.stages.1.0.layers.0.conv.weight" => 16 * 9,
        "ResNet.stages.2.0.layers.0.conv.weight" => 32 * 9,
        "ResNet.stages.1.0.shortcut.conv.weight" => 16,
        "ResNet.stages.2.0.shortcut.conv.weight" => 32,
        _ if path.starts_with("ResNet.stages.0") => 16 * 9,
        _ if path.starts_with("ResNet.stages.1") => 32 * 9,
        _ if path.starts_with("ResNet.stages.2") => 64 * 9,
        _ => 64,
    };
    1.0 / (fan as f32).sqrt()
}

fn deviation(values: &[f32]) -> f32 {
    let mean = values.iter().sum::<f32>() / values.len() as f32;
    (values.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / values.len() as f32).sqrt()
}

fn assert_uniform(path: &str, values: &[f32], bound: f32) {
    assert!(values.iter().all(|x| x.abs() <= bound), "{path} beyond {bound}");
    if values.len() >= 400 {
        let ratio = deviation(values) / (bound / 3f32.sqrt());
        assert!((ratio - 1.0).abs() < 0.1, "{path}: deviation {ratio} of the expected"); // sd at 400: 0.022
    }
}

#[test]
fn initializing_keeps_parameter_ids() {
    let model = LinearConfig::new(3, 2).init(&Device::flex());
    let id = model.weight.id;
    let model = init::initialize(model, Key::new(0)).expect("there is a rule for Linear");
    assert_eq!(model.weight.id, id);
}

#[test]
fn a_layer_without_a_rule_is_an_error_that_names_it() {
    let layer = PReluConfig::new().init(&Device::flex());
    let error = init::initialize(layer, Key::new(0)).expect_err("there is no rule for PRelu");
    assert!(error.to_string().contains("alpha"), "{error}");
}

#[test]
fn resnet8_learns_a_fixed_batch() {
    let device = Device::flex().autodiff();
    let mut model = ImageModelKind::ResNet8.build(4, Key::new(6), &device);
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
    let mut optimizer = SgdConfig::new().with_momentum(Some(momentum)).init();
    let (x, y) = (labelled_images(8, &device), labels(8, 4, &device));
    let loss = CrossEntropyLossConfig::new().init(&device);
    let mut losses = Vec::new();
    for _ in 0..8 {
        let value = loss.forward(model.forward(x.clone()), y.clone());
        let gradients = GradientsParams::from_grads(value.backward(), &model);
        losses.extend(vector(value));
        model = optimizer.step(0.05, model, gradients);
    }
    assert!(losses[7] < 0.5 * losses[0], "{losses:?}");
}

#[test]
fn bilstm_learns_a_fixed_batch_and_leaves_the_padding_row_zero() {
    let device = Device::flex().autodiff();
    let mut model = TextModelKind::BiLstm.build(&SMALL_TEXT, Key::new(6), &device);
    let mut optimizer = AdamConfig::new().init();
    let x = tokens(&[[1, 2, 3, 0], [4, 5, 0, 0], [6, 7, 8, 9], [10, 0, 0, 0]], &device);
    let y = labels(4, 4, &device);
    let loss = CrossEntropyLossConfig::new().init(&device);
    let mut losses = Vec::new();
    for _ in 0..15 {
        let value = loss.forward(model.forward(x.clone()), y.clone());
        let gradients = GradientsParams::from_grads(value.backward(), &model);
        losses.extend(vector(value));
        model = optimizer.step(0.03, model, gradients);
    }
    assert!(losses[14] < 0.5 * losses[0], "{losses:?}");
    let (path, embedding, _) = &Weights::of(&model)[0];
    assert_eq!(path, "embedding.weight");
    assert!(embedding[..SMALL_TEXT.embedding].iter().all(|x| *x == 0.0));
}

#[test]
fn padding_at_either_end_changes_no_bit() {
    let device = Device::flex();
    for kind in TextModelKind::ALL {
        let model = kind.build(&SMALL_TEXT, Key::new(8), &device);
        let text = vector(model.forward(tokens(&[[3, 7, 9], [4, 0, 0]], &device)));
        let after = vector(model.forward(tokens(&[[3, 7, 9, 0, 0], [4, 0, 0, 0, 0]], &device)));
        let before = vector(model.forward(tokens(&[[0, 0, 3, 7, 9], [0, 0, 0, 0, 4]], &device)));
        assert_eq!(text, after, "{kind}");
        assert_eq!(text, before, "{kind}");
        let empty = vector(model.forward(tokens(&[[0, 0, 0]], &device)));
        assert!(empty.iter().all(|x| x.is_finite()), "{kind}");
    }
}

/// Burn's own gate-by-gate layer is the reference: it is given our weights, and the outputs are compared.
#[test]
fn lstm_agrees_with_burns() {
    let device = Device::flex();
    let (input, hidden, steps) = (3, 4, 5);
    let ours = init::known(lstm::Lstm::new(input, hidden, true, &device), Key::new(9));
    let values = (0..2 * steps * input).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<_>>();
    let x = Tensor::<3>::from_data(TensorData::new(values, [2, steps, input]), &device);
    let mut source = GateWeights { values: Weights::of(&ours), hidden, path: Vec::new() };
    let theirs = burn::nn::BiLstmConfig::new(input, hidden, true).init(&device).map(&mut source);
    let (states, _) = theirs.forward(x.clone(), None);
    let expected = vector(states.mean_dim(1));
    let got = vector(ours.mean_state(x, Tensor::ones([2, steps], &device)));
    for (a, b) in got.iter().zip(&expected) {
        assert!((a - b).abs() < 1e-6, "{got:?} != {expected:?}");
    }
}

/// Gives each of Burn's gates its columns of our weights.
struct GateWeights {
    values: Vec<(String, Vec<f32>, bool)>,
    hidden: usize,
    path: Vec<String>,
}

impl ModuleMapper for GateWeights {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let [direction, gate, transform, field] = self.path.as_slice() else { panic!("{:?}", self.path) };
        let gate = ["input_gate", "forget_gate", "cell_gate", "output_gate"]
            .iter()
            .position(|name| *name == gate)
            .expect("one of the four gates");
        let wanted = format!("{direction}.{field}_{}", transform.trim_end_matches("_transform"));
        let (_, ours, _) = self.values.iter().find(|(path, ..)| *path == wanted).expect("the same layer");
        let rows = ours.chunks(4 * self.hidden);
        let columns = rows.flat_map(|row| &row[gate * self.hidden..][..self.hidden]).copied().collect::<Vec<_>>();
        let shape = param.lazy_shape();
        param.map(|old| Tensor::from_data(TensorData::new(columns, shape), &old.device()))
    }
}
