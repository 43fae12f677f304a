//! Runs of one configuration with several seeds, as one curve with its standard error.

use std::collections::BTreeMap;
use std::path::{Component, PathBuf};

use serde::Serialize;

use super::run::{Mean, Point, Run};
use super::svg::Curve;

/// Settings in which runs of one group may differ.
const OF_A_RUN: [&str; 3] = ["run", "seed", "out"];

/// Runs with the same settings.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) name: String,
    /// In the order in which they were named.
    pub(super) runs: Vec<Run>,
}

/// Horizontal axis of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Axis {
    Steps,
    Bytes,
    Seconds,
}

/// A mean over runs, and its standard error where there are several.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Folded {
    pub(super) mean: f64,
    pub(super) error: Option<f64>,
}

impl Folded {
    /// Returns the mean of finite values, if there are any.
    pub(super) fn of(values: impl IntoIterator<Item = Option<f64>>) -> Option<Folded> {
        let values: Vec<f64> = values.into_iter().flatten().filter(|value| value.is_finite()).collect();
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
        (!values.is_empty()).then(|| Folded { mean, error: (values.len() > 1).then(|| (variance / count).sqrt()) })
    }

    /// Formats mean and error.
    pub(super) fn text(self, value: impl Fn(f64) -> String) -> String {
        self.error.map_or_else(|| value(self.mean), |error| format!("{} ± {}", value(self.mean), value(error)))
    }
}

/// Divides runs into groups. Names are what differs in the paths of their folders.
pub(super) fn groups(runs: Vec<Run>) -> Vec<Group> {
    let mut by_settings: Vec<(BTreeMap<String, String>, Vec<Run>)> = Vec::new();
    for run in runs {
        let mut settings = run.settings.clone();
        settings.retain(|name, _| !OF_A_RUN.contains(&name.as_str()));
        // Runs without settings may have different ones.
        let same = by_settings.iter_mut().find(|(of_group, _)| !settings.is_empty() && *of_group == settings);
        match same {
            Some((_, group)) => group.push(run),
            None => by_settings.push((settings, vec![run])),
        }
    }
    let paths: Vec<Vec<String>> = by_settings.iter().map(|(_, runs)| common(runs)).collect();
    let names = names(&paths);
    by_settings.into_iter().zip(names).map(|((_, runs), name)| Group { name, runs }).collect()
}

fn parts(path: &PathBuf) -> Vec<String> {
    let normal = |part: Component<'_>| match part {
        Component::Normal(part) => Some(part.to_string_lossy().into_owned()),
        _ => None,
    };
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
    absolute.components().filter_map(normal).collect()
}

/// Returns the folders that contain all runs.
fn common(runs: &[Run]) -> Vec<String> {
    let mut common = parts(&runs[0].path);
    for run in &runs[1..] {
        let other = parts(&run.path);
        let same = common.iter().zip(&other).take_while(|(a, b)| a == b).count();
        common.truncate(same);
    }
    // Of `dense-1` and `dense-2` this is `dense`, and nothing of `seed-1` and `seed-2`.
    let next = runs.iter().filter_map(|run| parts(&run.path).get(common.len()).cloned()).collect::<Vec<_>>();
    if let Some(first) = next.first().filter(|_| runs.len() > 1 && next.len() == runs.len()) {
        let same = |other: &String| first.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
        let same = next.iter().map(same).min().unwrap_or(0);
        let name: String = first.chars().take(same).collect();
        let name = name.trim_end_matches(['-', '_', '.', ' ']);
        let name = name.strip_suffix("seed").unwrap_or(name).trim_end_matches(['-', '_', '.', ' ']);
        if !name.is_empty() {
            common.push(name.to_owned());
        }
    }
    common
}

/// Returns the part of each path that is not common to all, or its last folder; numbered where that is not enough.
fn names(paths: &[Vec<String>]) -> Vec<String> {
    let shared = (0..).take_while(|at| {
        let first = paths.first().and_then(|path| path.get(*at));
        first.is_some() && paths.iter().all(|path| path.get(*at) == first)
    });
    let shared = shared.count();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let name = |path: &Vec<String>| {
        let rest = path.get(shared..).filter(|rest| !rest.is_empty()).unwrap_or(&path[path.len().saturating_sub(1)..]);
        let name = if rest.is_empty() { "run".to_owned() } else { rest.join("/") };
        let number = seen.entry(name.clone()).and_modify(|number| *number += 1).or_insert(1);
        if *number > 1 { format!("{name} ({number})") } else { name }
    };
    paths.iter().map(name).collect()
}

impl Group {
    /// Returns a value of a point over an axis, as the mean of the runs.
    pub(super) fn curve(&self, class: &str, axis: Axis, value: impl Fn(&Point) -> Option<f64>) -> Option<Curve> {
        self.curve_of(|run| &run.points, class, axis, value)
    }

    /// As [`curve`](Self::curve), of evaluations.
    pub(super) fn evaluated(&self, class: &str, axis: Axis, value: impl Fn(&Point) -> Option<f64>) -> Option<Curve> {
        self.curve_of(|run| &run.evaluations, class, axis, value)
    }

    fn curve_of(
        &self,
        points: impl Fn(&Run) -> &[Point],
        class: &str,
        axis: Axis,
        value: impl Fn(&Point) -> Option<f64>,
    ) -> Option<Curve> {
        let runs = self.runs.iter().map(points).filter(|points| !points.is_empty()).collect::<Vec<_>>();
        let shortest = runs.iter().min_by_key(|points| points.last().map(|last| last.step)).copied().unwrap_or(&[]);
        let at = |point: &Point| match axis {
            Axis::Steps => point.step as f64,
            Axis::Bytes => point.bytes,
            Axis::Seconds => point.seconds,
        };
        let point = |step: u64| {
            // Long runs have fewer points than steps, so that the next point of a run may be of a later step.
            let of_run = |points: &[Point]| points.partition_point(|point| point.step < step).min(points.len() - 1);
            let there = runs.iter().map(|points| &points[of_run(points)]).collect::<Vec<_>>();
            let of = |of: &dyn Fn(&Point) -> Option<f64>| Folded::of(there.iter().map(|point| of(point)));
            let x = of(&|point| Some(at(point)))?;
            // A value that is not a number in one run is none in the mean.
            let values = || there.iter().filter_map(|point| value(point));
            if values().next().is_some() && values().any(|value| !value.is_finite()) {
                return Some((x.mean, Folded { mean: f64::NAN, error: None }));
            }
            Some((x.mean, of(&value)?))
        };
        let folded: Vec<(f64, Folded)> = shortest.iter().filter_map(|at| point(at.step)).collect();
        let errors = folded.iter().map(|(_, y)| y.error.unwrap_or(0.0)).collect();
        let points: Vec<_> = folded.into_iter().map(|(x, y)| (x, y.mean)).collect();
        (!points.is_empty()).then(|| Curve { name: self.name.clone(), class: class.to_owned(), points, errors })
    }

    /// Returns a number of the summaries.
    pub(super) fn number(&self, name: &str) -> Option<Folded> {
        Folded::of(self.runs.iter().map(|run| run.number(name)))
    }

    /// Returns the seconds of the runs: simulated if there are any, else those of the wall clock.
    pub(super) fn seconds(&self) -> Option<Folded> {
        let of = |run: &Run| {
            let named = run.number("simulated_seconds").or_else(|| run.number("wall_seconds"));
            named.or_else(|| run.points.last().map(|last| last.seconds))
        };
        Folded::of(self.runs.iter().map(of))
    }

    /// Returns how many times fewer bytes were sent than by dense.
    pub(super) fn wire_ratio(&self) -> Option<Folded> {
        let of = |run: &Run| {
            let (dense, sent) = (run.number("bytes_dense")?, run.number("bytes_sent")?);
            (sent > 0.0).then(|| dense / sent)
        };
        Folded::of(self.runs.iter().map(of))
    }

    /// Returns the seconds of a step: computing, compressing, waiting, exchanging.
    pub(super) fn parts(&self) -> [f64; 4] {
        let points = || self.runs.iter().flat_map(|run| &run.points);
        std::array::from_fn(|part| {
            points().fold(Mean::default(), |sum, point| sum.and(point.parts[part])).get().unwrap_or(0.0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(path: &str, seed: u64, reducer: &str) -> Run {
        let settings = [("seed", seed.to_string()), ("reducer", reducer.to_owned())];
        let settings = settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Run { path: path.into(), settings, ..Run::default() }
    }

    #[test]
    fn seeds_are_folded_and_groups_are_named_by_their_folders() {
        let runs = vec![
            run("/a/dense/seed-1", 1, "dense"),
            run("/a/top-k/seed-1", 1, "topk"),
            run("/a/dense/seed-2", 2, "dense"),
        ];
        let groups = groups(runs);
        let found: Vec<_> = groups.iter().map(|group| (group.name.as_str(), group.runs.len())).collect();
        assert_eq!(found, [("dense", 2), ("top-k/seed-1", 1)]);
        let flat = ["dense-1", "dense-2", "topk-seed-1", "topk-seed-2"];
        let flat = flat.map(|name| run(&format!("/a/{name}"), name.len() as u64, &name[..1])).to_vec();
        assert_eq!(super::groups(flat).into_iter().map(|group| group.name).collect::<Vec<_>>(), ["dense", "topk"]);
    }

    /// A run of 700 steps has a point for each, one of 2 000 steps for every fourth.
    #[test]
    fn runs_of_different_lengths_are_folded_by_step() {
        let long = |steps: u64, every: u64| {
            let points = (0..steps / every).map(|at| Point {
                step: at * every + every - 1,
                bytes: at as f64,
                ..Point::default()
            });
            Run { points: points.collect(), ..run("/a/b", steps, "dense") }
        };
        let runs = vec![long(700, 1), long(2000, 4), Run::default()];
        let group = Group { name: "g".into(), runs };
        let curve = group.curve("", Axis::Steps, |point| Some(point.step as f64)).unwrap();
        assert_eq!(curve.points.len(), 700);
        assert!(curve.points.iter().all(|(x, y)| x == y));
        assert_eq!(curve.points[400], (401.5, 401.5), "steps 400 and 403");
    }

    #[test]
    fn a_mean_has_its_standard_error() {
        let folded = Folded::of([Some(1.0), None, Some(3.0), Some(f64::NAN)]).unwrap();
        assert_eq!((folded.mean, folded.error), (2.0, Some(1.0)));
        assert_eq!(folded.text(|value| format!("{value:.1}")), "2.0 ± 1.0");
        assert_eq!(Folded::of([Some(4.0)]), Some(Folded { mean: 4.0, error: None }));
        assert_eq!(Folded::of([None]), None);
    }
}
