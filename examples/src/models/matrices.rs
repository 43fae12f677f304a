//! Matrices between a model's first and last layers, which Muon optimizes.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

/// Names of the layers at the edges of the models: they read codes or write classes.
const EDGES: [&str; 4] = ["embedding", "characters", "places", "head"];

/// Returns the paths of the parameters with two dimensions, other than those of embeddings and output layers.
///
/// ```
/// use briquette::core::Key;
/// use briquette_examples::models::{CharLmConfig, hidden_matrices};
///
/// let model = CharLmConfig::new(97, 128).build(Key::new(1), &burn::tensor::Device::flex());
/// assert_eq!(hidden_matrices(&model).len(), 6 * 6); // four of attention and two others in each layer
/// ```
pub fn hidden_matrices<M: Module>(module: &M) -> Vec<String> {
    let mut walk = Matrices::default();
    module.visit(&mut walk);
    walk.found
}

#[derive(Default)]
struct Matrices {
    path: Vec<String>,
    found: Vec<String>,
}

impl ModuleVisitor for Matrices {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, _param: &Param<Tensor<D>>) {
        let at_edge = self.path.iter().any(|name| EDGES.contains(&name.as_str()));
        if D == 2 && !at_edge {
            self.found.push(self.path.join("."));
        }
    }
}
