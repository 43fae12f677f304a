//! Which learning rate a row takes: rates double or halve until the best lies between two others.

use super::Run;

/// Rates that are tried at most.
const MOST: usize = 10;

/// How far the search for a row's settings has come.
#[derive(Debug)]
pub(super) struct Tuning {
    /// What has been tried.
    pub tried: Vec<Run>,
    /// What is to be tried next; nothing where the search is at its end.
    pub next: Vec<Run>,
    /// The most accurate of what has been tried.
    pub so_far: Option<Run>,
    /// The same, at the end.
    pub best: Option<Run>,
}

/// Begins at some rates and goes on beyond the lowest or the highest while that is the best. `instead` are other settings, which are then tried at the best rate.
pub(super) fn search(
    rates: &[f64],
    instead: &[&'static str],
    run: impl Fn(f64, Option<&'static str>) -> Run,
    accuracy: impl Fn(&Run) -> Option<f64>,
) -> Tuning {
    let mut rates = rates.to_vec();
    let best = loop {
        rates.sort_by(f64::total_cmp);
        let tried = rates.iter().map(|rate| run(*rate, None)).collect();
        let tuning = compare(tried, &accuracy);
        let Some(best) = &tuning.best else { return tuning };
        let beyond = match best.rate {
            rate if rate == rates[0] => rate / 2.0,
            rate if rate == rates[rates.len() - 1] => rate * 2.0,
            _ => break tuning,
        };
        if rates.len() == MOST {
            return Tuning { best: None, ..tuning };
        }
        rates.push(beyond);
    };
    let rate = best.best.as_ref().map_or(f64::NAN, |best| best.rate);
    let others = instead.iter().map(|flags| run(rate, Some(flags)));
    compare(best.tried.into_iter().chain(others).collect(), &accuracy)
}

/// The best, where all of them were run; of equals the first.
fn compare(runs: Vec<Run>, accuracy: impl Fn(&Run) -> Option<f64>) -> Tuning {
    let (mut tried, mut next, mut best) = (Vec::new(), Vec::new(), None::<(f64, Run)>);
    for run in runs {
        match accuracy(&run) {
            None => next.push(run),
            Some(own) => {
                if best.as_ref().is_none_or(|(so_far, _)| own > *so_far) {
                    best = Some((own, run.clone()));
                }
                tried.push(run);
            }
        }
    }
    let so_far = best.map(|(_, run)| run);
    let best = so_far.clone().filter(|_| next.is_empty());
    Tuning { tried, next, so_far, best }
}

#[cfg(test)]
mod tests {
    use super::super::{Row, Task};
    use super::*;
    use std::path::Path;

    const ROW: Row = Row { name: "a", flags: "--strategy local-sgd:4", rates: &[0.2, 0.4], instead: &["--other"] };

    fn run(rate: f64, instead: Option<&'static str>) -> Run {
        Run::new(Task::ResNet8, ROW, instead.unwrap_or(ROW.flags), (rate, 11), Path::new("o"))
    }

    /// Runs what is to be run next until nothing is.
    fn to_the_end(instead: &[&'static str], accuracy: impl Fn(&Run) -> f64) -> Tuning {
        let mut done: Vec<Run> = Vec::new();
        loop {
            let known = |run: &Run| done.iter().any(|own| own.directory == run.directory).then(|| accuracy(run));
            let tuning = search(ROW.rates, instead, run, known);
            if tuning.next.is_empty() {
                return tuning;
            }
            done.extend(tuning.next);
        }
    }

    #[test]
    fn the_best_rate_lies_between_two_others() {
        for peak in [0.05, 0.1, 0.2, 0.4, 1.6] {
            let tuning = to_the_end(&[], |run| -(run.rate / peak).ln().abs());
            assert_eq!(tuning.best.unwrap().rate, peak);
            let rates: Vec<f64> = tuning.tried.iter().map(|run| run.rate).collect();
            assert!(rates[0] < peak && rates[rates.len() - 1] > peak, "{rates:?}");
        }
    }

    #[test]
    fn other_settings_are_tried_at_the_best_rate() {
        let other = |run: &Run| f64::from(u8::from(run.flags == "--other"));
        for worth in [1.0, -1.0] {
            let tuning = to_the_end(ROW.instead, |run| -(run.rate / 0.1).ln().abs() + worth * other(run));
            let best = tuning.best.unwrap();
            assert_eq!((best.rate, other(&best)), (0.1, if worth > 0.0 { 1.0 } else { 0.0 }));
        }
    }

    #[test]
    fn a_search_without_a_best_rate_ends() {
        let tuning = to_the_end(&[], |run| run.rate);
        assert!(tuning.best.is_none() && tuning.tried.len() == MOST);
    }
}
