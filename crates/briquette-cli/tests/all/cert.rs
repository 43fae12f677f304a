//! `briquette cert` as a user runs it, and TLS handshakes with its files.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

fn cert(directory: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_briquette"));
    command.arg("cert").arg("--out").arg(directory).args(more).output().expect("the command starts")
}

fn made(directory: &Path, more: &[&str]) -> String {
    let output = cert(directory, more);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn roots(directory: &Path) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(directory.join("ca.pem")).unwrap()).unwrap();
    Arc::new(roots)
}

fn own(directory: &Path) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let chain = CertificateDer::pem_file_iter(directory.join("cert.pem")).unwrap();
    (chain.map(Result::unwrap).collect(), PrivateKeyDer::from_pem_file(directory.join("key.pem")).unwrap())
}

/// Runs both sides as ranks do: each presents the certificate of its directory and requires one signed by its authority.
fn handshake(server: &Path, client: &Path, name: &str) -> Result<(), rustls::Error> {
    let provider = Arc::new(default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(server), provider.clone()).build().unwrap();
    let (chain, key) = own(server);
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    let (chain, key) = own(client);
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots(client))
        .with_client_auth_cert(chain, key)?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(client), name)?;
    let mut server = ServerConnection::new(Arc::new(server))?;
    // A handshake has a handful of flights; more than that many is a test that would never end.
    for _ in 0..20 {
        let mut flight = Vec::new();
        client.write_tls(&mut flight).unwrap();
        server.read_tls(&mut &flight[..]).unwrap();
        server.process_new_packets()?;
        flight.clear();
        server.write_tls(&mut flight).unwrap();
        client.read_tls(&mut &flight[..]).unwrap();
        client.process_new_packets()?;
        if !client.is_handshaking() && !server.is_handshaking() && !client.wants_write() && !server.wants_write() {
            assert!(server.peer_certificates().is_some() && client.peer_certificates().is_some());
            return Ok(());
        }
    }
    panic!("the handshake did not end");
}

#[test]
fn two_ranks_know_each_other_by_one_directory() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("a/certs");
    let says = made(&directory, &[]);
    assert!(says.contains("valid until 20") && says.contains("briquette launch --tls"), "{says}");
    handshake(&directory, &directory, "briquette").unwrap();
    let error = handshake(&directory, &directory, "localhost").unwrap_err();
    assert!(error.to_string().contains("not valid for"), "{error}");
}

#[test]
fn further_names_and_addresses_are_valid_too() {
    let place = tempfile::tempdir().unwrap();
    made(place.path(), &["--name", "node-a.example", "--name", "10.0.0.7"]);
    for name in ["briquette", "node-a.example", "10.0.0.7"] {
        handshake(place.path(), place.path(), name).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// Threat S4.
#[test]
fn ranks_of_another_directory_are_refused_by_both_sides() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    made(one.path(), &[]);
    made(other.path(), &[]);
    handshake(one.path(), other.path(), "briquette").unwrap_err();
    // A server that the client trusts, and a client that the server does not: its own certificate is the other's.
    let mixed = tempfile::tempdir().unwrap();
    for (from, file) in [(&one, "ca.pem"), (&other, "cert.pem"), (&other, "key.pem")] {
        std::fs::copy(from.path().join(file), mixed.path().join(file)).unwrap();
    }
    handshake(one.path(), mixed.path(), "briquette").unwrap_err();
}

#[test]
fn certificates_are_valid_for_the_days_asked_for() {
    let place = tempfile::tempdir().unwrap();
    made(place.path(), &["--days", "10"]);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots(place.path()), Arc::new(default_provider()));
    let (verifier, (chain, _)) = (verifier.build().unwrap(), own(place.path()));
    let day = Duration::from_secs(86_400);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let name = ServerName::try_from("briquette").unwrap();
    let valid = |at| verifier.verify_server_cert(&chain[0], &[], &name, &[], UnixTime::since_unix_epoch(at)).is_ok();
    assert!(valid(now - day / 2) && valid(now) && valid(now + 9 * day));
    assert!(!valid(now - 2 * day) && !valid(now + 11 * day));
}

#[test]
fn nothing_is_overwritten_unless_asked() {
    let place = tempfile::tempdir().unwrap();
    let read = |name: &str| std::fs::read_to_string(place.path().join(name)).unwrap();
    std::fs::write(place.path().join("key.pem"), "mine").unwrap();
    let refused = cert(place.path(), &[]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(1) && error.contains("key.pem") && error.contains("--force"), "{error}");
    assert!(read("key.pem") == "mine" && !place.path().join("cert.pem").exists());
    made(place.path(), &["--force"]);
    assert!(read("key.pem").contains("PRIVATE KEY"));
    handshake(place.path(), place.path(), "briquette").unwrap();
}

/// Threat L1.
#[test]
#[cfg(unix)]
fn the_key_is_its_owners_alone_even_in_the_place_of_an_open_one() {
    use std::os::unix::fs::PermissionsExt;
    let place = tempfile::tempdir().unwrap();
    let key = place.path().join("key.pem");
    std::fs::write(&key, "").unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    made(place.path(), &["--force"]);
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn what_cannot_be_made_says_what_to_do() {
    let place = tempfile::tempdir().unwrap();
    for (more, says) in [(vec!["--days", "0"], "--days"), (vec!["--name", "käse"], "--name")] {
        let output = cert(&place.path().join("certs"), &more);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(says), "{error}");
    }
    assert!(!place.path().join("certs").exists());
    std::fs::write(place.path().join("file"), "").unwrap();
    let output = cert(&place.path().join("file/certs"), &[]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("--out"), "the directory is named");
}
