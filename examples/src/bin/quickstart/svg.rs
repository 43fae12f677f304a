//! Line charts as SVG elements. Colors come from the page's style sheet, so that one chart serves light and dark mode;
//! `plotters` writes colors into each element.

use std::fmt::Write as _;

use crate::comparison::Curve;

const WIDTH: f64 = 680.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 40.0;

/// A chart whose axes begin at 0.
pub(crate) struct Chart<'a> {
    /// Description for readers who cannot see the chart.
    pub(crate) title: &'a str,
    /// Label of the horizontal axis.
    pub(crate) x: &'a str,
    pub(crate) curves: &'a [Curve],
    /// Set if a value holds until the next one.
    pub(crate) is_stepped: bool,
    /// Points with a note that is shown when a pointer rests on them.
    pub(crate) notes: &'a [(f64, f64, String)],
    /// Formats a value of the vertical axis.
    pub(crate) label: fn(f64) -> String,
}

impl Chart<'_> {
    /// Returns the element.
    pub(crate) fn svg(&self) -> String {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let (xs, ys) =
            (ticks(points().map(|p| p.0).fold(0.0, f64::max)), ticks(points().map(|p| p.1).fold(0.0, f64::max)));
        let (right, top) = (xs[xs.len() - 1], ys[ys.len() - 1]);
        let across = |x: f64| LEFT + (WIDTH - LEFT - RIGHT) * x / right;
        let down = |y: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - y / top);
        let mut svg =
            format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\"><title>{}</title>\n", escaped(self.title));
        // Writing to a string does not fail.
        for y in &ys {
            let (at, label) = (down(*y), escaped(&(self.label)(*y)));
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{}\"/>", WIDTH - RIGHT);
            let _ = writeln!(svg, "<text class=\"y\" x=\"{}\" y=\"{:.1}\">{label}</text>", LEFT - 6.0, at + 4.0);
        }
        for x in &xs {
            let (at, below) = (across(*x), HEIGHT - BOTTOM + 16.0);
            let _ = writeln!(svg, "<text class=\"x\" x=\"{at:.1}\" y=\"{below}\">{}</text>", number(*x));
        }
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        let _ = writeln!(svg, "<text class=\"x\" x=\"{middle}\" y=\"{}\">{}</text>", HEIGHT - 6.0, escaped(self.x));
        for curve in self.curves {
            let mut path = String::new();
            for (x, y) in curve.points.iter().map(|(x, y)| (across(*x), down(*y))) {
                let _ = match (path.is_empty(), self.is_stepped) {
                    (true, _) => write!(path, "M{x:.1} {y:.1}"),
                    (false, true) => write!(path, "H{x:.1}V{y:.1}"),
                    (false, false) => write!(path, "L{x:.1} {y:.1}"),
                };
            }
            let _ = writeln!(svg, "<path class=\"line {}\" d=\"{path}\"/>", curve.name);
        }
        for (x, y, note) in self.notes {
            let (x, y, note) = (across(*x), down(*y), escaped(note));
            let _ = writeln!(
                svg,
                "<circle class=\"note\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"><title>{note}</title></circle>"
            );
        }
        svg + "</svg>\n"
    }
}

/// Escapes text for a page.
pub(crate) fn escaped(text: &str) -> String {
    // No page may have control characters, however they are written.
    let text = text.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}");
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Formats a number without insignificant zeros.
pub(crate) fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns round numbers from 0 to the first that is not below `end`.
fn ticks(end: f64) -> Vec<f64> {
    let end = if end > 0.0 { end } else { 1.0 };
    let power = 10f64.powf((end / 5.0).log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| end / step <= 5.0);
    let step = step.unwrap_or(10.0 * power);
    (0..=(end / step).ceil() as u32).map(|n| f64::from(n) * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_the_end() {
        assert_eq!(ticks(9.1), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(1.0), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(ticks(470_000.0).last(), Some(&500_000.0));
        assert_eq!(ticks(0.0), ticks(1.0));
    }

    #[test]
    fn text_from_elsewhere_stays_text() {
        assert_eq!(escaped("<b> & \"\u{1b}\""), "&lt;b&gt; &amp; &quot;\u{fffd}&quot;");
        assert_eq!([0.0, 2.5, 10.0].map(number), ["0", "2.5", "10"]);
    }
}
