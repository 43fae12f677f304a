//! Each law, broken once.

use std::panic::catch_unwind;

use super::*;
use crate::compress::{ErrorBound, TopK};
use crate::error::ReduceError;
use crate::reduce::{Exchanged, Round};
use crate::report::Report;
use crate::state::Stateful;
use crate::{CompressionFactor, Session};

#[test]
fn what_is_here_keeps_them() {
    compressor("top-k", || TopK::fraction(0.25).unwrap());
}

/// Says that it keeps all, and keeps half.
struct Boasts;

impl Compressor for Boasts {
    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        out.write_sparse(x.len(), (0..).zip(x.iter().copied()).take(x.len() / 2)).unwrap();
    }
    fn error_bound(&self, _x: &[f32]) -> ErrorBound {
        ErrorBound::Contractive { delta: 1.0 }
    }
    fn nominal(&self) -> CompressionFactor {
        CompressionFactor::DENSE
    }
}

/// Averages, and adds something on one rank, or counts calls that failed, or sends more than it reports.
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
    let make = |_: &Layout, _| Ok(EveryStep::new(Faults(Fault::Differs, Gather::new(TopK::fraction(0.5)?, Mean), 0.0)));
    let text = broken(move || strategy(&Own::new("differs", &make)));
    assert!(text.contains("law 1 broken: differs"), "{text}");
}
