//! Exchange of a gradient that arrives during the backward pass, on a background channel.

use super::{Driver, Gradient, HeaderCost};
use crate::comm::Session;
use crate::error::SyncError;
use crate::seam::{AgreedStep, Arriving, Context, Momenta, SyncStrategy};
use crate::sync::{Agreement, Header, Placeholder, agree};
use crate::{Key, Layout};

/// A gradient that arrives during its backward pass.
pub trait ArrivingGradient: Arriving {
    /// Errors of the backward pass and of the exchange.
    type Error: From<SyncError>;

    /// Sets the factor that values are multiplied by as they arrive.
    fn weigh(&mut self, weight: f32);

    /// Waits for the end of the backward pass, when the whole gradient is available. Returns the header with everything
    /// recorded by then, or `None` if this rank gives up the step. A gradient on a device [finishes](crate::seam::DeviceCopies::finish) its
    /// average, of which the host's part is `average`.
    ///
    /// # Errors
    /// The reason why this rank cannot take the step.
    fn end(&mut self, average: &[f32], comm: &mut Session) -> Result<Option<Header>, Self::Error>;

    /// Returns, for each slot, whether it has a gradient.
    fn present(&mut self) -> &mut [bool];
}

/// A strategy that a [driver](Driver) has lent to a background exchange, with the data that a step needs.
pub struct LentStrategy {
    strategy: Box<dyn SyncStrategy>,
    layout: Layout,
    names: Layout,
    key: Key,
    weights_by_samples: bool,
    before: Option<AgreedStep>,
}

/// Result of an exchange during the backward pass, before anything is committed.
#[derive(Debug, Clone, PartialEq)]
pub struct EarlyExchange {
    /// The agreement that the strategy acted on.
    pub early: Agreement,
    /// The agreement at the end, with losses and the learning rate.
    pub late: Agreement,
    /// Cost of both headers.
    pub header: HeaderCost,
}

impl LentStrategy {
    /// Exchanges `gradient` while it arrives, and writes the result to `average`. The first header, `header`, has the values
    /// that are known before the backward pass. The strategy sees the previous step's loss, and `learning_rate` if that is
    /// known. The second header, at the end, agrees that all gradients were finite and complete.
    ///
    /// # Errors
    /// Those of the gradient, and [`SyncError`]. If a rank gives up the step, every rank returns [`SyncError::GaveUp`].
    pub fn exchange<A: ArrivingGradient>(
        &mut self,
        (header, learning_rate): (Header, Option<f64>),
        gradient: &mut A,
        average: &mut Vec<f32>,
        comm: &mut Session,
    ) -> Result<EarlyExchange, A::Error> {
        let (slots, before) = (self.layout.slots(), self.before.as_ref());
        let (start, traffic) = (comm.now(), comm.traffic());
        let mut early = agree(&header, before, slots, &mut vec![true; slots.len()], comm)?;
        let mut cost = HeaderCost { seconds: comm.now() - start, traffic: comm.traffic() - traffic };
        // This step's loss and learning rate may not be known yet.
        early.agreed_step.loss = before.and_then(|before| before.loss);
        early.agreed_step.validation_loss = before.and_then(|before| before.validation_loss);
        early.agreed_step.learning_rate = learning_rate;
        gradient.weigh(if self.weights_by_samples { early.weight } else { 1.0 });
        let cx = Context::new(self.key, slots, &early.agreed_step).with_ranks(&early.ranks);
        self.strategy.during_backward(gradient, average, &cx, comm)?;
        let Some(end) = gradient.end(average, comm)? else {
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
        Ok(EarlyExchange { early, late, header: cost })
    }

    /// Returns the layout of the gradient's slots.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
}

impl std::fmt::Debug for LentStrategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LentStrategy").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Driver {
    /// Lends the strategy to a background exchange. A placeholder with this step's plan remains.
    pub fn lend(&mut self) -> LentStrategy {
        let placeholder = Box::new(Placeholder(self.plan()));
        LentStrategy {
            strategy: std::mem::replace(&mut self.strategy, placeholder),
            layout: self.layout.clone(),
            names: self.names.clone(),
            key: self.key,
            weights_by_samples: self.weights_by_samples,
            before: self.last.0,
        }
    }

    /// Takes a lent strategy back. If its exchange failed, its staged state is discarded; the caller must then abort the
    /// session if only this rank detected the error.
    pub fn give_back(&mut self, LentStrategy { strategy, .. }: LentStrategy, succeeded: bool) {
        self.strategy = strategy;
        if !succeeded {
            self.strategy.discard();
        }
    }

    /// Commits an exchange whose strategy was [given back](Self::give_back), after a [vote](Self::set_votes) where ranks vote. Discards
    /// staged state of slots without a gradient on any rank: these are known only at the end of the exchange.
    ///
    /// # Errors
    /// [`SyncError`] if the vote fails; the step is then [in doubt](Self::in_doubt).
    pub fn commit_early<'g>(
        &mut self,
        EarlyExchange { early, late, header }: &EarlyExchange,
        average: impl Into<Gradient<'g>>,
        present: &[bool],
        comm: &mut Session,
    ) -> Result<(), SyncError> {
        let cx = super::context(self.key, &self.layout, early);
        let absent = self.layout.absent(present);
        if absent.is_some_and(|absent| self.strategy.hold(&absent.ranges)) || !self.keeps_state {
            let cleared = average.into().clear(self.layout.slots(), present, &cx, comm);
            cleared.inspect_err(|error| comm.abort(&error.to_string()))?;
        }
        let voted = self.vote.cast(late, (Momenta::Keep, *header), comm);
        voted.inspect_err(|error| comm.abort(&error.to_string()))?;
        self.strategy.commit();
        self.strategy.after_commit(&super::context(self.key, &self.layout, early), comm);
        self.record(late.agreed_step, self.plan());
        Ok(())
    }
}
