//! `briquette report`: a page about training runs, with charts and the tables behind them.
//!
//! The page is one file that loads nothing else and runs no script, so it can be kept with the results, mailed and printed.

mod groups;
pub mod html;
mod page;
mod run;
pub mod svg;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf, absolute};

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;

use self::groups::{Axis, Group};
use self::run::{Run, find};
use self::svg::Curve;
use crate::terminal::{complain, printable, progress, show};

const HELP: &str = "Runs with the same settings but the seed are one curve, with one standard error as a band. Names are the parts of the paths in which runs differ.

Examples:
  briquette report runs/latest --open               one run
  briquette report runs/dense runs/auto             a comparison
  briquette report runs --out page.html --svg figs  all runs below a folder, and each chart as a file
  briquette report runs --json | jq .               the data of the charts";

/// Arguments of `briquette report`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Report {
    /// Folders of runs (the trainers' --out), or folders with such folders below them.
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// File of the page [default: report.html in RUN if there is one RUN, else here]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Prints the data of the charts as JSON instead.
    #[arg(long, conflicts_with_all = ["out", "svg", "open"])]
    json: bool,
    /// Also writes each chart to this folder, as an SVG file.
    #[arg(long, value_name = "FOLDER")]
    svg: Option<PathBuf>,
    /// Opens the page in a browser.
    #[arg(long)]
    open: bool,
}

impl Report {
    /// Reads the runs, and writes the page or prints the data.
    ///
    /// # Errors
    /// If a folder has no run, or a file cannot be read or written.
    pub fn run(&self) -> Result<()> {
        let groups = groups::groups(self.read()?);
        if self.json {
            return Ok(show(serde_json::to_string_pretty(&data(&groups))?)?);
        }
        let page = page::of(&groups);
        let path = self.out.clone().unwrap_or_else(|| match &self.runs[..] {
            [one] if one.is_dir() => one.join("report.html"),
            _ => "report.html".into(),
        });
        write(&path, &page.html(&groups))?;
        if let Some(folder) = &self.svg {
            fs::create_dir_all(folder).with_context(|| format!("cannot make --svg {}", folder.display()))?;
            for (name, svg) in &page.charts {
                write(&folder.join(format!("{name}.svg")), &html::chart_file(svg))?;
            }
        }
        let path = absolute(&path).unwrap_or(path);
        show(printable(&page::verdict(&groups)))?;
        show(format_args!("Report: {}", printable(&path.display().to_string())))?;
        if self.open
            && let Err(error) = open::that_detached(&path)
        {
            complain(format_args!("note: no browser could be opened ({error}); open the file yourself"));
        }
        Ok(())
    }

    fn read(&self) -> Result<Vec<Run>> {
        let (mut folders, mut seen) = (Vec::new(), BTreeSet::new());
        for path in &self.runs {
            for folder in find(path)? {
                // Links such as `latest` lead to a run that may be named as well.
                if seen.insert(folder.canonicalize().unwrap_or_else(|_| folder.clone())) {
                    folders.push(folder);
                }
            }
        }
        let bar = progress("runs");
        bar.set_length(folders.len() as u64);
        let mut runs = Vec::new();
        for folder in folders {
            let run = Run::read(&folder)?;
            for note in &run.notes {
                let note = format!("note: {}: {note}", folder.display());
                bar.suspend(|| complain(printable(&note)));
            }
            runs.push(run);
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(runs)
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The data of the charts.
#[derive(Serialize)]
struct Data<'a> {
    verdict: String,
    groups: Vec<GroupData<'a>>,
}

#[derive(Serialize)]
struct GroupData<'a> {
    name: &'a str,
    /// `[x, mean, standard error]` by name and axis.
    curves: BTreeMap<String, Vec<[Option<f64>; 3]>>,
    runs: &'a [Run],
}

fn data(groups: &[Group]) -> Data<'_> {
    let of = |group| {
        let mut curves = BTreeMap::new();
        let mut put = |name: &str, axis: &str, curve: Option<Curve>| {
            let finite = |value: f64| Some(value).filter(|value| value.is_finite());
            let triple = |curve: &Curve| {
                let errors = curve.errors.iter();
                curve
                    .points
                    .iter()
                    .zip(errors)
                    .map(|((x, y), error)| [finite(*x), finite(*y), finite(*error)])
                    .collect()
            };
            curves.extend(curve.iter().map(|curve| (format!("{name} over {axis}"), triple(curve))));
        };
        let group: &Group = group;
        for (axis, name) in [(Axis::Steps, "steps"), (Axis::Bytes, "bytes"), (Axis::Seconds, "seconds")] {
            put("loss", name, group.curve("", axis, |point| point.loss.get()));
            put("test accuracy", name, group.evaluated("", axis, |point| point.accuracy.get()));
            put("test loss", name, group.evaluated("", axis, |point| point.test_loss.get()));
        }
        put("ratio", "steps", group.curve("", Axis::Steps, |point| point.ratio.get()));
        put("gain", "steps", group.curve("", Axis::Steps, |point| point.gain.get()));
        put("delay", "steps", group.curve("", Axis::Steps, |point| point.delay.get()));
        GroupData { name: &group.name, curves, runs: &group.runs }
    };
    Data { verdict: page::verdict(groups), groups: groups.iter().map(of).collect() }
}
