//! Link traces: speeds of links and paths over time, from a CSV file.

use std::path::Path as File;
use std::time::Duration;

use briquette_core::error::ConfigError;
use serde::Deserialize;

use super::Path;
use super::course::{Course, Speed};
use super::text::parse_ends;

/// A row of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    seconds: f64,
    mbit: Option<f64>,
    ms: Option<f64>,
    #[serde(default)]
    path: Option<String>,
}

/// Speeds of the links, and of each path.
#[derive(Debug)]
pub(super) struct Trace {
    pub(super) links: Course,
    pub(super) paths: Vec<Path>,
    /// The second at which the trace starts over.
    pub(super) length: f64,
}

/// A part of an error: what the trace must be, and what it has.
type Wrong = (&'static str, String);

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    /// [`ConfigError::Range`] names the file, the second, and what is wrong.
    pub(super) fn read(file: &str) -> Result<Trace, ConfigError> {
        let trace = std::fs::read_to_string(File::new(file))
            .map_err(|error| ("a file that can be read", error.to_string()))
            .and_then(|text| Trace::parse(&text));
        trace.map_err(|(range, got)| ConfigError::range("link trace", range, format_args!("{file}: {got}")))
    }

    fn parse(text: &str) -> Result<Trace, Wrong> {
        let mut reader =
            csv::ReaderBuilder::new().trim(csv::Trim::All).comment(Some(b'#')).from_reader(text.as_bytes());
        let rows = reader.deserialize::<Row>().collect::<Result<Vec<_>, _>>();
        let form = "CSV with the columns seconds, mbit, ms, and path if paths differ from links";
        let rows = rows.map_err(|error| (form, error.to_string()))?;
        let Some((end, changes)) = rows.split_last() else { return Err(("of at least two rows", "none".into())) };
        let mut last = 0.0;
        for Row { seconds, .. } in &rows {
            if !seconds.is_finite() || *seconds < last {
                return Err(("in order of its seconds, from 0 on", format!("{seconds} after {last}")));
            }
            last = *seconds;
        }
        if end.mbit.is_some() || end.ms.is_some() {
            let range = "ended by a row of only seconds, such as `240,,`, at which it starts over";
            return Err((range, format!("a last row with a speed, at {} s", end.seconds)));
        }
        let mut courses: Vec<(&str, Vec<(f64, Speed)>)> = vec![("", Vec::new())];
        for row in changes {
            let path = row.path.as_deref().unwrap_or_default();
            let change = (row.seconds, row.speed()?);
            match courses.iter_mut().find(|(other, _)| *other == path) {
                Some((_, course)) => course.push(change),
                None => courses.push((path, vec![change])),
            }
        }
        let mut courses = courses.into_iter().map(|(path, speeds)| Ok((path, course(path, speeds, end.seconds)?)));
        let (_, links) = courses.next().expect("the links are first")?;
        let paths = courses.map(|course| {
            let (path, course) = course?;
            let ends = parse_ends(path).ok_or_else(|| ("of paths such as 0-3/4-7", path.to_owned()))?;
            Ok(Path { ends, course })
        });
        Ok(Trace { links, paths: paths.collect::<Result<_, Wrong>>()?, length: end.seconds })
    }
}

impl Row {
    fn speed(&self) -> Result<Speed, Wrong> {
        let (Some(mbit), Some(ms)) = (self.mbit, self.ms) else {
            return Err(("of rows with mbit and ms, but for the last", format!("a row without at {} s", self.seconds)));
        };
        let latency = Duration::try_from_secs_f64(ms / 1e3).ok().filter(|_| mbit >= 0.0);
        let latency = latency
            .ok_or_else(|| ("of mbit and ms from 0 on", format!("{mbit} Mbit/s and {ms} ms at {} s", self.seconds)))?;
        Ok(Speed { bandwidth: (mbit < f64::INFINITY).then_some(1e6 * mbit), latency })
    }
}

/// Returns the course of a path, or of the links if its text is empty.
fn course(path: &str, speeds: Vec<(f64, Speed)>, length: f64) -> Result<Course, Wrong> {
    let of = if path.is_empty() { "the links".to_owned() } else { format!("path {path}") };
    if speeds.first().is_none_or(|(at, _)| *at > 0.0) {
        return Err(("known from 0 s on", format!("no row of {of} at 0 s")));
    }
    if speeds.iter().all(|(_, speed)| speed.bandwidth == Some(0.0)) {
        return Err(("of some mbit above 0", format!("only 0 for {of}")));
    }
    if speeds.iter().any(|(at, _)| *at >= length) {
        return Err(("ended by a later row", format!("a speed of {of} at its end, {length} s")));
    }
    Ok(Course::new(speeds, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Trace, Wrong> {
        Trace::parse(&format!("seconds,mbit,ms,path\n{text}"))
    }

    #[test]
    fn links_and_paths_have_courses_of_their_own() {
        let trace = parse("0,80,1,\n0,8,30,0/2\n 1.5, 0.5, 2,\n2,inf,0,0/2\n# a remark\n4,,,").unwrap();
        let ms = |course: &Course, at: f64| course.at(at).latency.as_secs_f64() * 1e3;
        assert_eq!([0.0, 1.4, 1.5, 3.9, 4.0, 5.5].map(|at| ms(&trace.links, at)), [1.0, 1.0, 2.0, 2.0, 1.0, 2.0]);
        assert_eq!((ms(&trace.paths[0].course, 1.9), trace.paths[0].course.at(2.0).bandwidth), (30.0, None));
        assert_eq!((trace.paths.len(), trace.length), (1, 4.0));
        let without_paths = Trace::parse("seconds,mbit,ms\n0,1,1\n9,,\n").unwrap();
        assert_eq!((without_paths.length, without_paths.links.at(8.0).bandwidth), (9.0, Some(1e6)));
    }

    #[test]
    fn a_trace_that_cannot_be_used_is_refused() {
        for (text, range, got) in [
            ("", "of at least two rows", "none"),
            ("4,,,", "known from 0 s on", "no row of the links at 0 s"),
            ("0,1,1,\n5,2,1,\n3,,,", "in order", "3 after 5"),
            ("-1,1,1,\n5,,,", "in order", "-1 after 0"),
            ("0,1,1,\nnan,,,", "in order", "NaN after 0"),
            ("0,1,1,\n5,2,1,", "ended by a row of only seconds", "a last row with a speed, at 5 s"),
            ("0,1,1,\n2,,1,\n5,,,", "of rows with mbit and ms", "a row without at 2 s"),
            ("0,1,1,\n2,-3,1,\n5,,,", "from 0 on", "-3 Mbit/s and 1 ms at 2 s"),
            ("0,1,-1,\n5,,,", "from 0 on", "1 Mbit/s and -1 ms at 0 s"),
            ("0,0,1,\n2,0,1,\n5,,,", "of some mbit above 0", "only 0 for the links"),
            ("0,1,1,\n2,3,1,\n2,,,", "ended by a later row", "a speed of the links at its end, 2 s"),
            ("0,1,1,\n1,1,1,0/1\n5,,,", "known from 0 s on", "no row of path 0/1 at 0 s"),
            ("0,1,1,\n0,1,1,0-1\n5,,,", "of paths such as 0-3/4-7", "0-1"),
            ("0,fast,1,\n5,,,", "CSV with the columns", "invalid float"),
        ] {
            let (said, has) = parse(text).unwrap_err();
            assert!(said.contains(range) && has.contains(got), "{text}: {said}, {has}");
        }
        let error = Trace::read("no/such.csv").unwrap_err().to_string();
        assert!(error.contains("link trace must be a file that can be read, got no/such.csv: "), "{error}");
        assert!(Trace::parse("seconds,mbit\n0,1\n9,\n").unwrap_err().0.contains("with mbit and ms"));
        assert!(Trace::parse("second,mbit,ms\n0,1,1\n9,,\n").unwrap_err().1.contains("unknown field `second`"));
    }
}
