//! Second half of a step: exchanges parameters, if the strategy requires it.

use briquette_core::sync::{Header, Momenta};
use burn::module::Module;

use super::Synchronizer;
use crate::error::Error;
use crate::flat::{self, Part, first_bad_slot};

impl Synchronizer {
    /// Ends the step: exchanges parameters if the plan of this step requires it. Call it after the inner optimizer's step, at
    /// every step. If the strategy resets momenta ([`momenta`](Self::momenta)), reset those of the optimizer afterwards.
    ///
    /// # Errors
    /// As for [`sync_gradients`](Self::sync_gradients), with the module. [`Error::Order`] if `sync_gradients` was not
    /// called before.
    pub fn sync_parameters<M: Module>(&mut self, module: M) -> Result<M, (M, Error)> {
        let plan = match self.plan() {
            Ok(plan) => plan,
            Err(error) => return Err((module, error)),
        };
        if !std::mem::take(&mut self.open) {
            return Err((module, self.order("sync_parameters", "sync_gradients")));
        }
        self.momenta = Momenta::Keep;
        let _step = self.span.clone().entered();
        let module = if plan.parameters {
            let module = self.rebroadcast(module)?;
            self.exchange_parameters(module)?
        } else if plan.gradients {
            self.rebroadcast(module)?
        } else {
            self.skip_exchange();
            match self.end_local_step(&module) {
                Ok(()) => module,
                Err(error) => return Err((module, error)),
            }
        };
        self.keep_forward();
        self.tally.add(&self.report);
        self.end_span();
        self.driver.end_step();
        self.end_elastic_step(plan);
        self.computing();
        Ok(module)
    }

    fn exchange_parameters<M: Module>(&mut self, module: M) -> Result<M, (M, Error)> {
        let settled = flat::settle(&module);
        match self.plan() {
            // The step's compute time was measured before the first half.
            Ok(plan) if plan.gradients => self.begin_second_half(),
            _ => self.begin(),
        }
        let mut values = std::mem::take(&mut self.gradients.flat);
        let ready = settled.and_then(|()| self.check_layout(&module));
        let result = ready.and_then(|()| self.average_values(&module, &mut values));
        let written = self.comm.now();
        let module = match (&result, &self.joined) {
            (Ok(_), Some(joined)) => flat::write_values(module, Part::Trainable, &values, &joined.inventory),
            _ => module,
        };
        self.gradients.flat = values;
        let result = result.inspect(|read_seconds| {
            self.report.read_seconds += *read_seconds;
            self.report.write_seconds += self.comm.now() - written;
        });
        match self.end(result) {
            Ok(_) => Ok(module),
            Err(error) => Err((module, error)),
        }
    }

    /// Exchanges the module's parameters; returns the seconds spent reading them.
    fn average_values<M: Module>(&mut self, module: &M, values: &mut Vec<f32>) -> Result<f64, Error> {
        let begin = self.comm.now();
        flat::read_values(module, Part::Trainable, values)?;
        let plan = self.plan()?;
        let bad_buffer = if plan.gradients { None } else { self.check_buffers(module)? };
        let read_seconds = self.comm.now() - begin;
        let bad_slot = first_bad_slot(values, self.layout()?).or(bad_buffer);
        let header = match plan.gradients {
            // Values that are recorded between the two halves belong to the next header.
            true => Header { bad_slot, learning_rate: self.learning_rate, ..Header::default() },
            false => self.header(bad_slot, plan),
        };
        let exchanged = loop {
            match self.driver.exchange_parameters(header, values, &mut self.comm) {
                Ok(exchanged) => break exchanged,
                Err(error) => {
                    if let Some(exchanged) = self.exchange_again(module, error)? {
                        break exchanged;
                    }
                    // They may be those of the discarded average.
                    flat::read_values(module, Part::Trainable, values)?;
                }
            }
        };
        self.exchanged(exchanged);
        Ok(read_seconds)
    }
}
