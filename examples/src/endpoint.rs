//! `--metrics-addr`: the last step's numbers for Prometheus, over HTTP, from a thread of its own.

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
