//! A strategy that exchanges gradients and parameters at one step: one header for both, and the laws.

use briquette_core::comm::Local;
use briquette_core::error::{ConfigError, SyncError};
use briquette_core::laws::{self, Rank, Setup, Synchronizes, each_rank, short};
use briquette_core::reduce::{AgreedStep, Reducer, Round, dense::Dense};
use briquette_core::report::Report;
use briquette_core::state::{State, Stateful};
use briquette_core::sync::{Context, Momenta, Plan, SyncStrategy};
use briquette_core::{Layout, Session, Traffic};

/// Averages both.
#[derive(Debug, Default)]
struct Both {
    traffic: Traffic,
    /// Agreed step that the first hook of the step received.
    seen: AgreedStep,
}

impl Both {
    fn average(&mut self, x: &mut [f32], cx: &Context<'_>, comm: &mut Session) -> Result<(), SyncError> {
        let mut average = vec![0.0; x.len()];
        let (key, slots, agreed_step) = (cx.key, cx.slots, cx.agreed_step);
        let round = Round { key, slots, agreed_step, input: x, average: &mut average, sent: None };
        let failed = |source| SyncError::Reduce { step: cx.agreed_step.step, source };
        self.traffic += Dense.reduce(round, comm).map_err(failed)?.traffic;
        x.copy_from_slice(&average);
        Ok(())
    }
}

impl Stateful for Both {
    fn save(&self, _state: &mut State) {}
}

impl SyncStrategy for Both {
    fn plan(&self, _step: u64) -> Plan {
        let mut plan = Plan::GRADIENTS;
        plan.parameters = true;
        plan
    }
    fn after_backward(&mut self, x: &mut Vec<f32>, cx: &Context<'_>, comm: &mut Session) -> Result<(), SyncError> {
        (self.traffic, self.seen) = (Traffic::default(), *cx.agreed_step);
        self.average(x, cx, comm)
    }
    fn after_step(&mut self, x: &mut Vec<f32>, cx: &Context<'_>, comm: &mut Session) -> Result<Momenta, SyncError> {
        assert_eq!(*cx.agreed_step, self.seen, "one agreement a step");
        self.average(x, cx, comm).map(|()| Momenta::Keep)
    }
    fn report(&self, report: &mut Report) {
        report.traffic = Some(self.traffic);
    }
}

#[derive(Debug, Clone)]
struct Builds;

impl Synchronizes for Builds {
    fn strategy(&self, _layout: &Layout, _world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        Ok(Box::new(Both::default()))
    }
}

#[test]
fn a_strategy_that_exchanges_gradients_and_parameters_keeps_the_laws() {
    for world in [1, 2, 3] {
        let setup = Setup::short(&Builds, world);
        laws::agrees(&setup);
        laws::conserves_its_mean(&setup);
        laws::leaves_no_trace(&setup, 1);
        laws::resumes_to_the_bit(&setup);
        laws::accounts_for_its_bytes(&setup);
        laws::accounts_over_a_resume(&setup);
        if world > 1 {
            laws::refuses_what_is_not_finite(&setup);
        }
    }
}

#[test]
fn a_step_that_exchanges_gradients_and_parameters_has_one_header() {
    let setup = Setup::short(&Builds, 2);
    let sent = each_rank(Local::world(2), |mut comm, rank| {
        Rank::new(&setup, rank).step(&mut comm).unwrap();
        comm.traffic().sent
    });
    let header = 105 + 1;
    assert_eq!(sent, vec![header + 2 * 4 * short().len() as u64; 2]);
}

#[test]
fn parameters_that_are_not_finite_after_the_optimizers_step_stop_the_world() {
    let (setup, mut world) = (Setup::short(&Builds, 1), Local::world(1));
    let mut rank = Rank::new(&setup, 0);
    rank.poison = Some((40, 0.6 * f32::MAX));
    rank.step(&mut world[0]).unwrap();
    let error = rank.step(&mut world[0]).unwrap_err();
    assert_eq!(error, SyncError::NonFinite { step: 1, rank: 0, slot: "conv.weight".to_owned() });
    assert!(world[0].send(0, vec![]).is_err());
}
