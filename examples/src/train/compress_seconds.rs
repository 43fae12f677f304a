//! Recorded encode and decode times, for clocks that do not measure them.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};
use briquette::core::config::ReducerConfig;
use briquette::sim::CompressSeconds;
use serde::Deserialize;

/// A line of the file, which may have other columns.
#[derive(Debug, Deserialize)]
struct Line {
    /// Reducer as `reducer` in config.toml, nominal compression ratio, and number of values of the model.
    reducer: String,
    ratio: f64,
    values: usize,
    /// Seconds of encoding and decoding per step.
    seconds: f64,
}

/// Returns the seconds of `reducer` for a model of `values` values.
///
/// # Errors
/// If the file cannot be read, or has no entry for it.
pub(super) fn read(path: &Path, reducer: &str, values: usize) -> Result<CompressSeconds> {
    let name = || format!("--compress-seconds {}", path.display());
    let lines: Vec<Line> =
        csv::Reader::from_path(path).and_then(|mut file| file.deserialize().collect()).with_context(name)?;
    // The file may have defaults that a text now leaves out.
    let same = |text: &str| text == reducer || text.parse::<ReducerConfig>().is_ok_and(|it| it.to_string() == reducer);
    let is_ours = |line: &&Line| same(&line.reducer) && line.values == values;
    let points: Vec<_> = lines.iter().filter(is_ours).map(|line| (line.ratio, line.seconds)).collect();
    if points.is_empty() {
        bail!("{}: no line for reducer {reducer} and {values} values; there are: {}", name(), nearest(&lines, reducer));
    }
    CompressSeconds::new(&points).with_context(name)
}

/// Lists the entries for reducers of this kind, or all entries if there are none; limited for a long file.
fn nearest(lines: &[Line], reducer: &str) -> String {
    fn kind(reducer: &str) -> Option<&str> {
        reducer.split(':').next()
    }
    let is_kind = |line: &&Line| kind(&line.reducer) == kind(reducer);
    let any = !lines.iter().any(|line| is_kind(&line));
    let of = |line: &Line| format!("{} of {}", line.reducer, line.values);
    let known: BTreeSet<String> = lines.iter().filter(|line| any || is_kind(line)).map(of).collect();
    let mut names: Vec<_> = known.iter().take(NAMED).cloned().collect();
    names.extend((known.len() > NAMED).then(|| format!("{} more", known.len() - NAMED)));
    names.join(", ")
}

/// Maximum number of lines named in an error.
const NAMED: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use briquette::core::CompressionRatio;

    #[test]
    fn the_lines_of_this_reducer_and_model_are_taken_and_others_are_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "reducer,ratio,values,seconds,machine\nladder,1,10,0.1,a\nladder,4,10,0.3,a\nladder,1,20,9,a\ndense,1,10,8,a\n";
        std::fs::write(file.path(), text).unwrap();
        let seconds = read(file.path(), "ladder", 10).unwrap();
        assert_eq!(seconds.at(CompressionRatio::new(4.0).unwrap()), 0.3);
        assert_eq!(seconds.at(CompressionRatio::DENSE), 0.1);
        std::fs::write(file.path(), "reducer,ratio,values,seconds\ngather:qsgd:4:512:max,8,10,0.2\n").unwrap();
        assert_eq!(read(file.path(), "gather:qsgd:4", 10).unwrap().at(CompressionRatio::DENSE), 0.2);
        std::fs::write(file.path(), text).unwrap();
        let error = read(file.path(), "gather:topk:10x", 10).unwrap_err().to_string();
        assert!(error.contains("no line for reducer gather:topk:10x and 10 values") && error.contains("ladder of 20"));
        let long: String = (1..=9).map(|values| format!("ladder,1,{values},1,a\n")).collect();
        std::fs::write(file.path(), format!("{text}{long}")).unwrap();
        let error = read(file.path(), "ladder:topk:20x", 10).unwrap_err().to_string();
        assert!(error.ends_with("ladder of 3, ladder of 4, 5 more"), "{error}");
        std::fs::write(file.path(), "reducer,ratio,values,seconds\nladder,1,10,fast\n").unwrap();
        let error = format!("{:#}", read(file.path(), "ladder", 10).unwrap_err());
        assert!(error.contains("--compress-seconds") && error.contains("float"), "{error}");
    }
}
