//! The line below the progress bar.

use briquette::core::CompressionRatio;
use briquette::{RunSummary, StepReport};
use briquette_cli::terminal::{Time, bytes};
use indicatif::ProgressBar;

use crate::record::{SecondsAre, Totals};

/// Moves the bar to a step, and shows the line if the bar is shown.
pub(super) fn show(
    (bar, at): (&ProgressBar, u64),
    (report, totals): (&StepReport, &Totals),
    summary: impl FnOnce() -> RunSummary,
    are: SecondsAre,
) {
    bar.set_position(at);
    if !bar.is_hidden() {
        let steps = bar.length().unwrap_or(0).saturating_sub(at);
        bar.set_message(line(report.loss, report.exchange.ratio, totals, left(&summary(), steps, are)));
    }
}

/// Returns the loss, the latest accuracy, the ratio, what rank 0 sent in comparison with dense, the share of the exchange in the time, and the
/// [time left](left). What is unknown is left out.
fn line(loss: Option<f64>, ratio: Option<CompressionRatio>, totals: &Totals, left: Option<String>) -> String {
    let Totals { bytes_sent, bytes_dense, compute_seconds, compress_seconds, exchange_seconds, .. } = *totals;
    let seconds = compute_seconds + compress_seconds + exchange_seconds;
    let has_sent = bytes_sent > 0 && bytes_dense > 0;
    let parts = [
        loss.map(|loss| format!("loss {loss:.3}")),
        totals.score.map(|score| format!("test accuracy {:.1} %", 100.0 * score.correct)),
        ratio.filter(|_| has_sent).map(|ratio| format!("ratio {:.1}", ratio.get())),
        has_sent.then(|| format!("sent {} instead of {}", bytes(bytes_sent), bytes(bytes_dense))),
        (has_sent && seconds > 0.0)
            .then(|| format!("exchange {:.0} % of the time", 100.0 * exchange_seconds / seconds)),
        left,
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("  ")
}

/// Returns the time that this many further steps take at the mean time of the steps so far (without headers, evaluations and saves), and that of as many
/// dense steps, if it is known.
fn left(summary: &RunSummary, steps: u64, are: SecondsAre) -> Option<String> {
    let dense = summary.seconds_dense.filter(|_| summary.steps > 0 && steps > 0)?;
    let of = |seconds: f64| Time(seconds * steps as f64 / summary.steps as f64);
    let simulated = if are == SecondsAre::Simulated { " (simulated)" } else { "" };
    Some(format!("{} left instead of {} if dense{simulated}", of(summary.seconds), of(dense)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Score;

    #[test]
    fn what_is_known_is_shown() {
        assert_eq!(line(Some(2.3), Some(CompressionRatio::DENSE), &Totals::default(), None), "loss 2.300");
        let totals = Totals {
            bytes_sent: 16_600_000,
            bytes_dense: 190_000_000,
            compute_seconds: 6.0,
            compress_seconds: 1.0,
            exchange_seconds: 3.0,
            score: Some(Score { loss: 1.2, correct: 0.541, samples: 1.0 }),
            ..Totals::default()
        };
        let line = line(Some(1.25), CompressionRatio::new(20.0).ok(), &totals, Some("3m 5s left".into()));
        let expected = "loss 1.250  test accuracy 54.1 %  ratio 20.0  sent 16.6 MB instead of 190.0 MB  exchange 30 % of the time  3m 5s left";
        assert_eq!(line, expected);
    }

    /// 40 of 100 steps in 10 s, where dense would have taken 300 s.
    #[test]
    fn the_time_left_is_that_of_the_steps_so_far() {
        let mut summary = RunSummary::default();
        (summary.steps, summary.seconds) = (40, 10.0);
        assert_eq!(left(&summary, 60, SecondsAre::Measured), None);
        summary.seconds_dense = Some(300.0);
        let text = |steps, are| left(&summary, steps, are).unwrap_or_default();
        assert_eq!(text(60, SecondsAre::Measured), "15.0 s left instead of 7m 30s if dense");
        assert_eq!(text(4, SecondsAre::Simulated), "1.0 s left instead of 30.0 s if dense (simulated)");
        assert_eq!(text(0, SecondsAre::Measured), "");
    }
}
