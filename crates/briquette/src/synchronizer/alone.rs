//! Steps in a world of one rank, whose gradient is already the average.

use briquette_core::report::Report;
use briquette_core::sync::Plan;
use briquette_core::{CompressionRatio, Traffic};
use burn::module::Module;
use burn::optim::GradientsParams;

use super::Synchronizer;
use crate::error::Error;
use crate::flat;

impl Synchronizer {
    /// Returns this rank's gradients in place, if they are finite; the strategy is not called.
    pub(super) fn pass_through<M: Module>(
        &mut self,
        module: &M,
        grads: GradientsParams,
        plan: Plan,
    ) -> Result<GradientsParams, Error> {
        let begin = self.comm.now();
        let mut checked = flat::alone::check(module, grads, self.weight_decay)?;
        let bad_slot = checked.bad_slot.or(self.check_buffers(module)?);
        let read_seconds = self.comm.now() - begin;
        let header = self.header(bad_slot, plan);
        let exchanged = self.driver.exchange_header(header, &mut checked.present, &mut self.comm)?;
        self.exchanged(exchanged);
        self.report.read_seconds = read_seconds;
        self.report.exchange = Report::default();
        self.report.exchange.ratio = Some(CompressionRatio::DENSE);
        self.report.exchange.traffic = Some(Traffic::default());
        self.clip_own(module, checked.grads)
    }
}
