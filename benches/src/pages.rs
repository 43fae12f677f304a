//! Tables of pages, made from the CSVs.
//!
//! A page has a comment in TOML above each table, and an end below it. [`updated`] replaces what is between them:
//!
//! ```text
//! <!-- results
//! csv = "experiments/resnet8.csv"
//! columns = ["row: strategy", "lr: rate", "test_accuracy"]
//! -->
//!
//! | strategy | rate | test accuracy |
//! ...
//!
//! <!-- end of results -->
//! ```
//!
//! With `across`, lines that share a name are one row, with `cells` for each of the `groups`:
//!
//! ```text
//! csv = "gravac.csv"
//! columns = ["row"]
//! across = "model"
//! groups = ["resnet8: ResNet-8", "bilstm: BiLSTM"]
//! cells = ["{to_dense}, {speed_up:2}"]
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

const BEGIN: &str = "<!-- results\n";
const OPEN: &str = "-->\n";
const END: &str = "<!-- end of results -->";

/// A table: the comment above it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    /// File below `benches/results`.
    csv: PathBuf,
    /// Columns of the file, or texts with `{column}` and `{column:DECIMALS}`, each with the title of the table after a colon, if that differs.
    columns: Vec<String>,
    /// Column with the names of rows.
    #[serde(default = "row")]
    key: String,
    /// Names of rows, whole or up to a comma, in their order in the table; all in the order of the file if absent.
    #[serde(default)]
    rows: Vec<String>,
    /// Values that columns of the lines must have.
    #[serde(default, rename = "where")]
    only: Line,
    /// Column whose values are groups of cells.
    across: Option<String>,
    /// Values of that column, each with a title.
    #[serde(default)]
    groups: Vec<String>,
    /// Cells of each group, as `columns`. The first has the group's title.
    #[serde(default)]
    cells: Vec<String>,
    /// Text of the cells of a group that a row does not have; an error if absent.
    absent: Option<String>,
    /// Names of rows in the table, by their names in the file.
    #[serde(default)]
    names: BTreeMap<String, String>,
    /// Mark rows whose learning rate is not that of a complete search.
    #[serde(default)]
    mark_unsearched: bool,
}

/// A line of a CSV, by column.
type Line = BTreeMap<String, String>;

fn row() -> String {
    "row".into()
}

impl Spec {
    /// Returns the line with a name, whole or up to a comma.
    fn named<'a>(&self, lines: impl Iterator<Item = &'a Line> + Clone, name: &str) -> Option<&'a Line> {
        let rest = |line: &&'a Line| line.get(&self.key).and_then(|own| own.strip_prefix(name));
        let is_whole = |line: &&'a Line| rest(line) == Some("");
        let begins = |line: &&'a Line| rest(line).is_some_and(|rest| rest.starts_with(", "));
        lines.clone().find(is_whole).or_else(|| lines.clone().find(begins))
    }

    /// Returns the lines that the table has, in its order, with their names.
    fn lines<'a>(&'a self, lines: &'a [Line]) -> Result<Vec<(&'a str, &'a Line)>> {
        let named = |name: &'a String| {
            let line = self.named(lines.iter(), name);
            Ok((name.as_str(), line.with_context(|| format!("{} has no row {name}", self.csv.display()))?))
        };
        match (&self.rows[..], &self.across) {
            ([], None) => Ok(lines.iter().map(|line| (line.get(&self.key).map_or("", String::as_str), line)).collect()),
            ([], Some(_)) => bail!("a table across a column names its rows"),
            (rows, _) => rows.iter().map(named).collect(),
        }
    }

    /// Returns the cells of each group of a row.
    fn groups(&self, lines: &[Line], name: &str) -> Result<Vec<String>> {
        let Some(across) = &self.across else { return Ok(Vec::new()) };
        let mut cells = Vec::new();
        for (value, _) in self.groups.iter().map(|group| titled(group)) {
            let of_group = lines.iter().filter(|line| line.get(across).is_some_and(|own| own == value));
            match (self.named(of_group, name), &self.absent) {
                (Some(line), _) => {
                    for column in &self.cells {
                        cells.push(cell(self, (name, line), column)?);
                    }
                }
                (None, Some(absent)) => cells.extend(self.cells.iter().map(|_| absent.clone())),
                (None, None) => bail!("no {name} with {across} {value}"),
            }
        }
        Ok(cells)
    }

    /// Returns the titles of all columns.
    fn titles(&self) -> Vec<String> {
        let mut titles: Vec<String> = self.columns.iter().map(|column| titled(column).1.to_owned()).collect();
        for (_, title) in self.groups.iter().map(|group| titled(group)) {
            titles.extend((0..self.cells.len()).map(|cell| if cell == 0 { title.to_owned() } else { String::new() }));
        }
        titles
    }
}

/// Returns a page with its tables regenerated from the CSVs below `results`.
///
/// # Errors
/// If a comment is not a table's, or names a file, a column or a row that is missing.
pub fn updated(page: &str, results: &Path) -> Result<String> {
    let (mut out, mut rest) = (String::new(), page);
    while let Some(at) = rest.find(BEGIN) {
        let spec = &rest[at + BEGIN.len()..];
        let open = spec.find(OPEN).context("a comment of results is not closed")?;
        let end = spec.find(END).with_context(|| format!("no {END} after a comment of results"))?;
        ensure!(!spec[..end].contains(BEGIN), "no {END} before the next comment of results");
        let (spec, table) = (&spec[..open], &spec[end..]);
        let made = table_of(spec, results).with_context(|| format!("in the results\n{spec}"))?;
        out += &format!("{}{BEGIN}{spec}{OPEN}\n{made}\n", &rest[..at]);
        rest = table;
    }
    Ok(out + rest)
}

fn table_of(spec: &str, results: &Path) -> Result<String> {
    let spec: Spec = toml::from_str(spec)?;
    let mut lines = read(&results.join(&spec.csv))?;
    lines.retain(|line| spec.only.iter().all(|(column, value)| line.get(column) == Some(value)));
    let rows = spec.lines(&lines)?;
    let unknown = spec.names.keys().find(|name| !rows.iter().any(|(own, _)| own == name));
    ensure!(unknown.is_none(), "{} has no row {}", spec.csv.display(), unknown.map_or("", String::as_str));
    let titles = spec.titles();
    let rule = format!("|{}\n", "---|".repeat(titles.len()));
    let mut out = joined(titles.into_iter()) + &rule;
    for (name, line) in rows {
        let own = spec.columns.iter().map(|column| cell(&spec, (name, line), titled(column).0));
        let cells = own.collect::<Result<Vec<_>>>()?;
        out += &joined(cells.into_iter().chain(spec.groups(&lines, name)?));
    }
    Ok(out)
}

fn read(path: &Path) -> Result<Vec<Line>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    csv::Reader::from_reader(text.as_bytes()).deserialize().collect::<Result<_, _>>().context("a CSV")
}

fn titled(column: &str) -> (&str, &str) {
    if let Some((name, title)) = column.split_once(": ") {
        return (name, title);
    }
    let title = match column {
        "lr" => "rate",
        "test_accuracy" => "test accuracy",
        "to_dense" => "to dense, points",
        "fewer_bytes" => "fewer bytes",
        "simulated_seconds" => "simulated time",
        "times_faster" => "times faster than dense",
        "compute_ms_per_mb" => "compute, ms per MB",
        "mbit" => "Mbit/s",
        other => other,
    };
    (column, title)
}

/// Returns a value as pages write it, or a text with values. Separators next to an absent value are left out.
fn cell(spec: &Spec, line: (&str, &Line), column: &str) -> Result<String> {
    let mut parts = column.split('{');
    let before = parts.next().unwrap_or_default();
    if before.len() == column.len() {
        return value(spec, line, column);
    }
    let mut text = before.to_owned();
    for part in parts {
        let (name, after) = part.split_once('}').context("a cell with { has no }")?;
        text += &match name.split_once(':') {
            None => value(spec, line, name)?,
            Some((name, decimals)) => {
                let number: f64 = value(spec, line, &format!("{name}:"))?.parse()?;
                let decimals: usize = decimals.parse()?;
                finite(number, |number| format!("{number:.decimals$}"))
            }
        };
        text += after;
    }
    Ok(text.trim_matches([' ', ',']).to_owned())
}

/// Returns a value as pages write it; with a colon after the name of its column, as it is.
fn value(spec: &Spec, (name, line): (&str, &Line), column: &str) -> Result<String> {
    let text = |column: &str| line.get(column).with_context(|| format!("no column {column}"));
    let number = |column: &str| -> Result<f64> {
        let text = text(column)?;
        text.parse().with_context(|| format!("{column} is {text}, which is no number"))
    };
    Ok(match column {
        key if key == spec.key => {
            let mark = if spec.mark_unsearched && text("searched")? == "false" { " †" } else { "" };
            format!("{}{mark}", spec.names.get(name).map_or(name, String::as_str))
        }
        "test_accuracy" | "accuracy" => finite(number(column)?, |accuracy| format!("{accuracy:.3}")),
        "to_dense" => {
            let error = if line.contains_key("error") { "error" } else { "standard_error" };
            let (points, error) = (100.0 * number(column)?, 100.0 * number(error)?);
            match error.is_nan() || error == 0.0 {
                true if points == 0.0 => String::new(),
                true => signed(points),
                false => format!("{} ± {error:.1}", signed(points)),
            }
        }
        "difference" => {
            let difference = format!("{:+.2}", number(column)?).replace('-', "−");
            format!("{difference} ± {:.2}", number("standard_error")?)
        }
        "fewer_bytes" | "wire_ratio" => finite(number(column)?, ratio),
        "times_faster" => finite(number(column)?, |times| format!("{times:.2}x")),
        "bytes_a_step" => finite(number(column)?, |bytes| format!("{:.1} kB", bytes / 1e3)),
        "seconds_a_step" => finite(number(column)?, |seconds| format!("{:.0} ms", 1e3 * seconds)),
        "compute_ms_per_mb" => finite(number(column)?, |milliseconds| format!("{milliseconds:.3}")),
        "simulated_seconds" => finite(number(column)?, |seconds| format!("{seconds:.1} s")),
        _ => text(column.strip_suffix(':').unwrap_or(column))?.clone(),
    })
}

/// Formats points with the minus sign of text.
fn signed(points: f64) -> String {
    format!("{points:+.1}").replace('-', "−")
}

/// Formats a number, or a dash for what is none.
fn finite(value: f64, format: impl Fn(f64) -> String) -> String {
    if value.is_finite() { format(value) } else { "–".into() }
}

/// Formats a ratio with three digits, or with groups of three.
fn ratio(ratio: f64) -> String {
    let short = format!("{ratio:.1}");
    let digits = match short.strip_suffix(".0") {
        Some(whole) if ratio >= 10.0 || ratio == 1.0 => whole.to_owned(),
        _ if ratio < 99.95 => return format!("{short}x"),
        _ => format!("{ratio:.0}"),
    };
    let grouped: Vec<&[u8]> = digits.as_bytes().rchunks(3).rev().collect();
    format!("{}x", String::from_utf8_lossy(&grouped.join(&b' ')))
}

fn joined(cells: impl Iterator<Item = String>) -> String {
    cells.fold("|".to_owned(), |row, cell| if cell.is_empty() { row + " |" } else { format!("{row} {cell} |") }) + "\n"
}

/// Returns the pages below a folder that have tables of results.
///
/// # Errors
/// If the folder cannot be read.
pub fn pages(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(pages(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "md")
            && fs::read_to_string(&path)?.contains(BEGIN)
        {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Updates pages, or checks that they are up to date.
///
/// # Errors
/// If a page cannot be made or written; with `check`, if one is not up to date.
pub fn update(pages: &[PathBuf], results: &Path, check: bool) -> Result<()> {
    ensure!(!pages.is_empty(), "no page has tables of results");
    for path in pages {
        let page = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let new = updated(&page, results).with_context(|| path.display().to_string())?;
        if new == page {
            continue;
        }
        if check {
            let line = 1 + page.lines().zip(new.lines()).take_while(|(old, new)| old == new).count();
            bail!("{}, line {line}: not what the CSV has; `pages` updates it", path.display());
        }
        fs::write(path, new).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
