//! Plots of results: panels in two columns, with a line for each setting.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// Name of a setting, and its value at each `x`.
pub type Curve<V> = (String, Vec<(f64, V)>);

/// One panel.
#[derive(Debug)]
pub struct Panel<'a> {
    /// Text above the panel.
    pub caption: &'a str,
    /// Axis labels: below, and at the side.
    pub axes: [&'a str; 2],
    /// Set for each logarithmic axis.
    pub log: [bool; 2],
    /// Curves.
    pub curves: Vec<Curve<f64>>,
}

const PANEL: (u32, u32) = (620, 340);

/// Draws panels to an SVG file.
///
/// # Errors
/// If it cannot be written.
pub fn draw(path: &Path, panels: &[Panel<'_>]) -> Result<()> {
    let columns = panels.len().clamp(1, 2);
    let lines = panels.len().div_ceil(columns);
    let area = SVGBackend::new(path, (PANEL.0 * columns as u32, PANEL.1 * lines as u32)).into_drawing_area();
    let failed = |error: String| anyhow!("cannot draw {}: {error}", path.display());
    area.fill(&WHITE).map_err(|error| failed(error.to_string()))?;
    for (place, panel) in area.split_evenly((lines, columns)).iter().zip(panels) {
        draw_panel(place, panel).map_err(|error| failed(error.to_string()))?;
    }
    area.present().map_err(|error| failed(error.to_string()))
}

/// Smallest value drawn on logarithmic axes; lower values are drawn here.
const LEAST: f64 = 1e-12;

fn draw_panel<'a>(
    area: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
    panel: &Panel<'_>,
) -> Result<(), Box<dyn std::error::Error + 'a>> {
    let [log_x, log_y] = panel.log;
    let at = |v: f64, log: bool| if log { v.max(LEAST).log10() } else { v };
    let curves = panel.curves.iter().map(|(name, points)| {
        let finite = points.iter().filter(|(_, y)| y.is_finite());
        (name.clone(), finite.map(|(x, y)| (at(*x, log_x), at(*y, log_y))).collect::<Vec<_>>())
    });
    let curves: Vec<_> = curves.collect();
    let range = |of: fn(&(f64, f64)) -> f64| {
        let values = curves.iter().flat_map(|(_, points)| points.iter().map(of));
        let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
        let margin = ((high - low) * 0.06).max(1e-6);
        low - margin..high + margin
    };
    let mut chart = ChartBuilder::on(area)
        .caption(panel.caption, ("sans-serif", 17))
        .margin(10)
        .x_label_area_size(34)
        .y_label_area_size(64)
        .build_cartesian_2d(range(|p| p.0), range(|p| p.1))?;
    let label = |v: &f64, log: bool| if log { short(10_f64.powf(*v)) } else { short(*v) };
    let [over, quantity] = panel.axes;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .x_labels(6)
        .y_labels(6)
        .x_label_formatter(&|v| label(v, log_x))
        .y_label_formatter(&|v| label(v, log_y))
        .x_desc(over)
        .y_desc(quantity)
        .draw()?;
    for (index, (name, points)) in curves.into_iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let legend = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(3));
        chart.draw_series(LineSeries::new(points.clone(), color.stroke_width(2)))?.label(name).legend(legend);
        chart.draw_series(points.into_iter().map(|point| Circle::new(point, 3, color.filled())))?;
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.7)).border_style(BLACK.mix(0.3)).draw()?;
    Ok(())
}

fn short(v: f64) -> String {
    match v.abs() {
        0.0 => "0".into(),
        size if !(1e-2..1e5).contains(&size) => format!("{v:.0e}"),
        size if size < 10.0 => format!("{v:.2}").trim_end_matches('0').trim_end_matches('.').into(),
        _ => format!("{v:.0}"),
    }
}
