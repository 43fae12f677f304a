//! Non-blocking data socket driven by the calling thread, plain or under TLS.

use std::io::{self, IoSlice, Read, Write};

use mio::net::TcpStream;
use rustls::Connection;

/// One connection's bytes. Reads and writes return `WouldBlock` instead of waiting.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<Tls>),
}

#[derive(Debug)]
pub(crate) struct Tls {
    pub(crate) socket: TcpStream,
    pub(crate) connection: Connection,
}

impl Stream {
    pub(crate) fn socket(&mut self) -> &mut TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(tls) => &mut tls.socket,
        }
    }

    /// Accepts some of `head` followed by `body`.
    pub(crate) fn write(&mut self, head: &[u8], body: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) if head.is_empty() => socket.write(body),
            Stream::Plain(socket) => socket.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]),
            Stream::Tls(tls) => tls.write(if head.is_empty() { body } else { head }),
        }
    }

    /// Sends accepted bytes that are still buffered.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(_) => Ok(()),
            Stream::Tls(tls) => tls.flush(),
        }
    }

    /// Returns whether all accepted bytes have been passed to the system.
    pub(crate) fn is_flushed(&self) -> bool {
        match self {
            Stream::Plain(_) => true,
            Stream::Tls(tls) => !tls.connection.wants_write(),
        }
    }

    /// Ends the writing side.
    pub(crate) fn end(&mut self) {
        if let Stream::Tls(tls) = self {
            tls.connection.send_close_notify();
            // If the other side does not receive this, it detects the end of the stream, after the goodbye frame.
            drop(tls.flush());
        }
        drop(self.socket().shutdown(std::net::Shutdown::Write));
    }
}

/// Reads some bytes; 0 at the end.
impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.read(bytes),
            Stream::Tls(tls) => tls.read(bytes),
        }
    }
}

impl Tls {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.connection.reader().read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The goodbye frame distinguishes an orderly end from an unexpected one, as on plain sockets.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                done => return done,
            }
            if self.connection.read_tls(&mut self.socket)? == 0 {
                return Ok(0);
            }
            self.connection.process_new_packets().map_err(io::Error::other)?;
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.connection.writer().write(bytes)?;
        match self.flush() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && taken > 0 => Ok(taken),
            Err(error) => Err(error),
            Ok(()) if taken == 0 => self.connection.writer().write(bytes),
            Ok(()) => Ok(taken),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut self.socket) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => drop(result?),
            }
        }
        Ok(())
    }
}
