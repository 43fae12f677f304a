//! Text charts. Every curve has a separate mark, so that the chart needs no color; `textplots` distinguishes curves by
//! color alone, and `rasciigraph` has no axis for unevenly spaced values.

use std::fmt::Write as _;

use briquette_cli::report::svg::Curve;

/// Marks of the curves, in order; at intersections, the later one is shown.
const MARKS: [char; 3] = ['•', '○', '×'];
/// Width of a label of the vertical axis.
const LABEL: usize = 7;

/// Draws the curves over a horizontal axis that begins at 0, and a legend line for each below.
pub(crate) fn draw(curves: &[Curve], unit: &str, columns: usize, rows: usize) -> String {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let end = points().map(|point| point.0).fold(0.0, f64::max);
    let (low, high) = points().fold((f64::MAX, f64::MIN), |(low, high), point| (low.min(point.1), high.max(point.1)));
    if low > high || columns < 2 || rows < 2 {
        return String::new();
    }
    let row = |y: f64| ((high - y) / (high - low).max(f64::MIN_POSITIVE) * (rows - 1) as f64).round() as usize;
    let mut cells = vec![vec![' '; columns]; rows];
    for (curve, mark) in curves.iter().zip(MARKS) {
        let value = |column| at(&curve.points, end * column as f64 / (columns - 1) as f64);
        for (column, y) in (0..columns).filter_map(|column| Some((column, value(column)?))) {
            cells[row(y)][column] = mark;
        }
    }
    let mut text = String::new();
    for (index, line) in cells.iter().enumerate() {
        let y = high - (high - low) * index as f64 / (rows - 1) as f64;
        let has_label = index.is_multiple_of(2);
        let label = if has_label { format!("{y:.2}") } else { String::new() };
        let line: String = line.iter().collect();
        let _ = writeln!(text, "{label:>LABEL$} {}{}", if has_label { '┤' } else { '│' }, line.trim_end());
    }
    let last = format!("{end:.1} {unit}");
    let _ = writeln!(text, "{:LABEL$} └{}", "", "─".repeat(columns));
    let _ = writeln!(text, "{:LABEL$}  0{last:>width$}", "", width = columns - 1);
    for (curve, mark) in curves.iter().zip(MARKS) {
        if let Some((x, y)) = curve.points.last() {
            let _ = writeln!(text, "{:LABEL$}  {mark} {}: {y:.2} after {x:.1} {unit}", "", curve.name);
        }
    }
    text
}

/// Interpolates the curve between two of its points; `None` before the first and after the last.
fn at(points: &[(f64, f64)], x: f64) -> Option<f64> {
    let next = points.iter().position(|point| point.0 >= x)?;
    let (right, left) = (points[next], next.checked_sub(1).map(|before| points[before]));
    match left {
        None => (right.0 == x).then_some(right.1),
        Some(left) => Some(left.1 + (right.1 - left.1) * (x - left.0) / (right.0 - left.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(name: &'static str, end: f64, shape: impl Fn(f64) -> f64) -> Curve {
        let points = (0..=20).map(|i| end * f64::from(i) / 20.0).map(|x| (x, shape(x))).collect();
        Curve { name: name.to_owned(), points, ..Curve::default() }
    }

    #[test]
    fn two_curves_are_drawn_character_for_character() {
        let curves = [curve("dense", 8.0, |x| 2.0 - x / 8.0), curve("auto", 4.0, |x| 2.0 - x / 4.0)];
        let drawn = draw(&curves, "s", 24, 5);
        let golden = "
   2.00 ┤○○•
        │  ○○○••••
   1.50 ┤     ○○○ ••••••
        │        ○○○    ••••••
   1.00 ┤           ○         •••
        └────────────────────────
         0                  8.0 s
         • dense: 1.00 after 8.0 s
         ○ auto: 1.00 after 4.0 s
";
        assert_eq!(format!("\n{drawn}"), golden);
    }

    #[test]
    fn what_has_no_points_has_no_picture_and_one_value_has_one_row() {
        assert_eq!(draw(&[Curve::default()], "s", 24, 5), "");
        let flat = draw(&[Curve { points: vec![(0.0, 1.5), (2.0, 1.5)], ..Curve::default() }], "s", 4, 3);
        assert_eq!(flat.lines().next(), Some("   1.50 ┤••••"));
        assert_eq!(flat.matches('•').count(), 5, "{flat}");
    }
}
