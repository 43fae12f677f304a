//! Step cost of the optimizers of `briquette::optim`, compared with Burn's Adam and SGD.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use briquette::optim::{
    CompAmsConfig, DelayedAdaGradConfig, GeneralizedSignSgdConfig, GenericAdamConfig, IterateAverage,
    IterateAverageConfig, OneBitAdamConfig, PAdamWConfig,
};
use briquette_benches::ranks::write_csv;
use briquette_benches::trainer::{day, machine};
use briquette_cli::measure::median;
use burn::module::{Module, Param};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Distribution, Tensor};
use clap::Parser;
use comfy_table::{Table, presets};
use serde::Serialize;

/// Times a step of each optimizer over one matrix and twenty vectors, in turn
#[derive(Debug, Parser)]
struct Cli {
    /// Side of the matrix
    #[arg(long, default_value_t = 1024)]
    side: usize,
    /// Timed steps of each; the median counts
    #[arg(long, default_value_t = 31)]
    repeats: usize,
    /// Write the table here as CSV too
    #[arg(long)]
    csv: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Row {
    optimizer: &'static str,
    values: usize,
    milliseconds: f64,
    to_adam: f64,
    machine: String,
    cores: usize,
    date: String,
    command: String,
}

#[derive(Module, Debug)]
struct Parameters {
    matrix: Param<Tensor<2>>,
    vectors: Vec<Param<Tensor<1>>>,
}

const VECTORS: usize = 20;

impl Parameters {
    fn new(side: usize, device: &Device) -> Parameters {
        let normal = Distribution::Normal(0.0, 1.0);
        let vector = |_| Param::from_tensor(Tensor::random([side], normal, device).require_grad());
        Parameters {
            matrix: Param::from_tensor(Tensor::random([side, side], normal, device).require_grad()),
            vectors: (0..VECTORS).map(vector).collect(),
        }
    }

    fn gradients(&self, device: &Device) -> GradientsParams {
        let (mut gradients, normal) = (GradientsParams::new(), Distribution::Normal(0.0, 1.0));
        gradients.register(self.matrix.id, Tensor::<2>::random(self.matrix.dims(), normal, device));
        for vector in &self.vectors {
            gradients.register(vector.id, Tensor::<1>::random(vector.dims(), normal, device));
        }
        gradients
    }
}

fn optimizers() -> Vec<(&'static str, ModuleOptimizer, Option<IterateAverage>)> {
    let mut optimizers: Vec<_> = steps().into_iter().map(|(name, optimizer)| (name, optimizer, None)).collect();
    optimizers.push(("Burn's Adam, mean", AdamConfig::new().init(), Some(IterateAverageConfig::new().init())));
    optimizers
}

fn steps() -> Vec<(&'static str, ModuleOptimizer)> {
    vec![
        ("Burn's Adam", AdamConfig::new().init()),
        ("Burn's SGD, momentum", SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init()),
        ("CompAms", CompAmsConfig::new().init()),
        ("GeneralizedSignSgd", GeneralizedSignSgdConfig::new().init()),
        ("GenericAdam", GenericAdamConfig::new().init()),
        ("DelayedAdaGrad", DelayedAdaGradConfig::new().init()),
        ("PAdamW", PAdamWConfig::new().init()),
        ("OneBitAdam, warm-up", OneBitAdamConfig::new(1 << 30).init()),
        ("OneBitAdam, frozen", OneBitAdamConfig::new(1).init()),
    ]
}

fn main() -> Result<()> {
    briquette::zoo::install();
    let cli = Cli::parse();
    let device = Device::flex();
    let start = Parameters::new(cli.side, &device.clone().autodiff());
    let mut all: Vec<_> =
        optimizers().into_iter().map(|(name, own, mean)| (name, own, mean, start.clone(), Vec::new())).collect();
    for run in 0..=cli.repeats.max(1) {
        for (_, optimizer, mean, model, seconds) in &mut all {
            let (given, before) = (model.gradients(&device), model.clone());
            let begin = Instant::now();
            *model = optimizer.step(1e-3, before, given);
            mean.as_mut().map(|mean| mean.update(&*model));
            model.matrix.val().inner().sum().into_scalar::<f32>();
            // The first finds storage.
            if run > 0 {
                seconds.push(begin.elapsed().as_secs_f64());
            }
        }
    }
    let ((machine, cores), date) = (machine(), day(std::time::SystemTime::now())?);
    let medians: Vec<(&str, f64)> = all.into_iter().map(|(name, .., seconds)| (name, median(seconds))).collect();
    let command = format!("optimizers --side {} --repeats {}", cli.side, cli.repeats);
    let row = |(optimizer, seconds): &(&'static str, f64)| Row {
        optimizer,
        values: cli.side * (cli.side + VECTORS),
        milliseconds: 1e3 * seconds,
        to_adam: seconds / medians[0].1,
        machine: machine.clone(),
        cores,
        date: date.clone(),
        command: command.clone(),
    };
    let rows: Vec<Row> = medians.iter().map(row).collect();
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(["optimizer", "a step", "÷ Burn's Adam"]);
    for row in &rows {
        table.add_row([row.optimizer.to_owned(), format!("{:.2} ms", row.milliseconds), format!("{:.2}", row.to_adam)]);
    }
    println!("{table}");
    write_csv(cli.csv.as_deref(), &rows)
}
