//! Rows of the table *What held* in `docs/faults.md`: each names the disturbance by a test, its number of repetitions,
//! and the outcome.
//!
//! A fault-injection test ends with [`held!`](crate::held!). The row is written to `held/` in the build's directory for
//! temporary files, and the test fails if the committed page has another one: the page cannot promise anything that no
//! test shows. `scripts/faults-page.sh` inserts the rows into the page.

use std::fs;
use std::path::Path;

/// The page, as committed.
const PAGE: &str = include_str!("../../../docs/faults.md");

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held<'a> {
    /// Disturbance.
    pub what: &'a str,
    /// Number of repetitions, which is the same in every run of the test.
    pub times: String,
    /// Outcome of every repetition.
    pub outcome: &'a str,
    /// Name of the test.
    pub test: &'a str,
}

impl Held<'_> {
    /// Returns the row as in the page.
    pub fn row(&self) -> String {
        let Held { what, times, outcome, test } = self;
        format!("| {what} | {times} | {outcome} | `{test}` |")
    }

    /// Writes the row to `directory` and compares it with the page.
    ///
    /// # Panics
    /// If the row cannot be written, or the page does not have it.
    pub fn record(&self, directory: &Path) {
        let rows = directory.join("held");
        fs::create_dir_all(&rows).expect("the build's directory can be written");
        fs::write(rows.join(self.test), self.row() + "\n").expect("the build's directory can be written");
        assert!(
            PAGE.lines().any(|line| line == self.row()),
            "not in docs/faults.md, which scripts/faults-page.sh brings up to date:\n{}",
            self.row()
        );
    }
}

/// Records a row: disturbance, repetitions, outcome, and name of the test.
#[macro_export]
macro_rules! held {
    ($what:expr, $times:expr, $outcome:expr, $test:ident) => {{
        // Checks that a function of this name exists.
        let _ = $test;
        let row =
            $crate::held::Held { what: $what, times: ($times).to_string(), outcome: $outcome, test: stringify!($test) };
        row.record(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")));
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_the_page_does_not_have_fails_its_test() {
        let directory = std::env::temp_dir().join(format!("briquette-held-{}", std::process::id()));
        let row = Held { what: "nothing at all", times: "3".into(), outcome: "nothing", test: "a_row" };
        let failed = std::panic::catch_unwind(|| row.record(&directory)).is_err();
        let written = fs::read_to_string(directory.join("held/a_row")).unwrap();
        fs::remove_dir_all(&directory).unwrap();
        assert!(failed && written == "| nothing at all | 3 | nothing | `a_row` |\n", "{written}");
    }

    #[test]
    fn a_row_names_its_test() {
        let row = Held { what: "a", times: "3".into(), outcome: "b", test: "c" };
        assert_eq!(row.row(), "| a | 3 | b | `c` |");
    }
}
