//! Assembly that CUDA would load, compiled without a GPU: no kernel contracts a product with a sum, or divides approximately.

use std::sync::Arc;

use cubecl::ir::features::Features;
use cubecl::ir::nvidia::SmArch;
use cubecl::ir::{DeviceIdentity, HardwareProperties, MemoryDeviceProperties};
use cubecl::prelude::*;
use cubecl::profile::TimingMethod;
use cubecl::{Compiler, ExecutionMode};
use cubecl_llvm::nvptx::ptx_version::PtxVersion;
use cubecl_llvm::{LlvmTarget, PlironArtifact, PlironCompiler, PlironOptions};

use crate::add::{ADD, MASK, SUBTRACT};
use crate::{
    add, arrivals, chunks, collect, dither, encode, feed, finite, half, low_rank, min_max, natural, pack, random,
    select, sent, sign, sums,
};

fn properties() -> Arc<DeviceProperties> {
    let hardware = HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: 32,
        plane_size_max: 32,
        max_bindings: 32,
        max_shared_memory_size: 49_152,
        max_cube_count: (u32::MAX, u16::MAX.into(), u16::MAX.into()),
        max_units_per_cube: 1024,
        max_cube_dim: (1024, 1024, 64),
        num_streaming_multiprocessors: None,
        num_cpu_cores: None,
        last_level_cache_size: None,
        num_tensor_cores: None,
        min_tensor_cores_dim: None,
        max_vector_size: VectorSize::MAX,
        cube_mma_reserved_shared_memory: 0,
    };
    let identity = DeviceIdentity { name: "none".into(), fingerprint: "none".into(), physical: None };
    let memory = MemoryDeviceProperties::new(u64::MAX, 256);
    Arc::new(DeviceProperties::new(Features::default(), memory, hardware, TimingMethod::Device, identity))
}

fn assembly(kernel: impl CubeKernel, architecture: u32) -> String {
    let options = PlironOptions {
        sm_arch: Some(SmArch::new(architecture, false)),
        ptx_version: PtxVersion::for_driver(12_080),
        ..Default::default()
    };
    let mut compiler = PlironCompiler { target: LlvmTarget::Nvptx };
    let PlironArtifact::NvptxCode(module) =
        compiler.compile(kernel.define(), &options).expect("a kernel that compiles")
    else {
        unreachable!("the target is PTX")
    };
    module.ptx.iter().map(|byte| char::from(*byte as u8)).collect()
}

/// Every kernel with the arguments it has at compile time, and its name.
macro_rules! kernels {
    ($architecture:expr; $($module:ident::$kernel:ident::$type:ident($units:expr, $($arg:expr),*);)+) => {
        [$((concat!(stringify!($module), "::", stringify!($kernel)), {
            let settings = KernelSettings::new(*CubeDim::new_1d($units), ExecutionMode::Checked, AddressType::U32);
            let (properties, target) = (properties(), Arc::new(TargetProperties::default()));
            assembly($module::$kernel::$type::new(settings, properties, target, $($arg),*), $architecture)
        })),+]
    };
}

/// A buffer.
fn b() -> BufferCompilationArg {
    BufferCompilationArg { inplace: None }
}

fn all(architecture: u32) -> impl IntoIterator<Item = (&'static str, String)> {
    kernels! { architecture;
        add::dense::Dense(256, b(), b(), (), (), (), (), ADD);
        add::sparse::Sparse(256, b(), b(), b(), b(), (), (), (), ADD);
        add::sparse::Sparse(256, b(), b(), b(), b(), (), (), (), SUBTRACT);
        add::half::Half(256, b(), b(), b(), (), (), (), (), false, true, ADD);
        add::half::Half(256, b(), b(), b(), (), (), (), (), false, true, SUBTRACT);
        add::levels::Levels(256, b(), b(), b(), b(), (), (), (), (), (), 4, ADD);
        add::levels::Levels(256, b(), b(), b(), b(), (), (), (), (), (), 5, SUBTRACT);
        add::either::Either(256, b(), b(), b(), (), (), (), (), (), ADD);
        add::powers::Powers(256, b(), b(), b(), (), (), (), (), ADD);
        add::affine::Affine(256, b(), b(), b(), (), (), (), (), (), ADD);
        add::affine::Affine(256, b(), b(), b(), (), (), (), (), (), SUBTRACT);
        add::affine::Affine(256, b(), b(), b(), (), (), (), (), (), MASK);
        arrivals::gathered::Gathered(256, b(), b(), b(), b(), b(), (), ());
        arrivals::refused::Refused(256, b(), b(), (), (), ());
        arrivals::sampled::Sampled(256, b(), b(), ());
        chunks::cut::Cut(256, b(), b(), b(), (), (), (), 256);
        chunks::write::Write(256, b(), b(), b(), b(), b(), (), 256);
        collect::count::Count(256, b(), b(), b(), 256);
        collect::scan::Scan(256, b(), b(), 256);
        collect::write::Write(256, b(), b(), b(), b(), b(), 256);
        dither::largest::Largest(64, b(), b(), (), (), 64);
        dither::encode::Encode(256, b(), b(), b(), b(), (), (), (), (), (), 4, true);
        dither::encode::Encode(256, b(), b(), b(), b(), (), (), (), (), (), 7, false);
        encode::gathered::Gathered(256, b(), b(), b());
        feed::fill::Fill(256, b(), (), (), ());
        feed::copied::Copied(256, b(), b(), (), (), ());
        feed::add_residual::AddResidual(256, b(), b(), (), (), (), ());
        feed::scaled::Scaled(256, b(), (), (), ());
        feed::accumulated::Accumulated(256, b(), b(), b(), b(), (), (), (), (), (), false);
        feed::accumulated::Accumulated(256, b(), b(), b(), b(), (), (), (), (), (), true);
        feed::less_velocity::LessVelocity(256, b(), b(), b(), (), ());
        half::scales::Scales(64, b(), b(), 64);
        half::encode::Encode(256, b(), b(), b(), false);
        half::encode::Encode(256, b(), b(), b(), true);
        low_rank::left_lanes::LeftLanes(256, b(), b(), b(), b(), (), 2);
        low_rank::left_lanes::LeftLanes(256, b(), b(), b(), b(), (), 5);
        low_rank::left_totals::LeftTotals(256, b(), b(), b(), (), 2);
        low_rank::left_totals::LeftTotals(256, b(), b(), b(), (), 5);
        low_rank::right::Right(256, b(), b(), b(), b(), (), 2);
        low_rank::right::Right(256, b(), b(), b(), b(), (), 5);
        low_rank::expanded::Expanded(256, b(), b(), b(), b(), (), 2, 256);
        low_rank::expanded::Expanded(256, b(), b(), b(), b(), (), 5, 256);
        low_rank::scattered::Scattered(256, b(), b(), b());
        min_max::ranges::Ranges(64, b(), b(), (), 64);
        min_max::encode::Encode(256, b(), b(), b(), b(), (), (), true);
        min_max::encode::Encode(256, b(), b(), b(), b(), (), (), false);
        natural::encode::Encode(256, b(), b(), b(), (), ());
        pack::moved::Moved(256, b(), b(), b(), true, 256);
        pack::moved::Moved(256, b(), b(), b(), false, 256);
        random::words::Words(256, b(), (), ());
        select::histogram::Histogram(256, b(), b(), b(), 20, 11, 256);
        select::find::Find(256, b(), b(), 11, false, 256);
        sent::lanes::Lanes(256, b(), b(), b(), b());
        sent::fold::Fold(256, b(), b());
        sign::pack::Pack(256, b(), b(), (), (), true);
        sign::lanes::Lanes(256, b(), b(), ());
        sign::refold::Refold(256, b(), b());
        sums::lanes::Lanes(256, b(), b(), b(), (), true, false, false);
        sums::lanes::Lanes(256, b(), b(), b(), (), true, false, true);
        sums::lanes::Lanes(256, b(), b(), b(), (), false, true, false);
        sums::lanes::Lanes(256, b(), b(), b(), (), false, true, true);
        sums::fold::Fold(256, b(), b(), 8, false);
        sums::fold::Fold(256, b(), b(), 8, true);
        finite::cleared::Cleared(256, b(), b(), b(), b(), ());
        finite::first_bad::FirstBad(256, b(), b());
    }
}

#[test]
fn no_product_is_contracted_and_no_division_is_approximate() {
    for architecture in [70, 80, 90] {
        for (name, ptx) in all(architecture) {
            assert!(ptx.contains(".entry"), "{name} has no entry");
            for forbidden in ["fma.", "mad.rn", "div.full", "div.approx", "rcp.", ".ftz"] {
                let line = ptx.lines().find(|line| line.contains(forbidden) && !line.trim_start().starts_with("//"));
                assert_eq!(line, None, "{name} for sm_{architecture}");
            }
        }
    }
}
