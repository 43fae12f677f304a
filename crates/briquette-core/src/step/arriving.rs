//! Exchange of a gradient that arrives during the backward pass, on a background channel.

use super::{Driver, HeaderCost};
use crate::comm::Session;
use crate::error::SyncError;
use crate::reduce::{AgreedStep, Arriving};
use crate::sync::{Agreement, Context, Header, Placeholder, SyncStrategy, agree};
use crate::{Key, Layout};

/// A gradient that arrives during its backward pass.
pub trait ArrivingGradient: Arriving {
    /// Errors of the backward pass and of the exchange.
    type Error: From<SyncError>;

    /// Sets the factor that values are multiplied by as they arrive.
    fn weigh(&mut self, weight: f32);

    /// Waits for the end of the backward pass, when the whole gradient is available. Returns the header with everything
    /// recorded by then, or `None` if this rank gives up the step.
    ///
    /// # Errors
    /// The reason why this rank cannot take the step.
    fn end(&mut self, comm: &mut Session) -> Result<Option<Header>, Self::Error>;

    /// Returns, for each slot, whether it has a gradient.
    fn present(&mut self) -> &mut [bool];
}

/// A strategy that a [driver](Driver) has lent to a background exchange, with the data that a step needs.
pub struct Lent {
    strategy: Box<dyn SyncStrategy>,
    layout: Layout,
    names: Layout,
    key: Key,
    weighs_samples: bool,
    before: Option<AgreedStep>,
}

/// Result of an exchange during the backward pass, before anything is committed.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrived {
    /// The agreement that the strategy acted on.
    pub early: Agreement,
    /// The agreement at the end, with losses and the learning rate.
    pub late: Agreement,
    /// Cost of both headers.
    pub header: HeaderCost,
}

impl Lent {
    /// Exchanges `gradient` while it arrives, and writes the result to `average`. The first header agrees on `header`, with
    /// values known before the backward pass: losses are those of the previous step, and `learning_rate` is the rate if it is
    /// known. The second header, at the end, agrees that all gradients were finite and complete.
    ///
    /// # Errors
    /// Those of the gradient, and [`SyncError`]. If a rank gives up the step, [`SyncError::GaveUp`] on every rank.
    pub fn exchange<A: ArrivingGradient>(
        &mut self,
        (header, learning_rate): (Header, Option<f64>),
        gradient: &mut A,
        average: &mut Vec<f32>,
        comm: &mut Session,
    ) -> Result<Arrived, A::Error> {
        let (slots, before) = (self.layout.slots(), self.before.as_ref());
        let (start, traffic) = (comm.now(), comm.traffic());
        let mut early = agree(&header, before, slots, &mut vec![true; slots.len()], comm)?;
        let mut cost = HeaderCost { seconds: comm.now() - start, traffic: comm.traffic() - traffic };
        // This step's loss and learning rate may not be known yet.
        early.agreed_step.loss = before.and_then(|before| before.loss);
        early.agreed_step.validation_loss = before.and_then(|before| before.validation_loss);
        early.agreed_step.learning_rate = learning_rate;
        gradient.weigh(if self.weighs_samples { early.weight } else { 1.0 });
        let cx = Context { key: self.key, slots, agreed_step: &early.agreed_step, ranks: &early.ranks };
        self.strategy.during_backward(gradient, average, &cx, comm)?;
        let Some(end) = gradient.end(comm)? else {
            agree(&Header { gave_up: true, ..header }, before, slots, gradient.present(), comm)?;
            unreachable!("a step that this rank gives up is agreed on by none");
        };
        let mine = Header { previous: header.previous, ..end };
        let (start, traffic) = (comm.now(), comm.traffic());
        let late = agree(&mine, before, self.names.slots(), gradient.present(), comm)?;
        cost.seconds += comm.now() - start;
        cost.traffic += comm.traffic() - traffic;
        let samples = |agreement: &Agreement| agreement.ranks.iter().map(|rank| rank.samples).collect::<Vec<_>>();
        if let Some(rank) = samples(&early).iter().zip(samples(&late)).position(|(early, late)| *early != late) {
            return Err(SyncError::LateSamples { step: header.step, rank }.into());
        }
        Ok(Arrived { early, late, header: cost })
    }

    /// Returns the layout of the gradient's slots.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
}

impl std::fmt::Debug for Lent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lent").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Driver {
    /// Lends the strategy to a background exchange. A placeholder with this step's plan remains.
    pub fn lend(&mut self) -> Lent {
        let placeholder = Box::new(Placeholder(self.plan()));
        Lent {
            strategy: std::mem::replace(&mut self.strategy, placeholder),
            layout: self.layout.clone(),
            names: self.names.clone(),
            key: self.key,
            weighs_samples: self.weighs_samples,
            before: self.last.0,
        }
    }

    /// Takes a lent strategy back. If its exchange failed, its staged state is discarded; abort the session then, if only this
    /// rank knows of the error.
    pub fn give_back(&mut self, Lent { strategy, .. }: Lent, succeeded: bool) {
        self.strategy = strategy;
        if !succeeded {
            self.strategy.discard();
        }
    }

    /// Commits an exchange whose strategy was [given back](Self::give_back). Only at the end of an exchange is it known for
    /// which slots no rank has a gradient.
    pub fn commit_arrived(
        &mut self,
        Arrived { early, late, .. }: &Arrived,
        average: &mut [f32],
        present: &[bool],
        comm: &mut Session,
    ) {
        let absent = self.layout.absent(present);
        if absent.is_some_and(|absent| self.strategy.hold(&absent.ranges)) || !self.remembers {
            self.clear(average, present);
        }
        self.strategy.commit();
        self.strategy.after_commit(&super::context(self.key, &self.layout, early), comm);
        self.record(late.agreed_step, self.plan());
    }
}
