//! Strangers: connections from distinct addresses, so that the log distinguishes them.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use socket2::{Domain, Socket, Type};

/// An address of the loopback network from which only this test calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source(pub(crate) Ipv4Addr);

impl Source {
    pub(crate) fn new() -> Source {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        Source(Ipv4Addr::new(127, 0, 7, NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// Returns the log's name for it.
    pub(crate) fn logged(self) -> String {
        format!("from {}:", self.0)
    }

    pub(crate) fn connect(self, to: SocketAddr) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((self.0, 0)).into()).unwrap();
        socket.connect(&to.into()).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(super::PATIENT)).unwrap();
        stream
    }

    /// Sends bytes, and returns everything received until the other side hangs up.
    pub(crate) fn say(self, to: SocketAddr, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect(to);
        let mut heard = Vec::new();
        // The other side may hang up before everything is sent: that is recorded as well.
        let _ = stream.write_all(bytes).and_then(|()| stream.read_to_end(&mut heard));
        heard
    }
}

/// A relay that calls from a distinct address and records the traffic.
pub(crate) struct Recorder {
    pub(crate) source: Source,
    pub(crate) address: SocketAddr,
    /// Bytes that callers sent, one entry per connection.
    pub(crate) said: Arc<Mutex<Vec<Vec<u8>>>>,
    /// Bytes that they received.
    pub(crate) heard: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Recorder {
    /// Starts the relay. Its threads end with the test program.
    pub(crate) fn to(target: SocketAddr) -> Recorder {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (source, address) = (Source::new(), listener.local_addr().unwrap());
        let (said, heard) = <(Arc<Mutex<Vec<Vec<u8>>>>, Arc<Mutex<Vec<Vec<u8>>>>)>::default();
        let recorder = Recorder { source, address, said: Arc::clone(&said), heard: Arc::clone(&heard) };
        thread::spawn(move || {
            for caller in listener.incoming() {
                let (caller, callee) = (caller.unwrap(), source.connect(target));
                callee.set_read_timeout(None).unwrap();
                copy(&caller, &callee, &said);
                copy(&callee, &caller, &heard);
            }
        });
        recorder
    }

    /// Returns all bytes of both directions.
    pub(crate) fn everything(&self) -> Vec<u8> {
        [self.said.lock().unwrap().concat(), self.heard.lock().unwrap().concat()].concat()
    }
}

fn copy(from: &TcpStream, to: &TcpStream, record: &Arc<Mutex<Vec<Vec<u8>>>>) {
    let (mut from, mut to, record) = (from.try_clone().unwrap(), to.try_clone().unwrap(), Arc::clone(record));
    let number = {
        let mut record = record.lock().unwrap();
        record.push(Vec::new());
        record.len() - 1
    };
    thread::spawn(move || -> io::Result<()> {
        let mut bytes = [0; 4096];
        loop {
            let count = from.read(&mut bytes).unwrap_or(0);
            if count == 0 {
                return to.shutdown(Shutdown::Write);
            }
            record.lock().unwrap()[number].extend_from_slice(&bytes[..count]);
            to.write_all(&bytes[..count])?;
        }
    });
}
