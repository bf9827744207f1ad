//! A blocking client of the manager's API. It does not retry; every request may be repeated.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::Method;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use crate::api::{
    AssignRequest, Assignment, Code, Empty, ErrorResponse, Lease, LeaseRequest, OfflineFailedRequest, OfflinedRequest, Permissions,
    PoolStatus, RenewRequest, RenewResponse, SliceList, WorkList,
};

/// Largest response in bytes: a few hundred for each slice of the largest pools.
const RESPONSE_MAX: u64 = 64 << 20;

/// Why a request has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The manager refused the request. Nothing has changed.
    #[error("the pool manager refuses: {0}")]
    Refused(Refusal),
    /// No response arrived. The request may have been applied; repeat it.
    #[error("no pool manager answers at {url}: {why}")]
    Unreachable {
        /// URL of the manager.
        url: String,
        /// The cause.
        why: String,
    },
    /// The response is not from a pool manager of this version.
    #[error("{url} is not a pool manager of API version 1: {why}")]
    Protocol {
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

/// A client. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Client {
    agent: ureq::Agent,
    url: String,
}

impl Client {
    /// A client of the manager at `url`, such as `https://pool-1:7443`. Only a manager without TLS, on a loopback
    /// address, accepts clients without an identity. `timeout` limits each request.
    ///
    /// # Errors
    /// [`Error::Setup`]: the URL or a file is invalid.
    pub fn new(url: &str, identity: Option<&Identity>, timeout: Duration) -> Result<Self, Error> {
        let secure = url.starts_with("https://");
        let setup = |why: &str| Error::Setup { what: url.to_owned(), why: why.to_owned() };
        if !secure && !url.starts_with("http://") {
            return Err(setup("not the URL of a pool manager; write https://HOST:PORT"));
        }
        let mut config = ureq::Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            .https_only(secure)
            .max_idle_connections_per_host(16)
            // Proxy settings of the environment do not apply to the pool manager.
            .proxy(None);
        match identity {
            Some(identity) if secure => config = config.tls_config(tls(identity)?),
            None if secure => return Err(setup("https requires a certificate: give ca, cert and key")),
            _ => {}
        }
        Ok(Self { agent: config.build().into(), url: url.trim_end_matches('/').to_owned() })
    }

    /// URL of the manager.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Takes a lease, which voids all earlier ones.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn lease(&self, host: &str, instance: &str) -> Result<Lease, Error> {
        self.post(&format!("/v1/hosts/{}/lease", segment(host)), &LeaseRequest { instance: instance.to_owned() })
    }

    /// Renews the lease, and returns the actions that the host must perform.
    ///
    /// # Errors
    /// [`enum@Error`]; with [`Code::Fenced`] if the lease has expired.
    pub fn renew(&self, host: &str, epoch: u64) -> Result<RenewResponse, Error> {
        self.post(&format!("/v1/hosts/{}/renew", segment(host)), &RenewRequest { epoch })
    }

    /// Requests slices for a VM that is about to start.
    ///
    /// # Errors
    /// [`enum@Error`]; with [`Code::Short`] if there are not enough.
    pub fn assign(&self, host: &str, request: &AssignRequest) -> Result<Assignment, Error> {
        self.post(&format!("/v1/hosts/{}/assignments", segment(host)), request)
    }

    /// Returns the slices of a VM. The host must then take them offline and report each.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn give_back(&self, host: &str, epoch: u64, request: &str, vm: &str) -> Result<WorkList, Error> {
        let path = format!("/v1/hosts/{}/assignments/{}?epoch={epoch}&request={}", segment(host), segment(vm), segment(request));
        self.send(Method::DELETE, &path, None::<&Empty>)
    }

    /// Reports that a slice is offline and its file is closed.
    ///
    /// # Errors
    /// [`enum@Error`]; with [`Code::Stale`] if it was reported before.
    pub fn offlined(&self, host: &str, epoch: u64, slice: &crate::api::Slice) -> Result<(), Error> {
        let path = format!("/v1/hosts/{}/slices/{}/{}/offlined", segment(host), slice.emc, slice.index);
        self.post::<Empty>(&path, &OfflinedRequest { epoch, generation: slice.generation }).map(drop)
    }

    /// Reports that a slice cannot be taken offline now, with the reason.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn offline_failed(&self, host: &str, epoch: u64, slice: &crate::api::Slice, why: &str) -> Result<(), Error> {
        let path = format!("/v1/hosts/{}/slices/{}/{}/offline-failed", segment(host), slice.emc, slice.index);
        self.post::<Empty>(&path, &OfflineFailedRequest { epoch, generation: slice.generation, why: why.to_owned() }).map(drop)
    }

    /// Status of the pool.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn pool(&self) -> Result<PoolStatus, Error> {
        self.send(Method::GET, "/v1/pool", None::<&Empty>)
    }

    /// All slices.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn slices(&self) -> Result<SliceList, Error> {
        self.send(Method::GET, "/v1/slices", None::<&Empty>)
    }

    /// Permission tables.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn permissions(&self) -> Result<Permissions, Error> {
        self.send(Method::GET, "/v1/permissions", None::<&Empty>)
    }

    /// Reports that an EMC has failed; for operators.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn emc_failed(&self, emc: u16) -> Result<(), Error> {
        self.post::<Empty>(&format!("/v1/emcs/{emc}/failed"), &Empty {}).map(drop)
    }

    /// Reports that an EMC works again and is empty; for operators.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn emc_repaired(&self, emc: u16) -> Result<(), Error> {
        self.post::<Empty>(&format!("/v1/emcs/{emc}/repaired"), &Empty {}).map(drop)
    }

    fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Error> {
        self.send(Method::POST, path, Some(body))
    }

    fn send<T: DeserializeOwned>(&self, method: Method, path: &str, body: Option<&impl Serialize>) -> Result<T, Error> {
        let unreachable = |error: &ureq::Error| Error::Unreachable { url: self.url.clone(), why: error.to_string() };
        let protocol = |why: String| Error::Protocol { url: self.url.clone(), why };
        let body = body.map(serde_json::to_vec).transpose().map_err(|error| protocol(error.to_string()))?.unwrap_or_default();
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header("content-type", "application/json")
            .body(body)
            .map_err(|error| Error::Setup { what: self.url.clone(), why: error.to_string() })?;
        let mut response = self.agent.run(request).map_err(|error| unreachable(&error))?;
        let status = response.status();
        let body = response.body_mut().with_config().limit(RESPONSE_MAX).read_to_vec().map_err(|error| unreachable(&error))?;
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|error| protocol(format!("HTTP {status}: {error}")));
        }
        match serde_json::from_slice(&body) {
            Ok(ErrorResponse { error: code, message }) => Err(Error::Refused(Refusal { code, message })),
            Err(error) => Err(protocol(format!("HTTP {status}: {error}"))),
        }
    }
}

/// Encodes a name as a segment of a path or a value of a query.
fn segment(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => text.push(char::from(byte)),
            other => text += &format!("%{other:02X}"),
        }
    }
    text
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

    #[test]
    fn invalid_urls_are_refused_and_missing_managers_are_reported() {
        let error = |url: &str| Client::new(url, None, Duration::from_secs(1)).unwrap_err().to_string();
        assert!(error("pool-1:7443").contains("https://HOST:PORT"));
        assert!(error("https://pool-1:7443").contains("certificate"));
        let missing = Client::new("http://127.0.0.1:1", None, Duration::from_secs(1)).unwrap().pool().unwrap_err();
        assert!(matches!(missing, Error::Unreachable { .. }) && missing.to_string().contains("127.0.0.1:1"), "{missing}");
    }
}
