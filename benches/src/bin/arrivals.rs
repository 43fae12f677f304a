//! Arrival times of gradients during the backward pass, and the cost of exchanging them then if there is no
//! communication to overlap.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Result, ensure};
use briquette::core::comm::{Local, run_ranks};
use briquette::{Arrival, DistributedConfig, DistributedOptimizer, WallClock};
use briquette_benches::overhead::{Case, Image, Text};
use briquette_cli::measure::median;
use briquette_examples::models::ImageModelKind;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig, Lstm, LstmConfig};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor, TensorData};
use clap::Parser;

/// Arrival of the gradient's shares, as a part of the backward pass; and a step with the exchange after it and during it
#[derive(Debug, Parser)]
#[command(after_help = "Example:
  RAYON_NUM_THREADS=1 arrivals --csv arrivals.csv")]
struct Cli {
    /// Models, with commas: those of `cifar`, bilstm, and lstm-N for N of Burn's LSTM layers
    #[arg(long, value_delimiter = ',', default_value = "resnet8,resnet20,vgg11-slim,bilstm,lstm-1,lstm-2,lstm-3")]
    model: Vec<String>,
    /// Samples a rank and step
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// Steps measured, after five that are not; each once with the exchange after the pass, and once during it
    #[arg(long, default_value_t = 20)]
    steps: usize,
    /// Write the table here as CSV too
    #[arg(long)]
    csv: Option<PathBuf>,
}

const WARM_UP: usize = 5;
const SHARES: [f64; 5] = [0.01, 0.25, 0.5, 0.75, 0.9];

/// Medians over steps of rank 0.
#[derive(Debug, serde::Serialize)]
#[allow(missing_docs)] // the names are the table's columns
struct Row {
    model: String,
    values: usize,
    backward_ms: f64,
    /// Percent of the backward pass after which 1, 25, 50, 75 and 90 percent of the values have arrived.
    share_1_at: f64,
    share_25_at: f64,
    share_50_at: f64,
    share_75_at: f64,
    share_90_at: f64,
    /// Step times of two ranks in threads, connected by memory only.
    after_ms: f64,
    during_ms: f64,
    during_over_after: f64,
}

/// Stacked layers of Burn's own LSTM, on 48 vectors of 64 numbers, with states of 96 numbers.
#[derive(Debug, Clone, Copy)]
struct Stacked {
    layers: usize,
    batch: usize,
}

#[derive(Module, Debug)]
struct StackedModel {
    layers: Vec<Lstm>,
    head: Linear,
}

impl Case for Stacked {
    type Model = StackedModel;
    type Batch = Tensor<3>;
    fn build(&self, device: &Device) -> (StackedModel, ModuleOptimizer) {
        let input = |layer| if layer == 0 { 64 } else { 96 };
        let layers = (0..self.layers).map(|layer| LstmConfig::new(input(layer), 96, true).init(device)).collect();
        (StackedModel { layers, head: LinearConfig::new(96, 4).init(device) }, AdamConfig::new().init())
    }
    fn batch(&self, device: &Device) -> Tensor<3> {
        let shape = [self.batch, 48, 64];
        let values: Vec<f32> = (0..shape.iter().product()).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
        Tensor::from_data(TensorData::new(values, shape), device)
    }
    fn loss(&self, model: &StackedModel, batch: &Tensor<3>) -> Tensor<1> {
        let states = model.layers.iter().fold(batch.clone(), |x, layer| layer.forward(x, None).0);
        model.head.forward(states).square().mean()
    }
    fn lr(&self) -> f64 {
        1e-4
    }
}

fn main() -> Result<()> {
    briquette::zoo::install();
    let cli = Cli::parse();
    let mut rows = Vec::new();
    for model in &cli.model {
        eprintln!("{model} ...");
        let batch = cli.batch;
        rows.push(match (model.as_str(), model.strip_prefix("lstm-").map(str::parse)) {
            ("bilstm", _) => measure(&cli, model, Text { batch })?,
            (_, Some(layers)) => measure(&cli, model, Stacked { layers: layers?, batch })?,
            _ => measure(&cli, model, Image { kind: model.parse::<ImageModelKind>()?, batch })?,
        });
    }
    let mut csv = csv::Writer::from_writer(Vec::new());
    rows.iter().try_for_each(|row| csv.serialize(row))?;
    let text = String::from_utf8(csv.into_inner()?)?;
    print!("{text}");
    if let Some(path) = &cli.csv {
        std::fs::write(path, text)?;
    }
    Ok(())
}

/// Steps of one rank, alternating between the kinds.
#[derive(Default)]
struct Seen {
    after: Vec<f64>,
    during: Vec<f64>,
    backward: Vec<f64>,
    shares: [Vec<f64>; SHARES.len()],
}

fn measure<C: Case + Sync>(cli: &Cli, model: &str, case: C) -> Result<Row> {
    let during: DistributedConfig = toml::from_str("reducer = 'dense'\nfeedback = 'none'\nduring_backward = true")?;
    let clock = Arc::new(WallClock::start());
    let world = || Local::builder(2).clock(clock.clone()).build();
    // A rank has a session for each of the two kinds.
    let others: Vec<_> = world().into_iter().map(|comm| Mutex::new(Some(comm))).collect();
    let seen = run_ranks(world(), |comm| -> Result<_, briquette::Error> {
        let other = others[comm.rank()].lock().expect("nobody panics").take().expect("taken once");
        let device = Device::default().autodiff();
        let (mut seen, batch, mut values) = (Seen::default(), case.batch(&device), Vec::new());
        let mut kinds = Vec::new();
        for (comm, config, hides) in [(comm, DistributedConfig::dense(), false), (other, during.clone(), true)] {
            let (module, optimizer) = case.build(&device);
            let mut optim = DistributedOptimizer::new(optimizer, comm, config, 1);
            let module = optim.join(module)?;
            values = optim.synchronizer().layout()?.slots().iter().map(|slot| slot.len()).collect();
            kinds.push((optim, Some(module), hides));
        }
        for step in 0..WARM_UP + cli.steps {
            for (optim, module, hides) in &mut kinds {
                let begin = Instant::now();
                let own = module.take().expect("put back below");
                let forward = if *hides { optim.forward_model(&own)? } else { own.clone() };
                let loss = case.loss(&forward, &batch);
                let backward = Instant::now();
                let tape = loss.backward();
                let backward = backward.elapsed().as_secs_f64();
                let grads = GradientsParams::from_grads(tape, &own);
                drop((forward, loss));
                *module = Some(optim.step(case.lr(), own, grads)?);
                let seconds = begin.elapsed().as_secs_f64();
                if step < WARM_UP {
                    continue;
                }
                if *hides {
                    seen.during.push(seconds);
                    seen.backward.push(backward);
                    let places = shares(&optim.report().arrivals, &values, backward);
                    seen.shares.iter_mut().zip(places).for_each(|(seen, place)| seen.push(place));
                } else {
                    seen.after.push(seconds);
                }
            }
        }
        Ok((seen, values.iter().sum::<usize>()))
    });
    let (seen, values) = seen.into_iter().next().expect("two ranks")?;
    ensure!(!seen.during.is_empty(), "--steps: at least 1");
    let ms = |seconds: Vec<f64>| median(seconds) * 1e3;
    let [one, quarter, half, most, nearly] = seen.shares.map(|places| median(places) * 100.0);
    let (after_ms, during_ms) = (ms(seen.after), ms(seen.during));
    Ok(Row {
        model: model.to_owned(),
        values,
        backward_ms: ms(seen.backward),
        share_1_at: one,
        share_25_at: quarter,
        share_50_at: half,
        share_75_at: most,
        share_90_at: nearly,
        after_ms,
        during_ms,
        during_over_after: during_ms / after_ms,
    })
}

/// Returns the parts of the backward pass after which these shares of the values have arrived.
fn shares(arrivals: &[Arrival], values: &[usize], backward: f64) -> [f64; SHARES.len()] {
    let all: usize = values.iter().sum();
    SHARES.map(|share| {
        let mut come = 0;
        let at = arrivals.iter().find(|arrival| {
            come += values[arrival.slot];
            come as f64 >= share * all as f64
        });
        at.map_or(1.0, |arrival| (1.0 - arrival.lead.as_secs_f64() / backward).max(0.0))
    })
}
