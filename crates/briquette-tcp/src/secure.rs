//! Connections during rendezvous, plain or under TLS, and the certificates for the latter.

use std::fs;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, Connection, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::error::JoinError;
use crate::stream::{Stream, Tls};

/// Host name in the certificates of `briquette cert`. Ranks are distinguished by the handshake, not by host names.
const NAME: &str = "briquette";

/// Certificates for TLS: that of an authority, and one that the authority signed, with its key. Both sides of a
/// connection need one.
#[derive(Clone)]
pub struct Certificates {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Certificates {
    /// Reads `ca.pem`, `cert.pem` and `key.pem` in a directory made by `briquette cert`.
    ///
    /// # Errors
    /// [`JoinError::File`] if a file cannot be read or used.
    pub fn read(directory: &Path) -> Result<Certificates, JoinError> {
        let path = |name: &str| directory.join(name);
        let fail = |name: &str, problem: String| JoinError::File { path: path(name), problem };
        let pem = |name: &str| fs::read(path(name)).map_err(|e| fail(name, format!("{e}; `briquette cert` makes it")));
        let certificates = |name: &str| -> Result<Vec<CertificateDer<'static>>, JoinError> {
            let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem(name)?).collect();
            let found = found.map_err(|e| fail(name, e.to_string()))?;
            if found.is_empty() { Err(fail(name, "it holds no certificate".to_owned())) } else { Ok(found) }
        };
        let key = || PrivateKeyDer::from_pem_slice(&pem("key.pem")?).map_err(|e| fail("key.pem", e.to_string()));
        let mut roots = RootCertStore::empty();
        for authority in certificates("ca.pem")? {
            roots.add(authority).map_err(|e| fail("ca.pem", e.to_string()))?;
        }
        let roots = Arc::new(roots);
        let chain = certificates("cert.pem")?;
        let unusable = |e: rustls::Error| fail("cert.pem", e.to_string());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(chain.clone(), key()?)
            .map_err(unusable)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(|e| fail("ca.pem", e.to_string()))?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key()?)
            .map_err(unusable)?;
        // No connection is ever resumed.
        server.send_tls13_tickets = 0;
        Ok(Certificates { client: Arc::new(client), server: Arc::new(server) })
    }
}

/// Omits keys and settings.
impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Certificates(…)")
    }
}

/// A connection, plain or under TLS.
#[derive(Debug)]
pub(crate) enum Secure {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Secure {
    /// Runs the caller's side.
    pub(crate) async fn call(socket: TcpStream, certificates: Option<&Certificates>) -> io::Result<Secure> {
        socket.set_nodelay(true)?;
        let Some(certificates) = certificates else { return Ok(Secure::Plain(socket)) };
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let stream = TlsConnector::from(Arc::clone(&certificates.client)).connect(name, socket).await;
        Ok(Secure::Tls(Box::new(stream.map_err(explained)?.into())))
    }

    /// Runs the listener's side.
    pub(crate) async fn listen(socket: TcpStream, certificates: Option<&Certificates>) -> io::Result<Secure> {
        socket.set_nodelay(true)?;
        let Some(certificates) = certificates else { return Ok(Secure::Plain(socket)) };
        let stream = TlsAcceptor::from(Arc::clone(&certificates.server)).accept(socket).await;
        Ok(Secure::Tls(Box::new(stream.map_err(explained)?.into())))
    }

    /// Returns a value that only both sides of this TLS session know.
    pub(crate) fn binding(&self) -> io::Result<Vec<u8>> {
        let Secure::Tls(stream) = self else { return Ok(Vec::new()) };
        let exported = |result: Result<[u8; 32], rustls::Error>| result.map(|b| b.to_vec()).map_err(io::Error::other);
        match &**stream {
            TlsStream::Client(s) => {
                exported(s.get_ref().1.export_keying_material([0; 32], b"EXPORTER-briquette", None))
            }
            TlsStream::Server(s) => {
                exported(s.get_ref().1.export_keying_material([0; 32], b"EXPORTER-briquette", None))
            }
        }
    }

    /// Converts into a stream that the calling thread drives.
    pub(crate) fn into_stream(self) -> io::Result<Stream> {
        let (socket, connection) = match self {
            Secure::Plain(socket) => (socket, None),
            Secure::Tls(stream) => match *stream {
                TlsStream::Client(s) => {
                    let (socket, connection) = s.into_inner();
                    (socket, Some(Connection::from(connection)))
                }
                TlsStream::Server(s) => {
                    let (socket, connection) = s.into_inner();
                    (socket, Some(Connection::from(connection)))
                }
            },
        };
        let socket = mio::net::TcpStream::from_std(socket.into_std()?);
        Ok(match connection {
            None => Stream::Plain(socket),
            Some(connection) => Stream::Tls(Box::new(Tls { socket, connection })),
        })
    }
}

/// A TLS error, with its remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Explained(String);

/// Explains TLS errors and their remedies. The error kind is kept, because it determines whether another call makes
/// sense: a side that hung up may be called again, but a side that rejects the certificates will do so again.
pub(crate) fn explained(error: io::Error) -> io::Error {
    if error.get_ref().is_some_and(|inner| inner.is::<Explained>()) {
        return error;
    }
    let text = error.to_string();
    let hung_up = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset].contains(&error.kind());
    let is_about = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let advice = if hung_up {
        "the other side hung up during the TLS handshake. If its log speaks of TLS, give every rank the certificates, or \
         none"
    } else if is_about(&["Expired", "expired"]) {
        "a certificate has expired: make new ones with `briquette cert` and copy them to every machine"
    } else if is_about(&["NotValidYet", "not valid yet"]) {
        "a certificate is not valid yet: do the machines' clocks agree?"
    // An authority with the same name and another key causes a bad signature, which the other side receives as a decrypt
    // error.
    } else if is_about(&["UnknownIssuer", "UnknownCA", "BadSignature", "DecryptError"]) {
        "the certificates are not of the same `briquette cert`: copy one directory to every machine"
    } else if is_about(&["InvalidContentType", "corrupt message"]) {
        "the other side does not speak TLS: give every rank the certificates, or none"
    } else if is_about(&["no certificates", "CertificateRequired"]) {
        "the other side has no certificate: give every rank those of one `briquette cert`"
    } else {
        "TLS failed"
    };
    io::Error::new(error.kind(), Explained(format!("{advice} ({text})")))
}

impl AsyncRead for Secure {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Secure::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Secure::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Secure {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Secure::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Secure::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Secure::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Secure::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Secure::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Secure::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
        }
    }
}
