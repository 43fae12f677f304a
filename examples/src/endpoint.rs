//! `--metrics-addr`: serves the last step's numbers to Prometheus over HTTP, from a separate thread.

#[cfg(not(feature = "prometheus"))]
pub use self::absent::Endpoint;
#[cfg(feature = "prometheus")]
mod present;
#[cfg(feature = "prometheus")]
pub use self::present::Endpoint;

#[cfg(not(feature = "prometheus"))]
mod absent {
    use std::net::SocketAddr;

    use anyhow::{Result, bail};
    use briquette::StepReport;

    /// Placeholder: this build has no endpoint.
    #[derive(Debug)]
    pub enum Endpoint {}

    impl Endpoint {
        /// Fails, since this build has no endpoint.
        ///
        /// # Errors
        /// Always fails.
        pub fn open(address: SocketAddr) -> Result<Endpoint> {
            bail!("--metrics-addr {address}: this build has no endpoint; build with --features prometheus")
        }

        /// Does nothing.
        pub fn record(&self, _report: &StepReport) {
            match *self {}
        }
    }
}
