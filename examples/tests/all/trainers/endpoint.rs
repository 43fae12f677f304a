//! The page for Prometheus with clients that request other pages, or hold connections.

use std::io::{self, Read, Write};
use std::net;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use briquette::StepReport;
use briquette_examples::endpoint::Endpoint;

/// Limits of the endpoint: concurrent connections, and their maximum duration.
const MOST: usize = 16;
const DEADLINE: Duration = Duration::from_secs(5);
/// Maximum bytes of a request's head.
const HEAD: usize = 8 << 10;

fn endpoint() -> (Endpoint, SocketAddr) {
    let address = net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let endpoint = Endpoint::open(address).unwrap();
    endpoint.record(&StepReport { step: 7, ..StepReport::default() });
    (endpoint, address)
}

fn connect(address: SocketAddr) -> net::TcpStream {
    let stream = net::TcpStream::connect_timeout(&address, Duration::from_secs(20)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Returns the answer's head, in lower case, and its body.
fn ask(address: SocketAddr, head: &str) -> (String, String) {
    let mut stream = connect(address);
    stream.write_all(format!("{head}\r\nHost: ranks\r\n\r\n").as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_lowercase(), body.to_owned())
}

/// Threat S8.
#[test]
fn one_page_is_served_to_get_and_head_and_nothing_else() {
    let (_endpoint, address) = endpoint();
    let (head, page) = ask(address, "GET /metrics HTTP/1.1");
    assert!(head.starts_with("http/1.1 200") && head.contains("text/plain; version=0.0.4"), "{head}");
    assert!(page.contains("briquette_step 7"), "{page}");
    let (with_query, _) = ask(address, "GET /metrics?x=1 HTTP/1.0");
    assert!(with_query.starts_with("http/1.0 200"), "{with_query}");
    let (head, body) = ask(address, "HEAD /metrics HTTP/1.1");
    assert!(head.contains(&format!("content-length: {}", page.len())) && body.is_empty(), "{head}\n{body}");
    for path in ["/", "/metrics/", "/metricsx", "/admin", "//metrics"] {
        let (head, body) = ask(address, &format!("GET {path} HTTP/1.1"));
        assert!(head.starts_with("http/1.1 404") && body == "the only page is /metrics\n", "{path}: {head}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"] {
        let (head, body) = ask(address, &format!("{method} /metrics HTTP/1.1"));
        assert!(head.starts_with("http/1.1 405") && head.contains("allow: get, head"), "{method}: {head}");
        assert!(!body.contains("briquette_"), "{method}: {body}");
    }
    // Of a head that is too long the rest is not read, which may reset the connection.
    let (mut stream, mut text) = (connect(address), String::new());
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(2 * HEAD));
    let _ = stream.write_all(long.as_bytes()).and_then(|()| stream.read_to_string(&mut text));
    assert!(!text.contains("briquette_"), "{text}");
}

/// Threat S8. Connections beyond the limit are closed, the oldest first, and the page is served all the while.
#[test]
fn slow_connections_give_way_to_later_ones_and_end_at_a_deadline() {
    let (_endpoint, address) = endpoint();
    let mut slow = Vec::new();
    for _ in 0..3 * MOST {
        let mut stream = connect(address);
        stream.write_all(b"GET /met").unwrap();
        slow.push(stream);
    }
    assert!(ask(address, "GET /metrics HTTP/1.1").1.contains("briquette_step 7"));
    // Those that have given way are closed by now, or when the request above was answered.
    let is_closed = |stream: &mut net::TcpStream| match stream.read(&mut [0; 64]) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    };
    assert!(slow[..2 * MOST].iter_mut().all(is_closed), "the oldest");
    // A connection that trickles has the same deadline as a silent one.
    let mut last = slow.pop().unwrap();
    let trickled = (0..400).take_while(|_| {
        thread::sleep(DEADLINE / 100);
        last.write_all(b"r").is_ok()
    });
    assert!(trickled.count() < 400 && slow.iter_mut().all(is_closed), "all");
}
