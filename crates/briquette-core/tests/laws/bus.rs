//! Work of a device in a step: the bytes that cross its bus, and the waits for it. The device is a twin in host memory.

use briquette_core::config::{Config, Exchange};
use briquette_core::laws::{self, HostDevice, Kernels, each_rank};
use briquette_core::reduce::{DeviceInput, DeviceVector};
use briquette_core::sync::Context;
use briquette_core::{Key, comm::Local};

/// Bytes down and up in a step after the first, as shares of the gradient, of rank 0 of two.
fn moved(config: &Config, kernels: Kernels) -> [f64; 2] {
    let [down, up, ..] = work(config, kernels);
    [down, up].map(|bytes| bytes as f64 / (4 * laws::long().len()) as f64)
}

/// Bytes down and up, waits, and the most encodings on their way at once, in a step after the first, of rank 0 of two.
fn work(config: &Config, kernels: Kernels) -> [usize; 4] {
    let layout = laws::long();
    let work = each_rank(Local::world(2), |mut comm, rank| {
        let mut strategy = config.build(&layout, 2).unwrap();
        let mut work = [0; 4];
        for step in 0..3 {
            let rate = Some(0.1);
            let agreed_step = briquette_core::reduce::AgreedStep { step, learning_rate: rate, ..Default::default() };
            let cx = Context::new(Key::new(1), layout.slots(), &agreed_step);
            let mut vector = HostDevice::new(laws::gradient(&layout, rank, step), kernels);
            let (mut average, mut input) = (Vec::new(), DeviceInput::new(&mut vector, cx.slots.len()));
            strategy.during_backward(&mut input, &mut average, &cx, &mut comm).unwrap();
            input.finish(&average).unwrap();
            strategy.commit();
            assert_eq!(vector.len(), layout.len());
            work = [vector.down(), vector.up(), vector.waits(), vector.most_started()];
        }
        work
    });
    work[0]
}

/// A step waits once for the message of each bucket, or for those of a vector's slots, which are all queued first. Energies and statistics cost a
/// wait each for the whole vector, whatever the number of buckets.
#[test]
fn a_step_waits_for_the_device_once_a_bucket() {
    for text in [
        "reducer=gather:topk:100x feedback=error",
        "reducer=gather:topk:100x:q8 feedback=error",
        "reducer=gather:minmax feedback=error",
        "reducer=gather:qsgd:4 feedback=none",
        "reducer=gather:sign feedback=error",
        "reducer=gather:f16 feedback=none",
        "reducer=ladder:topk:100x feedback=error",
        "reducer=gather:topk:100x feedback=momentum",
        "reducer=gather:natural feedback=none",
        "reducer=gather:bf16 feedback=error",
    ] {
        let config: Config = text.parse().unwrap();
        let buckets = Config::every_step(Exchange { bucket_values: Some(1000), ..config.exchange.clone() });
        let of = |config: &Config| work(config, Kernels::All)[2];
        assert_eq!((of(&config), of(&buckets)), (1 + 2, 3 + 2), "{text}, whole and in 3 buckets");
    }
}

/// While a bucket is exchanged, the next one is encoded; of slots with separate messages, all.
#[test]
fn a_device_encodes_while_an_exchange_waits() {
    let most_started = |text: &str| work(&text.parse().unwrap(), Kernels::All)[3];
    for reducer in ["gather:topk:100x", "gather:minmax", "ladder:topk:100x"] {
        assert_eq!(most_started(&format!("reducer={reducer} feedback=error")), 1, "{reducer}");
        assert_eq!(most_started(&format!("reducer={reducer} feedback=error bucket_values=1000")), 2, "{reducer}");
    }
    assert_eq!(most_started("reducer=gather:topk:100x,per-slot=true feedback=error dense_below=0"), 4);
}

/// Bytes across the bus in a step of top-k 1 %, after the first: the message down, the other rank's message up.
#[test]
fn only_messages_cross_the_bus() {
    briquette_zoo::install();
    for (text, kernels, down, up) in [
        ("reducer=gather:topk:100x feedback=error", Kernels::All, 0.01..0.02, 0.01..0.02),
        ("reducer=gather:topk:100x feedback=none", Kernels::All, 0.01..0.02, 0.01..0.02),
        ("reducer=gather:minmax feedback=error", Kernels::All, 0.25..0.3, 0.25..0.3),
        ("reducer=gather:topk:100x+natural feedback=error", Kernels::All, 0.001..0.02, 0.001..0.02),
        ("reducer=gather:topk:100x feedback=error:0.9", Kernels::All, 0.01..0.02, 0.01..0.02),
        ("reducer=gather:topk:100x feedback=error-inside", Kernels::All, 0.01..0.02, 0.01..0.02),
        ("reducer=gather:topk:100x feedback=momentum", Kernels::All, 0.01..0.02, 0.01..0.02),
        ("reducer=gather:topk:100x feedback=momentum:0.9,clip=3,nesterov=true", Kernels::All, 0.01..0.02, 0.01..0.02),
        ("reducer=gather:topk:100x feedback=inner-momentum", Kernels::All, 0.01..0.02, 0.01..0.02),
        ("reducer=gather:qsgd:4 feedback=none controller=dqsgd:3", Kernels::All, 0.06..0.2, 0.06..0.2),
        (
            "reducer=gather:topk:10x,per-slot=true feedback=error controller=accordion:10x,interval=3,window=1,per_slot=true dense_below=0",
            Kernels::All,
            0.05..0.2,
            0.05..0.2,
        ),
        // A dense exchange leaves a residual of 0, which is not copied.
        ("reducer=gather:topk:2x feedback=error controller=schedule:1x", Kernels::All, 1.0..1.01, 1.0..1.01),
        ("reducer=gather:topk:2x feedback=momentum controller=schedule:1x", Kernels::All, 1.0..1.01, 1.0..1.01),
        ("reducer=gather:qsgd:4 feedback=none controller=adaqs", Kernels::All, 0.06..0.3, 0.06..0.3),
        // Gains of two ratios are measured from messages.
        (
            "reducer=gather:topk:100x feedback=error controller=gravac:20x,max=100x,epsilon=0.01",
            Kernels::All,
            0.02..0.2,
            0.01..0.1,
        ),
        (
            "reducer=ladder:topk:100x feedback=error controller=gravac:20x,max=100x,epsilon=0.01",
            Kernels::All,
            0.02..0.2,
            0.01..0.1,
        ),
        // 18 % of the values are in vectors, which PowerSGD sends dense.
        ("reducer=power-sgd:2 feedback=error", Kernels::All, 0.2..0.26, 0.2..0.29),
        ("reducer=power-sgd:2 feedback=none", Kernels::All, 0.2..0.26, 0.2..0.29),
        ("reducer=power-sgd:2 feedback=error bucket_values=1000", Kernels::All, 0.2..0.26, 0.2..0.29),
        ("reducer=power-sgd:2 feedback=error", Kernels::Encoders, 1.0..1.1, 1.0..2.1),
        ("reducer=gather:topk:100x feedback=error", Kernels::Encoders, 0.01..0.02, 1.0..1.01),
        ("reducer=gather:topk:100x feedback=inner-momentum", Kernels::Encoders, 0.01..0.02, 1.0..1.01),
        ("reducer=gather:topk:100x feedback=error", Kernels::None, 1.0..1.01, 1.0..2.01),
        ("reducer=dense", Kernels::All, 1.0..1.01, 1.0..1.01),
        // 6 % of the values are in slots below 1024 values, which are sent dense; of the others, only messages are read.
        ("reducer=gather:topk:100x,per-slot=true feedback=error", Kernels::All, 0.06..0.08, 0.06..0.08),
        ("reducer=gather:topk:100x,per-slot=true feedback=none", Kernels::All, 0.06..0.08, 0.06..0.08),
        ("reducer=gather:topk:100x,per-slot=true feedback=momentum", Kernels::All, 0.06..0.08, 0.06..0.08),
        ("reducer=gather:topk:100x,per-slot=true feedback=inner-momentum", Kernels::All, 0.06..0.08, 0.06..0.08),
        (
            "reducer=gather:topk:10x,per-slot=true feedback=error controller=accordion:10x,interval=3,window=1,per_slot=true",
            Kernels::All,
            0.1..0.2,
            0.1..0.2,
        ),
    ] {
        let [got_down, got_up] = moved(&text.parse().unwrap(), kernels);
        println!("{text}, {kernels:?}: {got_down:.4} down, {got_up:.4} up");
        assert!(down.contains(&got_down) && up.contains(&got_up), "{text}, {kernels:?}: {got_down} down, {got_up} up");
    }
}

/// A rule for 18 % of the values.
#[test]
fn only_messages_and_dense_slots_cross_the_bus_around_rules() {
    briquette_zoo::install();
    let with = |main: &str, rule: &str, feedback: &str| -> Config {
        let rules = format!("rules = [{{ slots = '*bias', reducer = '{rule}' }}]");
        toml::from_str(&format!("feedback = '{feedback}'\nreducer = '{main}'\n{rules}")).unwrap()
    };
    for (main, rule, down, up) in [
        ("gather:topk:100x", "dense", 0.18..0.2, 0.18..0.2),
        ("gather:topk:100x", "gather:sign", 0.015..0.03, 0.015..0.03),
        ("gather:minmax", "gather:topk:100x", 0.2..0.23, 0.2..0.23),
        // The matrices are 82 % of the values.
        ("power-sgd:1", "dense", 0.2..0.22, 0.2..0.24),
        ("dense", "gather:topk:100x", 0.81..0.83, 0.81..0.83),
        ("gather:topk:100x", "gather:minmax", 0.04..0.08, 0.04..0.08),
    ] {
        for feedback in ["error", "none", "momentum", "inner-momentum"] {
            if feedback == "none" && main == "power-sgd:1" {
                continue;
            }
            let [got_down, got_up] = moved(&with(main, rule, feedback), Kernels::All);
            println!("{main} and {rule}, {feedback}: {got_down:.4} down, {got_up:.4} up");
            assert!(
                down.contains(&got_down) && up.contains(&got_up),
                "{main} and {rule}, {feedback}: {got_down} down, {got_up} up"
            );
        }
    }
}
