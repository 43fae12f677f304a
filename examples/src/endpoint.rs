//! `--metrics-addr`: the last step's numbers for Prometheus, over HTTP, from a thread of its own.

#[cfg(not(feature = "prometheus"))]
pub use self::absent::Endpoint;
#[cfg(feature = "prometheus")]
pub use self::present::Endpoint;

#[cfg(feature = "prometheus")]
mod present {
    use std::net::SocketAddr;
    use std::thread::{self, JoinHandle};

    use anyhow::{Context, Result};
    use briquette::StepReport;
    use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
    use tokio::runtime;
    use tokio::sync::oneshot::{self, Sender};

    /// Serves until it is dropped.
    #[derive(Debug)]
    pub struct Endpoint {
        recorder: PrometheusRecorder,
        thread: Option<(Sender<()>, JoinHandle<()>)>,
    }

    impl Endpoint {
        /// Listens there.
        ///
        /// # Errors
        /// Names the flag, the address, and why it cannot be had.
        pub fn open(address: SocketAddr) -> Result<Endpoint> {
            let problem = || {
                format!(
                    "--metrics-addr {address}: cannot be listened on; give an address of this machine and a free port"
                )
            };
            let runtime = runtime::Builder::new_current_thread().enable_all().build().with_context(problem)?;
            let built = {
                let _inside = runtime.enter();
                PrometheusBuilder::new().with_http_listener(address).build()
            };
            let (recorder, exporter) = built.with_context(problem)?;
            metrics::with_local_recorder(&recorder, StepReport::describe_metrics);
            let (stop, stopped) = oneshot::channel();
            let serve = async {
                tokio::select! {
                    result = exporter => {
                        if let Err(error) = result {
                            tracing::warn!("--metrics-addr: serving ended: {error:?}");
                        }
                    }
                    _ = stopped => {}
                }
            };
            let thread = thread::Builder::new().name("metrics".into()).spawn(move || runtime.block_on(serve));
            let thread = thread.with_context(problem)?;
            Ok(Endpoint { recorder, thread: Some((stop, thread)) })
        }

        /// A step's numbers, to be served from now on.
        pub fn record(&self, report: &StepReport) {
            metrics::with_local_recorder(&self.recorder, || report.record_metrics());
        }
    }

    impl Drop for Endpoint {
        fn drop(&mut self) {
            if let Some((stop, thread)) = self.thread.take() {
                // Both fail only where serving has ended by itself.
                let _ = stop.send(());
                let _ = thread.join();
            }
        }
    }
}

#[cfg(not(feature = "prometheus"))]
mod absent {
    use std::net::SocketAddr;

    use anyhow::{Result, bail};
    use briquette::StepReport;

    /// There is none in this build.
    #[derive(Debug)]
    pub enum Endpoint {}

    impl Endpoint {
        /// There is nothing to open.
        ///
        /// # Errors
        /// Always.
        pub fn open(address: SocketAddr) -> Result<Endpoint> {
            bail!("--metrics-addr {address}: this build has no endpoint; build with --features prometheus")
        }

        /// Nothing.
        pub fn record(&self, _report: &StepReport) {
            match *self {}
        }
    }
}
