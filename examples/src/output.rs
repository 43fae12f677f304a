//! What a trainer writes to the terminal, or to what stands in its place: handed to a thread, never waited for.
//!
//! A run does not end because its reader did (`trainer | head`, a full disk behind a log, a closed terminal), and does not wait
//! for one that stopped reading (Ctrl-S). What finds no room is dropped, and where writing continues a line gives their number.
//! `tracing-appender` is not used for this: it counts, but does not mark where lines are missing, and prints to standard output
//! when it cannot end in time, which is where a run would hang.

mod bar;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::VecDeque;
use std::fmt::{self, Display};
use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, current, sleep};
use std::time::{Duration, Instant};

use indicatif::ProgressDrawTarget;

/// Bytes of a stream that wait to be written; what is more is dropped.
const ROOM: usize = 1 << 18;
/// How long a line waits for those of the other stream that were written before it: both may be one terminal.
const ORDER: Duration = Duration::from_millis(200);
/// How long the end waits for a reader that takes nothing.
const STALLED: Duration = Duration::from_secs(2);
/// How long the end waits for a reader that takes little.
const SLOW: Duration = Duration::from_secs(10);

/// Standard output and standard error, or what takes their place.
#[derive(Clone)]
pub struct Output {
    shared: Arc<Shared>,
}

/// Where text goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Out,
    Err,
}

struct Shared {
    queues: Mutex<[Queue; 2]>,
    changed: Condvar,
}

/// One stream's.
#[derive(Default)]
struct Queue {
    /// Taken by the thread that writes, which starts with the first line.
    sink: Option<Sink>,
    waiting: VecDeque<Entry>,
    /// Waiting, or being written.
    bytes: usize,
    queued: u64,
    done: u64,
    /// Lines that found no room since the last that did.
    dropped: u64,
    /// What is being written has kept the other stream waiting.
    stalled: bool,
}

type Sink = Box<dyn Write + Send>;

struct Entry {
    text: Vec<u8>,
    /// How many of the other stream's entries come before.
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

/// The stream without the lock and the buffer that the standard library puts around it: a thread that waits for a reader holds
/// up no other.
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
    /// Writes to these instead.
    pub fn to(out: impl Write + Send + 'static, err: impl Write + Send + 'static) -> Output {
        let queue = |sink: Sink| Queue { sink: Some(sink), ..Queue::default() };
        let queues = Mutex::new([queue(Box::new(out)), queue(Box::new(err))]);
        Output { shared: Arc::new(Shared { queues, changed: Condvar::new() }) }
    }

    /// A line, or several, on standard output.
    pub fn out(&self, text: impl Display) {
        self.push(Stream::Out, format!("{text}\n").into_bytes());
    }

    /// A line, or several, on standard error.
    pub fn err(&self, text: impl Display) {
        self.push(Stream::Err, format!("{text}\n").into_bytes());
    }

    /// A writer of whole lines to standard error.
    pub fn errors(&self) -> impl Write + use<> {
        Lines(self.clone())
    }

    /// Where a progress bar is drawn: on standard error, as long as its reader takes it.
    pub fn bar(&self) -> ProgressDrawTarget {
        bar::target(self.clone())
    }

    /// From now on panics of this process are reported here: the usual report waits for its reader.
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

    /// Waits until everything is written, but not for a reader that does not read. Call it before the process ends.
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

    /// Text that may be dropped where its reader lags behind, and is not missed.
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
    /// What is guarded is right after every statement: a thread that panicked leaves nothing half done.
    fn lock(&self) -> MutexGuard<'_, [Queue; 2]> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change; whether the time was over before one came.
    fn wait<'a>(&self, queues: MutexGuard<'a, [Queue; 2]>, limit: Duration) -> (MutexGuard<'a, [Queue; 2]>, bool) {
        let (queues, result) = self.changed.wait_timeout(queues, limit).unwrap_or_else(PoisonError::into_inner);
        (queues, result.timed_out())
    }

    /// Writes what comes, as long as the process lives.
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

    /// The next entry, when those of the other stream that came before it are written, or that stream's reader stalls.
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

/// Waits where the stream was made not to: its other end may belong to a program that wants it so.
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

/// Each write is a line, as those of `tracing` are.
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
