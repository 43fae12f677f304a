//! Certificates and worlds for the tests.
#![allow(dead_code, reason = "every test program uses its own part")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use briquette_tcp::{Certificates, Tcp, TcpBuilder, loopback};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// How long the certificates of a test hold, in years around now.
pub(crate) const VALID: (i32, i32) = (2000, 4000);
/// Until the year 2001.
pub(crate) const EXPIRED: (i32, i32) = (2000, 2001);

/// Writes an authority, a certificate for ranks and its key, as `briquette cert` does.
pub(crate) fn write_certificates(directory: &Path, (from, to): (i32, i32)) {
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_certificate = authority.self_signed(&authority_key).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut own = CertificateParams::new(vec!["briquette".to_owned()]).unwrap();
    own.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    own.not_before = rcgen::date_time_ymd(from, 1, 1);
    own.not_after = rcgen::date_time_ymd(to, 1, 1);
    let certificate = own.signed_by(&key, &Issuer::new(authority, authority_key)).unwrap();
    fs::write(directory.join("ca.pem"), authority_certificate.pem()).unwrap();
    fs::write(directory.join("cert.pem"), certificate.pem()).unwrap();
    fs::write(directory.join("key.pem"), key.serialize_pem()).unwrap();
}

/// New certificates that hold for long.
pub(crate) fn certificates() -> Certificates {
    let directory = TempDir::new().unwrap();
    write_certificates(directory.path(), VALID);
    Certificates::read(directory.path()).unwrap()
}

/// A world that fails, rather than hangs, when a rank waits in vain.
pub(crate) fn world(ranks: usize, edit: impl Fn(TcpBuilder) -> TcpBuilder + Sync) -> Vec<Tcp> {
    let patient = Duration::from_secs(20);
    loopback(ranks, |builder| edit(builder.deadline(patient).join_deadline(patient))).unwrap()
}
