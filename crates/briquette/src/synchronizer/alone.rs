//! A step of a world of one rank, whose gradient is its own average.

use briquette_core::report::Report;
use briquette_core::sync::{Agreement, Momenta, Plan};
use briquette_core::{CompressionFactor, Traffic};
use burn::module::Module;
use burn::optim::GradientsParams;

use super::Synchronizer;
use crate::error::Error;
use crate::flat;

impl Synchronizer {
    /// Hands this rank's gradients on where they are, if they are finite; the strategy is not called.
    pub(super) fn hand_on<M: Module>(
        &mut self,
        module: &M,
        grads: GradientsParams,
        plan: Plan,
    ) -> Result<GradientsParams, Error> {
        let begin = self.comm.now();
        let mut checked = flat::alone::check(module, grads, self.weight_decay)?;
        let bad_slot = checked.bad_slot.or(self.look_at_buffers(module)?);
        let read_seconds = self.comm.now() - begin;
        let Agreement { mut agreed_step, stop, .. } = self.agree(bad_slot, &mut checked.present, plan)?;
        agreed_step.learning_rate = agreed_step.learning_rate.or(self.learning_rate);
        self.momenta = Momenta::Keep;
        self.report_exchange(agreed_step, stop, None);
        self.report.read_seconds = read_seconds;
        self.report.exchange =
            Report { factor: Some(CompressionFactor::DENSE), traffic: Some(Traffic::default()), ..Report::default() };
        Ok(checked.grads)
    }
}
