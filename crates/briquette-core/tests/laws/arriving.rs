//! Vectors that arrive slot by slot: the same bits, residuals, bytes and decisions as complete vectors.

use std::ops::Range;

use crate::{exchanges, whole_and_in_buckets};
use briquette_core::config::Config;
use briquette_core::error::{ConfigError, SyncError};
use briquette_core::laws::{self, Delivered, Setup, Synchronizes, assert_same_runs, each_rank, gradient, short};
use briquette_core::reduce::{AgreedStep, Arriving, LastExchange};
use briquette_core::report::Report;
use briquette_core::sync::{Context, SyncStrategy};
use briquette_core::{Key, Layout, Session, comm::Local};

/// Values are NaN until they are waited for.
struct Late<'a> {
    values: &'a [f32],
    there: Vec<f32>,
    order: Vec<usize>,
    /// Number of values that were waited for before anything was sent, and the number of calls at the start.
    silent: usize,
    calls: u64,
}

impl<'a> Late<'a> {
    fn new(values: &'a [f32], order: Vec<usize>) -> Self {
        Late { values, there: vec![f32::NAN; values.len()], order, silent: 0, calls: 0 }
    }
}

impl Arriving for Late<'_> {
    fn wait(&mut self, range: Range<usize>, comm: &mut Session) -> &[f32] {
        let fresh = self.there[range.clone()].iter().filter(|value| value.is_nan()).count();
        self.silent += if comm.calls() == self.calls { fresh } else { 0 };
        self.there[range.clone()].copy_from_slice(&self.values[range.clone()]);
        &self.there[range]
    }
    fn order(&self) -> &[usize] {
        &self.order
    }
}

/// A strategy whose gradients arrive late.
#[derive(Debug, Clone)]
struct AsItComes(Config);

/// Delivers a gradient late.
fn deliver(
    strategy: &mut dyn SyncStrategy,
    own: &mut Vec<f32>,
    cx: &Context<'_>,
    comm: &mut Session,
) -> Result<(), SyncError> {
    let count = cx.slots.len();
    // In one step the last slot first, in the next every other slot from the front.
    let order = match cx.agreed_step.step % 2 {
        0 => vec![],
        _ => (0..count).filter(|slot| slot % 2 == 0).chain((0..count).filter(|slot| slot % 2 == 1)).collect(),
    };
    let mut average = Vec::new();
    strategy.during_backward(&mut Late::new(own, order), &mut average, cx, comm)?;
    *own = average;
    Ok(())
}

impl Synchronizes for AsItComes {
    fn strategy(&self, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        Ok(Box::new(Delivered::new(self.0.build(layout, world)?, deliver)))
    }
    fn min_ranks(&self) -> usize {
        self.0.min_ranks()
    }
}

#[test]
fn when_values_come_changes_no_bit_no_memory_no_byte_and_no_decision() {
    for config in whole_and_in_buckets() {
        for world in [1, 2, 3, 5] {
            let setup = Setup::short(&AsItComes(config.clone()), world);
            assert_same_runs(&setup, &Setup::short(&config, world).run(5), &setup.run(5));
        }
    }
}

#[test]
fn law_4_holds_while_vectors_arrive() {
    for exchange in exchanges().into_iter().filter(|exchange| exchange.bucket_values.is_some()) {
        let config = Config::every_step(exchange);
        laws::leaves_no_trace(&Setup::short(&AsItComes(config), 3), 1);
    }
}

/// Returns the share of the vector that a rank waits for at this step before it has sent anything.
fn waited_first(text: &str, step: u64) -> f64 {
    let config: Config = toml::from_str(&format!("strategy = 'every-step'\nbucket_values = 32\n{text}")).unwrap();
    let layout = short();
    let mut shares = each_rank(Local::world(3), |mut comm, _| {
        let mut strategy = config.build(&layout, 3).unwrap();
        let (mut previous, mut share) = (None, 0.0);
        for step in 0..=step {
            // The same on every rank, as are the values measured from it.
            let own = gradient(&layout, 0, step);
            let agreed_step = AgreedStep { step, learning_rate: Some(0.5), previous, ..AgreedStep::default() };
            let cx = Context::new(Key::new(1), layout.slots(), &agreed_step);
            let mut late = Late { calls: comm.calls(), ..Late::new(&own, vec![]) };
            strategy.during_backward(&mut late, &mut Vec::new(), &cx, &mut comm).unwrap();
            strategy.commit();
            let mut report = Report::default();
            strategy.report(&mut report);
            previous = Some(LastExchange { measured: report.measured, ..LastExchange::default() });
            share = late.silent as f64 / layout.len() as f64;
        }
        share
    });
    shares.pop().unwrap()
}

#[test]
fn buckets_do_not_wait_for_what_comes_after_them() {
    briquette_zoo::install();
    let sparse = "reducer = { kind = 'gather', compressor = 'topk:0.25' }";
    for text in [
        "reducer = 'dense'\nfeedback = 'none'",
        &format!("{sparse}\nfeedback = 'none'"),
        &format!("{sparse}\nfeedback = 'error'"),
        &format!("{sparse}\nfeedback = 'error-inside'"),
        &format!("{sparse}\nfeedback = 'momentum'"),
        &format!("{sparse}\nfeedback = 'inner-momentum'"),
        "reducer = 'power-sgd:1'\nfeedback = 'error'",
        &format!("{sparse}\nfeedback = 'error'\ncontroller = 'schedule:1x,to=8x,steps=4,stages=2'"),
        &format!("{sparse}\nfeedback = 'error'\ncontroller = 'cost-aware'"),
        &format!("{sparse}\nfeedback = 'error'\nrules = [{{ slots = '*bias', reducer = 'dense' }}]"),
    ] {
        let share = waited_first(text, 0);
        assert!(share < 0.5, "{text}: {share} of the vector before the first frame");
    }
    // Gains and norms of the previous step decide; the first step, which has no previous one, uses its own.
    for controller in ["gravac:2x,max=8x", "dqsgd"] {
        let compressor = if controller == "dqsgd" { "qsgd:4" } else { "topk:0.25" };
        let reducer = format!("reducer = {{ kind = 'gather', compressor = '{compressor}' }}");
        let feedback = if controller == "dqsgd" { "none" } else { "error" };
        let text = format!("{reducer}\nfeedback = '{feedback}'\ncontroller = '{controller}'");
        assert_eq!(waited_first(&text, 0), 1.0, "{text}");
        let share = waited_first(&text, 1);
        assert!(share < 0.5, "{text}: {share}");
        assert_eq!(waited_first(&format!("{text}\nprobing = 'first'"), 1), 1.0, "{text}, measured first");
    }
    // The norm of the whole vector needs all of it.
    assert_eq!(waited_first(&format!("{sparse}\nfeedback = {{ kind = 'momentum', clip = 1.0 }}"), 1), 1.0);
}
