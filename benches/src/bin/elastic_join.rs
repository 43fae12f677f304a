//! One rank of an elastic world with a large model, for `benches/elastic_join.py`. Writes the time of its call to the world, of its entry, and
//! of the end of each step, in UNIX seconds.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use briquette::{DistributedConfig, DistributedOptimizer, run_elastic};
use briquette_benches::overhead::{Case, Wide};
use burn::optim::GradientsParams;
use burn::tensor::Device;
use clap::Parser;

/// One rank of an elastic world with a large model
#[derive(Debug, Parser)]
struct Arguments {
    /// Values of a hidden layer of the perceptron; the default has 64 MiB of parameters, and 192 MiB of state with Adam
    #[arg(long, default_value_t = 1952)]
    width: usize,
    /// Steps of the run
    #[arg(long, default_value_t = 1000)]
    steps: u64,
    /// Exchange of the gradients
    #[arg(long, default_value = "reducer=gather:topk:1000x feedback=error")]
    exchange: String,
    /// Directory in which each process writes its file
    #[arg(long)]
    out: PathBuf,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let case = Wide { width: arguments.width, batch: 4 };
    let config: DistributedConfig = arguments.exchange.parse()?;
    let device = Device::flex().autodiff();
    let ((model, mut optimizer), batch) = (case.build(&device), case.batch(&device));
    let own = || GradientsParams::from_grads(case.loss(&model, &batch).backward(), &model);
    // The first pass allocates.
    let model = optimizer.step(0.0, model.clone(), own());
    let file = File::create(arguments.out.join(format!("{}.log", std::process::id())))?;
    write(&file, "call", 0)?;
    run_elastic(3, 1, |session, membership| {
        let (_, optimizer) = case.build(&device);
        let optim = DistributedOptimizer::new(optimizer, session, config.clone(), 1);
        let mut optim = optim.with_membership(membership);
        let mut model = optim.join(model.clone())?;
        write(&file, "entry", optim.synchronizer().step())?;
        while optim.synchronizer().step() < arguments.steps {
            let gradients = GradientsParams::from_grads(case.loss(&model, &batch).backward(), &model);
            model = optim.step(1e-5, model, gradients)?;
            write(&file, "step", optim.synchronizer().step())?;
        }
        anyhow::Ok(optim.leave(&model)?)
    })?;
    Ok(())
}

fn write(mut file: &File, event: &str, step: u64) -> std::io::Result<()> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
    writeln!(file, "{seconds:.6} {event} {step}")
}
