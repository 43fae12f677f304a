//! Vectors on a device: the bits, residuals, bytes and decisions of vectors on the host. The device is a twin in host memory, which
//! is reached only through the operations of a device.

use crate::whole_and_in_buckets;
use briquette_core::compress::{Compressor, top_k::TopK};
use briquette_core::config::Config;
use briquette_core::error::{ConfigError, ReduceError, SyncError};
use briquette_core::laws::{
    self, Delivered, HostDevice, Kernels, Rank, Setup, Synchronizes, assert_same_runs, each_rank,
};
use briquette_core::reduce::{AgreedStep, Arriving, DeviceInput};
use briquette_core::sync::{Context, SyncStrategy};
use briquette_core::{Key, Layout, Message, Session, comm::Local};

/// A strategy whose gradients are on devices: of every rank, or of every second one.
#[derive(Debug, Clone)]
struct OnDevices {
    config: Config,
    kernels: Kernels,
    mixed: bool,
    /// The step and the number of operations after which the device of rank 1 is lost.
    lost: Option<(u64, usize)>,
}

impl OnDevices {
    fn new(config: &Config, kernels: Kernels) -> Self {
        OnDevices { config: config.clone(), kernels, mixed: false, lost: None }
    }
}

impl OnDevices {
    /// Delivers a gradient on a device, if this rank has one at this step.
    fn deliver(
        &self,
        strategy: &mut dyn SyncStrategy,
        own: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<(), SyncError> {
        // A rank may change sides between steps, as a run does that is resumed elsewhere.
        let step = cx.agreed_step.step;
        if self.mixed && (comm.rank() + step as usize / 2) % 2 == 1 {
            return strategy.after_backward(own, cx, comm);
        }
        let mut vector = HostDevice::new(own.clone(), self.kernels);
        let lost = self.lost.filter(|(at, _)| *at == step && comm.rank() == 1);
        lost.into_iter().for_each(|(_, operations)| vector.fail_after(operations));
        let mut average = Vec::new();
        let mut input = DeviceInput::new(&mut vector, cx.slots.len());
        strategy.during_backward(&mut input, &mut average, cx, comm)?;
        let finished = input.finish(&average);
        finished
            .map_err(|source| SyncError::Reduce { step, source: ReduceError::Device { rank: comm.rank(), source } })?;
        *own = vector.into_average();
        Ok(())
    }
}

impl Synchronizes for OnDevices {
    fn strategy(&self, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        let setup = self.clone();
        let strategy = self.config.build(layout, world)?;
        Ok(Box::new(Delivered::new(
            strategy,
            move |strategy: &mut dyn SyncStrategy, own: &mut Vec<f32>, cx: &Context<'_>, comm: &mut Session| {
                setup.deliver(strategy, own, cx, comm)
            },
        )))
    }
    fn min_ranks(&self) -> usize {
        self.config.min_ranks()
    }
}

#[test]
fn a_device_changes_no_bit_no_residual_no_byte_and_no_decision() {
    for config in whole_and_in_buckets() {
        for world in [1, 2, 3, 5] {
            let expected = Setup::short(&config, world).run(5);
            for (kernels, mixed) in
                [(Kernels::All, false), (Kernels::All, true), (Kernels::Encoders, true), (Kernels::None, false)]
            {
                let setup = Setup::short(&OnDevices { mixed, ..OnDevices::new(&config, kernels) }, world);
                assert_same_runs(&setup, &expected, &setup.run(5));
            }
        }
    }
}

/// Momentum around parts that only some reducers select, or that are read on the host.
#[test]
fn velocities_have_the_bits_of_the_host_around_rules_and_ladders() {
    let rules = "rules = [{ slots = '*bias', reducer = 'dense' }]";
    for feedback in [
        "momentum",
        "momentum:0.9,nesterov=true,clip=0.5",
        "momentum:0.9,masking=off",
        "momentum:0.9,masking=waited",
        "inner-momentum",
    ] {
        for reducer in [
            format!("reducer = 'gather:topk:4x'\n{rules}"),
            format!("reducer = 'gather:qsgd:4'\n{rules}"),
            format!("reducer = 'ladder:topk:4x'\n{rules}"),
            format!("reducer = 'power-sgd:1'\n{rules}"),
            "reducer = 'dense'\nrules = [{ slots = '*weight', reducer = 'gather:topk:4x' }]".to_owned(),
            "reducer = 'gather:topk:4x,per-slot=true'\ndense_below = 20".to_owned(),
            "reducer = 'gather:topk:4x,per-slot=true'\ndense_below = 20\ncontroller = 'schedule:1x'".to_owned(),
            format!("reducer = 'gather:topk:4x'\nbucket_values = 32\n{rules}"),
            "reducer = 'gather:topk:4x,per-slot=true'".to_owned(),
            "reducer = 'ladder:topk:4x'".to_owned(),
            "reducer = 'power-sgd:1'".to_owned(),
            "reducer = 'dense'".to_owned(),
        ] {
            let config: Config = toml::from_str(&format!("feedback = '{feedback}'\n{reducer}")).unwrap();
            let expected = Setup::short(&config, 3).run(6);
            for (kernels, mixed) in [(Kernels::All, false), (Kernels::All, true), (Kernels::Encoders, true)] {
                let setup = Setup::short(&OnDevices { mixed, ..OnDevices::new(&config, kernels) }, 3);
                assert_same_runs(&setup, &expected, &setup.run(6));
            }
        }
    }
}

#[test]
fn laws_1_4_and_5_hold_for_vectors_on_devices() {
    for config in whole_and_in_buckets().filter(|config| config.exchange.bucket_values.is_none()) {
        let on_devices = OnDevices { mixed: true, ..OnDevices::new(&config, Kernels::All) };
        let setup = Setup::short(&on_devices, 3);
        laws::agrees(&setup);
        laws::leaves_no_trace(&setup, 1);
        laws::resumes_to_the_bit(&setup);
    }
}

/// A device that is lost ends the run of every rank, by name, and leaves no trace on its own rank.
#[test]
fn a_lost_device_is_named_and_leaves_no_trace() {
    briquette_zoo::install();
    for text in [
        "reducer=gather:topk:4x feedback=error",
        "reducer=gather:topk:4x feedback=error-inside",
        "reducer=gather:topk:4x feedback=momentum",
        "reducer=gather:topk:4x feedback=inner-momentum",
        "reducer=gather:topk:4x feedback=error controller=gravac:4x,max=16x",
        "reducer=power-sgd:1 feedback=error",
        "reducer=gather:minmax feedback=none",
        "reducer=dense",
        "reducer=gather:topk:4x,per-slot=true feedback=error dense_below=20",
        "reducer=gather:topk:4x,per-slot=true feedback=momentum dense_below=20",
    ] {
        let config: Config = text.parse().unwrap();
        let mut lost = 0;
        for operations in 0..20 {
            let on_devices = OnDevices { lost: Some((2, operations)), ..OnDevices::new(&config, Kernels::All) };
            let setup = Setup::short(&on_devices, 2);
            let outcomes = each_rank(Local::world(2), |mut comm, rank| {
                let mut state = Rank::after(&setup, 2, &mut comm);
                let before = state.save();
                let failed = state.step(&mut comm).err();
                assert!(failed.is_none() || state.save() == before, "{text}, {operations}");
                // The first operation comes before any message. After the last message the others learn of a failure at their next call.
                let is_late = rank == 0 && operations > 0;
                let failed = failed.or_else(|| state.step(&mut comm).err().filter(|_| is_late));
                failed.map(|error| error.to_string())
            });
            if let Some(error) = &outcomes[1] {
                let names = |error: &str| error.contains("rank 1") && error.contains("the device is lost");
                assert!(
                    names(error) && outcomes[0].as_deref().is_some_and(names),
                    "{text}, {operations}: {outcomes:?}"
                );
                lost += 1;
            }
        }
        assert!(lost > 0, "{text}");
    }
}

#[test]
fn a_copy_is_read_again_when_the_vector_has_changed() {
    let (layout, mut comm) = (Layout::flat(2), Local::world(1).remove(0));
    let mut vector = HostDevice::new(vec![1.0, 2.0], Kernels::All);
    let mut input = DeviceInput::new(&mut vector, 1);
    assert_eq!(input.wait(0..2, &mut comm), [1.0, 2.0]);
    let mut device = input.device(0..2, &mut comm).unwrap();
    let residual = device.upload(&[10.0, 20.0]).unwrap();
    assert_eq!(device.energies(layout.slots()), Ok(vec![5.0]));
    device.add_residual((Some(&*residual), 1.0), layout.slots()).unwrap();
    assert_eq!(device.fed_energies(), Ok(vec![[121.0 + 484.0, 5.0]]));
    assert_eq!(input.wait(0..2, &mut comm), [11.0, 22.0]);
}

#[test]
fn ranges_of_a_part_are_packed_and_copied_back_to_their_places() {
    let mut vector = HostDevice::new((0..8).map(|i| i as f32).collect(), Kernels::All);
    let (mut input, mut comm) = (DeviceInput::new(&mut vector, 1), Local::world(1).remove(0));
    input.wait(0..8, &mut comm);
    let mut part = input.device(2..8, &mut comm).unwrap();
    let mut packed = part.pack(&[3..5, 0..1, 2..2]).unwrap();
    let mut values = [0.0; 3];
    packed.fetch(0..3, &mut values).unwrap();
    assert_eq!((packed.len(), values), (3, [5.0, 6.0, 2.0]));
    let left = part.upload(&[10.0, 20.0]).unwrap();
    part.unpack(&[1..2, 5..6], Some(&*left)).unwrap();
    part.unpack(&[3..4, 4..5], None).unwrap();
    packed.put_average(0, &[-1.0, -2.0, -3.0]).unwrap();
    part.unpack_average(&[3..5, 0..1, 2..2], &*packed.take_average().unwrap()).unwrap();
    let mut velocity = part.upload(&[0.5; 8]).unwrap();
    let mut masked = part.pack_velocity(&[0..1, 4..6], &*velocity);
    masked.restore(None, &[1..2, 2..3]);
    part.unpack_velocity(&[0..1, 4..6], &*masked, &mut *velocity);
    assert_eq!(velocity.fetch(), [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.0, 0.0]);
    assert_eq!(input.wait(0..8, &mut comm), [0.0, 1.0, 2.0, 10.0, 4.0, 0.0, 0.0, 20.0], "read again");
    input.finish(&[7.0; 8]).unwrap();
    assert_eq!(vector.into_average(), [7.0, 7.0, -3.0, 7.0, 7.0, -1.0, -2.0, 7.0]);
}

/// The first value is averaged on the device, the second on the host.
#[test]
fn momentum_is_subtracted_from_the_whole_average() {
    let mut vector = HostDevice::new(vec![1.0, 2.0], Kernels::All);
    let (mut input, mut comm) = (DeviceInput::new(&mut vector, 1), Local::world(1).remove(0));
    let mut message = Message::default();
    TopK::fraction(1.0).unwrap().compress_into(&[1.0], Key::new(1), &mut message);
    let mut device = input.device(0..2, &mut comm).unwrap();
    assert_eq!(device.reborrow().part(0..1).average(1.0, &[&message], 0), Ok(Some(true)));
    let before = device.upload(&[10.0, 20.0]).unwrap();
    let (next, bad) = device.subtract_velocity(&[f32::NAN, 2.0], Some(&*before), 0.5).unwrap();
    assert_eq!((next.fetch(), bad), (vec![1.0, 2.0], None));
    assert_eq!(input.wait(0..2, &mut comm), [1.0, 2.0], "the vector is as before");
    input.finish(&[f32::NAN; 2]).unwrap();
    assert_eq!((vector.down(), vector.up()), (8, 8 + 4), "the velocity and the second value");
    assert_eq!(vector.into_average(), [1.0 - 5.0, 2.0 - 10.0]);
}

#[test]
fn a_value_is_fetched_once() {
    let mut vector = HostDevice::new(vec![1.0, 2.0, 3.0, 4.0], Kernels::All);
    let (mut input, mut comm) = (DeviceInput::new(&mut vector, 4), Local::world(1).remove(0));
    for range in [2..3, 0..1, 0..4, 1..4] {
        assert_eq!(input.wait(range.clone(), &mut comm), &[1.0, 2.0, 3.0, 4.0][range]);
    }
    assert_eq!(vector.down(), 16);
}

/// Averages of the largest numbers, of which a tenth is rounded up, in all buckets of ten ranks but the last. No device is asked whether the last is
/// finite.
#[test]
fn an_average_that_overflows_is_named_by_ranks_on_devices_and_on_hosts() {
    let layout = Layout::new([("first", vec![4]), ("second", vec![4]), ("third", vec![4])]);
    let run = |values: f32, on_device: fn(usize) -> bool| {
        each_rank(Local::world(10), |mut comm, rank| {
            let config: Config = "reducer=gather:topk:2x feedback=error bucket_values=4".parse().unwrap();
            let (mut strategy, agreed_step) = (config.build(&layout, 10).unwrap(), Default::default());
            let cx = Context::new(Key::new(1), layout.slots(), &agreed_step);
            let mut own = [values, values, 1.0, 0.0].repeat(2);
            own.extend([1.0, 2.0, 3.0, 4.0]);
            if !on_device(rank) {
                return strategy.after_backward(&mut own, &cx, &mut comm).map(|()| (own, None));
            }
            let mut vector = HostDevice::new(own, Kernels::All);
            let (mut average, mut input) = (Vec::new(), DeviceInput::new(&mut vector, 3));
            strategy.during_backward(&mut input, &mut average, &cx, &mut comm)?;
            input.finish(&average).unwrap();
            let waits = vector.waits();
            Ok((vector.into_average(), Some(waits)))
        })
    };
    for on_device in [|_| true, |rank| rank == 1] as [fn(usize) -> bool; 2] {
        for (values, waits) in [(f32::MAX, None), (f32::MAX / 4.0, Some(5)), (f32::MAX / 1.9, Some(7))] {
            let hosts = run(values, |_| false);
            let ranks = run(values, on_device);
            for (rank, (got, host)) in ranks.into_iter().zip(hosts).enumerate() {
                match (got, host, waits) {
                    (Err(got), Err(host), None) => {
                        assert_eq!(got.to_string(), host.to_string());
                        assert!(got.to_string().contains("first"), "{got}");
                    }
                    (Ok((got, waited)), Ok((host, _)), Some(waits)) => {
                        assert_eq!((got, waited), (host, on_device(rank).then_some(waits)), "{values}, rank {rank}");
                    }
                    (got, host, _) => panic!("{values}, rank {rank}: {got:?} and {host:?}"),
                }
            }
        }
    }
}

/// Rates inside which a residual stays on a device, and others, at which it moves to the host and back. One slot has no gradient at some steps.
#[test]
fn a_residual_inside_any_learning_rate_has_the_bits_of_the_host() {
    let layout = Layout::new([("first", vec![400]), ("second", vec![300])]);
    let run = |on_device: fn(u64) -> bool| {
        each_rank(Local::world(2), |mut comm, rank| {
            let config: Config = "reducer=gather:topk:4x feedback=error-inside".parse().unwrap();
            let mut strategy = config.build(&layout, 2).unwrap();
            let mut step = 0;
            let rates = [0.1, 0.3, 0.0, 0.7, 3.0, 1e-8, 0.003, 1.0, 0.1];
            rates.map(|rate| {
                let agreed_step = AgreedStep { step, learning_rate: Some(rate), ..Default::default() };
                let absent = layout.absent(&[true, step % 3 != 1]);
                let slots = absent.as_ref().map_or(layout.slots(), |absent| &absent.slots);
                let cx = Context::new(Key::new(1), slots, &agreed_step);
                let mut own = laws::gradient(&layout, rank, step);
                absent.iter().for_each(|absent| absent.clear(&mut own));
                if on_device(step) {
                    let mut vector = HostDevice::new(own, Kernels::All);
                    let (mut average, mut input) = (Vec::new(), DeviceInput::new(&mut vector, 2));
                    strategy.during_backward(&mut input, &mut average, &cx, &mut comm).unwrap();
                    input.finish(&average).unwrap();
                    let is_copied = vector.down() >= 4 * layout.len();
                    assert_eq!(is_copied, [0.0, 3.0, 1e-8].contains(&rate), "{rate}: {} bytes", vector.down());
                    own = vector.into_average();
                } else {
                    strategy.after_backward(&mut own, &cx, &mut comm).unwrap();
                }
                strategy.commit();
                step += 1;
                own.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
            })
        })
    };
    let host = run(|_| false);
    assert!(host == run(|_| true) && host == run(|step| step % 2 == 0));
}

/// A matrix with one value. Its factors exclude an overflow, or they do not and the device is asked, or the sum of two ranks overflows. The device
/// computes two factors and two statistics, for which the host waits.
#[test]
fn a_product_that_overflows_is_named_and_one_that_may_is_checked() {
    let layout = Layout::new([("w", vec![4, 4])]);
    let run = |world: usize, value: f32, on_device: bool| {
        let mut outcomes = each_rank(Local::world(world), |mut comm, _| {
            let config: Config = "reducer=power-sgd:1 feedback=none".parse().unwrap();
            let (mut strategy, agreed_step) = (config.build(&layout, world).unwrap(), Default::default());
            let cx = Context::new(Key::new(1), layout.slots(), &agreed_step);
            let mut own = vec![0.0; 16];
            own[5] = value;
            if !on_device {
                return strategy.after_backward(&mut own, &cx, &mut comm).map(|()| (own, 0));
            }
            let mut vector = HostDevice::new(own, Kernels::All);
            let (mut average, mut input) = (Vec::new(), DeviceInput::new(&mut vector, 1));
            strategy.during_backward(&mut input, &mut average, &cx, &mut comm)?;
            input.finish(&average).unwrap();
            let waits = vector.waits();
            Ok((vector.into_average(), waits))
        });
        outcomes.remove(0)
    };
    for (world, value, waits) in [(2, 1.0, Some(4)), (1, 0.7 * f32::MAX, Some(5)), (2, 0.7 * f32::MAX, None)] {
        let (host, device) = (run(world, value, false), run(world, value, true));
        match waits {
            Some(waits) => assert_eq!(device.unwrap(), (host.unwrap().0, waits), "{world}, {value}"),
            None => {
                let error = host.unwrap_err().to_string();
                assert!(error.contains('w') && device.unwrap_err().to_string() == error, "{error}");
            }
        }
    }
}
