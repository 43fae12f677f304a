//! Elements of a self-contained page: HTML that is also XML, with embedded style and charts, without scripts.

use std::fmt::Display;

use super::svg::{Curve, escaped};

/// Style of pages and charts.
pub const STYLE: &str = include_str!("style.css");

/// Returns a page. `title` is text, `body` consists of elements.
pub fn page(title: &str, body: &str) -> String {
    let title = escaped(title);
    format!(
        "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{title}</title>\n<style>\n{STYLE}</style>\n\
         </head>\n<body>\n{body}</body>\n</html>\n"
    )
}

/// Returns a chart as a file of its own.
pub fn chart_file(svg: &str) -> String {
    let style = format!("<style>\n{STYLE}</style>\n");
    let place = svg.find('\n').map_or(svg.len(), |end| end + 1);
    format!("{}{style}{}", &svg[..place], &svg[place..])
}

/// Returns a section with a heading.
pub fn section(title: &str, body: &str) -> String {
    format!("<h2>{}</h2>\n{body}", escaped(title))
}

/// Returns the names of curves in their colors.
pub fn legend(curves: &[Curve]) -> String {
    let name = |curve: &Curve| format!("<b class=\"{}\">— {}</b> ", curve.class, escaped(&curve.name));
    format!("<p>{}</p>\n", curves.iter().map(name).collect::<String>())
}

/// Returns a remark.
pub fn dim(text: impl Display) -> String {
    format!("<p class=\"dim\">{}</p>\n", escaped(&text.to_string()))
}

/// Returns a table. Without any names of columns it has no head.
pub fn table(class: &str, columns: &[&str], rows: &[Vec<String>]) -> String {
    let cells = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
        let cells: String = cells.map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let head = if columns.iter().all(|name| name.is_empty()) {
        String::new()
    } else {
        cells("th", &mut columns.iter().copied())
    };
    let body: String = rows.iter().map(|row| cells("td", &mut row.iter().map(String::as_str))).collect();
    format!("<div class=\"scroll\"><table class=\"{class}\">\n{head}{body}</table></div>\n")
}

/// Returns elements below a line that a reader opens.
pub fn details(summary: &str, body: &str) -> String {
    format!("<details><summary>{}</summary>\n{body}</details>\n", escaped(summary))
}
