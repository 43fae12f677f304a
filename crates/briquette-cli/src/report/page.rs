//! The page of a set of runs: its sections, and the charts that they show.

mod failures;
mod layers;
mod verdict;

use self::verdict::title;
pub(super) use self::verdict::verdict;
use super::groups::{Axis, Folded, Group};
use super::html::{details, dim, legend, page, section, table};
use super::run::{Decision, Point};
use super::svg::{Bars, Chart, Curve, escaped, number};
use crate::terminal::bytes;

/// Groups that have a curve in each chart. All are in the tables.
const CURVES: usize = 8;
/// Rows of a table behind a chart.
const ROWS: usize = 40;
/// Steps whose losses are averaged, as a share of the curve: single batches are small.
const SMOOTHED: usize = 60;

/// A page, and its charts by name.
#[derive(Debug, Default)]
pub(super) struct Page {
    body: String,
    pub(super) charts: Vec<(String, String)>,
}

/// Returns the page of these groups, of which there is at least one.
pub(super) fn of(groups: &[Group]) -> Page {
    let mut page = Page::default();
    page.body +=
        &format!("<h1>{}</h1>\n<p class=\"verdict\">{}</p>\n", escaped(&title(groups)), escaped(&verdict(groups)));
    page.failures(groups);
    page.result(groups);
    page.evaluations(groups);
    page.loss(groups);
    page.ratio(groups);
    page.signals(groups);
    page.budget(groups);
    page.layers(groups);
    page.runs(groups);
    page
}

impl Page {
    /// Returns the text of the page.
    pub(super) fn html(&self, groups: &[Group]) -> String {
        page(&title(groups), &self.body)
    }

    fn add(&mut self, title: &str, body: &str) {
        self.body += &section(title, body);
    }

    /// Keeps a chart for its own file, and returns it.
    fn chart(&mut self, name: &str, svg: String) -> String {
        self.charts.push((name.to_owned(), svg.clone()));
        svg
    }

    fn result(&mut self, groups: &[Group]) {
        let columns = ["", "runs", "steps", "test accuracy", "bytes sent", "fewer than dense", "time"];
        let row = |group: &Group| {
            let text = |value: Option<Folded>, format: &dyn Fn(f64) -> String| {
                value.map_or("–".to_owned(), |value| value.text(format))
            };
            let last = Folded::of(group.runs.iter().map(|run| run.points.last().map(|last| (last.step + 1) as f64)));
            vec![
                group.name.clone(),
                group.runs.len().to_string(),
                text(last, &|steps| format!("{steps:.0}")),
                text(group.number("final_test_accuracy"), &percent),
                text(group.number("bytes_sent"), &|count| bytes(count as u64)),
                text(group.wire_ratio(), &|ratio| format!("{ratio:.1}x")),
                text(group.seconds(), &seconds),
            ]
        };
        let rows: Vec<_> = groups.iter().map(row).collect();
        let mut body = table("numbers", &columns, &rows);
        body += &dim(
            "Bytes are those of all ranks, headers included. Time is that of the simulated network, where there is one, else of the wall clock. ± is one \
             standard error over the runs of a row, which differ in their seed.",
        );
        if groups.len() > CURVES {
            body += &dim(format!("Charts show the first {CURVES} of {} rows.", groups.len()));
        }
        self.add("Result", &body);
    }

    /// Adds accuracy and loss on test samples.
    fn evaluations(&mut self, groups: &[Group]) {
        let accuracy = |group: &Group, class: &str, axis| group.evaluated(class, axis, |point| point.accuracy.get());
        let loss = |group: &Group, class: &str, axis| group.evaluated(class, axis, |point| point.test_loss.get());
        let mut body = self.over_axes(groups, "test accuracy", percent, accuracy);
        body += &self.over_axes(groups, "test loss", number, loss);
        if !body.is_empty() {
            self.add("Results on test samples", &body);
        }
    }

    fn loss(&mut self, groups: &[Group]) {
        let loss = |group: &Group, class: &str, axis| group.curve(class, axis, |point| point.loss.get()).map(smoothed);
        let body = self.over_axes(groups, "loss", number, loss);
        if !body.is_empty() {
            self.add("Loss on training samples", &body);
        }
    }

    /// Returns charts of a value over steps, bytes and time.
    fn over_axes(
        &mut self,
        groups: &[Group],
        name: &str,
        label: fn(f64) -> String,
        curve: impl Fn(&Group, &str, Axis) -> Option<Curve>,
    ) -> String {
        let mut body = String::new();
        for axis in [Axis::Steps, Axis::Bytes, Axis::Seconds] {
            let curves = curves(groups, |group, class| curve(group, class, axis));
            if curves.iter().all(|curve| curve.points.len() < 2) {
                continue;
            }
            let (over, x, x_label): (_, _, fn(f64) -> String) = match axis {
                Axis::Steps => ("steps", "step", number),
                Axis::Bytes => ("bytes", "bytes sent by rank 0", short_bytes),
                Axis::Seconds => ("time", time_of(groups), number),
            };
            let title = format!("{name} over {over}");
            let chart = Chart { title: &title, x, curves: &curves, x_label, label, ..Chart::default() };
            let svg = self.chart(&title.replace(' ', "-").replace("-over-", "-"), chart.svg());
            body += &(legend(&curves) + &svg + &behind(&curves, (x, x_label), label));
        }
        body
    }

    /// Adds the ratios of the first run of each group, with the reasons of its controller.
    fn ratio(&mut self, groups: &[Group]) {
        let curves = curves(groups, |group, class| first_of(group, class, |point| point.ratio.get()));
        let is_simple = curves.iter().all(|curve| curve.points.iter().all(|point| point.1 == curve.points[0].1));
        let decided: Vec<&Group> =
            groups.iter().take(CURVES).filter(|group| !group.runs[0].decisions.is_empty()).collect();
        if decided.is_empty() && (curves.is_empty() || is_simple) {
            return;
        }
        let mut notes = Vec::new();
        for group in &decided {
            notes.extend(group.runs[0].decisions.iter().filter_map(|decision| {
                Some((
                    decision.seconds,
                    decision.ratio.filter(|ratio| ratio.is_finite())?,
                    format!("{}, step {}: {}", group.name, decision.step, decision.reason),
                ))
            }));
        }
        let label: fn(f64) -> String = |ratio| format!("{}x", number(ratio));
        let chart = Chart {
            title: "compression ratio over time",
            x: time_of(groups),
            curves: &curves,
            is_stepped: true,
            notes: &notes,
            label,
            is_from_zero: true,
            ..Chart::default()
        };
        let svg = self.chart("ratio", chart.svg());
        let mut body = legend(&curves) + &svg;
        body += &dim(
            "Nominal ratio: dense size over compressed size, without overhead; 1x is dense. A dot marks a decision of the controller, or a new generation of an elastic world, and shows its reason.",
        );
        for group in &decided {
            let row = |decision: &Decision| {
                let ratio = decision.ratio.map_or("–".to_owned(), label);
                vec![
                    decision.step.to_string(),
                    seconds(decision.seconds),
                    ratio,
                    decision.reason.clone(),
                    decision.state.clone(),
                ]
            };
            let rows: Vec<_> = group.runs[0].decisions.iter().map(row).collect();
            let columns = ["step", "time", "ratio", "reason", "controller state"];
            body += &details(&format!("Decisions and generations of {}", group.name), &table("", &columns, &rows));
        }
        self.add("Compression ratio", &body);
    }

    /// Adds what controllers read: the share of energy that was sent, and the staleness of the residual.
    fn signals(&mut self, groups: &[Group]) {
        type Signal = (&'static str, &'static str, fn(&Point) -> Option<f64>, fn(f64) -> String);
        let signals: [Signal; 2] = [
            ("gain", "Gain: the share of a vector's energy that was sent.", |point| point.gain.get(), percent),
            (
                "delay",
                "Effective delay, in steps: the norm of the residual over that of a step's gradient.",
                |point| point.delay.get(),
                number,
            ),
        ];
        let mut body = String::new();
        for (name, explained, value, label) in signals {
            let curves = curves(groups, |group, class| group.curve(class, Axis::Steps, value));
            let says_something = |curve: &Curve| curve.points.windows(2).any(|pair| pair[0].1 != pair[1].1);
            if !curves.iter().any(says_something) {
                continue;
            }
            let title = format!("{name} over steps");
            let chart =
                Chart { title: &title, x: "step", curves: &curves, label, is_from_zero: true, ..Chart::default() };
            let svg = self.chart(name, chart.svg());
            body += &(dim(explained) + &legend(&curves) + &svg + &behind(&curves, ("step", number), label));
        }
        if !body.is_empty() {
            self.add("Signals", &body);
        }
    }

    fn budget(&mut self, groups: &[Group]) {
        const PARTS: [&str; 4] = ["compute", "compression", "waiting for the slowest rank", "communication"];
        let rows: Vec<_> =
            groups.iter().take(CURVES).map(|group| (group.name.clone(), group.parts().to_vec())).collect();
        if rows.iter().all(|row| row.1.iter().sum::<f64>() == 0.0) {
            return;
        }
        let label: fn(f64) -> String = |seconds| format!("{} ms", number(1e3 * seconds));
        let svg = self.chart("step-time", Bars { title: "time of a step", rows: &rows, label }.svg());
        let name = |(index, name): (usize, &&str)| format!("<b class=\"part-{index}\">■ {name}</b> ");
        let legend = format!("<p>{}</p>\n", PARTS.iter().enumerate().map(name).collect::<String>());
        let row = |(name, parts): &(String, Vec<f64>)| {
            std::iter::once(name.clone()).chain(parts.iter().map(|part| label(*part))).collect()
        };
        let table =
            table("numbers", &["", PARTS[0], PARTS[1], PARTS[2], PARTS[3]], &rows.iter().map(row).collect::<Vec<_>>());
        let remark =
            dim("Means over all steps of rank 0. What ran in the background while the rank computed is not counted.");
        self.add("Time of a step", &(legend + &svg + &remark + &details("Data", &table)));
    }

    fn runs(&mut self, groups: &[Group]) {
        let mut body = String::new();
        for group in groups {
            let first = &group.runs[0];
            let mut rows: Vec<Vec<String>> =
                first.settings.iter().map(|(name, value)| vec![name.clone(), value.clone()]).collect();
            for name in ["version", "git_revision", "burn_version"] {
                let value = first.summary.get(name).and_then(|value| value.as_str());
                rows.extend(value.map(|value| vec![name.replace('_', " "), value.to_owned()]));
            }
            let mut inside = table("", &["", ""], &rows);
            for run in &group.runs {
                let notes = if run.notes.is_empty() { String::new() } else { format!(": {}", run.notes.join("; ")) };
                inside += &dim(format!("{}{notes}", run.path.display()));
            }
            body += &details(&group.name, &inside);
        }
        let noted = groups.iter().flat_map(|group| &group.runs).filter(|run| !run.notes.is_empty()).count();
        if noted > 0 {
            body += &dim(format!("Runs with notes next to their settings: {noted}."));
        }
        self.add("Runs and settings", &body);
    }
}

fn curves(groups: &[Group], curve: impl Fn(&Group, &str) -> Option<Curve>) -> Vec<Curve> {
    let class = |index: usize| format!("s{index}");
    groups.iter().take(CURVES).enumerate().filter_map(|(index, group)| curve(group, &class(index))).collect()
}

/// Returns a value of the first run of a group over time.
fn first_of(group: &Group, class: &str, value: impl Fn(&Point) -> Option<f64>) -> Option<Curve> {
    let run = &group.runs[0];
    let points: Vec<_> = run.points.iter().filter_map(|point| Some((point.seconds, value(point)?))).collect();
    (!points.is_empty()).then(|| Curve {
        name: group.name.clone(),
        class: class.to_owned(),
        points,
        errors: Vec::new(),
    })
}

/// Averages each point with those before it.
fn smoothed(curve: Curve) -> Curve {
    let length = (curve.points.len() / SMOOTHED).max(1);
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let [ys, errors] = [curve.points.iter().map(|point| point.1).collect::<Vec<_>>(), curve.errors];
    let xs = curve.points[length - 1..].iter().map(|point| point.0);
    let points = xs.zip(ys.windows(length).map(mean)).collect();
    Curve { points, errors: errors.windows(length).map(mean).collect(), ..curve }
}

/// Returns the table behind curves.
fn behind(curves: &[Curve], (x, x_label): (&str, fn(f64) -> String), label: fn(f64) -> String) -> String {
    let mut tables = String::new();
    for curve in curves {
        let every = curve.points.len().div_ceil(ROWS).max(1);
        let last = curve.points.len() - 1;
        let rows = curve.points.iter().enumerate().filter(|(index, _)| (last - index).is_multiple_of(every));
        let row = |(index, (x, y)): (usize, &(f64, f64))| {
            let error = curve.errors.get(index).filter(|error| **error > 0.0);
            let value = if y.is_finite() { label(*y) } else { "not a number".to_owned() };
            vec![x_label(*x), error.map_or(value.clone(), |error| format!("{value} ± {}", label(*error)))]
        };
        tables += &table("numbers", &[x, &curve.name], &rows.map(row).collect::<Vec<_>>());
    }
    details("Data", &tables)
}

fn time_of(groups: &[Group]) -> &'static str {
    let is_simulated = groups.iter().flat_map(|group| &group.runs).any(|run| run.is_simulated);
    if is_simulated { "seconds (simulated)" } else { "seconds" }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn seconds(seconds: f64) -> String {
    if seconds < 120.0 { format!("{seconds:.1} s") } else { format!("{:.1} min", seconds / 60.0) }
}

fn short_bytes(count: f64) -> String {
    bytes(count.max(0.0) as u64).replace(".0 ", " ")
}
