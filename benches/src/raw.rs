//! Raw socket performance: the baseline of collectives over TCP.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use briquette::core::Session;
use mio::{Events, Interest, Token};

/// Bytes of one read or write, tuned for loopback like the collectives' frames.
const BLOCK: usize = 256 << 10;

/// Plain connections in a ring: one to the next rank, one from the previous rank.
#[derive(Debug)]
pub struct RawRing {
    next: mio::net::TcpStream,
    previous: mio::net::TcpStream,
    poll: mio::Poll,
    events: Events,
}

impl RawRing {
    /// Connects the ring; ranks exchange their ports through `comm`.
    ///
    /// # Errors
    /// If a socket cannot be created.
    pub fn connect(comm: &mut Session) -> Result<RawRing> {
        let (rank, world) = (comm.rank(), comm.world());
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let mut ports = Vec::new();
        comm.all_gather(&port.to_le_bytes(), &mut ports)?;
        let next: [u8; 2] = ports[(rank + 1) % world].as_slice().try_into().context("a port")?;
        let next = TcpStream::connect(("127.0.0.1", u16::from_le_bytes(next)))?;
        let (previous, _) = listener.accept()?;
        for socket in [&next, &previous] {
            socket.set_nodelay(true)?;
            socket.set_nonblocking(true)?;
        }
        let (mut next, mut previous) = (mio::net::TcpStream::from_std(next), mio::net::TcpStream::from_std(previous));
        let poll = mio::Poll::new()?;
        poll.registry().register(&mut next, Token(0), Interest::WRITABLE)?;
        poll.registry().register(&mut previous, Token(1), Interest::READABLE)?;
        Ok(RawRing { next, previous, poll, events: Events::with_capacity(4) })
    }

    /// Sends all of `out` to the next rank while `into` is filled from the previous one.
    ///
    /// # Errors
    /// If a socket fails or the other side takes longer than a minute.
    pub fn exchange(&mut self, out: &[u8], into: &mut [u8]) -> Result<()> {
        let (mut written, mut read) = (0, 0);
        while written < out.len() || read < into.len() {
            let mut moved = false;
            if written < out.len() {
                let end = out.len().min(written + BLOCK);
                moved |= advance(self.next.write(&out[written..end]), &mut written)?;
            }
            if read < into.len() {
                let end = into.len().min(read + BLOCK);
                moved |= advance(self.previous.read(&mut into[read..end]), &mut read)?;
            }
            if !moved {
                self.poll.poll(&mut self.events, Some(Duration::from_secs(60)))?;
                ensure!(!self.events.is_empty(), "the other rank moved nothing for a minute");
            }
        }
        Ok(())
    }

    /// Sends one byte round the ring and back, by blocking reads: in a world of two, a round trip.
    ///
    /// # Errors
    /// As for [`exchange`](Self::exchange).
    pub fn round_trip(&mut self, first: bool) -> Result<()> {
        let mut byte = [1];
        if first {
            self.exchange(&byte, &mut [])?;
            self.exchange(&[], &mut byte)
        } else {
            self.exchange(&[], &mut byte)?;
            self.exchange(&byte, &mut [])
        }
    }
}

fn advance(result: io::Result<usize>, count: &mut usize) -> io::Result<bool> {
    match result {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(more) => {
            *count += more;
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}
