//! The line below the progress bar.

use briquette::core::CompressionRatio;
use briquette_cli::terminal::bytes;

use crate::record::Totals;

/// Returns the loss, the latest accuracy, the ratio, what rank 0 sent in comparison with dense, and the share of the exchange in the time. What is
/// unknown is left out.
pub(super) fn line(loss: Option<f64>, ratio: Option<CompressionRatio>, totals: &Totals) -> String {
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
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Score;

    #[test]
    fn what_is_known_is_shown() {
        assert_eq!(line(Some(2.3), Some(CompressionRatio::DENSE), &Totals::default()), "loss 2.300");
        let totals = Totals {
            bytes_sent: 16_600_000,
            bytes_dense: 190_000_000,
            compute_seconds: 6.0,
            compress_seconds: 1.0,
            exchange_seconds: 3.0,
            score: Some(Score { loss: 1.2, correct: 0.541, samples: 1.0 }),
            ..Totals::default()
        };
        let line = line(Some(1.25), CompressionRatio::new(20.0).ok(), &totals);
        let expected =
            "loss 1.250  test accuracy 54.1 %  ratio 20.0  sent 16.6 MB instead of 190.0 MB  exchange 30 % of the time";
        assert_eq!(line, expected);
    }
}
