//! Learning-rate search of a row: rates are doubled or halved until the best lies between two others.

use super::Run;

/// Maximum number of rates to try.
const MOST: usize = 10;

/// State of the search for a row's settings.
#[derive(Debug)]
pub(super) struct Tuning {
    /// Runs tried so far.
    pub tried: Vec<Run>,
    /// Runs to try next; empty if the search is complete.
    pub next: Vec<Run>,
    /// Most accurate run so far.
    pub so_far: Option<Run>,
    /// Most accurate run of a complete search.
    pub best: Option<Run>,
}

/// Starts with some rates and extends beyond the lowest or the highest while that is the best. `instead` are
/// alternative settings, which are then tried at the best rate of the original ones; if an alternative is better, its
/// own rate is searched from there on.
pub(super) fn search(
    rates: &[f64],
    instead: &[&'static str],
    run: impl Fn(f64, Option<&'static str>) -> Run,
    accuracy: impl Fn(&Run) -> Option<f64>,
) -> Tuning {
    let own = climb(rates, |rate| run(rate, None), &accuracy);
    let Some(best) = &own.best else { return own };
    let rate = best.rate;
    let others = instead.iter().map(|flags| run(rate, Some(flags)));
    let all = compare(own.tried.into_iter().chain(others).collect(), &accuracy);
    let better = all.best.as_ref().and_then(|best| instead.iter().find(|flags| **flags == best.flags));
    let Some(flags) = better else { return all };
    let further = climb(&[rate], |rate| run(rate, Some(flags)), &accuracy);
    let more = further.tried.into_iter().filter(|run| run.rate != rate);
    Tuning { tried: all.tried.into_iter().chain(more).collect(), ..further }
}

/// Searches for the best rate, adding rates until it lies between two others.
fn climb(rates: &[f64], run: impl Fn(f64) -> Run, accuracy: impl Fn(&Run) -> Option<f64>) -> Tuning {
    let mut rates = rates.to_vec();
    loop {
        rates.sort_by(f64::total_cmp);
        let tuning = compare(rates.iter().map(|rate| run(*rate)).collect(), &accuracy);
        let Some(best) = &tuning.best else { return tuning };
        let beyond = match best.rate {
            rate if rate == rates[0] => rate / 2.0,
            rate if rate == rates[rates.len() - 1] => rate * 2.0,
            _ => return tuning,
        };
        if rates.len() == MOST {
            return Tuning { best: None, ..tuning };
        }
        rates.push(beyond);
    }
}

/// Returns the best, if all of them were run; the first of equals.
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

    /// Runs the next runs until there are none.
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
        let tuning = to_the_end(ROW.instead, |run| -(run.rate / 0.1).ln().abs() - other(run));
        let best = tuning.best.unwrap();
        assert_eq!((best.rate, other(&best)), (0.1, 0.0));
        assert_eq!(tuning.tried.iter().filter(|run| other(run) > 0.0).map(|run| run.rate).collect::<Vec<_>>(), [0.1]);
    }

    #[test]
    fn better_settings_are_searched_from_there_on() {
        // The best of its own is 0.1, of the other, which is better there, 0.8.
        let accuracy = |run: &Run| match run.flags {
            "--other" => 4.0 - (run.rate / 0.8).ln().abs(),
            _ => -(run.rate / 0.1).ln().abs(),
        };
        let tuning = to_the_end(ROW.instead, accuracy);
        assert_eq!(tuning.best.map(|run| (run.rate, run.flags)), Some((0.8, "--other")));
        let tried = |flags: &str| tuning.tried.iter().filter(|run| run.flags == flags).count();
        assert_eq!((tried(ROW.flags), tried("--other")), (4, 6), "0.05 to 0.4; 0.05 to 1.6");
    }

    #[test]
    fn a_search_without_a_best_rate_ends() {
        let tuning = to_the_end(&[], |run| run.rate);
        assert!(tuning.best.is_none() && tuning.tried.len() == MOST);
    }
}
