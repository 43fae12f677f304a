//! A strategy that exchanges gradients and parameters at one step.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use briquette::core::comm::{Local, Session, run_ranks};
use briquette::core::error::{CommError, ReduceError, SyncError};
use briquette::core::reduce::{AgreedStep, Reducer, Round, dense::Dense};
use briquette::core::report::Report;
use briquette::core::state::Stateful;
use briquette::core::sync::{Context, Momenta, Plan, SyncStrategy};
use briquette::core::{Layout, Traffic};
use briquette::sim::{Compute, Network, Simulated};
use briquette::strategy::custom;
use briquette::{DistributedOptimizer, Error};

use crate::common::*;

/// The arguments of each hook, in the order of calls.
type Seen = Arc<Mutex<Vec<(AgreedStep, usize)>>>;

/// Averages both, and records its arguments.
struct Both {
    same_rate: bool,
    seen: Seen,
    traffic: Traffic,
}

impl Both {
    fn average(&mut self, x: &mut [f32], cx: &Context<'_>, comm: &mut Session) -> Result<(), SyncError> {
        let mut average = vec![0.0; x.len()];
        let (key, slots, agreed_step) = (cx.key, cx.slots, cx.agreed_step);
        self.seen.lock().unwrap().push((*agreed_step, cx.ranks.len()));
        let round = Round { key, slots, agreed_step, input: x, average: &mut average, sent: None };
        let failed = |source| SyncError::Reduce { step: cx.agreed_step.step, source };
        self.traffic += Dense.reduce(round, comm).map_err(failed)?.traffic;
        x.copy_from_slice(&average);
        Ok(())
    }
}

impl Stateful for Both {}

impl SyncStrategy for Both {
    fn plan(&self, _step: u64) -> Plan {
        let mut plan = Plan::GRADIENTS;
        (plan.parameters, plan.same_rate) = (true, self.same_rate);
        plan
    }
    fn after_backward(&mut self, x: &mut Vec<f32>, cx: &Context<'_>, comm: &mut Session) -> Result<(), SyncError> {
        self.traffic = Traffic::default();
        self.average(x, cx, comm)
    }
    fn after_step(&mut self, x: &mut Vec<f32>, cx: &Context<'_>, comm: &mut Session) -> Result<Momenta, SyncError> {
        self.average(x, cx, comm).map(|()| Momenta::Keep)
    }
    fn report(&self, report: &mut Report) {
        report.traffic = Some(self.traffic);
    }
}

fn optimizer(comm: Session, same_rate: bool) -> (DistributedOptimizer, Seen) {
    let seen = Seen::default();
    let noted = Arc::clone(&seen);
    let both = custom("both", move |_: &Layout, _| {
        Ok(Both { same_rate, seen: Arc::clone(&noted), traffic: Traffic::default() })
    });
    (DistributedOptimizer::new(sgd(), comm, both, 1), seen)
}

#[test]
fn both_exchanges_of_a_step_are_one_with_one_header_and_one_loss() {
    let compute = Compute::Fixed(Duration::from_millis(125));
    let world = Simulated::over(Local::builder(2).deadline(Duration::from_secs(60)), Network::unlimited(), compute);
    let results = run_ranks(world, |comm| {
        let rank = comm.rank();
        let (mut optim, seen) = optimizer(comm, true);
        let mut model = optim.join(Mlp::new(5))?;
        let mut reports = Vec::new();
        for step in 0..3 {
            let report;
            (model, report) = train(&mut optim, model, step, rank)?;
            reports.push(report);
        }
        Ok::<_, Error>((seen.lock().unwrap().clone(), reports))
    });
    // 83 values in 4 slots.
    let header = 105 + 1;
    let sent = header + 2 * 4 * 83;
    for result in results {
        let (seen, reports) = result.unwrap();
        assert_eq!((seen.len(), reports.len()), (6, 3));
        for (pair, report) in seen.chunks(2).zip(&reports) {
            assert_eq!(pair[0], pair[1]);
            let (agreed, ranks) = &pair[0];
            assert!(agreed.loss.is_some_and(|loss| loss > 0.0), "{agreed:?}");
            assert_eq!((agreed.samples, *ranks), (8, 2));
            assert_eq!((report.loss, report.samples), (agreed.loss, 8));
            assert_eq!((report.traffic.sent, report.compute_seconds), (sent, 0.125));
            assert_eq!(report.exchange.traffic.unwrap().sent, sent - header);
        }
        let before = seen[2].0.previous.expect("there was a step before");
        assert_eq!((before.traffic.sent, before.samples), (2 * sent, 8));
    }
}

#[test]
fn parameters_that_are_not_finite_after_the_optimizers_step_stop_every_rank() {
    let results = outcomes(2, |comm: Session| {
        let rank = comm.rank();
        let (mut optim, _) = optimizer(comm, false);
        let model = optim.join(Mlp::new(5))?;
        let loss = model.loss(data(0, rank), 4);
        let gradients = grads(&model, &loss);
        // Only this rank's parameters overflow in the optimizer's step.
        optim.step(if rank == 1 { 1e300 } else { 0.1 }, model, gradients)?;
        Ok(())
    });
    assert!(matches!(results[1], Err(Error::Sync(SyncError::NonFinite { rank: 1, .. }))), "{:?}", results[1]);
    let other = results[0].as_ref().unwrap_err();
    assert!(
        matches!(
            other,
            Error::Sync(SyncError::Reduce { source: ReduceError::Comm(CommError::Aborted { by: 1, .. }), .. })
        ),
        "{other}"
    );
}
