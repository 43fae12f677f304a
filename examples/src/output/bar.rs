//! Progress bar that waits for no reader: it is drawn through the same queue as the lines.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};

use console::Term;
use indicatif::{ProgressDrawTarget, TermLike};

use super::Output;

/// Returns standard error, if it is a terminal.
pub(super) fn target(output: Output) -> ProgressDrawTarget {
    if !io::stderr().is_terminal() {
        return ProgressDrawTarget::hidden();
    }
    ProgressDrawTarget::term_like_with_hz(Box::new(Terminal { output, frame: Mutex::default() }), 20)
}

/// Terminal control sequences, collected until the bar is drawn.
#[derive(Debug)]
struct Terminal {
    output: Output,
    frame: Mutex<String>,
}

impl Terminal {
    fn add(&self, text: &str) -> io::Result<()> {
        self.frame.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
        Ok(())
    }

    fn cursor(&self, by: usize, direction: char) -> io::Result<()> {
        if by == 0 { Ok(()) } else { self.add(&format!("\x1b[{by}{direction}")) }
    }
}

impl TermLike for Terminal {
    fn width(&self) -> u16 {
        Term::stderr().size().1
    }
    fn height(&self) -> u16 {
        Term::stderr().size().0
    }
    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.cursor(n, 'A')
    }
    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.cursor(n, 'B')
    }
    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.cursor(n, 'C')
    }
    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.cursor(n, 'D')
    }
    fn write_line(&self, text: &str) -> io::Result<()> {
        self.add(text).and_then(|()| self.add("\n"))
    }
    fn write_str(&self, text: &str) -> io::Result<()> {
        self.add(text)
    }
    fn clear_line(&self) -> io::Result<()> {
        self.add("\r\x1b[2K")
    }
    fn flush(&self) -> io::Result<()> {
        let frame = std::mem::take(&mut *self.frame.lock().unwrap_or_else(PoisonError::into_inner));
        self.output.frame(frame.as_bytes());
        Ok(())
    }
}
