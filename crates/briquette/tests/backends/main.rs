//! One suite for every backend: the glue has the same properties on each. Backends are those of this build; one without a device
//! here is skipped, with a message.
//!
//! Own binary: it is built and run again with other backends, and the other tests need only one.

mod facts;
#[cfg(feature = "device")]
mod kernels;
mod mixed;
mod models;
mod optimizers;
#[path = "../all/seeded.rs"]
mod seeded;
mod types;

use std::io::Write;

use briquette::{Backend, BackendError};
use burn::tensor::Device;

/// The first device of a backend, with autodiff; `None` if this machine has none.
fn device(backend: Backend) -> Option<Device> {
    match backend.device(0) {
        Ok(device) => Some(device.autodiff()),
        Err(error @ (BackendError::NotCompiled { .. } | BackendError::NoDevice { .. })) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

macro_rules! suite {
    ($($name:ident: $backend:expr),* $(,)?) => { $(
        mod $name {
            use crate::models::{Lstm, Mlp, ResNet};
            #[cfg(feature = "device")]
            use crate::kernels;
            use crate::{facts, mixed, optimizers, types};

            suite!(@facts $backend, mlp: Mlp, resnet: ResNet, lstm: Lstm);
            #[cfg(feature = "device")]
            suite!(@tests $backend, kernels::the_device_has_the_bits_of_the_host,
                kernels::gradients_arrive_on_the_device,
                kernels::arriving_gradients_are_checked_as_on_the_host);
            suite!(@tests $backend,
                facts::slots_without_a_gradient_stay_out_of_the_way,
                types::half_precision_is_handled_or_refused,
                types::mixed_types_share_one_exchange,
                mixed::ranks_on_two_backends_agree,
                mixed::rounding_is_compared_on_joining,
                optimizers::optimizers_follow_their_twins,
                optimizers::optimizers_resume_to_the_bit,
            );
        }
    )* };
    (@facts $backend:expr, $($model:ident: $type:ty),*) => { $(
        mod $model {
            use super::*;

            suite!(@tests $backend,
                facts::three_dense_ranks_equal_one_process::<$type>,
                facts::compressed_replicas_are_identical::<$type>,
                facts::resuming_changes_nothing::<$type>,
                facts::exchanges_during_backward_have_the_same_results::<$type>,
                facts::checkpoints_travel_between_backends::<$type>,
                facts::gradients_are_those_of_flex::<$type>,
            );
        }
    )* };
    (@tests $backend:expr, $($module:ident :: $fact:ident $(::<$type:ty>)?),* $(,)?) => { $(
        #[test]
        fn $fact() {
            if let Some(device) = crate::device($backend) {
                $module::$fact$(::<$type>)?(&device);
            }
        }
    )* };
}

suite! {
    flex: briquette::Backend::Flex,
    ndarray: briquette::Backend::NdArray,
    tch: briquette::Backend::Tch,
    wgpu: briquette::Backend::Wgpu,
    vulkan: briquette::Backend::Vulkan,
    metal: briquette::Backend::Metal,
    cuda: briquette::Backend::Cuda,
}

#[test]
fn this_build_says_what_it_ran_on() {
    // Not captured, so that the message appears in the log.
    let mut log = std::io::stderr();
    for backend in Backend::ALL {
        let line = match (device(backend), backend.devices()) {
            (Some(_), Ok(found)) => format!("the suite runs on {backend}: {}", found[0].name),
            (_, Err(error)) => format!("the suite does not run on {backend}: {error}"),
            (None, Ok(_)) => unreachable!("a device that was found and cannot be had is a panic"),
        };
        writeln!(log, "{line}").expect("standard error is open");
    }
    assert!(Backend::Flex.devices().is_ok(), "flex is what the others are compared with");
}
