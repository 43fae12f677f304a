//! Encode and decode times of every row's exchange in a world of four, by the CPU clock of each rank's thread.
//!
//! Computation inside the session's calls counts too: a ring encodes and adds there. The network is unlimited, so it
//! adds nothing to these times. Under a controller each of its ratios is measured separately, without the controller's
//! own measurements.

use std::sync::Arc;

use anyhow::{Context, Result};
use briquette::DistributedOptimizer;
use briquette::core::comm::{Clock, Local, run_ranks};
use briquette::core::config::{Config, Exchange};
use briquette::core::control::schedule::ScheduleConfig;
use briquette::core::reduce::{AgreedStep, Reducer, Round};
use briquette::core::report::Report;
use briquette::core::{CompressionRatio, Key, Layout, Session};
use briquette::sim::{Compute, Network, Simulated};
use briquette_cli::measure::median;
use briquette_examples::models::{ImageModelKind, TextConfig, TextModelKind};
use briquette_examples::settings::Options;
use burn::optim::SgdConfig;
use burn::tensor::Device;
use clap::Parser;
use nix::time::{ClockId, clock_gettime};

use super::results::RANKS;
use super::{Model, Row};
use crate::vectors::Source;

/// CPU time of the calling thread.
struct ThreadClock;

impl Clock for ThreadClock {
    fn seconds(&self) -> f64 {
        let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has it");
        time.tv_sec() as f64 + time.tv_nsec() as f64 * 1e-9
    }
}

/// Seconds of a step, the median of ranks and steps.
#[derive(Debug, Clone, Copy)]
pub struct Seconds {
    /// Total.
    pub all: f64,
    /// Part outside the session's calls.
    pub compress: f64,
}

/// Returns the exchange of a row.
///
/// # Errors
/// If its flags are wrong.
pub fn exchange(model: Model, row: &Row) -> Result<Exchange> {
    exchange_of(&format!("cifar {} {}", model.flags(model.rate()), row.flags))
}

/// Returns the exchange of a trainer's command.
///
/// # Errors
/// If its flags are wrong.
pub(super) fn exchange_of(command: &str) -> Result<Exchange> {
    let options = Flags::try_parse_from(command.split_whitespace())?.options;
    Ok(options.resolve()?.config.exchange)
}

#[derive(Debug, Parser)]
struct Flags {
    #[command(flatten)]
    options: Options,
}

/// Ratios measured for a controller that may select them.
const RATIOS: [f64; 9] = [1.0, 2.0, 4.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0];
/// Bit widths measured for quantizers.
const BITS: [u8; 7] = [2, 3, 4, 5, 6, 7, 8];

/// Returns the row's exchange at each of its ratios, without the controller.
///
/// # Errors
/// If a ratio cannot be set.
pub fn at_ratios(exchange: &Exchange) -> Result<Vec<Exchange>> {
    if exchange.controller.is_none() {
        return Ok(vec![exchange.clone()]);
    }
    let [least, most] = exchange.controller.get().ratios();
    let quantizes = exchange.reducer.to_string().contains("qsgd");
    let of_bits = |bits: u8| CompressionRatio::of_bits(bits);
    let all: Vec<CompressionRatio> = match quantizes {
        true => BITS.into_iter().map(of_bits).collect(),
        false => RATIOS.into_iter().map(CompressionRatio::new).collect::<Result<_, _>>()?,
    };
    let within = all.into_iter().filter(|ratio| (least..=most).contains(ratio));
    let at = |ratio| Exchange { controller: ScheduleConfig::constant(ratio).into(), ..exchange.clone() };
    Ok(within.map(at).collect())
}

/// Returns the slots of a model.
///
/// # Errors
/// If it cannot be built.
pub fn layout(model: Model) -> Result<Layout> {
    let device = Device::flex().autodiff();
    let comm = Local::world(1).remove(0);
    let mut optim = DistributedOptimizer::new(SgdConfig::new().init(), comm, Config::dense(), 1);
    let key = Key::new(1);
    let image = |kind: ImageModelKind| kind.build(10, key, &device);
    match model {
        Model::ResNet8 => drop(optim.join(image(ImageModelKind::ResNet8))?),
        Model::Vgg11Slim => drop(optim.join(image(ImageModelKind::Vgg11Slim))?),
        Model::BiLstm => drop(optim.join(TextModelKind::BiLstm.build(&TextConfig::default(), key, &device))?),
    }
    Ok(optim.synchronizer().layout()?.clone())
}

/// Draws values similar to a gradient's: Laplace, and for an embedding seven rows of eight are 0.
fn gradient(layout: &Layout) -> Result<Vec<f32>> {
    let mut values = Source::Laplace.values(layout.len())?;
    for slot in layout.slots().iter().filter(|slot| slot.path().contains("embedding")) {
        let row = slot.shape().last().copied().context("an embedding has rows")?;
        let rows = values[slot.range()].chunks_mut(row).enumerate();
        rows.filter(|(index, _)| index % 8 != 0).for_each(|(_, row)| row.fill(0.0));
    }
    Ok(values)
}

/// Measures an exchange over some steps, excluding the first few; returns the seconds and the ratio in force.
///
/// # Errors
/// If it cannot be built or fails.
pub fn measure(exchange: &Exchange, layout: &Layout, steps: usize) -> Result<(Seconds, f64)> {
    let values = gradient(layout)?;
    let world = Simulated::world(RANKS, Network::unlimited(), Compute::Measured(Arc::new(ThreadClock)));
    let results = run_ranks(world, |mut comm| rank(&mut comm, (exchange, layout), &values, steps));
    let results: Vec<_> = results.into_iter().collect::<Result<_>>()?;
    let ratio = results[0].1;
    let (all, compress): (Vec<_>, Vec<_>) = results.into_iter().flat_map(|(seconds, _)| seconds).unzip();
    Ok((Seconds { all: median(all), compress: median(compress) }, ratio))
}

/// Excluded steps, in which storage is allocated and residuals grow.
const WARM_UP: usize = 5;

type Measured = (Vec<(f64, f64)>, f64);

fn rank(
    comm: &mut Session,
    (exchange, layout): (&Exchange, &Layout),
    values: &[f32],
    steps: usize,
) -> Result<Measured> {
    let mut reducer = exchange.build_reducer(layout, RANKS)?;
    let (mut input, mut average) = (values.to_vec(), vec![0.0; values.len()]);
    let (mut seconds, mut report) = (Vec::new(), Report::default());
    for step in 0..(WARM_UP + steps) as u64 {
        input.rotate_right(1 + comm.rank());
        comm.begin_step(step);
        let begin = comm.now();
        let agreed_step = AgreedStep { step, samples: 128, learning_rate: Some(0.1), ..AgreedStep::default() };
        let (key, slots) = (Key::new(1).step(step), layout.slots());
        let round = Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None };
        reducer.exchange(round, comm)?;
        let all = comm.now() - begin;
        report = Report::default();
        reducer.report(&mut report);
        seconds.push((all, report.seconds.map_or(0.0, |seconds| seconds.compress)));
    }
    Ok((seconds.split_off(WARM_UP), report.ratio.map_or(1.0, |ratio| ratio.get())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{dq_sgd, gravac, never_slower};

    #[test]
    fn every_row_has_ratios_that_can_be_measured() {
        briquette::zoo::install();
        let layout = Layout::new([("embedding.weight", vec![40, 50]), ("b", vec![33])]);
        for table in [never_slower::TABLE, dq_sgd::TABLE, gravac::TABLE] {
            for &model in table.models {
                for row in (table.rows)(model) {
                    let fixed = at_ratios(&exchange(model, &row).unwrap()).unwrap();
                    assert!(!fixed.is_empty(), "{}", row.name);
                    for fixed in fixed {
                        let (seconds, ratio) = measure(&fixed, &layout, 2).unwrap();
                        assert!(seconds.all > 0.0 && seconds.compress <= seconds.all && ratio >= 1.0, "{}", row.name);
                    }
                }
            }
        }
    }

    #[test]
    fn most_of_an_embedding_is_zero() {
        let layout = Layout::new([("embedding.weight", vec![80, 5]), ("b", vec![100])]);
        let values = gradient(&layout).unwrap();
        assert_eq!(values[..400].iter().filter(|v| **v != 0.0).count(), 50);
        assert!(values[400..].iter().all(|v| *v != 0.0));
    }
}
