//! Terminal output of a trainer, or output to a file or pipe in its place: passed to a thread, so that training never waits for it.
//!
//! A run does not end because its reader did (`trainer | head`, a full disk behind a log, a closed terminal), and does
//! not wait for one that stopped reading (Ctrl-S). Lines for which there is no room are dropped, and when writing
//! continues a line reports their number. `tracing-appender` is not used for this: it counts dropped lines, but does
//! not mark where they are missing, and it prints to standard output when it cannot end in time, where a run would
//! hang.

mod bar;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::VecDeque;
use std::fmt::{self, Display};
use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, current, sleep};
use std::time::{Duration, Instant};

use indicatif::ProgressDrawTarget;

/// Maximum bytes of a stream that wait to be written; more are dropped.
const ROOM: usize = 1 << 18;
/// Time that a line waits for earlier lines of the other stream: both may be one terminal.
const ORDER: Duration = Duration::from_millis(200);
/// Time that the end waits for a reader that takes nothing.
const STALLED: Duration = Duration::from_secs(2);
/// Time that the end waits for a slow reader.
const SLOW: Duration = Duration::from_secs(10);

/// Standard output and standard error, or their replacements.
#[derive(Clone)]
pub struct Output {
    shared: Arc<Shared>,
}

/// Destination of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Out,
    Err,
}

struct Shared {
    queues: Mutex<[Queue; 2]>,
    changed: Condvar,
}

/// Queue of one stream.
#[derive(Default)]
struct Queue {
    /// Taken by the writing thread, which starts with the first line.
    sink: Option<Sink>,
    waiting: VecDeque<Entry>,
    /// Bytes that are waiting or being written.
    bytes: usize,
    queued: u64,
    done: u64,
    /// Lines dropped since the last one that was queued.
    dropped: u64,
    /// Set while the current write delays the other stream.
    stalled: bool,
}

type Sink = Box<dyn Write + Send>;

struct Entry {
    text: Vec<u8>,
    /// Number of the other stream's entries that come before.
    after: u64,
    /// Lines that were dropped just before this one.
    dropped: u64,
}

impl Default for Output {
    fn default() -> Self {
        Output::to(standard(io::stdout()), standard(io::stderr()))
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").finish_non_exhaustive()
    }
}

/// Returns the stream without the standard library's lock and buffer: a thread that waits for a reader does not block others.
#[cfg(unix)]
fn standard(stream: impl std::os::fd::AsFd + Write + Send + 'static) -> Sink {
    match stream.as_fd().try_clone_to_owned() {
        Ok(own) => Box::new(std::fs::File::from(own)),
        Err(_) => Box::new(stream),
    }
}

#[cfg(not(unix))]
fn standard(stream: impl Write + Send + 'static) -> Sink {
    Box::new(stream)
}

impl Output {
    /// Writes to these streams instead.
    pub fn to(out: impl Write + Send + 'static, err: impl Write + Send + 'static) -> Output {
        let queue = |sink: Sink| Queue { sink: Some(sink), ..Queue::default() };
        let queues = Mutex::new([queue(Box::new(out)), queue(Box::new(err))]);
        Output { shared: Arc::new(Shared { queues, changed: Condvar::new() }) }
    }

    /// Writes one or more lines to standard output.
    pub fn out(&self, text: impl Display) {
        self.push(Stream::Out, format!("{text}\n").into_bytes());
    }

    /// Writes one or more lines to standard error.
    pub fn err(&self, text: impl Display) {
        self.push(Stream::Err, format!("{text}\n").into_bytes());
    }

    /// Returns a writer of whole lines to standard error.
    pub fn errors(&self) -> impl Write + use<> {
        Lines(self.clone())
    }

    /// Returns the target of a progress bar: standard error, while its reader keeps up.
    pub fn bar(&self) -> ProgressDrawTarget {
        bar::target(self.clone())
    }

    /// Reports panics of this process here from now on: the usual report waits for its reader.
    pub fn take_panics(&self) {
        let output = self.clone();
        std::panic::set_hook(Box::new(move |panic| {
            let backtrace = Backtrace::capture();
            let thread = current().name().unwrap_or("unnamed").to_owned();
            output.err(format_args!("thread '{thread}' {panic}"));
            if backtrace.status() == BacktraceStatus::Captured {
                output.err(backtrace);
            }
        }));
    }

    /// Waits until everything is written, but not for a reader that does not read. Must be called before the process ends.
    pub fn finish(&self) {
        for stream in [Stream::Out, Stream::Err] {
            if self.shared.lock()[stream as usize].dropped > 0 {
                self.push(stream, Vec::new());
            }
        }
        let (begin, mut last) = (Instant::now(), Instant::now());
        let mut queues = self.shared.lock();
        let mut done = 0;
        while queues.iter().any(|queue| queue.done < queue.queued) {
            let now = queues.iter().map(|queue| queue.done).sum();
            if now > done {
                (done, last) = (now, Instant::now());
            }
            if last.elapsed() > STALLED || begin.elapsed() > SLOW {
                return;
            }
            queues = self.shared.wait(queues, ORDER).0;
        }
    }

    /// Writes text that may be dropped without notice if its reader lags behind.
    fn frame(&self, text: &[u8]) {
        if self.shared.lock()[Stream::Err as usize].bytes < ROOM / 16 {
            self.push(Stream::Err, text.to_vec());
        }
    }

    fn push(&self, stream: Stream, text: Vec<u8>) {
        let mut queues = self.shared.lock();
        let after = queues[1 - stream as usize].queued;
        let queue = &mut queues[stream as usize];
        if queue.bytes + text.len() > ROOM {
            queue.dropped += lines(&text);
            return;
        }
        queue.bytes += text.len();
        queue.queued += 1;
        queue.waiting.push_back(Entry { text, after, dropped: std::mem::take(&mut queue.dropped) });
        if let Some(sink) = queue.sink.take() {
            let shared = Arc::clone(&self.shared);
            // Without a thread nothing is written, as without a reader.
            let _ = Builder::new().name(format!("{stream:?}")).spawn(move || shared.write(stream, sink));
        }
        self.shared.changed.notify_all();
    }
}

fn lines(text: &[u8]) -> u64 {
    text.iter().filter(|byte| **byte == b'\n').count() as u64
}

impl Shared {
    /// Locks the queues. They are consistent after every statement, so a thread that panicked leaves no partial state.
    fn lock(&self) -> MutexGuard<'_, [Queue; 2]> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change; returns whether the time limit passed first.
    fn wait<'a>(&self, queues: MutexGuard<'a, [Queue; 2]>, limit: Duration) -> (MutexGuard<'a, [Queue; 2]>, bool) {
        let (queues, result) = self.changed.wait_timeout(queues, limit).unwrap_or_else(PoisonError::into_inner);
        (queues, result.timed_out())
    }

    /// Writes entries as they arrive, as long as the process lives.
    fn write(&self, stream: Stream, mut sink: Sink) {
        let mut unwritten = 0;
        loop {
            let Entry { mut text, dropped, .. } = self.next(stream);
            let (len, lines) = (text.len(), lines(&text));
            unwritten += dropped;
            if unwritten > 0 {
                let s = if unwritten == 1 { "" } else { "s" };
                let notice = format!("[{unwritten} line{s} dropped here: the reader did not keep up]\n");
                text.splice(0..0, notice.into_bytes());
            }
            unwritten = if write_whole(&mut sink, &text).is_ok() { 0 } else { unwritten + lines };
            let mut queues = self.lock();
            let queue = &mut queues[stream as usize];
            queue.bytes -= len;
            queue.done += 1;
            queue.stalled = false;
            self.changed.notify_all();
        }
    }

    /// Returns the next entry, once the entries of the other stream that precede it are written, or that stream's reader stalls.
    fn next(&self, stream: Stream) -> Entry {
        let (own, other) = (stream as usize, 1 - stream as usize);
        let mut queues = self.lock();
        loop {
            let after = queues[own].waiting.front().map(|entry| entry.after);
            match after {
                Some(after) if queues[other].done >= after || queues[other].stalled => {
                    if let Some(entry) = queues[own].waiting.pop_front() {
                        return entry;
                    }
                }
                _ => {
                    let (again, late) = self.wait(queues, ORDER);
                    queues = again;
                    queues[other].stalled |= late && after.is_some_and(|after| queues[other].done < after);
                }
            }
        }
    }
}

/// Writes all of the text, waiting if the stream is non-blocking: its other end may belong to a program that requires that.
fn write_whole(sink: &mut Sink, mut text: &[u8]) -> io::Result<()> {
    while !text.is_empty() {
        match sink.write(text) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => text = &text[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(Duration::from_millis(10)),
            Err(error) => return Err(error),
        }
    }
    sink.flush()
}

/// Writer for which each write is a line, as those of `tracing` are.
struct Lines(Output);

impl Write for Lines {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.push(Stream::Err, text.to_vec());
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
