//! The state of one tensor: tensors of its shape and counters, in Burn's records under the optimizer's name.

use burn::optim::{StateSource, join_path};
use burn::tensor::{Device, Tensor};

/// Names of the optimizers in records.
const NAMES: [&str; 8] = [
    "comp-ams",
    "generalized-sign-sgd",
    "generic-adam",
    "delayed-ada-grad",
    "delayed-ada-grad-momentum",
    "ftrl-sgd",
    "padam-w",
    "one-bit-adam",
];

/// Declares a state struct of tensors and counters, with its record. Burn's derive macro does not work outside its own crate.
macro_rules! state {
    (
        $(#[$doc:meta])* $name:ident, $of:literal;
        tensors { $($(#[$tensor_doc:meta])* $tensor:ident,)+ }
        counts { $($(#[$count_doc:meta])* $count:ident,)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone)]
        #[non_exhaustive]
        pub struct $name<const D: usize> {
            $($(#[$tensor_doc])* pub $tensor: burn::tensor::Tensor<D>,)+
            $($(#[$count_doc])* pub $count: u64,)*
        }

        impl<const D: usize> std::fmt::Debug for $name<D> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))$(.field(stringify!($count), &self.$count))*.finish_non_exhaustive()
            }
        }

        impl<const D: usize> $name<D> {
            fn moved_to(mut self, device: &burn::tensor::Device) -> Self {
                $(self.$tensor = self.$tensor.to_device(device);)+
                self
            }
        }

        impl<const D: usize> burn::optim::RecordState for $name<D> {
            fn state_flatten(&self, prefix: &str, out: &mut burn::optim::StateSink) {
                let path = burn::optim::join_path(prefix, $of);
                $(out.push_tensor(&path, stringify!($tensor), self.$tensor.clone().into_data());)+
                $(out.push_scalar(&path, stringify!($count), self.$count.into());)*
            }

            fn state_unflatten(
                prefix: &str,
                source: &mut burn::optim::StateSource,
                device: &burn::tensor::Device,
            ) -> Option<Self> {
                let mut record = crate::optim::state::Record::of($of, prefix, source);
                Some($name {
                    $($tensor: record.tensor(stringify!($tensor), device),)+
                    $($count: record.count(stringify!($count)),)*
                })
            }
        }
    };
}
pub(super) use state;

/// Prefix of the panic message for a record that does not fit.
pub(crate) const REFUSED: &str = "this optimizer record";

/// One parameter's state in a record, for one optimizer.
pub(super) struct Record<'a> {
    of: &'static str,
    parameter: &'a str,
    path: String,
    source: &'a mut StateSource,
}

impl<'a> Record<'a> {
    /// # Panics
    /// The record is another optimizer's. Burn has no errors here: it would silently restart without state.
    pub(super) fn of(of: &'static str, parameter: &'a str, source: &'a mut StateSource) -> Self {
        let path = join_path(parameter, of);
        if !source.has_under(&path) {
            let other = NAMES.iter().find(|name| source.has_under(&join_path(parameter, name)));
            let other = other.map_or("an optimizer that is not in this crate", |name| *name);
            panic!("{REFUSED} cannot be loaded into {of}: of parameter {parameter} it holds the state of {other}");
        }
        Record { of, parameter, path, source }
    }

    pub(super) fn tensor<const D: usize>(&mut self, name: &str, device: &Device) -> Tensor<D> {
        let data = self.source.take_tensor(&self.path, name).unwrap_or_else(|| self.lacks(name));
        let (rank, dtype) = (data.rank(), data.dtype());
        let Self { of, parameter, .. } = self;
        assert!(rank == D, "{REFUSED} of {of} does not fit: {name} of parameter {parameter} has rank {rank}, not {D}");
        Tensor::from_data(data, (device, dtype))
    }

    pub(super) fn count(&mut self, name: &str) -> u64 {
        let count = self.source.take_scalar(&self.path, name).and_then(|count| u64::try_from(count).ok());
        count.unwrap_or_else(|| self.lacks(name))
    }

    fn lacks(&self, name: &str) -> ! {
        let Self { of, parameter, .. } = self;
        panic!("{REFUSED} of {of} is cut off: of parameter {parameter} it has no {name}");
    }
}
