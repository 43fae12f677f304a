//! Worlds of ranks on devices and ranks on hosts: the averages, residuals, bytes and decisions of a world of hosts.

use std::ops::Range;

use briquette_core::config::{Config, Exchange};
use briquette_core::error::{ConfigError, ReduceError, SyncError};
use briquette_core::laws::{self, Delivered, Setup, Synchronizes, assert_same_runs, each_rank};
use briquette_core::reduce::{AgreedStep, DeviceInput};
use briquette_core::sync::{Context, SyncStrategy};
use briquette_core::{Key, Layout, Session, comm::Local};
use briquette_device::{Gradient, Run};

use super::devices::runs;

/// Exchanges whose messages or factors a device computes.
const EXCHANGES: [&str; 48] = [
    "reducer=gather:topk:8x feedback=error",
    "reducer=gather:topk:8x:f16 feedback=error",
    "reducer=gather:topk:8x:q8 feedback=error",
    "reducer=gather:topk:8x feedback=none",
    "reducer=gather:chunk-topk:8x:16 feedback=error",
    "reducer=gather:chunk-topk:8x feedback=error controller=gravac:4x,max=16x",
    "reducer=gather:threshold-topk:8x feedback=error",
    "reducer=gather:hard-threshold:0.5 feedback=error",
    // The host encodes the kept values.
    "reducer=gather:topk:8x+natural feedback=error",
    "reducer=gather:chunk-topk:8x:16+bins:2 feedback=error:0.9",
    "reducer=gather:randk:8x+qsgd:4:16 feedback=none",
    "reducer=gather:threshold-topk:8x+minmax:16 feedback=error controller=gravac:4x,max=16x",
    "reducer=gather:topk:8x+sign feedback=momentum:0.9,clip=3",
    // Residuals with a weight.
    "reducer=gather:topk:8x feedback=error:0.75",
    "reducer=gather:qsgd:4:100 feedback=error-inside",
    "reducer=gather:randk:8x feedback=error",
    "reducer=gather:randk:8x:scaled feedback=none",
    "reducer=gather:minmax:100 feedback=error",
    "reducer=gather:f16 feedback=none",
    "reducer=gather:bf16 feedback=error",
    "reducer=gather:natural feedback=none",
    "reducer=gather:qsgd:4:100 feedback=none",
    "reducer=gather:qsgd:3:64:l2 feedback=none",
    "reducer=gather:qsgd:s3:100:max:elias feedback=none",
    "reducer=gather:qsgd:6:100:max:elias feedback=error",
    "reducer=gather:terngrad:2.5 feedback=none",
    "reducer=gather:sign feedback=error",
    "reducer=gather:sign:64 feedback=error",
    "reducer=gather:plain-sign feedback=none",
    "reducer=gather:topk:8x feedback=momentum:0.9,clip=3",
    "reducer=gather:topk:8x:q8 feedback=momentum:0.9,nesterov=true",
    "reducer=gather:minmax:100 feedback=momentum:0.9,masking=off",
    "reducer=gather:topk:8x feedback=inner-momentum",
    "reducer=power-sgd:2 feedback=error",
    "reducer=power-sgd:1 feedback=none",
    "reducer=power-sgd:1 feedback=error bucket_values=32",
    "reducer=power-sgd:2 feedback=momentum bucket_values=32",
    "reducer=power-sgd:1 feedback=momentum",
    "reducer=gather:qsgd:4:100 feedback=none controller=adaqs",
    "reducer=gather:topk:8x feedback=error controller=gravac:4x,max=16x",
    "reducer=gather:topk:8x:q8 feedback=momentum controller=gravac:4x,max=16x",
    "reducer=gather:topk:8x feedback=error controller=gravac:4x,max=16x bucket_values=32",
    "reducer=gather:threshold-topk:8x feedback=error controller=gravac:4x,max=16x",
    "reducer=ladder:topk:8x:f16 feedback=error controller=gravac:4x,max=16x",
    "reducer=gather:topk:8x,per-slot=true feedback=error controller=l-greco:8x dense_below=0",
    // Slots that are sent dense, next to slots with messages.
    "reducer=gather:topk:8x,per-slot=true dense_below=20 feedback=error",
    "reducer=gather:topk:8x,per-slot=true dense_below=20 feedback=momentum",
    "reducer=power-sgd:1 dense_below=20 feedback=inner-momentum",
];

/// Exchanges that a device copies to the host, in whole or in part.
const COPIED: [&str; 3] =
    ["reducer=dense", "reducer=ladder:topk:8x feedback=error", "reducer=gather:one-bit feedback=error"];

/// Bytes of sums, tables and statistics in a step of 140 000 values.
const SMALL: usize = 6000;

#[derive(Debug, Clone)]
struct OnDevice {
    config: Config,
    run: Run,
}

/// Splits a vector into the tensors of its slots.
fn gradient(run: &Run, values: &[f32], layout: impl Iterator<Item = Range<usize>>) -> Gradient {
    let tensors = layout.map(|range| (range.start, run.upload(&values[range])));
    Gradient::new(run, values.len(), tensors)
}

/// Delivers a gradient on the device, if this rank has one at this step: every rank is on the host in some, so that residuals move.
fn deliver(
    run: &Run,
    strategy: &mut dyn SyncStrategy,
    own: &mut Vec<f32>,
    cx: &Context<'_>,
    comm: &mut Session,
) -> Result<(), SyncError> {
    let (step, rank) = (cx.agreed_step.step, comm.rank());
    if (rank + step as usize / 2) % 2 == 1 {
        return strategy.after_backward(own, cx, comm);
    }
    let mut vector = gradient(run, own, cx.slots.iter().map(|slot| slot.range()));
    let (mut average, mut input) = (Vec::new(), DeviceInput::new(&mut vector, cx.slots.len()));
    strategy.during_backward(&mut input, &mut average, cx, comm)?;
    let finished = input.finish(&average);
    finished.map_err(|source| SyncError::Reduce { step, source: ReduceError::Device { rank, source } })?;
    *own = run.read(&vector.into_average()).expect("a device that works");
    Ok(())
}

impl Synchronizes for OnDevice {
    fn strategy(&self, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        let (strategy, run) = (self.config.build(layout, world)?, self.run.clone());
        let deliver = move |strategy: &mut dyn SyncStrategy,
                            own: &mut Vec<f32>,
                            cx: &Context<'_>,
                            comm: &mut Session| { deliver(&run, strategy, own, cx, comm) };
        Ok(Box::new(Delivered::new(strategy, deliver)))
    }
    fn min_ranks(&self) -> usize {
        self.config.min_ranks()
    }
}

fn assert_bits_of_hosts(config: &Config, run: &Run, worlds: &[usize]) {
    for world in worlds {
        let setup = Setup::short(&OnDevice { config: config.clone(), run: run.clone() }, *world);
        assert_same_runs(&setup, &Setup::short(config, *world).run(4), &setup.run(4));
    }
}

#[test]
fn worlds_of_devices_and_hosts_have_the_bits_of_hosts() {
    briquette_zoo::install();
    for run in runs() {
        for text in EXCHANGES.iter().chain(&COPIED) {
            assert_bits_of_hosts(&text.parse().unwrap(), &run, &[2]);
        }
        // Buckets, parts of which the host encodes, and other numbers of ranks.
        for text in &EXCHANGES[..3] {
            let config: Config = text.parse().unwrap();
            let exchange = Exchange { bucket_values: Some(32), ..config.exchange };
            assert_bits_of_hosts(&Config::every_step(exchange), &run, &[1, 3, 5]);
        }
    }
}

#[test]
fn laws_hold_on_devices() {
    for run in runs() {
        for text in ["reducer=gather:topk:8x:q8 feedback=error", "reducer=gather:minmax:100 feedback=error"] {
            let setup = Setup::short(&OnDevice { config: text.parse().unwrap(), run: run.clone() }, 3);
            laws::agrees(&setup);
            laws::leaves_no_trace(&setup, 1);
            laws::resumes_to_the_bit(&setup);
        }
    }
}

/// Three buckets, a message each: the device is waited for once a bucket, or for both factors of PowerSGD, and once each for the energies and the
/// statistics of all.
#[test]
fn a_step_waits_for_the_device_once_a_bucket() {
    briquette_zoo::install();
    let layout = laws::long();
    for run in runs() {
        for (text, expected) in [
            ("reducer=gather:topk:100x feedback=error", 5),
            ("reducer=gather:chunk-topk feedback=error", 5),
            ("reducer=gather:topk:100x:q8 feedback=error", 5),
            ("reducer=gather:minmax feedback=error", 5),
            ("reducer=gather:qsgd:4 feedback=none", 5),
            ("reducer=gather:sign feedback=error", 5),
            ("reducer=gather:topk:100x+natural feedback=error-inside", 5),
            ("reducer=power-sgd:1 feedback=error", 8),
        ] {
            let config: Config = text.parse().unwrap();
            let config = Config::every_step(Exchange { bucket_values: Some(1000), ..config.exchange });
            let waits = each_rank(Local::world(2), |mut comm, rank| {
                let mut strategy = config.build(&layout, 2).unwrap();
                // Ranks count apart, on one device.
                let (run, agreed_step) = (
                    Run::new(run.client().clone()).unwrap(),
                    AgreedStep { learning_rate: Some(0.1), ..Default::default() },
                );
                let cx = Context::new(Key::new(1), layout.slots(), &agreed_step);
                let own = laws::gradient(&layout, rank, 1);
                let mut vector = gradient(&run, &own, layout.slots().iter().map(|slot| slot.range()));
                let (mut average, mut input) = (Vec::new(), DeviceInput::new(&mut vector, layout.slots().len()));
                strategy.during_backward(&mut input, &mut average, &cx, &mut comm).unwrap();
                input.finish(&average).unwrap();
                run.work().waits
            });
            assert_eq!(waits, [expected; 2], "{text}, {run:?}");
        }
    }
}

/// Bytes across the bus in a step after the first, as shares of the gradient, with two ranks.
#[test]
fn only_messages_cross_the_bus() {
    briquette_zoo::install();
    for run in runs() {
        let layout = laws::long();
        let dense = 4 * layout.len();
        let mut seen = Vec::new();
        for (text, down, up) in [
            ("reducer=gather:topk:100x feedback=error", 0.05, 0.05),
            // The host encodes the values, so that this rank's message goes up as well.
            ("reducer=gather:topk:100x:q8 feedback=error", 0.05, 0.06),
            ("reducer=gather:topk:100x+natural feedback=error", 0.05, 0.06),
            ("reducer=gather:topk:100x feedback=error:0.9", 0.05, 0.05),
            ("reducer=gather:topk:100x feedback=error-inside", 0.05, 0.05),
            ("reducer=gather:qsgd:4:512:max:elias feedback=none", 0.2, 0.2),
            ("reducer=gather:threshold-topk:100x feedback=error", 0.06, 0.05),
            ("reducer=gather:minmax feedback=error", 0.3, 0.3),
            ("reducer=gather:qsgd:4 feedback=none", 0.2, 0.2),
            ("reducer=gather:sign feedback=error", 0.1, 0.1),
            ("reducer=gather:topk:100x feedback=momentum:0.9,clip=3", 0.05, 0.05),
            ("reducer=gather:topk:100x feedback=inner-momentum", 0.05, 0.05),
            ("reducer=gather:qsgd:4 feedback=none controller=dqsgd:3", 0.2, 0.2),
            // Two more messages, to measure gains.
            ("reducer=gather:topk:100x feedback=error controller=gravac:20x,max=100x,epsilon=0.01", 0.3, 0.2),
            // 6 % of the values are in slots below 1024 values, which are sent dense.
            ("reducer=gather:topk:100x,per-slot=true feedback=error", 0.12, 0.12),
            ("reducer=gather:topk:100x,per-slot=true feedback=momentum", 0.12, 0.12),
            // 18 % of the values are in vectors, which PowerSGD sends dense.
            ("reducer=power-sgd:2 feedback=error", 0.3, 0.3),
            ("reducer=power-sgd:2 feedback=error bucket_values=20000", 0.35, 0.3),
        ] {
            let config: Config = text.parse().unwrap();
            let moved = each_rank(Local::world(2), |mut comm, rank| {
                let mut strategy = config.build(&layout, 2).unwrap();
                // Ranks count apart, on one device.
                let run = Run::new(run.client().clone()).unwrap();
                let mut moved = [0.0; 2];
                for step in 0..3 {
                    let agreed_step = AgreedStep { step, learning_rate: Some(0.1), ..Default::default() };
                    let cx = Context::new(Key::new(1), layout.slots(), &agreed_step);
                    let own = laws::gradient(&layout, rank, step);
                    let mut vector = gradient(&run, &own, layout.slots().iter().map(|slot| slot.range()));
                    let before = run.work();
                    let (mut average, mut input) = (Vec::new(), DeviceInput::new(&mut vector, layout.slots().len()));
                    strategy.during_backward(&mut input, &mut average, &cx, &mut comm).unwrap();
                    input.finish(&average).unwrap();
                    strategy.commit();
                    let after = run.work();
                    moved = [after.down - before.down, after.up - before.up].map(|bytes| bytes as f64 / dense as f64);
                }
                moved
            });
            seen.push((text, moved[0], moved[0][0] <= down && moved[0][1] <= up));
        }
        assert!(seen.iter().all(|(.., is_within)| *is_within), "{run:?}: {seen:#?}");
    }
}

/// Bytes across the bus in the first step of two ranks, for every compressor with kernels: down at most those of this rank's message, and up
/// at most those of the other rank's message, times a factor, and a small number. Positions of sparse messages have fewer bits between ranks.
#[test]
fn the_bus_carries_little_more_than_the_messages_of_every_compressor() {
    briquette_zoo::install();
    let layout = Layout::new([("fc.weight", vec![300, 400]), ("fc.bias", vec![20_000])]);
    for run in runs() {
        let mut seen = Vec::new();
        for (text, times, more) in [
            // A kept value has 12 bytes: its position, and its value before and after encoding.
            ("reducer=gather:topk:100x feedback=none", [2.4, 2.4], [0, 0]),
            ("reducer=gather:topk:100x feedback=error", [2.4, 2.4], [0, 0]),
            ("reducer=gather:chunk-topk:100x feedback=error", [2.4, 2.4], [0, 0]),
            // The sample, and its positions.
            ("reducer=gather:threshold-topk:100x feedback=error", [2.4, 2.4], [16_384, 16_384]),
            // Room for 5 % of the values.
            ("reducer=gather:hard-threshold:2.5 feedback=error", [2.4, 2.4], [8 * layout.len() / 20, 0]),
            // The host draws the positions, and makes this rank's message.
            ("reducer=gather:randk:100x feedback=error", [1.6, 4.8], [0, 0]),
            ("reducer=gather:randk:100x:scaled feedback=none", [1.6, 4.8], [0, 0]),
            ("reducer=gather:minmax feedback=error", [1.0, 1.0], [0, 0]),
            ("reducer=gather:qsgd:4 feedback=none", [1.0, 1.0], [0, 0]),
            ("reducer=gather:qsgd:4:512:l2 feedback=none", [1.0, 1.0], [0, 0]),
            ("reducer=gather:natural feedback=none", [1.0, 1.0], [0, 0]),
            ("reducer=gather:terngrad feedback=none", [1.0, 1.0], [0, 0]),
            ("reducer=gather:sign feedback=error", [1.0, 1.0], [0, 0]),
            ("reducer=gather:sign:512 feedback=error", [1.0, 1.0], [0, 0]),
            ("reducer=gather:plain-sign feedback=none", [1.0, 1.0], [0, 0]),
            ("reducer=gather:f16 feedback=none", [1.0, 1.0], [0, 0]),
            ("reducer=gather:bf16 feedback=error", [1.0, 1.0], [0, 0]),
        ] {
            let config: Config = text.parse().unwrap();
            let moved = each_rank(Local::world(2), |mut comm, rank| {
                let mut strategy = config.build(&layout, 2).unwrap();
                // Ranks count apart, on one device.
                let run = Run::new(run.client().clone()).unwrap();
                let agreed_step = AgreedStep::default();
                let cx = Context::new(Key::new(1), layout.slots(), &agreed_step);
                let own = laws::gradient(&layout, rank, 1);
                let mut vector = gradient(&run, &own, layout.slots().iter().map(|slot| slot.range()));
                let (before, link) = (run.work(), comm.traffic());
                let (mut average, mut input) = (Vec::new(), DeviceInput::new(&mut vector, layout.slots().len()));
                strategy.during_backward(&mut input, &mut average, &cx, &mut comm).unwrap();
                input.finish(&average).unwrap();
                let (after, link) = (run.work(), comm.traffic() - link);
                [after.down - before.down, link.sent as usize, after.up - before.up, link.received as usize]
            });
            for [down, sent, up, received] in moved {
                let most = |place: usize, link: usize| times[place] * link as f64 + (more[place] + SMALL) as f64;
                let is_within = down as f64 <= most(0, sent) && up as f64 <= most(1, received);
                seen.push((text, [down, sent, up, received], is_within));
            }
        }
        assert!(seen.iter().all(|(.., is_within)| *is_within), "{run:?}: {seen:#?}");
    }
}
