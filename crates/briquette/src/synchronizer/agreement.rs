//! What ranks agree on before a step's exchange.

use briquette_core::error::SyncError;
use briquette_core::sync::{Agreement, Agrees, Header, Plan};

use super::Synchronizer;
use super::recorded::WeightedMean;
use crate::error::Error;

impl Synchronizer {
    /// The header where ranks agree on one, else what this rank knows by itself.
    pub(super) fn agree(
        &mut self,
        bad_slot: Option<u32>,
        present: &mut [bool],
        plan: Plan,
    ) -> Result<Agreement, Error> {
        let loss = std::mem::take(&mut self.loss);
        let validation_loss = if plan.agrees == Agrees::World { self.validation_loss.take() } else { None };
        let learning_rate = self.learning_rate.filter(|_| plan.same_rate);
        let digest = self.digest.take();
        let header = Header { bad_slot, learning_rate, digest, ..self.header(&loss, validation_loss) };
        let names = &self.joined.as_ref().ok_or(Error::NotJoined { rank: self.comm.rank() })?.names;
        let agreement = plan.agrees.agree(&header, self.agreed_step.as_ref(), names.slots(), present, &mut self.comm);
        self.agreed(agreement, plan.agrees == Agrees::World)
    }

    /// The step header with what was recorded.
    pub(super) fn header(&self, loss: &WeightedMean, validation_loss: Option<f64>) -> Header {
        Header {
            step: self.step,
            session: self.comm.share_number() as u8,
            stop: self.stop_request,
            samples: loss.samples.unwrap_or(1),
            samples_recorded: loss.samples.is_some(),
            loss: (loss.weight > 0.0).then(|| loss.sum / loss.weight),
            validation_loss,
            learning_rate: self.learning_rate,
            compute_seconds: self.start.compute_seconds,
            previous: self.previous,
            ..Header::default()
        }
    }

    /// What this step has agreed on before, if the optimizer's step has left finite values.
    pub(super) fn agree_again(&mut self, bad_slot: Option<u32>, agreement: Agreement) -> Result<Agreement, Error> {
        let joined = self.joined.as_ref().ok_or(Error::NotJoined { rank: self.comm.rank() })?;
        let header = Header { step: self.step, bad_slot, ..Header::default() };
        let checked = header.check_slot(self.comm.rank(), joined.names.slots());
        self.agreed(checked.map(|()| agreement), false)
    }

    /// After an error the step leaves no trace; where it is this rank's alone, no other rank knows of it.
    fn agreed(&mut self, agreement: Result<Agreement, SyncError>, is_everyones: bool) -> Result<Agreement, Error> {
        if let Err(error) = &agreement {
            self.joined.iter_mut().for_each(|joined| joined.strategy.discard());
            if !is_everyones {
                self.comm.abort(&error.to_string());
            }
        }
        Ok(agreement?)
    }
}
