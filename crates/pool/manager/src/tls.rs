//! Mutual TLS: the server's configuration, how it accepts connections, and the identity of clients.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use daemon::http::Accept;
use rustls::RootCertStore;
pub use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use webpki::EndEntityCert;

use crate::settings::Tls as Files;

/// An error of a certificate or key file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct Error {
    path: PathBuf,
    why: String,
}

fn failed(path: &Path) -> impl Fn(String) -> Error {
    let path = path.to_owned();
    move |why| Error { path: path.clone(), why }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let certificates = certificates.map_err(|error| failed(path)(format!("cannot be read as certificates: {error}")))?;
    if certificates.is_empty() { Err(failed(path)("holds no certificate in PEM form".to_owned())) } else { Ok(certificates) }
}

/// The server's configuration: TLS 1.2 or 1.3, with client certificates.
///
/// # Errors
/// The file that cannot be used, and the cause.
pub fn server(tls: &Files) -> Result<Arc<ServerConfig>, Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&tls.client_ca)? {
        roots.add(certificate).map_err(|error| failed(&tls.client_ca)(error.to_string()))?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .map_err(|error| failed(&tls.client_ca)(error.to_string()))?;
    let key = PrivateKeyDer::from_pem_file(&tls.key).map_err(|error| failed(&tls.key)(format!("cannot be read as a key: {error}")))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&tls.cert)(error.to_string()))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates(&tls.cert)?, key)
        .map_err(|error| failed(&tls.cert)(format!("cannot be used with {}: {error}", tls.key.display())))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// TLS with a certificate of the client.
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

impl Tls {
    /// Accepts by this configuration.
    #[must_use]
    pub fn new(config: Arc<ServerConfig>) -> Self {
        Self(TlsAcceptor::from(config))
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Accept for Tls {
    type Stream = TlsStream<TcpStream>;
    type Peer = Peer;

    async fn accept(&self, stream: TcpStream) -> io::Result<(Self::Stream, Peer)> {
        let stream = self.0.accept(stream).await?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).cloned();
        let certificate = certificate.ok_or_else(|| io::Error::new(io::ErrorKind::PermissionDenied, "no client certificate"))?;
        Ok((stream, Peer::Certificate(certificate.into_owned())))
    }
}

/// Plain TCP on the loopback interface.
#[derive(Clone, Copy, Debug)]
pub struct Loopback;

impl Accept for Loopback {
    type Stream = TcpStream;
    type Peer = Peer;

    async fn accept(&self, stream: TcpStream) -> io::Result<(TcpStream, Peer)> {
        Ok((stream, Peer::Trusted))
    }
}

/// The client of a connection.
#[derive(Clone, Debug)]
pub enum Peer {
    /// A client on the loopback interface without TLS, which may act in any name.
    Trusted,
    /// A client with a certificate.
    Certificate(CertificateDer<'static>),
}

impl Peer {
    /// Whether the client may act in this name.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        let Self::Certificate(certificate) = self else { return true };
        let (Ok(certificate), Ok(name)) = (EndEntityCert::try_from(certificate), ServerName::try_from(name)) else { return false };
        certificate.verify_is_valid_for_subject_name(&name).is_ok()
    }
}
