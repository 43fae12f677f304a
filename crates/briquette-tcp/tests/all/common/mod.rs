//! Certificates and worlds for the tests.
#![allow(dead_code, reason = "every test program uses its own part")]

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::thread;
use std::time::Duration;

use briquette_core::comm::{Session, run_ranks};
use briquette_tcp::{Certificates, JoinError, Tcp, TcpBuilder, loopback};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

pub(crate) mod logs;
pub(crate) mod stranger;

/// Longer than any successful operation takes.
pub(crate) const PATIENT: Duration = Duration::from_secs(20);

/// Validity of a test's certificates, in years around now.
pub(crate) const VALID: (i32, i32) = (2000, 4000);
/// Validity that ended in 2001.
pub(crate) const EXPIRED: (i32, i32) = (2000, 2001);

/// Writes an authority, a certificate for ranks and its key, as `briquette cert` does.
pub(crate) fn write_certificates(directory: &Path, valid: (i32, i32)) {
    let authority_key = KeyPair::generate().unwrap();
    let authority = authority().self_signed(&authority_key).unwrap();
    fs::write(directory.join("ca.pem"), authority.pem()).unwrap();
    fs::write(directory.join("ca-key.pem"), authority_key.serialize_pem()).unwrap();
    renew(directory, valid);
}

fn authority() -> CertificateParams {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority
}

/// Writes another certificate for ranks, signed by the authority in the directory.
pub(crate) fn renew(directory: &Path, (from, to): (i32, i32)) {
    let authority_key = KeyPair::from_pem(&fs::read_to_string(directory.join("ca-key.pem")).unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut own = CertificateParams::new(vec!["briquette".to_owned()]).unwrap();
    own.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    own.not_before = rcgen::date_time_ymd(from, 1, 1);
    own.not_after = rcgen::date_time_ymd(to, 1, 1);
    let certificate = own.signed_by(&key, &Issuer::new(authority(), authority_key)).unwrap();
    fs::write(directory.join("cert.pem"), certificate.pem()).unwrap();
    fs::write(directory.join("key.pem"), key.serialize_pem()).unwrap();
}

/// Creates certificates with a long validity.
pub(crate) fn certificates() -> Certificates {
    let directory = TempDir::new().unwrap();
    write_certificates(directory.path(), VALID);
    Certificates::read(directory.path()).unwrap()
}

/// Creates a world that fails, rather than hangs, when a rank waits in vain.
pub(crate) fn world(ranks: usize, edit: impl Fn(TcpBuilder) -> TcpBuilder + Sync) -> Vec<Tcp> {
    loopback(ranks, |builder| edit(builder.deadline(PATIENT).join_deadline(PATIENT))).unwrap()
}

/// Returns an address at which no process listens.
pub(crate) fn nowhere() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Creates a rank of a world of three whose rank 0 is at this address.
pub(crate) fn rank(rank: usize, master: SocketAddr) -> TcpBuilder {
    TcpBuilder::new(rank, 3, master.to_string()).deadline(PATIENT).join_deadline(PATIENT)
}

/// Lets ranks 0 and 1 of three wait at these addresses while `meddle` interferes there. Then the last rank joins, and
/// the world must sum numbers as if nothing had happened.
pub(crate) fn meddle<T>(
    edit: impl Fn(TcpBuilder) -> TcpBuilder + Sync,
    meddle: impl FnOnce([SocketAddr; 2]) -> T,
) -> T {
    let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
    let edit = &edit;
    let builder = move |number: usize| edit(rank(number, addresses[0]));
    thread::scope(|threads| {
        let mut number = 0..;
        let early = listeners.map(|listener| {
            let number = number.next().unwrap();
            threads.spawn(move || builder(number).listener(listener).join())
        });
        let result = meddle(addresses);
        let last = threads.spawn(move || builder(2).join());
        let world = early.into_iter().chain([last]).map(|rank| rank.join().unwrap());
        adds_up(world.collect::<Result<Vec<_>, JoinError>>().unwrap());
        result
    })
}

/// Checks that an all-reduce gives the sum on every rank.
pub(crate) fn adds_up(world: Vec<Tcp>) {
    let sum = (1..=world.len()).sum::<usize>() as f64;
    let results = run_ranks(world, |mut comm: Session| {
        let mut x = [(comm.rank() + 1) as f64];
        comm.all_reduce_sum_f64(&mut x).map(|()| x[0])
    });
    assert!(results.iter().all(|result| *result == Ok(sum)), "{results:?}");
}
