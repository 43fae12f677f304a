//! Section of layers: heat maps of ratio, error and bytes over the steps that recorded them.

use std::collections::BTreeMap;

use super::{CURVES, Page, percent, short_bytes};
use crate::report::groups::Group;
use crate::report::html::{details, dim, table};
use crate::report::run::{Layer, Layers, Run};
use crate::report::svg::HeatMap;

/// Layers of a heat map: those with the most bytes.
const LAYERS: usize = 60;

impl Page {
    /// Adds heat maps of the layers of the first run of each group that compresses.
    pub(super) fn layers(&mut self, groups: &[Group]) {
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
                    let of = |layers: &Layers| layers.slots.get(*path).and_then(value);
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

/// Returns a name without characters that mean something in a path.
fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' }).collect()
}
