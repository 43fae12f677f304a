//! HTTP server of `--metrics-addr`, with a connection limit.
//!
//! Training shares its cores with this server, and any client that reaches the address may hold connections. Their
//! number is therefore limited, each answers one request and has a deadline, and a new connection beyond [`MOST`]
//! replaces the oldest.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use briquette::StepReport;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::oneshot::{self, Sender};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// Maximum number of concurrent connections.
const MOST: usize = 16;
/// Time limit of a connection: the request, and the client's reading of the answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// Pause between connections that replace others, so that a burst of connections costs no more than a few.
const PAUSE: Duration = Duration::from_millis(2);
/// Maximum bytes of a request's head.
const HEAD: usize = 8 << 10;

/// Path of the only page.
const PATH: &str = "/metrics";
const METHODS: &str = "GET, HEAD";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// The server, which runs until it is dropped.
#[derive(Debug)]
pub struct Endpoint {
    recorder: PrometheusRecorder,
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Endpoint {
    /// Listens at an address.
    ///
    /// # Errors
    /// Names the flag, the address, and the reason.
    pub fn open(address: SocketAddr) -> Result<Endpoint> {
        let problem = || {
            format!("--metrics-addr {address}: cannot be listened on; give an address of this machine and a free port")
        };
        let runtime = runtime::Builder::new_current_thread().enable_all().build().with_context(problem)?;
        let listener = runtime.block_on(TcpListener::bind(address)).with_context(problem)?;
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, StepReport::describe_metrics);
        let (handle, (stop, stopped)) = (recorder.handle(), oneshot::channel());
        let serve = async {
            tokio::select! {
                () = serve(listener, handle) => {}
                _ = stopped => {}
            }
        };
        let thread = thread::Builder::new().name("metrics".into()).spawn(move || runtime.block_on(serve));
        let thread = thread.with_context(problem)?;
        Ok(Endpoint { recorder, thread: Some((stop, thread)) })
    }

    /// Records the numbers of a step, to be served from now on.
    pub fn record(&self, report: &StepReport) {
        metrics::with_local_recorder(&self.recorder, || report.record_metrics());
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            // Both fail only if serving has already ended.
            let _ = stop.send(());
            let _ = thread.join();
        }
    }
}

async fn serve(listener: TcpListener, handle: PrometheusHandle) {
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // For example, too few file descriptors: some may be freed.
            Err(error) => {
                tracing::debug!("--metrics-addr: a connection was not taken: {error}");
                sleep(DEADLINE / 10).await;
                continue;
            }
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() == MOST {
            open.pop_front().into_iter().for_each(|oldest| oldest.abort());
            sleep(PAUSE).await;
        }
        open.push_back(tokio::spawn(timeout(DEADLINE, connection(stream, handle.clone()))).abort_handle());
    }
}

/// Serves one request.
async fn connection(stream: TcpStream, handle: PrometheusHandle) -> Result<(), hyper::Error> {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = answer(&request, &handle);
        async move { Ok::<_, Infallible>(answer) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(DEADLINE).keep_alive(false).max_buf_size(HEAD);
    http.serve_connection(TokioIo::new(stream), service).await
}

/// Returns the page if it is requested; the body of an answer to HEAD is omitted when it is sent.
fn answer<B>(request: &Request<B>, handle: &PrometheusHandle) -> Response<Full<Bytes>> {
    let with = |status, kind, text: String| {
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        response
    };
    if request.uri().path() != PATH {
        return with(StatusCode::NOT_FOUND, PLAIN, format!("the only page is {PATH}\n"));
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut refused = with(StatusCode::METHOD_NOT_ALLOWED, PLAIN, format!("{PATH} takes {METHODS}\n"));
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static(METHODS));
        return refused;
    }
    with(StatusCode::OK, PROMETHEUS, handle.render())
}
