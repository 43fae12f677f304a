//! One fragment: its values of the model, its outer step, and its exchange.

use std::ops::Range;

use super::StreamingDiLoCoConfig;
use crate::error::{ConfigError, ReduceError, StateError};
use crate::reduce::{AgreedStep, Reducer, Round, check_average};
use crate::report::Report;
use crate::state::{Staged, State, Stateful};
use crate::sync::Context;
use crate::sync::in_background::InBackground;
use crate::sync::outer::{Around, OuterRule};
use crate::{Key, Layout, Session};

/// How its outer gradient travels.
enum Way {
    /// While all wait: the reducer, the outer gradient and the mean of these.
    Now(Box<dyn Reducer>, [Vec<f32>; 2], Report),
    /// While they go on; the input is the outer gradient.
    Later(InBackground<Box<dyn Reducer>>),
}

pub(super) struct Fragment {
    /// Where its tensors are in the model.
    places: Vec<Range<usize>>,
    /// Its own.
    layout: Layout,
    /// `x₀`.
    anchor: Staged<Vec<f32>>,
    /// `b`.
    momentum: Staged<Vec<f32>>,
    way: Way,
}

impl std::fmt::Debug for Fragment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fragment").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl Fragment {
    pub(super) fn new(
        number: usize,
        settings: &StreamingDiLoCoConfig,
        model: &Layout,
        reducer: &impl Fn(&Layout) -> Result<Box<dyn Reducer>, ConfigError>,
    ) -> Result<Self, ConfigError> {
        let own = || model.slots().iter().skip(number).step_by(settings.fragments);
        let places = own().map(|slot| slot.range()).collect();
        let layout = Layout::new(own().map(|slot| (slot.path().to_owned(), slot.shape().to_vec())));
        let reducer = reducer(&layout)?;
        let way = match settings.overlap {
            0 => Way::Now(reducer, Default::default(), Report::default()),
            _ => Way::Later(InBackground::new(reducer)),
        };
        Ok(Fragment { places, layout, anchor: Staged::default(), momentum: Staged::default(), way })
    }

    /// Its values of the model's.
    fn of<'a>(&'a self, model: &'a [f32]) -> impl Iterator<Item = f32> + 'a {
        self.places.iter().flat_map(|place| model[place.clone()].iter().copied())
    }

    pub(super) fn begin(&mut self, parameters: &[f32]) {
        self.anchor.set(self.of(parameters).collect());
        self.momentum.set(vec![0.0; self.layout.len()]);
        if let Way::Later(exchange) = &mut self.way {
            exchange.begin();
        }
    }

    /// What the exchange that began at `step` is told.
    fn round(step: u64, cx: &Context<'_>) -> (Key, AgreedStep) {
        (cx.key.step(step).purpose("streaming-diloco"), AgreedStep { step, ..AgreedStep::default() })
    }

    /// The outer gradient of the rank that is at `parameters`; exchanged at once where nothing overlaps.
    pub(super) fn set_out(
        &mut self,
        parameters: &[f32],
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<(), ReduceError> {
        let outer = self.anchor.now().iter().zip(self.of(parameters)).map(|(anchor, x)| anchor - x).collect();
        match &mut self.way {
            Way::Later(exchange) => {
                *exchange.input.next_mut() = outer;
                exchange.input.stage();
            }
            Way::Now(reducer, [input, mean], report) => {
                *input = outer;
                mean.resize(input.len(), 0.0);
                let (key, slots, before) =
                    (Self::round(cx.agreed_step.step, cx).0, self.layout.slots(), comm.traffic());
                let agreed_step = cx.agreed_step;
                reducer.reduce(Round { key, slots, agreed_step, input, average: mean, sent: None }, comm)?;
                *report = Report::default();
                reducer.report(report);
                report.traffic = Some(comm.traffic() - before);
            }
        }
        Ok(())
    }

    /// Steps with the mean of what set out at step `began`, and takes `parameters` a part of the way.
    pub(super) fn land(
        &mut self,
        settings: &StreamingDiLoCoConfig,
        parameters: &mut [f32],
        (began, cx): (u64, &Context<'_>),
        comm: &mut Session,
    ) -> Result<(), ReduceError> {
        let (outer, around) = (settings.outer(), Around { rate: 0.0, world: comm.world() });
        let own = Context { slots: self.layout.slots(), ..*cx };
        let mean = match &mut self.way {
            Way::Now(_, [_, mean], _) => Some(&mean[..]),
            Way::Later(exchange) => {
                let (key, agreed_step) = Self::round(began, cx);
                exchange.receive(key, agreed_step, &own, comm)?;
                // Nothing is on its way then.
                exchange.input.next_mut().clear();
                exchange.input.stage();
                exchange.mean()
            }
        };
        let Some(mean) = mean else { return Ok(()) };
        let ((anchor, next), (momentum, next_momentum)) = (self.anchor.both(), self.momentum.both());
        let steps = anchor.iter().zip(mean).zip(momentum).map(|((x, d), b)| outer.advance(*x, *d, *b, &around));
        (*next, *next_momentum) = steps.unzip();
        check_average(next, self.layout.slots())?;
        check_average(next_momentum, self.layout.slots())?;
        let mixing = settings.mixing();
        let values = self.places.iter().cloned().flatten();
        for (place, anchor) in values.zip(&*next) {
            let x = &mut parameters[place];
            *x = if mixing == 0.0 { *anchor } else { mixing * *x + (1.0 - mixing) * anchor };
        }
        self.anchor.stage();
        self.momentum.stage();
        Ok(())
    }

    /// What has been committed sets out.
    pub(super) fn start(&mut self, cx: &Context<'_>, comm: &mut Session) {
        if let Way::Later(exchange) = &mut self.way {
            let (key, agreed_step) = Self::round(cx.agreed_step.step, cx);
            exchange.start(key, agreed_step, &Context { slots: self.layout.slots(), ..*cx }, comm);
        }
    }

    pub(super) fn settle(&mut self, comm: &mut Session) -> Result<(), ReduceError> {
        match &mut self.way {
            Way::Now(..) => Ok(()),
            Way::Later(exchange) => exchange.settle(comm),
        }
    }

    /// Of the last that landed.
    pub(super) fn report(&self, report: &mut Report) {
        match &self.way {
            Way::Now(_, _, own) => report.clone_from(own),
            Way::Later(exchange) => exchange.report(report),
        }
    }
}

impl Stateful for Fragment {
    fn save(&self, state: &mut State) {
        state.put("anchor", self.anchor.now().clone());
        state.put("momentum", self.momentum.now().clone());
        match &self.way {
            Way::Now(reducer, ..) => state.put_part("reducer", reducer),
            Way::Later(exchange) => exchange.save(state),
        }
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        let anchor = state.memory("anchor", self.anchor.now())?;
        let momentum = state.memory("momentum", &anchor)?;
        match &mut self.way {
            Way::Now(reducer, ..) => state.load_part("reducer", reducer)?,
            Way::Later(exchange) => exchange.load_like(state, &anchor)?,
        }
        self.anchor.set(anchor);
        self.momentum.set(momentum);
        Ok(())
    }

    fn commit(&mut self) {
        match &mut self.way {
            Way::Now(reducer, ..) => reducer.commit(),
            Way::Later(exchange) => exchange.commit(),
        }
        self.anchor.commit();
        self.momentum.commit();
    }

    fn discard(&mut self) {
        match &mut self.way {
            Way::Now(reducer, ..) => reducer.discard(),
            Way::Later(exchange) => exchange.discard(),
        }
        self.anchor.discard();
        self.momentum.discard();
    }
}
