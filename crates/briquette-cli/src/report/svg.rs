//! Charts as SVG elements. Colors come from a style sheet, so that one chart serves light and dark mode;
//! `plotters` writes colors into each element.

use std::fmt::Write as _;

const WIDTH: f64 = 680.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 40.0;

/// Values over a horizontal axis.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Curve {
    /// Name for people.
    pub name: String,
    /// Class in the style sheet, which has its color.
    pub class: String,
    /// Points in the order of their first number.
    pub points: Vec<(f64, f64)>,
    /// Standard error of each point, or nothing.
    pub errors: Vec<f64>,
}

/// A line chart. The horizontal axis begins at 0.
#[derive(Debug)]
pub struct Chart<'a> {
    /// Description for readers who cannot see the chart.
    pub title: &'a str,
    /// Label of the horizontal axis.
    pub x: &'a str,
    /// The lines. Points that are not finite leave a gap.
    pub curves: &'a [Curve],
    /// Set if a value holds until the next one.
    pub is_stepped: bool,
    /// Points with a note that is shown when a pointer rests on them.
    pub notes: &'a [(f64, f64, String)],
    /// Formats a value of the vertical axis.
    pub label: fn(f64) -> String,
    /// Formats a value of the horizontal axis.
    pub x_label: fn(f64) -> String,
    /// Set if the vertical axis begins at 0. If not, it begins below the lowest value.
    pub is_from_zero: bool,
}

impl Default for Chart<'_> {
    /// Returns an empty chart of plain numbers.
    fn default() -> Self {
        let (title, x, curves, notes): (_, _, &[Curve], &[_]) = ("", "", &[], &[]);
        Chart { title, x, curves, is_stepped: false, notes, label: number, x_label: number, is_from_zero: false }
    }
}

impl Chart<'_> {
    /// Returns the element.
    pub fn svg(&self) -> String {
        let points = || self.curves.iter().flat_map(|curve| &curve.points).filter(|(x, y)| (x + y).is_finite());
        let least = if self.is_from_zero { 0.0 } else { points().map(|p| p.1).fold(f64::INFINITY, f64::min) };
        let least = if least.is_finite() { least } else { 0.0 };
        let (xs, ys) = (
            ticks(0.0, points().map(|p| p.0).fold(0.0, f64::max)),
            ticks(least, points().map(|p| p.1).fold(least, f64::max)),
        );
        let ([right, top], bottom) = ([&xs, &ys].map(|ticks| ticks[ticks.len() - 1]), ys[0]);
        let across = |x: f64| LEFT + (WIDTH - LEFT - RIGHT) * x / right;
        let down = |y: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - (y - bottom) / (top - bottom)).clamp(0.0, 1.0);
        let mut svg = open(WIDTH, HEIGHT, self.title);
        // Writing to a string does not fail.
        for y in &ys {
            let (at, label) = (down(*y), escaped(&(self.label)(*y)));
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{}\"/>", WIDTH - RIGHT);
            let _ = writeln!(svg, "<text class=\"y\" x=\"{}\" y=\"{:.1}\">{label}</text>", LEFT - 6.0, at + 4.0);
        }
        for x in &xs {
            let (at, below, label) = (across(*x), HEIGHT - BOTTOM + 16.0, escaped(&(self.x_label)(*x)));
            let _ = writeln!(svg, "<text class=\"x\" x=\"{at:.1}\" y=\"{below}\">{label}</text>");
        }
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        let _ = writeln!(svg, "<text class=\"x\" x=\"{middle}\" y=\"{}\">{}</text>", HEIGHT - 6.0, escaped(self.x));
        for curve in self.curves {
            if curve.errors.iter().any(|error| *error > 0.0) {
                let ends = |sign: f64| {
                    let end = move |((x, y), error): (&(f64, f64), &f64)| (*x, y + sign * error);
                    curve.points.iter().zip(&curve.errors).map(end).filter(|(x, y)| (x + y).is_finite())
                };
                let outline: Vec<_> = ends(1.0).chain(ends(-1.0).collect::<Vec<_>>().into_iter().rev()).collect();
                let _ = writeln!(
                    svg,
                    "<path class=\"band {}\" d=\"{}Z\"/>",
                    curve.class,
                    path(&outline, false, &across, &down)
                );
            }
            let line = path(&curve.points, self.is_stepped, &across, &down);
            let _ = writeln!(svg, "<path class=\"line {}\" d=\"{line}\"/>", curve.class);
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

fn open(width: f64, height: f64, title: &str) -> String {
    let title = escaped(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\"><title>{title}</title>\n"
    )
}

fn path(points: &[(f64, f64)], is_stepped: bool, across: &impl Fn(f64) -> f64, down: &impl Fn(f64) -> f64) -> String {
    let (mut path, mut begins) = (String::new(), true);
    for (x, y) in points {
        if !(x + y).is_finite() {
            begins = true;
            continue;
        }
        let (x, y) = (across(*x), down(*y));
        let _ = match (std::mem::take(&mut begins), is_stepped) {
            (true, _) => write!(path, "M{x:.1} {y:.1}"),
            (false, true) => write!(path, "H{x:.1}V{y:.1}"),
            (false, false) => write!(path, "L{x:.1} {y:.1}"),
        };
    }
    path
}

/// Parts of a whole for each of several names, as horizontal bars on one scale. Part `i` has the class `part-i`.
#[derive(Debug)]
pub struct Bars<'a> {
    /// Description for readers who cannot see the chart.
    pub title: &'a str,
    /// A name, and its parts.
    pub rows: &'a [(String, Vec<f64>)],
    /// Formats a value.
    pub label: fn(f64) -> String,
}

impl Bars<'_> {
    /// Returns the element.
    pub fn svg(&self) -> String {
        const ROW: f64 = 34.0;
        let total = |parts: &[f64]| parts.iter().sum::<f64>();
        let most = self.rows.iter().map(|row| total(&row.1)).fold(f64::MIN_POSITIVE, f64::max);
        let mut svg = open(WIDTH, ROW * self.rows.len() as f64 + 6.0, self.title);
        for (row, (name, parts)) in self.rows.iter().enumerate() {
            let top = ROW * row as f64;
            let _ = writeln!(svg, "<text x=\"0\" y=\"{:.1}\">{}</text>", top + 11.0, escaped(name));
            let end = (self.label)(total(parts));
            let _ = writeln!(svg, "<text class=\"y\" x=\"{WIDTH}\" y=\"{:.1}\">{}</text>", top + 11.0, escaped(&end));
            let mut from = 0.0;
            for (index, part) in parts.iter().enumerate().filter(|(_, part)| **part > 0.0) {
                let width = WIDTH * part / most;
                let _ = writeln!(
                    svg,
                    "<rect class=\"part-{index}\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"14\"><title>{}</title></rect>",
                    top + 15.0,
                    escaped(&(self.label)(*part))
                );
                from += width;
            }
        }
        svg + "</svg>\n"
    }
}

/// Values of rows over columns, as the opacity of cells.
#[derive(Debug)]
pub struct HeatMap<'a> {
    /// Description for readers who cannot see the chart.
    pub title: &'a str,
    /// Label of the columns.
    pub x: &'a str,
    /// Names of the columns, from left to right.
    pub columns: &'a [String],
    /// A name, and a value for each column that has one.
    pub rows: &'a [(String, Vec<Option<f64>>)],
    /// Formats a value.
    pub label: fn(f64) -> String,
    /// Set if opacity grows with the logarithm of a value. Values below 1 then count as 1.
    pub is_logarithmic: bool,
}

impl HeatMap<'_> {
    /// Returns the element.
    pub fn svg(&self) -> String {
        const ROW: f64 = 16.0;
        const NAMES: f64 = 190.0;
        let values = || self.rows.iter().flat_map(|row| &row.1).flatten().copied().filter(|value| value.is_finite());
        let (low, high) = values().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        let scaled = |value: f64| if self.is_logarithmic { value.max(1.0).ln() } else { value };
        let (from, to) = (scaled(low), scaled(high));
        let height = ROW * self.rows.len() as f64;
        let mut svg = open(WIDTH, height + 36.0, self.title);
        let width = (WIDTH - NAMES) / self.columns.len().max(1) as f64;
        for (row, (name, cells)) in self.rows.iter().enumerate() {
            let top = ROW * row as f64;
            let text = format!(
                "<text class=\"y name\" x=\"{}\" y=\"{:.1}\">{}</text>",
                NAMES - 6.0,
                top + 12.0,
                escaped(&short(name))
            );
            let _ = writeln!(svg, "{text}");
            for (column, value) in cells.iter().enumerate().filter_map(|(column, value)| Some((column, (*value)?))) {
                let share = if to > from { (scaled(value) - from) / (to - from) } else { 1.0 };
                let share = if value.is_finite() { 0.08 + 0.92 * share } else { 0.0 };
                let at = NAMES + width * column as f64;
                let note = format!("{name}, {} {}: {}", self.x, self.columns[column], (self.label)(value));
                let _ = writeln!(
                    svg,
                    "<rect class=\"cell\" x=\"{at:.2}\" y=\"{top}\" width=\"{:.2}\" height=\"{}\" fill-opacity=\"{share:.2}\"><title>{}</title></rect>",
                    (width - 0.5).max(width / 2.0),
                    ROW - 1.0,
                    escaped(&note)
                );
            }
        }
        let every = self.columns.len().div_ceil(8).max(1);
        for (column, name) in self.columns.iter().enumerate().step_by(every) {
            let at = NAMES + width * (column as f64 + 0.5);
            let _ =
                writeln!(svg, "<text class=\"x\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>", height + 13.0, escaped(name));
        }
        let range = if low <= high {
            format!("{}, from {} (pale) to {}", self.x, (self.label)(low), (self.label)(high))
        } else {
            self.x.into()
        };
        let _ = writeln!(
            svg,
            "<text class=\"x\" x=\"{}\" y=\"{:.1}\">{}</text>",
            (NAMES + WIDTH) / 2.0,
            height + 30.0,
            escaped(&range)
        );
        svg + "</svg>\n"
    }
}

/// Shortens a path to its end.
fn short(name: &str) -> String {
    const MOST: usize = 30;
    let count = name.chars().count();
    if count <= MOST {
        name.to_owned()
    } else {
        format!("…{}", name.chars().skip(count - MOST + 1).collect::<String>())
    }
}

/// Escapes text for a page.
pub fn escaped(text: &str) -> String {
    // No page may have control characters, however they are written.
    let is_bad = |c: char| c.is_control() && c != '\n' || matches!(c, '\u{fffe}' | '\u{ffff}');
    let text = text.replace(is_bad, "\u{fffd}");
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Formats a number without insignificant zeros.
pub fn number(value: f64) -> String {
    let small = value != 0.0 && value.abs() < 0.1;
    if value.abs() < 0.0001 && small {
        return format!("{value:.1e}");
    }
    let text = if small { format!("{value:.4}") } else { format!("{value:.2}") };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns round numbers from the last that is not above `from` to the first that is not below `to`.
fn ticks(from: f64, to: f64) -> Vec<f64> {
    // Finer than numbers are, an axis has no ticks.
    let (from, to) =
        if to - from > 1e-12 * from.abs().max(to.abs()) { (from, to) } else { (from.min(0.0), from.max(0.0) + 1.0) };
    let power = 10f64.powf(((to - from) / 5.0).log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| (to - from) / step <= 5.0);
    let step = step.unwrap_or(10.0 * power);
    // A round number that rounding has moved is not passed by.
    let (first, last) = ((from / step + 1e-9).floor() as i64, (to / step - 1e-9).ceil() as i64);
    (first..=last).map(|n| n as f64 * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_both_ends() {
        assert_eq!(ticks(0.0, 9.1), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(0.0, 1.0), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(ticks(0.0, 470_000.0).last(), Some(&500_000.0));
        assert_eq!(ticks(0.0, 0.0), ticks(0.0, 1.0));
        assert_eq!(ticks(1.3, 2.4), [1.25, 1.5, 1.75, 2.0, 2.25, 2.5]);
        assert_eq!(ticks(3.0, 3.0), [0.0, 1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn text_from_elsewhere_stays_text() {
        assert_eq!(escaped("<b> & \"\u{1b}\""), "&lt;b&gt; &amp; &quot;\u{fffd}&quot;");
        assert_eq!([0.0, 2.5, 10.0, 0.005, 0.00002].map(number), ["0", "2.5", "10", "0.005", "2.0e-5"]);
        assert_eq!(short("a.very.long.path.of.a.parameter.weight"), "…ng.path.of.a.parameter.weight");
    }

    #[test]
    fn a_value_that_is_no_number_is_a_gap() {
        let points = vec![(0.0, 1.0), (1.0, f64::NAN), (2.0, 1.0), (3.0, 2.0)];
        let curves = [Curve { points, errors: vec![0.5; 4], ..Curve::default() }];
        let chart = Chart { title: "gap", x: "step", curves: &curves, ..Chart::default() };
        let svg = chart.svg();
        assert!(!svg.contains("NaN"), "{svg}");
        let line = svg.lines().find(|line| line.contains("\"line")).unwrap();
        assert_eq!((line.matches('M').count(), line.matches('L').count()), (2, 1), "{line}");
    }
}
