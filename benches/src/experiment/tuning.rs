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
    instead: &[String],
    run: impl Fn(f64, Option<&str>) -> Run,
    accuracy: impl Fn(&Run) -> Option<f64>,
) -> Tuning {
    let own = climb(rates, |rate| run(rate, None), &accuracy);
    let Some(rate) = own.best.as_ref().and_then(|best| best.rate) else { return own };
    let others = instead.iter().map(|flags| run(rate, Some(flags)));
    let all = compare(own.tried.into_iter().chain(others).collect(), &accuracy);
    let better = all.best.as_ref().and_then(|best| instead.iter().find(|flags| **flags == best.flags));
    let Some(flags) = better else { return all };
    let further = climb(&[rate], |rate| run(rate, Some(flags)), &accuracy);
    let more = further.tried.into_iter().filter(|run| run.rate != Some(rate));
    Tuning { tried: all.tried.into_iter().chain(more).collect(), ..further }
}

/// Searches for the best rate, adding rates until it lies between two others.
fn climb(rates: &[f64], run: impl Fn(f64) -> Run, accuracy: impl Fn(&Run) -> Option<f64>) -> Tuning {
    let mut rates = rates.to_vec();
    loop {
        rates.sort_by(f64::total_cmp);
        let tuning = compare(rates.iter().map(|rate| run(*rate)).collect(), &accuracy);
        let Some(best) = tuning.best.as_ref().and_then(|best| best.rate) else { return tuning };
        let beyond = match best {
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
    use super::super::{Experiment, tests::of};
    use super::*;
    use std::path::Path;

    fn experiment() -> Experiment {
        of("[[row]]\nname = 'a'\nflags = '--strategy local-sgd:4'\nrates = [0.2, 0.4]\ninstead = ['--other']").unwrap()
    }

    fn rate(run: &Run) -> f64 {
        run.rate.unwrap()
    }

    /// Runs the next runs until there are none.
    fn to_the_end(with_other: bool, accuracy: impl Fn(&Run) -> f64) -> Tuning {
        let experiment = experiment();
        let row = &experiment.rows[0];
        let run = |rate, instead: Option<&str>| {
            Run::new(&experiment, row, instead.unwrap_or(&row.flags), (Some(rate), 11), Path::new("o"))
        };
        let instead = if with_other { &row.instead[..] } else { &[] };
        let mut done: Vec<Run> = Vec::new();
        loop {
            let known = |run: &Run| done.iter().any(|own| own.directory == run.directory).then(|| accuracy(run));
            let tuning = search(&row.rates, instead, run, known);
            if tuning.next.is_empty() {
                return tuning;
            }
            done.extend(tuning.next);
        }
    }

    #[test]
    fn the_best_rate_lies_between_two_others() {
        for peak in [0.05, 0.1, 0.2, 0.4, 1.6] {
            let tuning = to_the_end(false, |run| -(rate(run) / peak).ln().abs());
            assert_eq!(rate(&tuning.best.unwrap()), peak);
            let rates: Vec<f64> = tuning.tried.iter().map(rate).collect();
            assert!(rates[0] < peak && rates[rates.len() - 1] > peak, "{rates:?}");
        }
    }

    #[test]
    fn other_settings_are_tried_at_the_best_rate() {
        let other = |run: &Run| f64::from(u8::from(run.flags == "--other"));
        let tuning = to_the_end(true, |run| -(rate(run) / 0.1).ln().abs() - other(run));
        let best = tuning.best.unwrap();
        assert_eq!((rate(&best), other(&best)), (0.1, 0.0));
        assert_eq!(tuning.tried.iter().filter(|run| other(run) > 0.0).map(rate).collect::<Vec<_>>(), [0.1]);
    }

    #[test]
    fn better_settings_are_searched_from_there_on() {
        // The best of its own is 0.1, of the other, which is better there, 0.8.
        let accuracy = |run: &Run| match &run.flags[..] {
            "--other" => 4.0 - (rate(run) / 0.8).ln().abs(),
            _ => -(rate(run) / 0.1).ln().abs(),
        };
        let tuning = to_the_end(true, accuracy);
        assert_eq!(tuning.best.map(|run| (rate(&run), run.flags)), Some((0.8, "--other".to_owned())));
        let tried = |flags: &str| tuning.tried.iter().filter(|run| run.flags == flags).count();
        assert_eq!((tried("--strategy local-sgd:4"), tried("--other")), (4, 6), "0.05 to 0.4; 0.05 to 1.6");
    }

    #[test]
    fn a_search_without_a_best_rate_ends() {
        let tuning = to_the_end(false, rate);
        assert!(tuning.best.is_none() && tuning.tried.len() == MOST);
    }
}
