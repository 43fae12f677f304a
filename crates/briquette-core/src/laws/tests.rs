//! Violations: each law is broken once.

use std::panic::catch_unwind;

use super::*;
use crate::compress::top_k::TopK;
use crate::error::{CommError, ReduceError, SyncError};
use crate::report::Report;
use crate::seam::{Context, ErrorBound, Exchanged, Plan, Round};
use crate::state::Stateful;
use crate::{CompressionRatio, Session, Traffic};

#[test]
fn what_is_here_keeps_them() {
    compressor("top-k", || TopK::fraction(0.25).unwrap());
}

/// Declares that it keeps everything, but keeps half.
struct Boasts;

impl Compressor for Boasts {
    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        out.write_sparse(x.len(), (0..).zip(x.iter().copied()).take(x.len() / 2)).unwrap();
    }
    fn error_bound(&self, _x: &[f32]) -> ErrorBound {
        ErrorBound::Contractive { delta: 1.0 }
    }
    fn nominal(&self) -> CompressionRatio {
        CompressionRatio::DENSE
    }
}

/// Averages correctly, but adds an error on one rank, counts failed calls, or sends more than it reports.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Differs,
    Counts,
    Misreports,
    Lies,
}

struct Faults(Fault, Gather<TopK, Mean>, f32);

impl Stateful for Faults {
    fn save(&self, state: &mut crate::state::State) {
        state.put("calls", vec![self.2]);
    }
    fn load(&mut self, state: &crate::state::State) -> Result<(), crate::error::StateError> {
        self.2 = state.f32s("calls", Some(1))?[0];
        Ok(())
    }
}

impl Reducer for Faults {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let Round { key, slots, agreed_step, input, average, mut sent } = round;
        if let Fault::Counts = self.0 {
            self.2 += 1.0;
        }
        let inner = Round { key, slots, agreed_step, input, average, sent: sent.as_deref_mut() };
        let mut exchanged = self.1.reduce(inner, comm)?;
        match self.0 {
            Fault::Differs if comm.rank() == 1 => average[3] += 1.0,
            Fault::Misreports => exchanged.traffic.sent += 1,
            Fault::Lies => sent.into_iter().for_each(|sent| sent[0] += 1.0),
            _ => {}
        }
        Ok(exchanged)
    }
    fn report(&self, _: &mut Report) {}
}

/// A strategy whose first step after loading exchanges and reports a few extra bytes.
struct Repeats(EveryStep<Gather<TopK, Mean>>, bool, Traffic);

impl Stateful for Repeats {
    fn save(&self, state: &mut crate::state::State) {
        self.0.save(state);
    }
    fn load(&mut self, state: &crate::state::State) -> Result<(), crate::error::StateError> {
        self.1 = true;
        self.0.load(state)
    }
    fn commit(&mut self) {
        self.0.commit();
    }
    fn discard(&mut self) {
        self.0.discard();
    }
}

impl SyncStrategy for Repeats {
    fn plan(&self, step: u64) -> Plan {
        self.0.plan(step)
    }
    fn after_backward(&mut self, x: &mut Vec<f32>, cx: &Context<'_>, comm: &mut Session) -> Result<(), SyncError> {
        self.0.after_backward(x, cx, comm)?;
        let before = comm.traffic();
        if std::mem::take(&mut self.1) {
            let failed = |source: CommError| SyncError::Reduce { step: cx.agreed_step.step, source: source.into() };
            comm.all_reduce_sum(&mut [1.0]).map_err(failed)?;
        }
        self.2 = comm.traffic() - before;
        Ok(())
    }
    fn report(&self, report: &mut Report) {
        self.0.report(report);
        report.traffic = report.traffic.map(|traffic| traffic + self.2);
    }
}

fn broken(run: impl FnOnce() + std::panic::UnwindSafe) -> String {
    let panic = catch_unwind(run).expect_err("a law is broken");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn what_breaks_a_law_is_named_with_the_law() {
    let text = broken(|| compressor("boasts", || Boasts));
    assert!(text.starts_with("law 7 broken: boasts on gradient"), "{text}");
    for (fault, law) in [
        (Fault::Lies, "law 2 broken: Lies"),
        (Fault::Differs, "law 1 broken: Differs"),
        (Fault::Counts, "law 4 broken: Counts"),
        (Fault::Misreports, "law 8 broken: Misreports"),
    ] {
        let make = move |_: &Layout, _| Ok(Faults(fault, Gather::new(TopK::fraction(0.5)?, Mean), 0.0));
        let text = broken(move || reducer(&OwnReducer::new(format!("{fault:?}"), &make)));
        assert!(text.contains(law), "{fault:?}: {text}");
    }
    let make = |_: &Layout, _| {
        let every_step = EveryStep::new(Gather::new(TopK::fraction(0.5)?, Mean));
        Ok::<_, ConfigError>(Repeats(every_step, false, Traffic::default()))
    };
    let text = broken(move || strategy(&OwnStrategy::new("repeats", &make)));
    assert!(text.contains("law 8 broken: repeats") && text.contains("resumes at step 4"), "{text}");
    let make = |_: &Layout, _| Ok(EveryStep::new(Faults(Fault::Differs, Gather::new(TopK::fraction(0.5)?, Mean), 0.0)));
    let text = broken(move || strategy(&OwnStrategy::new("differs", &make)));
    assert!(text.contains("law 1 broken: differs"), "{text}");
}
