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
    /// Columns of the file, each with the title of the table after a colon, if that differs.
    columns: Vec<String>,
    /// Names of rows, in their order in the table; all in the order of the file if absent.
    #[serde(default)]
    rows: Vec<String>,
    /// Values of axes, of a file that has several.
    setting: Option<String>,
    /// Names of rows in the table, by their names in the file.
    #[serde(default)]
    names: BTreeMap<String, String>,
    /// Mark rows whose learning rate is not that of a complete search.
    #[serde(default)]
    mark_unsearched: bool,
}

/// A line of a CSV, by column.
type Line = BTreeMap<String, String>;

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
    if let Some(setting) = &spec.setting {
        lines.retain(|line| line.get("setting") == Some(setting));
    }
    let named = |name: &String| {
        let line = lines.iter().find(|line| line.get("row") == Some(name));
        line.with_context(|| format!("{} has no row {name}", spec.csv.display()))
    };
    let lines: Vec<&Line> = match &spec.rows[..] {
        [] => lines.iter().collect(),
        rows => rows.iter().map(named).collect::<Result<_>>()?,
    };
    let unknown = spec.names.keys().find(|name| !lines.iter().any(|line| line.get("row") == Some(name)));
    ensure!(unknown.is_none(), "{} has no row {}", spec.csv.display(), unknown.map_or("", String::as_str));
    let columns: Vec<(&str, &str)> = spec.columns.iter().map(|column| titled(column)).collect();
    let titles = columns.iter().map(|(_, title)| (*title).to_owned());
    let mut out = joined(titles) + &format!("|{}\n", "---|".repeat(columns.len()));
    for line in lines {
        let cells = columns.iter().map(|(column, _)| cell(&spec, line, column)).collect::<Result<Vec<_>>>()?;
        out += &joined(cells.into_iter());
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
        other => other,
    };
    (column, title)
}

/// Returns a value as pages write it.
fn cell(spec: &Spec, line: &Line, column: &str) -> Result<String> {
    let text = |column: &str| line.get(column).with_context(|| format!("no column {column}"));
    let number = |column: &str| -> Result<f64> {
        let text = text(column)?;
        text.parse().with_context(|| format!("{column} is {text}, which is no number"))
    };
    Ok(match column {
        "row" => {
            let name = text("row")?;
            let mark = if spec.mark_unsearched && text("searched")? == "false" { " †" } else { "" };
            format!("{}{mark}", spec.names.get(name).unwrap_or(name))
        }
        "test_accuracy" => finite(number(column)?, |accuracy| format!("{accuracy:.3}")),
        "to_dense" => {
            let (points, error) = (100.0 * number(column)?, 100.0 * number("standard_error")?);
            match error.is_nan() || error == 0.0 {
                true if points == 0.0 => String::new(),
                true => signed(points),
                false => format!("{} ± {error:.1}", signed(points)),
            }
        }
        "fewer_bytes" | "wire_ratio" => finite(number(column)?, ratio),
        "simulated_seconds" => finite(number(column)?, |seconds| format!("{seconds:.1} s")),
        _ => text(column)?.clone(),
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
mod tests {
    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
    }

    #[test]
    fn tables_of_the_pages_have_the_numbers_of_the_csvs() {
        let pages = pages(&root().join("docs")).unwrap();
        update(&pages, &root().join("benches/results"), true).unwrap();
    }

    /// The table of savings in the README is of `auto` and the fastest static row that loses at most half a point, at 100 Mbit/s.
    #[test]
    fn the_readme_has_the_numbers_of_the_csv() {
        let readme = fs::read_to_string(root().join("README.md")).unwrap();
        let lines = read(&root().join("benches/results/never-slower.csv")).unwrap();
        for (model, name) in
            [("resnet8", "ResNet-8, CIFAR-10"), ("vgg11-slim", "slim VGG-11, CIFAR-10"), ("bilstm", "BiLSTM, AG-News")]
        {
            let of = |column: &str, value: &str| {
                let found = lines.iter().filter(|line| line["model"] == model && line["network"] == "100mbit,1ms");
                found.into_iter().find(|line| line[column] == value).unwrap()
            };
            let number = |line: &Line, column: &str| line[column].parse::<f64>().unwrap();
            let seconds = |line: &Line| format!("{:.1} s", number(line, "simulated_seconds"));
            let (dense, auto, best) = (of("row", "dense"), of("row", "auto"), of("times_best_static", "1.0"));
            let points = signed(100.0 * number(auto, "to_dense"));
            let error = 100.0 * number(auto, "standard_error");
            let ratio = number(auto, "wire_ratio");
            let ratio_of_best = best["row"].strip_prefix("topk:").unwrap().split(':').next().unwrap();
            let row = format!(
                "| {name} | {} | {} | {points} ± {error:.1} | {ratio:.0}x | {} (top-k {ratio_of_best}) |",
                seconds(dense),
                seconds(auto),
                seconds(best)
            );
            assert!(readme.contains(&row), "the README has not: {row}");
        }
    }

    const CSV: &str = "row,lr,searched,test_accuracy,to_dense,standard_error,fewer_bytes,simulated_seconds
dense,0.2,true,0.5,0.0,0.0,1.0,37.26
half,0.1,false,0.48,-0.02,0.004,3128.4,9.0
";

    fn of(spec: &str) -> Result<String> {
        let results = tempfile::tempdir()?;
        fs::write(results.path().join("a.csv"), CSV)?;
        updated(&format!("before\n{BEGIN}csv = 'a.csv'\n{spec}\n{OPEN}old{END}\nafter\n"), results.path())
    }

    #[test]
    fn a_table_replaces_the_old_one() {
        let spec = "columns = ['row: strategy', 'lr', 'to_dense', 'fewer_bytes', 'simulated_seconds']\nmark_unsearched = true\nnames.half = 'Half'";
        let page = of(spec).unwrap();
        let table = "| strategy | rate | to dense, points | fewer bytes | simulated time |
|---|---|---|---|---|
| dense | 0.2 | | 1x | 37.3 s |
| Half † | 0.1 | −2.0 ± 0.4 | 3 128x | 9.0 s |
";
        assert_eq!(page, format!("before\n{BEGIN}csv = 'a.csv'\n{spec}\n{OPEN}\n{table}\n{END}\nafter\n"));
        assert!(of("columns = ['row']\nrows = ['half']").unwrap().contains("| row |\n|---|\n| half |\n\n"));
    }

    #[test]
    fn ratios_have_three_digits_or_groups_of_three() {
        let shown = [1.0, 1.02, 4.0, 50.0, 54.53, 99.94, 99.96, 999.6, 1_234_567.0].map(ratio);
        assert_eq!(shown, ["1x", "1.0x", "4.0x", "50x", "54.5x", "99.9x", "100x", "1 000x", "1 234 567x"]);
        assert_eq!(finite(f64::INFINITY, ratio), "–");
    }

    #[test]
    fn what_is_missing_is_named() {
        let said = |spec: &str| format!("{:#}", of(spec).unwrap_err());
        assert!(said("columns = ['colour']").contains("no column colour"));
        assert!(said("columns = ['row']\nrows = ['third']").contains("has no row third"));
        assert!(said("columns = ['row']\nrow = 1").contains("unknown field `row`"));
        assert!(said("columns = ['row']\nnames.third = 'Third'").contains("has no row third"));
        assert!(updated(&format!("{BEGIN}csv = 'a'\n{OPEN}"), Path::new(".")).is_err());
        let without_end = format!("{BEGIN}csv = 'a'\n{OPEN}text\n{BEGIN}csv = 'a'\n{OPEN}{END}");
        assert!(updated(&without_end, Path::new(".")).unwrap_err().to_string().contains("before the next"));
    }
}
