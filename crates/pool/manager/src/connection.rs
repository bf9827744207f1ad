//! A blocking connection to a service with an API over HTTP: the pool manager, or the scheduler. It does not retry.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
pub use ureq::http::Method;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use crate::api::Code;

/// Largest response in bytes: a few hundred for each slice of the largest pools.
const RESPONSE_MAX: u64 = 64 << 20;

/// Why a request has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pool manager refused the request. Nothing has changed.
    #[error("the pool manager refuses: {0}")]
    Refused(Refusal),
    /// No response arrived. The request may have been applied; repeat it.
    #[error("no {service} answers at {url}: {why}")]
    Unreachable {
        /// What is expected there.
        service: &'static str,
        /// URL of the service.
        url: String,
        /// The cause.
        why: String,
    },
    /// The response is not from such a service of this version.
    #[error("{url} is not a {service} of API version 1: {why}")]
    Protocol {
        /// What is expected there.
        service: &'static str,
        /// URL of the server.
        url: String,
        /// The cause.
        why: String,
    },
    /// The certificates or the URL cannot be used.
    #[error("{what}: {why}")]
    Setup {
        /// The file or URL.
        what: String,
        /// The cause.
        why: String,
    },
}

/// A refusal by the manager.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Error code.
    pub code: Code,
    /// Message for operators.
    pub message: String,
}

impl Error {
    /// The error code of a refusal; `None` for other errors.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused(refusal) => Some(refusal.code),
            _ => None,
        }
    }
}

/// Files for mutual authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Certificate of the authority that signs the manager's certificate, as PEM.
    pub ca: PathBuf,
    /// The client's certificate, as PEM.
    pub cert: PathBuf,
    /// The client's key, as PEM.
    pub key: PathBuf,
}

impl Identity {
    /// Returns the files of an identity by the path without extension of its certificate (`.pem`) and key (`.key`); the
    /// authority's `ca.pem` is in the same directory.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self { ca: path.with_file_name("ca.pem"), cert: path.with_added_extension("pem"), key: path.with_added_extension("key") }
    }
}

/// A connection. Clones share it.
#[derive(Clone, Debug)]
pub struct Connection {
    agent: ureq::Agent,
    service: &'static str,
    url: String,
}

impl Connection {
    /// A connection to `service`, such as "pool manager", at `url`, such as `https://pool-1:7443`. Only a service without TLS,
    /// on a loopback address, accepts clients without an identity. `timeout` limits each request.
    ///
    /// # Errors
    /// [`Error::Setup`]: the URL or a file is invalid.
    pub fn new(service: &'static str, url: &str, identity: Option<&Identity>, timeout: Duration) -> Result<Self, Error> {
        let secure = url.starts_with("https://");
        let setup = |why: String| Error::Setup { what: url.to_owned(), why };
        if !secure && !url.starts_with("http://") {
            return Err(setup(format!("not the URL of a {service}; write https://HOST:PORT")));
        }
        let mut config = ureq::Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            .https_only(secure)
            .max_idle_connections_per_host(16)
            // Proxy settings of the environment do not apply.
            .proxy(None);
        match identity {
            Some(identity) if secure => config = config.tls_config(tls(identity)?),
            None if secure => return Err(setup("https requires a certificate: give ca, cert and key".to_owned())),
            _ => {}
        }
        Ok(Self { agent: config.build().into(), service, url: url.trim_end_matches('/').to_owned() })
    }

    /// URL of the service.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sends a request, and returns its response or the service's refusal.
    ///
    /// # Errors
    /// [`enum@Error`], but not [`Error::Refused`].
    pub fn send<T: DeserializeOwned, R: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Result<T, R>, Error> {
        let (service, url) = (self.service, || self.url.clone());
        let unreachable = |error: &ureq::Error| Error::Unreachable { service, url: url(), why: error.to_string() };
        let protocol = |why: String| Error::Protocol { service, url: url(), why };
        let body = body.map(serde_json::to_vec).transpose().map_err(|error| protocol(error.to_string()))?.unwrap_or_default();
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header("content-type", "application/json")
            .body(body)
            .map_err(|error| Error::Setup { what: url(), why: error.to_string() })?;
        let mut response = self.agent.run(request).map_err(|error| unreachable(&error))?;
        let status = response.status();
        let body = response.body_mut().with_config().limit(RESPONSE_MAX).read_to_vec().map_err(|error| unreachable(&error))?;
        let invalid = |error: serde_json::Error| protocol(format!("HTTP {status}: {error}"));
        if status.is_success() {
            return Ok(Ok(serde_json::from_slice(&body).map_err(invalid)?));
        }
        Ok(Err(serde_json::from_slice(&body).map_err(invalid)?))
    }
}

/// Encodes a name as a segment of a path or a value of a query.
#[must_use]
pub fn segment(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => text.push(char::from(byte)),
            other => text += &format!("%{other:02X}"),
        }
    }
    text
}

/// Decodes the percent signs of a path segment or a query value; `None` if they are not followed by two digits, or the bytes are no
/// text.
#[must_use]
pub fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

fn tls(identity: &Identity) -> Result<TlsConfig, Error> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| Error::Setup { what: format!("cannot read {}", path.display()), why: error.to_string() })
    };
    let wrong = |path: &Path| {
        let what = path.display().to_string();
        move |error: ureq::Error| Error::Setup { what, why: error.to_string() }
    };
    let ca = Certificate::from_pem(&read(&identity.ca)?).map_err(wrong(&identity.ca))?;
    let cert = Certificate::from_pem(&read(&identity.cert)?).map_err(wrong(&identity.cert))?;
    let key = PrivateKey::from_pem(&read(&identity.key)?).map_err(wrong(&identity.key))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&[ca]))
        .client_cert(Some(ClientCert::new_with_certs(&[cert], key)))
        .unversioned_rustls_crypto_provider(provider)
        .build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_as_one_segment() {
        assert_eq!(segment("a-1.b_c~"), "a-1.b_c~");
        assert_eq!(segment("a/b c?é%"), "a%2Fb%20c%3F%C3%A9%25");
    }
}
