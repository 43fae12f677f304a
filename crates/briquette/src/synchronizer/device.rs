//! Exchange of gradients on their device.

use briquette_core::config::CompressionDevice;
use briquette_core::reduce::DeviceVector;
use briquette_core::trace::TARGET;
use briquette_device::{Run, Work};
use burn::module::Module;
use burn::optim::GradientsParams;
use tracing::{info, trace_span, warn};

use super::Synchronizer;
use crate::error::Error;
use crate::flat::{self, Gradients};

/// Use of the device for compression, decided at the first exchange.
#[derive(Debug, Clone, Default)]
pub(super) enum Kernels {
    /// Not decided yet.
    #[default]
    Unknown,
    /// Vectors are copied to the host.
    Host,
    /// Vectors stay on the device.
    Device(Run),
}

impl Synchronizer {
    /// Returns the work of this rank's compression on its device so far: kernels, waits, and bytes over the bus, with those of the self-test.
    /// `None` before the first exchange, and where the host compresses.
    pub fn device_work(&self) -> Option<Work> {
        match &self.kernels {
            Kernels::Device(run) => Some(run.work()),
            Kernels::Unknown | Kernels::Host => None,
        }
    }

    /// Returns the device on which gradients are exchanged, if there is one: that of the model, if it passes a self-test.
    pub(super) fn kernels<M: Module>(&mut self, module: &M) -> Option<Run> {
        if let Kernels::Unknown = self.kernels {
            self.kernels = self.find_kernels(module);
        }
        match &self.kernels {
            Kernels::Device(run) => Some(run.clone()),
            Kernels::Unknown | Kernels::Host => None,
        }
    }

    fn find_kernels<M: Module>(&self, module: &M) -> Kernels {
        if self.config.device() == CompressionDevice::Host {
            return Kernels::Host;
        }
        let devices = module.devices();
        let [device] = &devices[..] else { return Kernels::Host };
        let Some(run) = flat::run_on(device) else { return Kernels::Host };
        let len = self.driver.layout().len();
        if len > run.most() {
            let most = run.most();
            warn!(target: TARGET, rank = self.rank(), "gradients are compressed on the host: {len} values, a vector on the device has at most {most}");
            return Kernels::Host;
        }
        match run.check() {
            Ok(()) => {
                info!(target: TARGET, rank = self.rank(), "gradients are compressed on the device ({run:?})");
                Kernels::Device(run)
            }
            Err(error) => {
                warn!(target: TARGET, rank = self.rank(), "gradients are compressed on the host: {error}");
                Kernels::Host
            }
        }
    }

    pub(super) fn exchange_on_device<M: Module>(
        &mut self,
        run: &Run,
        module: &M,
        grads: GradientsParams,
        gradients: &mut Gradients,
    ) -> Result<GradientsParams, Error> {
        let begin = self.comm.now();
        let read = trace_span!(target: TARGET, "read").entered();
        let mut vector = gradients.gather(run, module, grads, self.layout()?, self.weight_decay)?;
        let (bad_buffer, plan) = (self.check_buffers(module)?, self.plan()?);
        self.digest = self.digest_due(module, plan)?;
        drop(read);
        let read_seconds = self.comm.now() - begin;
        let header = self.header(gradients.bad_slot.or(bad_buffer), plan);
        let on_device: &mut dyn DeviceVector = &mut vector;
        let exchanged = self.driver.exchange_gradient(header, on_device, &mut gradients.present, &mut self.comm);
        let exchanged = exchanged.or_else(|error| self.continue_without_lost(module, error))?;
        self.exchanged(exchanged);
        let begin = self.comm.now();
        let _commit = trace_span!(target: TARGET, "commit").entered();
        self.clip_on_device(&vector)?;
        let layout = &self.joined.as_ref().expect("joined above").inventory.layout;
        let adopted = gradients.adopt(run, module, vector.into_average(), layout);
        (self.report.read_seconds, self.report.write_seconds) = (read_seconds, self.comm.now() - begin);
        adopted
    }
}
