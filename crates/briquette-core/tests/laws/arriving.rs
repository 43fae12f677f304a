//! Vectors that arrive slot by slot: the same bits, residuals, bytes and decisions as complete vectors.

use std::ops::Range;

use crate::{exchanges, whole_and_in_buckets};
use briquette_core::config::Config;
use briquette_core::error::{ConfigError, SyncError};
use briquette_core::laws::{
    self, Delivered, HostDevice, Kernels, Setup, Synchronizes, assert_same_runs, each_rank, gradient, short,
};
use briquette_core::reduce::{AgreedStep, Arriving, DeviceCopies, DevicePart, DevicePlace, LastExchange};
use briquette_core::report::Report;
use briquette_core::sync::{Context, SyncStrategy};
use briquette_core::{Key, Layout, Session, comm::Local};

/// Values are NaN until they are waited for.
struct Late<'a> {
    values: &'a [f32],
    there: Vec<f32>,
    order: Vec<usize>,
    /// The vector on a device, if it arrives there.
    device: Option<(HostDevice, DeviceCopies)>,
    /// Number of values that were waited for before anything was sent, and the number of calls at the start.
    silent: usize,
    calls: u64,
}

impl<'a> Late<'a> {
    fn new(values: &'a [f32], order: Vec<usize>, on_device: Option<Kernels>) -> Self {
        let there = vec![f32::NAN; values.len()];
        let device = on_device.map(|kernels| (HostDevice::new(there.clone(), kernels), DeviceCopies::default()));
        Late { values, there, order, device, silent: 0, calls: 0 }
    }

    fn arrive(&mut self, range: &Range<usize>, comm: &Session) {
        let fresh = range.clone().filter(|i| self.there[*i].is_nan());
        let fresh: Vec<usize> = fresh.collect();
        self.silent += if comm.calls() == self.calls { fresh.len() } else { 0 };
        for i in fresh {
            self.there[i] = self.values[i];
            self.device.iter_mut().for_each(|(device, _)| device.arrive(i, &self.values[i..=i]));
        }
    }

    /// Returns the average, of which the host's part is `average`.
    fn finish(self, average: Vec<f32>) -> Vec<f32> {
        let Some((mut device, mut copies)) = self.device else { return average };
        copies.finish(&mut device, &average).unwrap();
        device.into_average()
    }
}

impl Arriving for Late<'_> {
    fn wait(&mut self, range: Range<usize>, comm: &mut Session) -> &[f32] {
        self.arrive(&range, comm);
        match &mut self.device {
            Some((device, copies)) => copies.wait(device, range, comm),
            None => &self.there[range],
        }
    }
    fn order(&self) -> &[usize] {
        &self.order
    }
    fn on_device(&self) -> Option<DevicePlace> {
        self.device.is_some().then_some(DevicePlace { len: self.values.len(), is_complete: false })
    }
    fn device(&mut self, range: Range<usize>, comm: &mut Session) -> Option<DevicePart<'_>> {
        self.arrive(&range, comm);
        self.device.as_mut().map(|(device, copies)| copies.part(device, range))
    }
}

/// A strategy whose gradients arrive late, on devices of every rank or of every second one.
#[derive(Debug, Clone)]
struct AsItComes {
    config: Config,
    devices: Option<(Kernels, bool)>,
}

impl AsItComes {
    fn new(config: &Config, devices: Option<(Kernels, bool)>) -> Self {
        AsItComes { config: config.clone(), devices }
    }
}

/// Delivers a gradient late.
fn deliver(
    devices: Option<(Kernels, bool)>,
    strategy: &mut dyn SyncStrategy,
    own: &mut Vec<f32>,
    cx: &Context<'_>,
    comm: &mut Session,
) -> Result<(), SyncError> {
    let (count, step) = (cx.slots.len(), cx.agreed_step.step as usize);
    // In one step the last slot first, in the next every other slot from the front.
    let order = match step % 2 {
        0 => vec![],
        _ => (0..count).filter(|slot| slot % 2 == 0).chain((0..count).filter(|slot| slot % 2 == 1)).collect(),
    };
    let on_device = devices.filter(|(_, mixed)| !mixed || (comm.rank() + step / 2).is_multiple_of(2));
    let mut average = Vec::new();
    let mut late = Late::new(own, order, on_device.map(|(kernels, _)| kernels));
    strategy.during_backward(&mut late, &mut average, cx, comm)?;
    *own = late.finish(average);
    Ok(())
}

impl Synchronizes for AsItComes {
    fn strategy(&self, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        let devices = self.devices;
        Ok(Box::new(Delivered::new(
            self.config.build(layout, world)?,
            move |strategy: &mut dyn SyncStrategy, own: &mut Vec<f32>, cx: &Context<'_>, comm: &mut Session| {
                deliver(devices, strategy, own, cx, comm)
            },
        )))
    }
    fn min_ranks(&self) -> usize {
        self.config.min_ranks()
    }
}

#[test]
fn when_values_come_changes_no_bit_no_memory_no_byte_and_no_decision() {
    for config in whole_and_in_buckets() {
        for world in [1, 2, 3, 5] {
            let setup = Setup::short(&AsItComes::new(&config, None), world);
            assert_same_runs(&setup, &Setup::short(&config, world).run(5), &setup.run(5));
        }
    }
}

#[test]
fn nor_does_it_on_devices() {
    for config in whole_and_in_buckets() {
        for world in [1, 3] {
            let expected = Setup::short(&config, world).run(5);
            for devices in [(Kernels::All, false), (Kernels::All, true), (Kernels::Encoders, true)] {
                let setup = Setup::short(&AsItComes::new(&config, Some(devices)), world);
                assert_same_runs(&setup, &expected, &setup.run(5));
            }
        }
    }
}

#[test]
fn law_4_holds_while_vectors_arrive() {
    for exchange in exchanges().into_iter().filter(|exchange| exchange.bucket_values.is_some()) {
        let config = Config::every_step(exchange);
        for devices in [None, Some((Kernels::All, true))] {
            laws::leaves_no_trace(&Setup::short(&AsItComes::new(&config, devices), 3), 1);
        }
    }
}

/// Returns the share of the vector that a rank waits for at this step before it has sent anything.
fn waited_first(text: &str, step: u64, on_device: Option<Kernels>) -> f64 {
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
            let mut late = Late { calls: comm.calls(), ..Late::new(&own, vec![], on_device) };
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
    [None, Some(Kernels::All)].into_iter().for_each(buckets_wait_for_their_values);
}

fn buckets_wait_for_their_values(on_device: Option<Kernels>) {
    let waited_first = |text: &str, step| waited_first(text, step, on_device);
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
