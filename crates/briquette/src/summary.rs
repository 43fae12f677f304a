//! Summary of a run in one line: formats sent, bytes, and the time saved.

use std::collections::BTreeMap;
use std::fmt;

use briquette_core::Traffic;

use crate::step_report::StepReport;

/// Summary of the formats, bytes and seconds of a rank's steps, and of the time saved. It displays as one line:
///
/// ```text
/// auto: dense 12 % of 390 steps, int8 ring 3 %, 10x 85 %; 8.4x fewer bytes than dense; about 41 of 103 s saved; momentum correction (SGD, momentum 0.9)
/// ```
///
/// Steps are counted since joining or resuming. Seconds, on the session's clock, are the slowest rank's compute time plus this
/// rank's compression and exchange. They exclude the step header, in which ranks wait for the slowest one, and the time outside
/// of steps. The time of dense steps is predicted by the controller if it has a cost model. Otherwise it is estimated from the
/// dense steps of this run.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct RunSummary {
    /// Name of the controller, or of the compression if there is no controller.
    pub label: String,
    /// The number of steps.
    pub steps: u64,
    /// The formats sent and the number of steps of each, from the smallest ratio to the largest.
    pub sent_as: Vec<(String, u64)>,
    /// Bytes that this rank sent in steps, headers included.
    pub bytes_sent: u64,
    /// Bytes that dense all-reduces would have sent in the same steps.
    pub bytes_dense: u64,
    /// Seconds of all steps: the slowest rank's compute time, plus this rank's compression and exchange.
    pub seconds: f64,
    /// The part of these seconds in compression and exchange, without what overlapped with computing.
    pub overhead_seconds: f64,
    /// Seconds that dense steps would have taken, if known.
    pub seconds_dense: Option<f64>,
    /// The feedback that was chosen for the optimizer, with the reason, if the configuration left it open.
    pub feedback: Option<String>,
}

/// Name of steps that send nothing.
const NOTHING: &str = "nothing";

/// Accumulates a [`RunSummary`].
#[derive(Debug, Default)]
pub(crate) struct Tally {
    steps: u64,
    /// Counts by ratio, in thousandths, and name.
    sent_as: BTreeMap<(u64, String), u64>,
    bytes_sent: u64,
    bytes_dense: u64,
    compute: f64,
    overhead: f64,
    /// Dense compression and exchange: sum of the predicted seconds, and the number of predictions.
    predicted: (f64, u64),
    /// Dense compression and exchange: sum of the measured seconds, and the number of measurements.
    measured: (f64, u64),
}

/// Maximum number of formats in the text; the others are combined.
const SHOWN: usize = 6;

impl Tally {
    /// Adds a completed step.
    pub(crate) fn add(&mut self, report: &StepReport) {
        let exchange = &report.exchange;
        let seconds = exchange.seconds.unwrap_or_default();
        let cost = seconds.compress + seconds.exchange;
        let ratio = exchange.ratio.map(|ratio| ratio.get());
        let name = match (ratio, exchange.carrier) {
            (_, Some(carrier)) => carrier.to_owned(),
            (Some(1.0), None) => "dense".to_owned(),
            (Some(ratio), None) => times(ratio),
            (None, None) if report.traffic.sent == 0 => NOTHING.to_owned(),
            (None, None) => "uncompressed".to_owned(),
        };
        *self.sent_as.entry(((ratio.unwrap_or(0.0) * 1e3) as u64, name)).or_default() += 1;
        self.steps += 1;
        self.bytes_sent += report.traffic.sent;
        self.bytes_dense += report.dense_traffic.sent;
        self.compute += report.compute_seconds;
        self.overhead += cost - seconds.overlapped;
        let count = |(sum, count): &mut (f64, u64), seconds: f64| (*sum, *count) = (*sum + seconds, *count + 1);
        if let Some(seconds) = exchange.dense_seconds.filter(|seconds| seconds.is_finite()) {
            count(&mut self.predicted, seconds);
        }
        if ratio == Some(1.0) {
            count(&mut self.measured, cost);
        }
    }

    /// Adds costs of a step that arose after its report.
    pub(crate) fn add_late(&mut self, traffic: Traffic, seconds: f64) {
        self.bytes_sent += traffic.sent;
        self.overhead += seconds;
    }

    pub(crate) fn summary(&self, label: String, feedback: Option<String>) -> RunSummary {
        let mut sent_as: Vec<(String, u64)> = Vec::new();
        for ((_, name), count) in &self.sent_as {
            match sent_as.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => *sum += count,
                None => sent_as.push((name.clone(), *count)),
            }
        }
        let seconds = self.compute + self.overhead;
        let mean = |(sum, count): (f64, u64)| (count > 0).then(|| sum / count as f64);
        let dense = mean(self.predicted).or(mean(self.measured)).filter(|_| seconds > 0.0);
        RunSummary {
            label,
            steps: self.steps,
            sent_as,
            bytes_sent: self.bytes_sent,
            bytes_dense: self.bytes_dense,
            seconds,
            overhead_seconds: self.overhead,
            seconds_dense: dense.map(|dense| self.compute + dense * self.steps as f64),
            feedback,
        }
    }
}

/// Formats a ratio with two or three digits.
fn times(ratio: f64) -> String {
    if ratio < 9.95 && (ratio - ratio.round()).abs() >= 0.05 { format!("{ratio:.1}x") } else { format!("{ratio:.0}x") }
}

impl RunSummary {
    /// Returns advice if every step exchanged and exchanges took more than half of the time: to compress, or, where messages are compressed or `auto`
    /// has found that this is no faster, to exchange after several local steps. `None` otherwise, and without a clock.
    pub fn advice(&self) -> Option<String> {
        let has_local_steps = self.sent_as.iter().any(|(name, _)| name == NOTHING);
        let is_slow = 2.0 * self.overhead_seconds > self.seconds;
        if has_local_steps || !is_slow || self.bytes_dense == 0 {
            return None;
        }
        let instead = match 2 * self.bytes_sent > self.bytes_dense && self.label != "auto" {
            true => "compress them with auto, the default",
            false => {
                "exchange after several local steps: under Adam the strategy diloco:adapt=true, or sparse-loco, with its own learning rate"
            }
        };
        let share = 100.0 * self.overhead_seconds / self.seconds;
        Some(format!("exchanges took {share:.0} % of the time; to save more, {instead}"))
    }

    fn shares(&self) -> String {
        let mut counts: Vec<u64> = self.sent_as.iter().map(|(_, count)| *count).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let least = counts.get(SHOWN - 1).copied().unwrap_or_default();
        let mut room = SHOWN;
        let (shown, others): (Vec<_>, Vec<_>) = self.sent_as.iter().partition(|(_, count)| {
            let fits = *count >= least && room > 0;
            room -= usize::from(fits);
            fits
        });
        let others = others.iter().map(|(_, count)| count).sum::<u64>();
        let all = shown.into_iter().map(|(name, count)| (name.as_str(), *count));
        let all = all.chain(Some(("others", others)).filter(|(_, count)| *count > 0));
        let share = |(index, (name, count)): (usize, (&str, u64))| {
            let of = if index == 0 { format!(" of {} steps", self.steps) } else { String::new() };
            format!("{name} {}{of}", percent(count, self.steps))
        };
        all.enumerate().map(share).collect::<Vec<_>>().join(", ")
    }

    fn bytes(&self) -> String {
        let (sent, dense) = (self.bytes_sent as f64, self.bytes_dense as f64);
        match (self.bytes_sent, self.bytes_dense) {
            (_, 0) => "a world of one sends nothing".to_owned(),
            (0, _) => "nothing sent".to_owned(),
            _ if (dense / sent - 1.0).abs() < 0.05 => "as many bytes as dense".to_owned(),
            _ if sent < dense => format!("{} fewer bytes than dense", times(dense / sent)),
            _ => format!("{} more bytes than dense", times(sent / dense)),
        }
    }

    fn time(&self) -> String {
        match self.seconds_dense {
            _ if self.seconds == 0.0 => "time saved unknown: the session has no clock".to_owned(),
            None => "time saved unknown: no dense step was sent or predicted".to_owned(),
            Some(dense) if dense >= self.seconds => {
                format!("about {} of {} s saved", digits(dense - self.seconds), digits(dense))
            }
            Some(dense) => {
                format!("about {} s more than the {} s of dense", digits(self.seconds - dense), digits(dense))
            }
        }
    }
}

fn percent(count: u64, of: u64) -> String {
    let share = 100.0 * count as f64 / of as f64;
    if share < 1.0 { "under 1 %".to_owned() } else { format!("{share:.0} %") }
}

/// Formats seconds with at least two digits, if there are any.
fn digits(seconds: f64) -> String {
    match seconds {
        ..0.1 => format!("{seconds:.2}"),
        ..10.0 => format!("{seconds:.1}"),
        _ => format!("{seconds:.0}"),
    }
}

impl fmt::Display for RunSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.steps == 0 {
            return write!(f, "{}: no step yet", self.label);
        }
        write!(f, "{}: {}; {}; {}", self.label, self.shares(), self.bytes(), self.time())?;
        self.feedback.iter().try_for_each(|feedback| write!(f, "; {feedback}"))
    }
}

#[cfg(test)]
mod tests {
    use briquette_core::report::{ExchangeSeconds, Report};
    use briquette_core::{CompressionRatio, Traffic};

    use super::*;

    /// A step with 100 ms of compute time and 1000 dense bytes.
    fn step(ratio: f64, sent: u64, seconds: f64) -> StepReport {
        let mut exchange = Report::default();
        exchange.ratio = CompressionRatio::new(ratio).ok();
        exchange.seconds.insert(ExchangeSeconds::default()).exchange = seconds;
        StepReport {
            exchange,
            traffic: Traffic { sent, received: sent },
            dense_traffic: Traffic { sent: 1000, received: 1000 },
            compute_seconds: 0.1,
            ..StepReport::default()
        }
    }

    fn line(steps: impl IntoIterator<Item = StepReport>, feedback: Option<&str>) -> String {
        let mut tally = Tally::default();
        steps.into_iter().for_each(|step| tally.add(&step));
        tally.summary("auto".into(), feedback.map(str::to_owned)).to_string()
    }

    /// 10 dense steps of 1.1 s, 85 at 10x of 0.2 s, 5 with an int8 ring of 0.4 s: 30 s. Dense steps would have taken 110 s. Sent
    /// are 10·1000 + 85·100 + 5·250 = 19 750 bytes of 100 000.
    #[test]
    fn shares_bytes_and_seconds_by_hand() {
        let dense = std::iter::repeat_n(step(1.0, 1000, 1.0), 10);
        let sparse = std::iter::repeat_n(step(10.0, 100, 0.1), 85);
        let mut ring = step(4.0, 250, 0.3);
        ring.exchange.carrier = Some("int8 ring");
        let steps = dense.chain(sparse).chain(std::iter::repeat_n(ring, 5));
        let expected = "auto: dense 10 % of 100 steps, int8 ring 5 %, 10x 85 %; 5.1x fewer bytes than dense; about 80 of \
                        110 s saved; error feedback (SGD without momentum)";
        assert_eq!(line(steps, Some("error feedback (SGD without momentum)")), expected);
    }

    /// Ten steps with 100 ms of compute time and a dense exchange of 80 ms, of which 70 ms are overlapped: 1.1 s instead of 1.8
    /// s.
    #[test]
    fn what_is_hidden_behind_computing_is_saved() {
        let mut hidden = step(1.0, 1000, 0.08);
        hidden.exchange.seconds.as_mut().unwrap().overlapped = 0.07;
        let text = line(std::iter::repeat_n(hidden, 10), None);
        assert!(text.contains("about 0.7 of 1.8 s saved"), "{text}");
    }

    #[test]
    fn what_the_controller_predicts_of_dense_counts_more_than_what_was_measured_before() {
        let mut predicted = step(10.0, 100, 0.1);
        predicted.exchange.dense_seconds = Some(0.4);
        // One dense step of 1.1 s, three of 0.2 s; dense four times 0.5 s.
        let steps = [step(1.0, 1000, 1.0), predicted.clone(), predicted.clone(), predicted];
        let text = line(steps, None);
        assert!(text.contains("about 0.3 of 2.0 s saved"), "{text}");
    }

    #[test]
    fn what_is_not_known_is_said_to_be_unknown() {
        let constant = line([step(10.0, 100, 0.1)], None);
        assert!(constant.contains("10x 100 % of 1 steps; 10x fewer"), "{constant}");
        assert!(constant.ends_with("time saved unknown: no dense step was sent or predicted"), "{constant}");
        let no_clock = StepReport { compute_seconds: 0.0, ..step(1.0, 1000, 0.0) };
        let text = line([no_clock], None);
        assert!(text.contains("as many bytes as dense") && text.ends_with("the session has no clock"), "{text}");
        let slower = line([step(1.0, 1000, 1.0), step(10.0, 1500, 3.0)], None);
        assert!(slower.contains("1.2x more bytes") && slower.contains("about 2.0 s more than the 2.2 s"), "{slower}");
        let alone = StepReport { dense_traffic: Traffic::default(), ..step(1.0, 0, 0.0) };
        assert!(line([alone], None).contains("a world of one sends nothing"));
        assert_eq!(line([], None), "auto: no step yet");
    }

    /// Steps with 100 ms of compute time, and with exchanges of 90 and 300 ms.
    #[test]
    fn slow_exchanges_are_advised_on() {
        let advice_on = |label: &str, steps: &[StepReport]| {
            let mut tally = Tally::default();
            steps.iter().for_each(|step| tally.add(step));
            tally.summary(label.into(), None).advice()
        };
        let advice = |steps: &[StepReport]| advice_on("auto", steps);
        assert_eq!(advice(&[step(10.0, 100, 0.09)]), None);
        let sparse = advice(&[step(10.0, 100, 0.3)]).unwrap();
        assert!(sparse.starts_with("exchanges took 75 % of the time") && sparse.contains("sparse-loco"), "{sparse}");
        let dense = [step(1.0, 1000, 0.3)];
        assert!(advice_on("dense", &dense).unwrap().ends_with("compress them with auto, the default"));
        assert!(advice(&dense).unwrap().contains("sparse-loco"), "auto is in use");
        let mut local = step(1.0, 0, 0.0);
        local.exchange.ratio = None;
        assert_eq!(advice(&[step(1.0, 1000, 0.9), local]), None, "one step in two exchanges");
        let alone = StepReport { dense_traffic: Traffic::default(), ..step(1.0, 0, 0.3) };
        assert_eq!(advice(&[alone]), None);
        assert_eq!(advice(&[]), None);
    }

    #[test]
    fn of_many_ratios_the_rare_ones_are_put_together() {
        let steps =
            (0..100).flat_map(|i| std::iter::repeat_n(step(f64::from(i + 2), 10, 0.1), if i < 5 { 180 } else { 1 }));
        let text = line(steps, None);
        assert!(text.contains("2x 18 % of 995 steps") && text.contains("others 9 %"), "{text}");
        assert_eq!(text.matches('%').count(), 7, "{text}");
    }
}
