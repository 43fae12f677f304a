//! Loss curves of several runs compared with the first one's: as CSV, as a picture, and the largest deviation.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use briquette_examples::record::StepRecord;
use clap::Parser;
use clap::builder::TypedValueParser;
use plotters::prelude::*;

/// Loss curves of several runs beside the first one's
#[derive(Debug, Parser)]
#[command(after_help = "Example:
  for b in flex tch wgpu; do cifar --backend $b --steps 50 --out runs/$b; done
  curves flex=runs/flex tch=runs/tch wgpu=runs/wgpu --csv curves.csv --svg curves.svg")]
struct Cli {
    /// Runs as NAME=DIR, DIR being a trainer's --out; the first is what the others are compared with
    #[arg(required = true, value_parser = named)]
    run: Vec<(String, PathBuf)>,
    /// Compare this many first steps
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..).map(|n| n as usize))]
    steps: usize,
    /// Fail where a loss is further than this from the first run's, relatively
    #[arg(long)]
    within: Option<f64>,
    /// Write step and losses here
    #[arg(long)]
    csv: Option<PathBuf>,
    /// Draw the curves here
    #[arg(long)]
    svg: Option<PathBuf>,
    /// The picture's title
    #[arg(long, default_value = "training loss")]
    title: String,
}

fn named(text: &str) -> Result<(String, PathBuf), String> {
    let (name, directory) = text.split_once('=').ok_or("a run is NAME=DIR")?;
    Ok((name.to_owned(), directory.into()))
}

/// Name of a run and its losses, step by step.
type Curve = (String, Vec<f64>);

fn main() -> Result<()> {
    briquette::zoo::install();
    let cli = Cli::parse();
    let curves = cli.run.iter().map(|(name, run)| Ok((name.clone(), losses(run)?))).collect::<Result<Vec<Curve>>>()?;
    let steps = curves.iter().map(|(_, losses)| losses.len()).min().unwrap_or_default();
    ensure!(steps >= cli.steps, "a run has {steps} losses only, --steps asks for {}", cli.steps);
    let steps = cli.steps;
    let (base, others) = curves.split_first().expect("at least one run is required");
    let mut worst = 0.0_f64;
    for (name, losses) in others {
        let off = |step: &usize| (losses[*step] / base.1[*step] - 1.0).abs();
        let at = (0..steps).max_by(|a, b| off(a).total_cmp(&off(b))).unwrap_or_default();
        println!("{name:8} at most {:.4} % from {} over {steps} steps (step {at})", off(&at) * 100.0, base.0);
        worst = worst.max(off(&at));
    }
    if let Some(path) = &cli.csv {
        write(path, &curves, steps)?;
    }
    if let Some(path) = &cli.svg {
        draw(path, &cli.title, &curves, steps).map_err(|error| anyhow!("cannot draw {}: {error}", path.display()))?;
    }
    ensure!(cli.within.is_none_or(|within| worst <= within), "further apart than --within allows");
    Ok(())
}

fn losses(run: &Path) -> Result<Vec<f64>> {
    let path = run.join("metrics.jsonl");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let loss = |line: &str| {
        let record: StepRecord = serde_json::from_str(line)?;
        record.loss.context("a step without a loss")
    };
    text.lines().map(loss).collect::<Result<_>>().with_context(|| format!("in {}", path.display()))
}

fn write(path: &Path, curves: &[Curve], steps: usize) -> Result<()> {
    let mut csv = csv::Writer::from_path(path).with_context(|| format!("cannot write {}", path.display()))?;
    csv.write_record(["step"].into_iter().chain(curves.iter().map(|(name, _)| name.as_str())))?;
    for step in 0..steps {
        let losses = curves.iter().map(|(_, losses)| losses[step].to_string());
        csv.write_record([step.to_string()].into_iter().chain(losses))?;
    }
    Ok(csv.flush()?)
}

fn draw(path: &Path, title: &str, curves: &[Curve], steps: usize) -> Result<(), Box<dyn std::error::Error>> {
    let all = curves.iter().flat_map(|(_, losses)| &losses[..steps]);
    let (low, high) = all.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(*v), high.max(*v)));
    let area = SVGBackend::new(path, (800, 480)).into_drawing_area();
    area.fill(&WHITE)?;
    let margin = (high - low).max(1e-9) * 0.05;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .build_cartesian_2d(0..steps, low - margin..high + margin)?;
    chart.configure_mesh().max_light_lines(0).x_desc("step").y_desc("loss").draw()?;
    for (index, (name, losses)) in curves.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        // The first is drawn widest: what lies upon it shows both.
        let style = color.stroke_width(2 * (curves.len() - index) as u32);
        let points = losses[..steps].iter().copied().enumerate();
        let legend = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(3));
        chart.draw_series(LineSeries::new(points, style))?.label(name).legend(legend);
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
    Ok(area.present()?)
}
