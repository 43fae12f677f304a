//! Burn's loop uses the overlapped exchange automatically.
#![cfg(feature = "overlap-backward")]

use std::fmt::Debug;
use std::sync::Mutex;

use briquette::DistributedConfig;
use briquette::core::config::Exchange;
use briquette_testkit::alone::passes_alone;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::{Layer, Registry};

use super::common::*;

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Warnings;

impl<S: Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        if *event.metadata().level() == Level::WARN && message.0.contains("after the backward pass") {
            WARNINGS.lock().unwrap().push(message.0);
        }
    }
}

#[test]
fn it_changes_no_bit_and_says_where_it_cannot() {
    if passes_alone(&it_changes_no_bit_and_says_where_it_cannot) {
        return;
    }
    // Ranks are threads: each has the subscriber of the process.
    tracing::subscriber::set_global_default(Registry::default().with(Warnings)).unwrap();
    for feedback in ["error", "error-inside"] {
        let exchange = Exchange {
            reducer: "gather:topk:4x".parse().unwrap(),
            feedback: feedback.parse().unwrap(),
            bucket_values: Some(8),
            during_backward: true,
            ..Exchange::default()
        };
        for counts in [[5, 5], [5, 2], [0, 3]] {
            let shards = [Shard { rows: 5, ..Shard::new(0, counts[0]) }, Shard::new(1, counts[1])];
            // With gradients accumulated over one batch, the exchange begins at the end.
            let [early, late] = [None, Some(1)].map(|accumulation| {
                let directory = tempfile::tempdir().unwrap();
                let outcomes =
                    train(directory.path(), &DistributedConfig::every_step(exchange.clone()), &shards, |_, rank| {
                        Rank {
                            training: match accumulation {
                                Some(batches) => rank.training.grads_accumulation(batches),
                                None => rank.training,
                            },
                            strategy: rank.strategy.with_samples(|batch: &Batch| batch.x.dims()[0]),
                        }
                    });
                assert_agree(&outcomes);
                (bits(&outcomes[0].model), std::mem::take(&mut *WARNINGS.lock().unwrap()))
            });
            assert_eq!(early.0, late.0, "{feedback} {counts:?}");
            // Without a batch, rank 0 logs nothing.
            assert_eq!(early.1.len(), 0, "{feedback} {counts:?}: {:?}", early.1);
            assert_eq!(late.1.len(), usize::from(counts[0] > 0), "{feedback} {counts:?}");
        }
    }
}
