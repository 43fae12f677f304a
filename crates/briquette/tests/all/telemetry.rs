//! Steps as `tracing` spans, changes of the ratio as events.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use briquette::core::comm::Local;
use briquette::{DistributedConfig, DistributedOptimizer, StepReport};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::{Layer, Registry};

use crate::common::*;

type Fields = BTreeMap<&'static str, String>;

type Spans = BTreeMap<u64, Fields>;

/// The subscriber's records: spans in their order, and events.
#[derive(Debug, Clone, Default)]
struct Seen(Arc<Mutex<(Spans, Vec<Fields>)>>);

struct Write<'a>(&'a mut Fields);

impl Visit for Write<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl<S: Subscriber> Layer<S> for Seen {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        let mut fields = Fields::from([("name", attributes.metadata().name().to_owned())]);
        attributes.record(&mut Write(&mut fields));
        // An id is reused after its span has ended.
        let mut seen = self.0.lock().unwrap();
        let number = seen.0.len() as u64;
        seen.0.insert(number << 32 | (id.into_u64() & 0xffff_ffff), fields);
    }
    fn on_record(&self, id: &Id, record: &Record<'_>, _: Context<'_, S>) {
        let mut seen = self.0.lock().unwrap();
        let newest = seen.0.iter_mut().rev().find(|(key, _)| *key & 0xffff_ffff == id.into_u64() & 0xffff_ffff);
        record.record(&mut Write(newest.unwrap().1));
    }
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::new();
        event.record(&mut Write(&mut fields));
        self.0.lock().unwrap().1.push(fields);
    }
}

/// Four steps of a world of one with this subscriber: its records, and the steps' reports.
fn steps(level: LevelFilter, config: DistributedConfig) -> (Vec<Fields>, Vec<Fields>, Vec<StepReport>) {
    let seen = Seen::default();
    let dispatch = Dispatch::new(Registry::default().with(seen.clone().with_filter(level)));
    // With a single dispatcher, a span that another test reaches first would be cached as disabled.
    let _second = Dispatch::new(Registry::default());
    let reports = tracing::dispatcher::with_default(&dispatch, || {
        let mut optim = DistributedOptimizer::new(sgd(), Local::world(1).remove(0), config, 1);
        let mut model = optim.join(Mlp::new(5)).unwrap();
        let mut reports = Vec::new();
        for step in 0..4 {
            let (next, report) = train(&mut optim, model, step, 0).unwrap();
            model = next;
            reports.push(report);
        }
        reports
    });
    let (spans, events) = std::mem::take(&mut *seen.0.lock().unwrap());
    (spans.into_values().collect(), events, reports)
}

#[test]
fn each_step_is_a_span_with_its_numbers() {
    let (spans, _, reports) = steps(LevelFilter::DEBUG, gravac());
    assert_eq!(spans.len(), 4);
    for (span, report) in spans.iter().zip(&reports) {
        let expected = Fields::from([
            ("name", "briquette.step".to_owned()),
            ("step", report.step.to_string()),
            ("rank", "0".to_owned()),
            ("ratio", format!("{:?}", report.exchange.ratio.unwrap().get())),
            ("wire_ratio", format!("{:?}", report.wire_ratio())),
            ("gain", format!("{:?}", report.exchange.gain.unwrap())),
            ("delay", format!("{:?}", report.exchange.delay().unwrap())),
            ("bytes", report.traffic.sent.to_string()),
            ("seconds", format!("{:?}", report.seconds())),
        ]);
        assert_eq!(span, &expected);
    }
}

#[test]
fn each_change_of_the_ratio_is_an_event_with_its_reason_and_the_controllers_state() {
    let (spans, events, reports) = steps(LevelFilter::INFO, gravac());
    assert!(spans.is_empty(), "{spans:?}");
    let changed = |pair: &[StepReport]| pair[0].exchange.ratio != pair[1].exchange.ratio;
    let changes: Vec<_> = reports.windows(2).filter(|pair| changed(pair)).map(|pair| &pair[1]).collect();
    // The first step has a reason, and no change.
    assert!(!changes.is_empty() && reports[0].exchange.reason.is_some() && !reports[0].ratio_changed);
    let reasons: Vec<_> = changes.iter().map(|report| report.exchange.reason.clone().unwrap()).collect();
    assert_eq!(events.iter().map(|event| event["reason"].clone()).collect::<Vec<_>>(), reasons);
    assert!(events.iter().all(|event| event["message"] == "compression ratio changed"), "{events:?}");
    assert!(events[0]["state"].contains("step"), "{events:?}");
}

#[test]
fn a_subscriber_that_wants_warnings_is_given_nothing_of_a_step() {
    let (spans, events, _) = steps(LevelFilter::WARN, gravac());
    assert!(spans.is_empty() && events.is_empty(), "{spans:?} {events:?}");
}

#[test]
fn without_a_controller_there_is_no_state() {
    let state = |config| {
        let mut optim = DistributedOptimizer::new(sgd(), Local::world(1).remove(0), config, 1);
        let model = optim.join(Mlp::new(5)).unwrap();
        train(&mut optim, model, 0, 0).unwrap();
        optim.synchronizer().controller_state()
    };
    assert_eq!(state(top_k()), None);
    assert!(state(gravac()).is_some());
}
