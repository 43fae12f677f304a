//! The page of a set of runs: its sections, and the charts that they show.

use std::collections::BTreeMap;

use briquette_core::comm::{Record, Transfer, Way};

use super::groups::{Axis, Folded, Group};
use super::html::{details, dim, legend, page, section, table};
use super::run::{Layer, Point, Run};
use super::svg::{Bars, Chart, Curve, HeatMap, escaped, number};
use crate::terminal::bytes;

/// Transfers of each rank that are shown.
const TRANSFERS: usize = 100;
/// Groups that have a curve in each chart. All are in the tables.
const CURVES: usize = 8;
/// Rows of a table behind a chart.
const ROWS: usize = 40;
/// Layers of a heat map: those with the most bytes.
const LAYERS: usize = 60;
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

    /// Adds the causes of failures, of the runs whose ranks left records of their last transfers.
    fn failures(&mut self, groups: &[Group]) {
        let runs = groups.iter().flat_map(|group| &group.runs).filter(|run| !run.transfers.is_empty()).take(CURVES);
        let mut body = String::new();
        for run in runs {
            body += &dim(run.path.display());
            body += &run.culprits.iter().map(|why| format!("<p>{}.</p>\n", escaped(why))).collect::<String>();
            let rows: Vec<_> = run.transfers.iter().map(last_transfer).collect();
            body += &table("", &["rank", "failure", "last transfer", "step", "waited"], &rows);
            let all = run.transfers.iter().map(|record| {
                let rows: Vec<_> = record.transfers.iter().rev().take(TRANSFERS).map(transfer).collect();
                let columns = ["start", "transfer", "bytes", "seconds"];
                details(&format!("Last transfers of rank {}", record.rank), &table("numbers", &columns, &rows))
            });
            body += &all.collect::<String>();
        }
        if !body.is_empty() {
            self.add("Last transfers", &body);
        }
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

    /// Adds the loss over steps, bytes and time.
    fn loss(&mut self, groups: &[Group]) {
        let mut body = String::new();
        for axis in [Axis::Steps, Axis::Bytes, Axis::Seconds] {
            let curves =
                curves(groups, |group, class| group.curve(class, axis, |point| point.loss.get()).map(smoothed));
            if curves.iter().all(|curve| curve.points.len() < 2) {
                continue;
            }
            let (over, x, x_label): (_, _, fn(f64) -> String) = match axis {
                Axis::Steps => ("steps", "step", number),
                Axis::Bytes => ("bytes", "bytes sent by rank 0", short_bytes),
                Axis::Seconds => ("time", time_of(groups), number),
            };
            let title = format!("loss over {over}");
            let chart = Chart {
                title: &title,
                x,
                curves: &curves,
                is_stepped: false,
                notes: &[],
                label: number,
                x_label,
                is_from_zero: false,
            };
            let svg = self.chart(&format!("loss-{over}"), chart.svg());
            body += &(legend(&curves) + &svg + &behind(&curves, (x, x_label), number));
        }
        if !body.is_empty() {
            self.add("Loss on training samples", &body);
        }
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
            x_label: number,
            is_from_zero: true,
        };
        let svg = self.chart("ratio", chart.svg());
        let mut body = legend(&curves) + &svg;
        body += &dim(
            "Nominal ratio: dense size over compressed size, without overhead; 1x is dense. A dot marks a decision of the controller, or a new generation of an elastic world, and shows its reason.",
        );
        for group in &decided {
            let row = |decision: &super::run::Decision| {
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
            let chart = Chart {
                title: &title,
                x: "step",
                curves: &curves,
                is_stepped: false,
                notes: &[],
                label,
                x_label: number,
                is_from_zero: true,
            };
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

    /// Adds heat maps of the layers of the first run of each group that compresses.
    fn layers(&mut self, groups: &[Group]) {
        type Value = (&'static str, fn(&Layer) -> Option<f64>, fn(f64) -> String);
        const VALUES: [Value; 3] = [
            ("ratio", |layer| layer.ratio, |ratio| format!("{:.1}x", ratio)),
            ("relative error", |layer| layer.error, percent),
            ("bytes", |layer| layer.bytes, short_bytes),
        ];
        for group in groups.iter().take(CURVES) {
            let run = &group.runs[0];
            let differs = |value: fn(&Layer) -> Option<f64>| {
                let mut all = run.layers.iter().flat_map(|layers| layers.slots.values().filter_map(value));
                let first = all.next();
                all.any(|value| Some(value) != first)
            };
            if !differs(|layer| layer.error) {
                continue;
            }
            let (paths, omitted) = shown(run);
            let columns: Vec<String> = run.layers.iter().map(|layers| layers.step.to_string()).collect();
            let mut body = String::new();
            for (name, value, label) in VALUES {
                if !differs(value) {
                    continue;
                }
                let cells = |path: &&String| {
                    let of = |layers: &super::run::Layers| layers.slots.get(*path).and_then(value);
                    ((*path).clone(), run.layers.iter().map(of).collect())
                };
                let rows: Vec<(String, Vec<Option<f64>>)> = paths.iter().map(cells).collect();
                let title = format!("{name} of each layer, {}", group.name);
                let svg = HeatMap {
                    title: &title,
                    x: "step",
                    columns: &columns,
                    rows: &rows,
                    label,
                    is_logarithmic: name != "relative error",
                }
                .svg();
                let file = format!("layers-{}-{}", name.replace(' ', "-"), file_name(&group.name));
                let is_taken = self.charts.iter().any(|(other, _)| *other == file);
                let file = if is_taken { format!("{file}-{}", self.charts.len()) } else { file };
                body += &(dim(name) + &self.chart(&file, svg));
                let last = columns.last().map_or("", String::as_str);
                let row = |(path, cells): &(String, Vec<Option<f64>>)| {
                    vec![path.clone(), cells.last().copied().flatten().map_or("–".to_owned(), label)]
                };
                let rows: Vec<_> = rows.iter().map(row).collect();
                body += &details(&format!("Data of step {last}"), &table("numbers", &["layer", name], &rows));
            }
            if omitted > 0 {
                body += &dim(format!("{omitted} layers with fewer bytes are not shown."));
            }
            self.add(&format!("Layers of {}", group.name), &body);
        }
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

/// Returns a rank's failure, and the transfer that it was in.
fn last_transfer(record: &Record) -> Vec<String> {
    let failure = record.failure.as_ref();
    let last = record.transfers.iter().rev().find(|transfer| transfer.end.is_none()).or(record.transfers.last());
    let waited =
        last.zip(failure).filter(|(last, _)| last.end.is_none()).map(|(last, failure)| failure.at - last.start);
    vec![
        record.rank.to_string(),
        failure.map_or("none".to_owned(), |failure| failure.message.clone()),
        last.map_or("none".to_owned(), name),
        last.map_or(String::new(), |last| last.step.to_string()),
        waited.map_or(String::new(), seconds),
    ]
}

fn name(transfer: &Transfer) -> String {
    let way = if transfer.way == Way::Send { "to" } else { "from" };
    let bucket = transfer.bucket.map_or(String::new(), |bucket| format!(" of bucket {bucket}"));
    format!("{way} rank {} in {}{bucket}", transfer.peer, transfer.operation)
}

fn transfer(of: &Transfer) -> Vec<String> {
    let taken = of.end.map_or("not completed".to_owned(), |end| format!("{:.6}", end - of.start));
    vec![format!("{:.6}", of.start), format!("{}, step {}", name(of), of.step), bytes(of.bytes), taken]
}

/// Returns the layers to show, in the order of the model, and the number of the others.
fn shown(run: &Run) -> (Vec<&String>, usize) {
    let mut total: BTreeMap<&String, f64> = BTreeMap::new();
    for (path, layer) in run.layers.iter().flat_map(|layers| &layers.slots) {
        *total.entry(path).or_default() += layer.bytes.unwrap_or(0.0);
    }
    let mut largest: Vec<&String> = run.paths.iter().collect();
    // A path may be of a table that was not kept.
    let total = |path: &String| total.get(path).copied().unwrap_or(0.0);
    largest.sort_by(|a, b| total(b).total_cmp(&total(a)));
    largest.truncate(LAYERS);
    let shown: Vec<&String> = run.paths.iter().filter(|path| largest.contains(path)).collect();
    let omitted = run.paths.len() - shown.len();
    (shown, omitted)
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

fn title(groups: &[Group]) -> String {
    match groups {
        [one] => format!("Training run {}", one.name),
        [one, other] => format!("{} and {}", one.name, other.name),
        _ => format!("Comparison of {} configurations", groups.len()),
    }
}

/// Summarizes the runs in a sentence or two.
pub(super) fn verdict(groups: &[Group]) -> String {
    let accuracy = |group: &Group| group.number("final_test_accuracy");
    if let [group] = groups {
        let steps = group.runs[0].points.last().map_or(0, |last| last.step + 1);
        let mut parts = vec![format!("{steps} steps")];
        parts.extend(group.seconds().map(|time| format!("in {}", time.text(seconds))));
        parts.extend(accuracy(group).map(|accuracy| format!("to {} on test samples", accuracy.text(percent))));
        let parts = parts.join(" ");
        let fewer = group
            .wire_ratio()
            .map(|ratio| format!(", with {} fewer bytes than dense", ratio.text(|ratio| format!("{ratio:.1}x"))));
        let [compute, compress, wait, exchange] = group.parts();
        let total = compute + compress + wait + exchange;
        let share =
            (total > 0.0).then(|| format!(" Communication takes {} of a step.", percent((wait + exchange) / total)));
        return format!("{parts}{}.{}", fewer.unwrap_or_default(), share.unwrap_or_default());
    }
    // Compared with the configuration that sends most.
    let sent = |group: &Group| group.number("bytes_sent").map_or(0.0, |sent| sent.mean);
    let time = |group: &Group| group.seconds().map_or(f64::INFINITY, |time| time.mean);
    let Some(reference) = groups.iter().max_by(|a, b| sent(a).total_cmp(&sent(b))).filter(|most| sent(most) > 0.0)
    else {
        return format!("{} configurations; none has a summary with bytes.", groups.len());
    };
    let compared = groups.iter().filter(|group| !std::ptr::eq(*group, reference) && sent(group) > 0.0);
    let Some(best) = compared.min_by(|a, b| time(a).total_cmp(&time(b))) else {
        return format!("{} configurations, of which only {} has sent anything.", groups.len(), reference.name);
    };
    let times = match (time(best), time(reference)) {
        (a, b) if a > 0.0 && b > 0.0 && a.is_finite() && b.is_finite() => {
            format!(" and takes {:.2} times as long", a / b)
        }
        _ => String::new(),
    };
    let difference = accuracy(best).zip(accuracy(reference)).map(|(a, b)| {
        let error = a.error.zip(b.error).map(|(a, b)| format!(" ± {:.1}", 100.0 * a.hypot(b)));
        format!("; its test accuracy differs by {:+.1}{} points", 100.0 * (a.mean - b.mean), error.unwrap_or_default())
    });
    let among = match groups.len() {
        2 => String::new(),
        count if time(best) <= time(reference) => format!("The fastest of {count} configurations: "),
        count => format!("The fastest of {count} configurations is {}. After it, ", reference.name),
    };
    let fewer = sent(reference) / sent(best);
    let difference = difference.unwrap_or_default();
    format!("{among}{} sends {fewer:.1}x fewer bytes than {}{times}{difference}.", best.name, reference.name)
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

/// Returns a name without characters that mean something in a path.
fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' }).collect()
}
