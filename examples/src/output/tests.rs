//! Readers that read, that stop, and that go away.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

/// Written text, once its reader takes it.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Page {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Page {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(text);
        Ok(text.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A reader that takes nothing before it is released.
struct Stopped(Page, Receiver<()>);

impl Stopped {
    fn new(page: &Page) -> (Stopped, Sender<()>) {
        let (go, wait) = channel();
        (Stopped(page.clone(), wait), go)
    }
}

impl Write for Stopped {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        // An error means that it was released.
        let _ = self.1.recv();
        self.0.write(text)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A full disk, or a pipe without a reader.
struct Failing(ErrorKind);

impl Write for Failing {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(self.0.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn lines_arrive_whole_and_in_order_across_both_streams() {
    // One page for both, as on a terminal.
    let page = Page::default();
    let output = Output::to(page.clone(), page.clone());
    for n in 0..500 {
        if n % 3 == 0 { output.err(n) } else { output.out(n) }
    }
    output.finish();
    let expected: String = (0..500).map(|n| format!("{n}\n")).collect();
    assert_eq!(page.text(), expected);
}

#[test]
fn a_reader_that_stops_is_not_waited_for_and_learns_how_many_lines_it_missed() {
    let (page, errors) = (Page::default(), Page::default());
    let (stopped, go) = Stopped::new(&page);
    let output = Output::to(stopped, errors.clone());
    let line = "x".repeat(1023);
    let begin = Instant::now();
    for _ in 0..ROOM / 1024 + 7 {
        output.out(&line);
    }
    output.err("an error is not kept waiting");
    output.finish();
    assert!(begin.elapsed() < SLOW, "{:?}", begin.elapsed());
    assert_eq!(errors.text(), "an error is not kept waiting\n");

    drop(go);
    output.finish();
    let text = page.text();
    assert_eq!(text.lines().filter(|read| **read == line).count(), ROOM / 1024, "what there was room for");
    assert_eq!(text.lines().last(), Some("[7 lines dropped here: the reader did not keep up]"));
}

#[test]
fn a_reader_that_went_away_and_a_full_disk_are_not_missed() {
    for kind in [ErrorKind::BrokenPipe, ErrorKind::StorageFull] {
        let page = Page::default();
        let output = Output::to(Failing(kind), page.clone());
        (0..1000).for_each(|n| output.out(n));
        output.err("here");
        output.finish();
        assert_eq!(page.text(), "here\n");
    }
}

#[test]
fn a_bar_that_is_not_seen_leaves_room_for_lines() {
    let page = Page::default();
    let (stopped, go) = Stopped::new(&page);
    let output = Output::to(Page::default(), stopped);
    (0..10_000).for_each(|_| output.frame(&[b'='; 80]));
    output.err("a line");
    drop(go);
    output.finish();
    assert!(page.text().ends_with("a line\n") && !page.text().contains("dropped"));
}
