//! Golden tests of program messages: error texts are compared with a file, and any changed word fails the test.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time limit of one command line.
const LIMIT: Duration = Duration::from_secs(60);

/// Programs, and the directory in which they run.
#[derive(Debug, Clone)]
pub struct Shell {
    directory: PathBuf,
    programs: PathBuf,
    /// Texts that differ from run to run, and their placeholders in the file.
    replaced: Vec<(String, String)>,
}

impl Shell {
    /// Creates a shell in `directory`; the programs are in the same directory as `program`.
    ///
    /// # Panics
    /// If `program` is in no directory.
    pub fn new(directory: &Path, program: &str) -> Shell {
        let programs = Path::new(program).parent().expect("a program is in a directory").to_owned();
        let replaced = vec![(directory.display().to_string(), "DIR".to_owned())];
        Shell { directory: directory.to_owned(), programs, replaced }
    }

    /// Replaces the text `found` by `shown`.
    #[must_use]
    pub fn replace(mut self, found: impl ToString, shown: &str) -> Shell {
        self.replaced.push((found.to_string(), shown.to_owned()));
        self
    }

    /// Runs a shell command line and returns its standard error and its exit code. Placeholders replace varying texts
    /// in the command line, too.
    ///
    /// # Panics
    /// If the line cannot be run, or takes longer than a minute.
    pub fn run(&self, line: &str) -> String {
        let actual = self.replaced.iter().fold(line.to_owned(), |text, (found, shown)| text.replace(shown, found));
        let path = self.directory.join("stderr");
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("PATH=$0:$PATH\n{actual}")).arg(&self.programs).current_dir(&self.directory);
        command.env("RAYON_NUM_THREADS", "1").env("XDG_CACHE_HOME", &self.directory).env_remove("RANK");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&path).expect("a file for errors"));
        let (mut child, begin) = (command.spawn().expect("a shell"), Instant::now());
        let status = loop {
            if let Some(status) = child.try_wait().expect("a child that can be waited for") {
                break status;
            }
            if begin.elapsed() > LIMIT {
                child.kill().expect("a child that can be killed");
                panic!("`{line}` takes longer than {LIMIT:?}");
            }
            sleep(Duration::from_millis(5));
        };
        let said = fs::read(&path).expect("the file for errors");
        let said = self.normalized(&String::from_utf8_lossy(&said));
        let code = status.code().map_or("a signal".to_owned(), |code| code.to_string());
        format!("$ {line}\n{said}exit code {code}\n")
    }

    fn normalized(&self, text: &str) -> String {
        let replaced = self.replaced.iter().fold(text.to_owned(), |text, (found, shown)| text.replace(found, shown));
        let trimmed = replaced.lines().map(|line| line.trim_end().to_owned() + "\n");
        trimmed.collect()
    }
}

/// Compares the results of the lines with the texts in `file`, in order; `bless` writes them there instead.
///
/// # Panics
/// If they differ: the first difference is shown with the actual and the expected text.
pub fn hold(file: &Path, texts: &[String], bless: bool) {
    let actual = texts.join("\n");
    if bless {
        return fs::write(file, actual).expect("the file of texts can be written");
    }
    let expected = fs::read_to_string(file).unwrap_or_default();
    if expected == actual {
        return;
    }
    let blocks =
        |text: &str| text.split("\n$ ").map(|block| block.trim_start_matches("$ ").to_owned()).collect::<Vec<_>>();
    let (expected, actual) = (blocks(&expected), blocks(&actual));
    let differs = (0..expected.len().max(actual.len())).find(|i| expected.get(*i) != actual.get(*i)).unwrap_or(0);
    let shown = |blocks: &[String]| blocks.get(differs).map_or("(nothing)", String::as_str).to_owned();
    panic!(
        "{} differs; where the new text is the better one, run the test with BLESS=1.\n\nexpected:\n{}\n\nactual:\n{}",
        file.display(),
        shown(&expected),
        shown(&actual)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_word_fails_and_blessing_writes_it() {
        let directory = std::env::temp_dir().join(format!("briquette-golden-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (file, shell) = (directory.join("golden"), Shell::new(&directory, "/bin/sh").replace("4711", "PORT"));
        let texts = ["echo $PWD has PORT >&2", "echo two 4711 >&2; exit 3"].map(|line| shell.run(line));
        let expected = "$ echo $PWD has PORT >&2\nDIR has PORT\nexit code 0\n\n$ echo two 4711 >&2; exit 3\ntwo PORT\nexit code 3\n";
        hold(&file, &texts, true);
        assert_eq!(fs::read_to_string(&file).unwrap(), expected);
        hold(&file, &texts, false);
        let changed = [texts[0].clone(), texts[1].replace("two", "three")];
        let failed = std::panic::catch_unwind(|| hold(&file, &changed, false)).unwrap_err();
        let text = failed.downcast_ref::<String>().unwrap();
        fs::remove_dir_all(&directory).unwrap();
        assert!(text.contains("three PORT") && text.contains("two PORT") && !text.contains("has PORT"), "{text}");
    }
}
