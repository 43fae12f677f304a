//! Output to a terminal, or to the file or pipe in its place.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

/// Writes a line to standard output. A closed reader is not an error.
///
/// # Errors
/// If it cannot be written for another reason, such as a full disk.
pub fn show(text: impl Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(io::Error::new(error.kind(), format!("standard output cannot be written: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Writes a line to standard error, if possible.
pub fn complain(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Escapes everything in `text` that a terminal would take for a command, or that disguises the text: control
/// characters except newlines, and characters that change the writing direction. Names of tensors and files are
/// untrusted.
///
/// ```
/// use briquette_cli::terminal::printable;
///
/// assert_eq!(printable("tensor `\u{1b}[2Jnorm`"), r"tensor `\u{1b}[2Jnorm`");
/// assert_eq!(printable("two\nlines"), "two\nlines");
/// ```
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_bad = |c: char| {
        c != '\n'
            && (c.is_control()
                || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'))
    };
    if !text.contains(is_bad) {
        return Cow::Borrowed(text);
    }
    let escaped = |c: char| if is_bad(c) { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(escaped).collect())
}

/// Writes records to standard output, as JSON or as CSV.
///
/// # Errors
/// If a record has no form in that format, or standard output cannot be written.
pub fn show_records<T: Serialize>(records: &[T], json: bool) -> anyhow::Result<()> {
    if json {
        return Ok(show(serde_json::to_string_pretty(records)?)?);
    }
    let mut out = csv::Writer::from_writer(Vec::new());
    records.iter().try_for_each(|record| out.serialize(record))?;
    Ok(show(String::from_utf8(out.into_inner()?)?.trim_end())?)
}

/// Returns a progress bar on standard error; a hidden one if that is not a terminal.
pub fn progress(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    if !io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar.with_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").expect("a valid template"))
        .with_message(what)
}

/// Formats a number of bytes for people.
#[must_use]
pub fn bytes(count: u64) -> String {
    let units = ["bytes", "kB", "MB", "GB", "TB", "PB", "EB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1000.0 && unit + 1 < units.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    if unit == 0 { format!("{count} bytes") } else { format!("{value:.1} {}", units[unit]) }
}

/// Seconds, which are displayed with two units or three digits.
///
/// ```
/// use briquette_cli::terminal::Time;
/// let texts = [0.0, 1.2e-4, 0.0034, 0.12, 9.96, 185.4, 11_400.0].map(|seconds| Time(seconds).to_string());
/// assert_eq!(texts, ["0 s", "120 µs", "3.4 ms", "120 ms", "10.0 s", "3m 5s", "3h 10m"]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Time(pub f64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0;
        match seconds {
            0.0 => f.write_str("0 s"),
            _ if seconds < 0.001 => write!(f, "{:.0} µs", 1e6 * seconds),
            _ if seconds < 1.0 => write!(f, "{:.*} ms", if seconds < 0.01 { 1 } else { 0 }, 1e3 * seconds),
            _ if seconds < 60.0 => write!(f, "{seconds:.1} s"),
            _ => {
                let unit = if seconds < 3600.0 { 1.0 } else { 60.0 };
                match Duration::try_from_secs_f64((seconds / unit).round() * unit) {
                    Ok(rounded) => write!(f, "{}", humantime::format_duration(rounded)),
                    Err(_) => write!(f, "{seconds} s"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn bytes_have_the_unit_that_makes_them_short() {
        assert_eq!([999, 1000, 2_500_000].map(bytes), ["999 bytes", "1.0 kB", "2.5 MB"]);
    }
}
