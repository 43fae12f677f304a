//! Title of a page, and the sentence that sums it up.

use super::{percent, seconds};
use crate::report::groups::Group;

pub(super) fn title(groups: &[Group]) -> String {
    match groups {
        [one] => format!("Training run {}", one.name),
        [one, other] => format!("{} and {}", one.name, other.name),
        _ => format!("Comparison of {} configurations", groups.len()),
    }
}

/// Summarizes the runs in a sentence or two.
pub(in crate::report) fn verdict(groups: &[Group]) -> String {
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
