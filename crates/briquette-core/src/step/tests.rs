use std::ops::Range;

use super::*;
use crate::comm::{Local, run_ranks};
use crate::config::Config;
use crate::error::{CommError, ReduceError};
use crate::laws::{HostDevice, Kernels};
use crate::seam::{Arriving, DeviceCopies, DevicePart, DevicePlace, DeviceVector};
use crate::state::State;

const SLOTS: usize = 3;

fn layout() -> Layout {
    Layout::new([("a", vec![40]), ("b", vec![7]), ("c", vec![9])])
}

fn driver(config: &Config, world: usize) -> Driver {
    let mut driver = Driver::new(Key::new(3));
    driver.drive(config.build(&layout(), world).unwrap(), layout());
    driver.set_weights_by_samples(config.weights_by_samples());
    driver.set_keeps_state(config.keeps_state());
    driver
}

fn header(rank: usize) -> Header {
    Header { samples: 1 + 2 * rank as u64, samples_recorded: true, loss: Some(1.0), ..Header::default() }
}

/// Gradient of a rank and a step, without values in absent slots.
fn gradient(rank: usize, step: u64, present: &[bool]) -> Vec<f32> {
    let key = Key::new(9).step(step).rank(rank);
    let mut values: Vec<f32> = (0..layout().len()).map(|i| (key.word(i) % 2001) as f32 / 64.0 - 15.0).collect();
    layout().absent(present).iter().for_each(|absent| absent.clear(&mut values));
    values
}

fn state(driver: &Driver) -> State {
    let mut state = State::default();
    driver.strategy().save(&mut state);
    state
}

/// A gradient that is complete from the beginning, on the host or on a device.
struct There {
    values: Vec<f32>,
    present: Vec<bool>,
    end: Option<Header>,
    device: Option<(HostDevice, DeviceCopies)>,
}

impl There {
    fn new(values: Vec<f32>, present: Vec<bool>, end: Option<Header>, on_device: bool) -> Self {
        let device = on_device.then(|| (HostDevice::new(values.clone(), Kernels::All), DeviceCopies::default()));
        There { values, present, end, device }
    }
}

impl Arriving for There {
    fn wait(&mut self, range: Range<usize>, comm: &mut Session) -> &[f32] {
        match &mut self.device {
            Some((device, copies)) => copies.wait(device, range, comm),
            None => &self.values[range],
        }
    }

    fn on_device(&self) -> Option<DevicePlace> {
        self.device.is_some().then_some(DevicePlace { len: self.values.len(), is_complete: false })
    }

    fn device(&mut self, range: Range<usize>, _: &mut Session) -> Option<DevicePart<'_>> {
        self.device.as_mut().map(|(device, copies)| copies.part(device, range))
    }
}

impl ArrivingGradient for There {
    type Error = SyncError;

    fn weigh(&mut self, weight: f32) {
        self.values.iter_mut().for_each(|value| *value *= weight);
        self.device.iter_mut().for_each(|(device, _)| device.scale(weight).unwrap());
    }

    fn end(&mut self, average: &[f32], comm: &mut Session) -> Result<Option<Header>, SyncError> {
        if let Some((device, copies)) = &mut self.device {
            let (rank, step) = (comm.rank(), 0);
            let finished = copies.finish(device, average);
            finished.map_err(|source| SyncError::Reduce { step, source: ReduceError::Device { rank, source } })?;
        }
        Ok(self.end.take())
    }

    fn present(&mut self) -> &mut [bool] {
        &mut self.present
    }
}

/// Takes a step whose gradient arrives.
fn arriving(driver: &mut Driver, source: &mut There, comm: &mut Session) -> Result<Vec<f32>, SyncError> {
    let (rank, mut average, mut lent) = (comm.rank(), Vec::new(), driver.lend());
    let first = Header { step: driver.step(), previous: driver.previous().copied(), ..header(rank) };
    let exchanged = lent.exchange((first, None), source, &mut average, comm);
    driver.give_back(lent, exchanged.is_ok());
    let (exchanged, present) = (exchanged?, &source.present);
    match source.device.take() {
        Some((mut device, _)) => {
            driver.commit_early(&exchanged, &mut device as &mut dyn DeviceVector, present, comm)?;
            average = device.into_average();
        }
        None => driver.commit_early(&exchanged, &mut average, present, comm)?,
    }
    Ok(average)
}

#[test]
fn a_gradient_that_arrives_is_exchanged_as_one_that_is_there() {
    for text in [
        "reducer=dense",
        "reducer=gather:topk:4x feedback=error",
        // Signs of zeros are not zeros.
        "reducer=gather:sign feedback=error",
        "reducer=gather:qsgd:2 feedback=none",
        "reducer=power-sgd:1",
    ] {
        let config: Config = text.parse().unwrap();
        // Of three ranks, one has its gradient on the host.
        let run = |arrives: bool, on_devices: bool| {
            let ranks = run_ranks(Local::world(3), |mut comm| {
                let (rank, mut driver) = (comm.rank(), driver(&config, 3));
                let mut averages = Vec::new();
                for step in 0..6 {
                    // Each slot is absent once, and in one step only on a single rank.
                    let is_absent = |slot| step < SLOTS as u64 && slot == step as usize || step == 4 && slot == rank;
                    let mut present: Vec<bool> = (0..SLOTS).map(|slot| !is_absent(slot)).collect();
                    let mut values = gradient(rank, step, &present);
                    if arrives {
                        let end = Some(Header { step, ..header(rank) });
                        let mut there = There::new(values, present, end, on_devices && rank != 1);
                        values = arriving(&mut driver, &mut there, &mut comm).unwrap();
                    } else {
                        driver.exchange_gradient(header(rank), &mut values, &mut present, &mut comm).unwrap();
                    }
                    averages.push(values);
                    driver.end_step();
                }
                Ok::<_, CommError>((averages, state(&driver)))
            });
            ranks.into_iter().map(Result::unwrap).collect::<Vec<_>>()
        };
        let (there, arrives) = (run(false, false), run(true, false));
        assert!(arrives == run(true, true), "{text}");
        assert!(there[0].0 == there[1].0 && there[0].0.concat().iter().any(|value| *value != 0.0), "{text}");
        if text.contains("error") {
            // Whether no rank has a slot is known before the exchange in one case and after it in the other. So the compressed
            // values may differ, but absent slots are held in both.
            for (step, slot) in layout().slots().iter().enumerate() {
                let is_held =
                    |run: &[(Vec<Vec<f32>>, State)]| run[0].0[step][slot.range()].iter().all(|value| *value == 0.0);
                assert!(is_held(&there) && is_held(&arrives), "{text}, step {step}");
            }
        } else {
            assert!(there == arrives, "{text}");
        }
    }
}

#[test]
fn a_step_that_one_rank_gives_up_is_refused_by_all_and_leaves_no_trace() {
    let config: Config = "reducer=gather:topk:4x feedback=error".parse().unwrap();
    let ranks = run_ranks(Local::world(3), |mut comm| {
        let (rank, mut driver) = (comm.rank(), driver(&config, 3));
        let before = state(&driver);
        let present = vec![true; SLOTS];
        let end = (rank != 1).then(|| header(rank));
        let mut source = There::new(gradient(rank, 0, &present), present, end, rank == 2);
        let refused = arriving(&mut driver, &mut source, &mut comm).unwrap_err();
        assert_eq!(refused, SyncError::GaveUp { step: 0, rank: 1 });
        assert_eq!(state(&driver), before);
        let mut values = gradient(rank, 0, &[true; SLOTS]);
        driver.exchange_gradient(header(rank), &mut values, &mut [true; SLOTS], &mut comm).unwrap();
        Ok::<_, CommError>(values)
    });
    assert_eq!(ranks[0].as_ref().unwrap(), ranks[2].as_ref().unwrap());
}

/// A device that fails at any of its operations ends the step on every rank before one commits it.
#[test]
fn a_device_that_is_lost_while_gradients_arrive_is_named_and_leaves_no_trace() {
    for text in ["reducer=gather:topk:4x feedback=error", "reducer=gather:topk:4x feedback=momentum bucket_values=20"] {
        let config: Config = text.parse().unwrap();
        let mut failures = 0;
        for operations in 0..12 {
            let ranks = run_ranks(Local::world(2), |mut comm| {
                let (rank, mut driver) = (comm.rank(), driver(&config, 2));
                let before = state(&driver);
                let present = vec![true; SLOTS];
                let mut source = There::new(gradient(rank, 0, &present), present, Some(header(rank)), rank == 1);
                if let Some((device, _)) = &mut source.device {
                    // The first operation weighs the gradient.
                    device.fail_once_after(1 + operations);
                }
                let failed = arriving(&mut driver, &mut source, &mut comm).err();
                if let Some(error) = &failed {
                    assert_eq!(state(&driver), before, "{text}, {operations}");
                    comm.abort(&error.to_string());
                }
                Ok::<_, CommError>(failed.map(|error| error.to_string()))
            });
            let failed: Vec<Option<String>> = ranks.into_iter().map(Result::unwrap).collect();
            if failed[1].is_some() {
                let names =
                    |error: &Option<String>| error.as_ref().is_some_and(|error| error.contains("the device is lost"));
                assert!(failed.iter().all(names), "{text}, {operations}: {failed:?}");
                failures += 1;
            }
            assert_eq!(failed[0].is_some(), failed[1].is_some(), "{text}, {operations}: {failed:?}");
        }
        assert!(failures > 4, "{text}: {failures}");
    }
}

#[test]
fn ranks_count_by_their_samples_unless_told_otherwise() {
    for (weighs, expected) in [(true, [1.5, 0.0]), (false, [1.0, 0.0])] {
        let ranks = run_ranks(Local::world(2), |mut comm| {
            let (rank, layout) = (comm.rank(), Layout::flat(2));
            let mut driver = Driver::new(Key::new(1));
            driver.drive(Config::dense().build(&layout, 2).unwrap(), layout);
            driver.set_weights_by_samples(weighs);
            let mut values = vec![2.0 * rank as f32, 0.0];
            driver.exchange_gradient(header(rank), &mut values, &mut [true], &mut comm).unwrap();
            Ok::<_, CommError>(values)
        });
        assert!(ranks.iter().all(|values| *values.as_ref().unwrap() == expected), "{weighs}: {ranks:?}");
    }
}

/// Of 0 and 2 with 1 and 3 samples, the mean is 1.5; the change from 0 is the same.
#[test]
fn parameters_are_averaged_by_the_samples_since_the_last_exchange() {
    let outer = "strategy=local-sgd:1 reducer=gather:topk:1x feedback=error";
    for text in ["strategy=local-sgd:1", outer, "strategy=diloco:1,rate=1,momentum=0"] {
        for (samples, expected) in [([1, 3], 1.5), ([2, 2], 1.0), ([0, 5], 2.0), ([0, 0], 1.0)] {
            let ranks = run_ranks(Local::world(2), |mut comm| {
                let (rank, mut driver) = (comm.rank(), driver(&text.parse().unwrap(), 2));
                driver.strategy_mut().begin(&vec![0.0; layout().len()]);
                let mut parameters = vec![2.0 * rank as f32; layout().len()];
                let header = Header { samples: samples[rank], ..header(rank) };
                driver.exchange_parameters(header, &mut parameters, &mut comm).unwrap();
                Ok::<_, CommError>(parameters)
            });
            let is_mean = |values: &Vec<f32>| values.iter().all(|value| *value == expected);
            assert!(ranks.iter().flatten().all(is_mean), "{text}, {samples:?}: {ranks:?}");
        }
    }
}

#[test]
fn an_agreement_is_reported_by_the_next_header_and_what_one_rank_knows_is_not() {
    let ranks = run_ranks(Local::world(2), |mut comm| {
        let (rank, mut driver) = (comm.rank(), driver(&"strategy=local-sgd:2".parse().unwrap(), 2));
        let mut parameters = gradient(rank, 0, &[true; SLOTS]);
        let mut seen = Vec::new();
        for _ in 0..4 {
            let (mut gradient, header) = (parameters.clone(), header(rank));
            driver.take_step(header, (&mut gradient, &mut parameters), |_, _| {}, &mut comm).unwrap();
            seen.push(driver.agreed_step().map(|agreed| agreed.samples));
        }
        assert_eq!(driver.step(), 4);
        Ok::<_, CommError>(seen)
    });
    // Steps without an exchange keep the last one.
    assert!(ranks.into_iter().all(|seen| seen.unwrap() == [None, Some(4), Some(4), Some(4)]));
}
