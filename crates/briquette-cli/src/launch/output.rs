//! Output of the ranks: whole lines on the terminal, in log files, and the last ones kept for an error.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anstyle::{AnsiColor, Color, Style};

use super::LaunchError;
use super::failure::Words;

/// Maximum bytes of a line. A longer one is cut into several, so that a rank that never ends a line does not fill the memory.
const LONGEST: u64 = 1 << 20;
/// Number of last stderr lines kept per rank.
const KEPT: usize = 5;
/// Time to wait for a pipe that a rank's own children hold open after the rank ended.
const PATIENCE: Duration = Duration::from_secs(1);
/// Colors of the ranks, assigned cyclically.
const COLOURS: [AnsiColor; 6] =
    [AnsiColor::Cyan, AnsiColor::Yellow, AnsiColor::Green, AnsiColor::Magenta, AnsiColor::Blue, AnsiColor::BrightRed];

/// Stream from which a line was read, and to which it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

/// The terminal, or the file or pipe in its place, shared by all ranks and the launcher.
#[derive(Debug)]
pub(super) struct Output {
    terminal: Arc<Terminal>,
    /// The launcher's own lines, written by a thread: the launcher must react to signals even if nothing reads its output.
    own: Option<Sender<String>>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Terminal {
    /// Lock held while a line is written, to either stream: both may be the same terminal.
    writing: Mutex<()>,
    /// Number of rank lines processed so far.
    lines: AtomicU64,
    only: Option<usize>,
    colours: [bool; 2],
}

/// Destinations of one rank's lines besides the terminal.
#[derive(Debug)]
struct Rank {
    rank: usize,
    terminal: Arc<Terminal>,
    log: Option<Arc<Log>>,
    last: Mutex<Last>,
}

/// A rank's log file.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    /// `None` once writing has failed.
    file: Mutex<Option<File>>,
}

#[derive(Debug, Default)]
struct Last {
    error: Option<String>,
    lines: VecDeque<String>,
}

/// The two pipes of a rank that is running.
#[derive(Debug)]
pub(super) struct Pipes {
    rank: Arc<Rank>,
    /// Disconnected once both pipes have been read to their ends.
    open: Receiver<()>,
}

/// Opens the log files of `ranks` in `directory`, which is created if needed; none if no directory is given.
pub(super) fn open_logs(directory: Option<&Path>, ranks: std::ops::Range<usize>) -> Result<Vec<Arc<Log>>, LaunchError> {
    let Some(directory) = directory else { return Ok(vec![]) };
    let failed = |path: &Path, source| LaunchError::Log { path: path.to_owned(), source };
    std::fs::create_dir_all(directory).map_err(|e| failed(directory, e))?;
    ranks
        .map(|rank| {
            let path = directory.join(format!("rank-{rank}.log"));
            let file = File::options().append(true).create(true).open(&path).map_err(|e| failed(&path, e))?;
            Ok(Arc::new(Log { path, file: Mutex::new(Some(file)) }))
        })
        .collect()
}

impl Output {
    /// Shows the lines of rank `only`, or of all ranks. Colored on a terminal that supports colors.
    pub(super) fn new(only: Option<usize>) -> Output {
        let coloured = |choice| choice != anstream::ColorChoice::Never;
        let colours = [
            coloured(anstream::AutoStream::choice(&std::io::stdout())),
            coloured(anstream::AutoStream::choice(&std::io::stderr())),
        ];
        let terminal = Arc::new(Terminal { writing: Mutex::new(()), lines: AtomicU64::new(0), only, colours });
        let (own, texts) = mpsc::channel::<String>();
        let shared = Arc::clone(&terminal);
        let writer = std::thread::spawn(move || {
            texts.iter().for_each(|text| shared.write(Stream::Err, &format!("[launch] {text}\n").into_bytes()));
        });
        Output { terminal, own: Some(own), writer: Some(writer) }
    }

    /// Writes a message of the launcher to stderr, asynchronously.
    pub(super) fn say(&self, text: impl Into<String>) {
        // The writer ends only when this is dropped.
        let _ = self.own.as_ref().map(|own| own.send(text.into()));
    }

    /// Starts reading the output of a rank.
    pub(super) fn read<O, E>(&self, rank: usize, log: Option<Arc<Log>>, pipes: (O, E)) -> Pipes
    where
        O: Read + Send + 'static,
        E: Read + Send + 'static,
    {
        let terminal = Arc::clone(&self.terminal);
        let rank = Arc::new(Rank { rank, terminal, log, last: Mutex::default() });
        let (closed, open) = mpsc::channel();
        let (out, out_closed) = (Arc::clone(&rank), closed.clone());
        std::thread::spawn(move || out.copy(Stream::Out, pipes.0, out_closed));
        let err = Arc::clone(&rank);
        std::thread::spawn(move || err.copy(Stream::Err, pipes.1, closed));
        Pipes { rank, open }
    }
}

impl Drop for Output {
    /// Waits until the launcher's own messages are written.
    fn drop(&mut self) {
        drop(self.own.take());
        let _ = self.writer.take().map(JoinHandle::join);
    }
}

impl Terminal {
    /// Writes whole lines. If the reader is gone they are dropped: a run does not end because its reader did.
    fn write(&self, stream: Stream, lines: &[u8]) {
        let _writing = lock(&self.writing);
        let _ = match stream {
            Stream::Out => std::io::stdout().write_all(lines).and_then(|()| std::io::stdout().flush()),
            Stream::Err => std::io::stderr().write_all(lines),
        };
    }

    fn shows(&self, rank: usize) -> bool {
        self.only.is_none_or(|only| only == rank)
    }
}

impl Rank {
    /// Reads `from` to its end, line by line; the last line may lack its newline. `_closed` is dropped then.
    fn copy(&self, stream: Stream, from: impl Read, _closed: Sender<()>) {
        let (mut from, mut line) = (BufReader::with_capacity(1 << 16, from), Vec::new());
        loop {
            line.clear();
            match from.by_ref().take(LONGEST).read_until(b'\n', &mut line) {
                // A pipe that cannot be read any more has no further output.
                Ok(0) | Err(_) => return,
                Ok(_) => self.line(stream, line.strip_suffix(b"\n").unwrap_or(&line)),
            }
        }
    }

    fn line(&self, stream: Stream, line: &[u8]) {
        if stream == Stream::Err {
            lock(&self.last).push(&String::from_utf8_lossy(line));
        }
        if let Some(problem) = self.log.as_ref().and_then(|log| log.write(line)) {
            self.terminal.write(Stream::Err, format!("[launch] {problem}\n").as_bytes());
        }
        if self.terminal.shows(self.rank) {
            let style = match self.terminal.colours[stream as usize] {
                true => Style::new().fg_color(Some(Color::Ansi(COLOURS[self.rank % COLOURS.len()]))),
                false => Style::new(),
            };
            let mut whole = format!("{style}[rank {}]{style:#} ", self.rank).into_bytes();
            whole.extend_from_slice(line);
            whole.push(b'\n');
            self.terminal.write(stream, &whole);
        }
        self.terminal.lines.fetch_add(1, Ordering::SeqCst);
    }
}

impl Log {
    /// Appends a line. Returns a write error the first time one occurs.
    pub(super) fn write(&self, line: &[u8]) -> Option<String> {
        let mut file = lock(&self.file);
        let result = file.as_mut()?.write_all(&[line, b"\n"].concat());
        let error = result.err()?;
        *file = None;
        Some(format!("{}: {error}; this file is not continued", self.path.display()))
    }
}

impl Last {
    fn push(&mut self, line: &str) {
        if let Some(error) = line.strip_prefix("error: ").or_else(|| line.strip_prefix("Error: ")) {
            self.error = Some(error.trim_end().to_owned());
        }
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        // Truncated, since the line is shown to people in an error.
        self.lines.push_back(line.chars().take(500).collect());
    }
}

impl Pipes {
    /// Waits until everything has been read, with a time limit in case a process unknown to the launcher holds a pipe open.
    pub(super) fn drain(&self) -> bool {
        loop {
            let terminal = &self.rank.terminal;
            let before = terminal.lines.load(Ordering::SeqCst);
            match self.open.recv_timeout(PATIENCE) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => return true,
                Err(RecvTimeoutError::Timeout) => {
                    // Writing a line may take as long as its reader needs.
                    drop(lock(&terminal.writing));
                    if terminal.lines.load(Ordering::SeqCst) == before {
                        return false;
                    }
                }
            }
        }
    }

    /// Returns the rank's own account of its failure.
    pub(super) fn words(&self) -> Words {
        let last = lock(&self.rank.last);
        match &last.error {
            Some(error) => Words::Error(error.clone()),
            None => Words::Lines(last.lines.iter().cloned().collect()),
        }
    }
}

/// Locks a mutex. The guarded value is consistent after every statement, so a thread that panicked leaves no partial state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
