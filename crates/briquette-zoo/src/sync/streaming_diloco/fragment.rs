//! A fragment: its slots stored contiguously, their anchor, and the exchange of their changes.

use std::ops::Range;

use super::StreamingDiLoCoConfig;
use briquette_core::error::{ConfigError, ReduceError, StateError, SyncError};
use briquette_core::reduce::{AgreedStep, Reducer, Round};
use briquette_core::report::Report;
use briquette_core::state::{Staged, State, Stateful};
use briquette_core::sync::{
    Context, check_own,
    diloco::DiLoCo,
    in_background::InBackground,
    outer::{self, OuterStep},
};
use briquette_core::wrapper::grouped::part;
use briquette_core::{Key, Layout, Session, stateful};

/// Inputs of an exchange.
pub(super) struct Sent {
    pub(super) key: Key,
    pub(super) agreed_step: AgreedStep,
}

/// Exchange of the mean over ranks of `z − x`.
enum Exchange<R> {
    /// In the foreground: ranks wait for it.
    AtOnce { reducer: R, difference: Vec<f32> },
    /// In the background. Its input is empty once its result has been used.
    Later(Box<InBackground<R>>),
}

/// Slots that are exchanged together.
pub(super) struct Fragment<R> {
    layout: Layout,
    /// Ranges of its slots in the whole vector.
    places: Vec<Range<usize>>,
    /// `z`.
    anchor: Staged<Vec<f32>>,
    /// `b`.
    momentum: Staged<Vec<f32>>,
    exchange: Exchange<R>,
}

/// Copies the values of some ranges into a contiguous vector.
fn gather(x: &[f32], places: &[Range<usize>], into: &mut Vec<f32>) {
    into.clear();
    places.iter().for_each(|place| into.extend_from_slice(&x[place.clone()]));
}

/// Computes the differences `z − x` of some ranges to the anchor `z`.
fn differ(anchor: &[f32], x: &[f32], places: &[Range<usize>], into: &mut Vec<f32>) {
    gather(x, places, into);
    into.iter_mut().zip(anchor).for_each(|(x, anchor)| *x = anchor - *x);
}

impl<R: Reducer + 'static> Fragment<R> {
    /// Creates all fragments of a model.
    pub(super) fn all(
        settings: &StreamingDiLoCoConfig,
        whole: &Layout,
        mut reducer: impl FnMut(&Layout) -> Result<R, ConfigError>,
    ) -> Result<Vec<Self>, ConfigError> {
        let (count, slots) = (settings.fragments, whole.slots().len());
        if count > slots as u64 {
            return Err(ConfigError::conflict(
                format!("fragments={count} of streaming-diloco"),
                format!("a model with {slots} slots"),
                "a fragment has one or more of them",
                "lower fragments",
            ));
        }
        let fragment = |p| {
            let members: Vec<usize> = (p..slots).step_by(count as usize).collect();
            let layout = part(whole, &members);
            let reducer = reducer(&layout)?;
            let exchange = match settings.overlap {
                0 => Exchange::AtOnce { reducer, difference: Vec::new() },
                _ => Exchange::Later(Box::new(InBackground::new(reducer, Some("anchor")))),
            };
            let places = members.iter().map(|&slot| whole.slots()[slot].range()).collect();
            Ok(Fragment { layout, places, anchor: Staged::default(), momentum: Staged::default(), exchange })
        };
        (0..count as usize).map(fragment).collect()
    }

    /// Starts every rank at `x`.
    pub(super) fn begin(&mut self, x: &[f32]) {
        let mut anchor = Vec::new();
        gather(x, &self.places, &mut anchor);
        self.anchor.set(anchor);
        self.momentum.set(Vec::new());
        if let Exchange::Later(exchange) = &mut self.exchange {
            exchange.begin();
        }
    }

    /// Stages the input of the background exchange that starts at this step.
    pub(super) fn depart(&mut self, x: &[f32], cx: &Context<'_>, comm: &Session) -> Result<(), SyncError> {
        let Exchange::Later(exchange) = &mut self.exchange else { return Ok(()) };
        let input = exchange.input.next_mut();
        differ(self.anchor.now(), x, &self.places, input);
        check_own(input, &cx.with_slots(self.layout.slots()), comm)?;
        exchange.input.stage();
        Ok(())
    }

    /// Starts the background exchange.
    pub(super) fn start(&mut self, sent: &Sent, cx: &Context<'_>, comm: &mut Session) {
        if let Exchange::Later(exchange) = &mut self.exchange {
            exchange.start(sent.key, sent.agreed_step, &cx.with_slots(self.layout.slots()), comm);
        }
    }

    /// Waits for the background exchange.
    pub(super) fn settle(&mut self, comm: &mut Session) -> Result<(), ReduceError> {
        match &mut self.exchange {
            Exchange::AtOnce { .. } => Ok(()),
            Exchange::Later(exchange) => exchange.settle(comm),
        }
    }

    /// Stages the outer step from the mean of the ranks' changes. Returns false if nothing was sent.
    pub(super) fn arrive(
        &mut self,
        x: &[f32],
        (diloco, sent): (&DiLoCo, &Sent),
        comm: &mut Session,
        report: &mut Report,
    ) -> Result<bool, ReduceError> {
        let (Sent { key, agreed_step }, slots) = (sent, self.layout.slots());
        let (anchor, mean) = self.anchor.both();
        match &mut self.exchange {
            Exchange::AtOnce { reducer, difference } => {
                differ(anchor, x, &self.places, difference);
                mean.resize(difference.len(), 0.0);
                let round = Round { key: *key, slots, agreed_step, input: difference, average: mean, sent: None };
                let exchanged = reducer.reduce(round, comm)?;
                reducer.report(report);
                report.traffic = Some(exchanged.traffic);
            }
            Exchange::Later(exchange) => {
                let cx = Context::new(*key, slots, agreed_step);
                exchange.receive(*key, *agreed_step, &cx, comm)?;
                let Some(received) = exchange.mean() else { return Ok(false) };
                mean.clear();
                mean.extend_from_slice(received);
                exchange.report(report);
                exchange.input.next_mut().clear();
                exchange.input.stage();
            }
        }
        let outer_step = OuterStep { rate: 0.0, world: comm.world() };
        outer::advance(diloco, [&mut self.anchor, &mut self.momentum], slots, &outer_step)?;
        self.anchor.stage();
        self.momentum.stage();
        Ok(true)
    }

    /// Mixes the anchor that has arrived with a share `mixing` of `x`.
    pub(super) fn mix(&self, mixing: f32, x: &mut [f32]) {
        for (place, slot) in self.places.iter().zip(self.layout.slots()) {
            let (x, anchor) = (&mut x[place.clone()], &self.anchor.latest()[slot.range()]);
            if mixing == 0.0 {
                x.copy_from_slice(anchor);
            } else {
                x.iter_mut().zip(anchor).for_each(|(x, anchor)| *x = mixing * *x + (1.0 - mixing) * anchor);
            }
        }
    }
}

stateful! {
    impl<R: Reducer + 'static> Stateful for Fragment<R> {
        anchor: vector("anchor"),
        momentum: vector("momentum").like("anchor"),
        exchange: flatten(),
    }
}

/// By hand, because its state is that of one of two variants.
impl<R: Reducer + 'static> Stateful for Exchange<R> {
    fn save(&self, state: &mut State) {
        match self {
            Exchange::AtOnce { reducer, .. } => state.put_part("reducer", reducer),
            Exchange::Later(exchange) => exchange.save(state),
        }
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        match self {
            Exchange::AtOnce { reducer, .. } => state.load_part("reducer", reducer),
            Exchange::Later(exchange) => exchange.load(state),
        }
    }

    fn commit(&mut self) {
        match self {
            Exchange::AtOnce { reducer, .. } => reducer.commit(),
            Exchange::Later(exchange) => exchange.commit(),
        }
    }

    fn discard(&mut self) {
        match self {
            Exchange::AtOnce { reducer, .. } => reducer.discard(),
            Exchange::Later(exchange) => exchange.discard(),
        }
    }
}
