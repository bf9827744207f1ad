//! A client of the manager's API. It blocks, and asks once: whether to ask again is the caller's affair, and harmless.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::Method;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use crate::api::{
    AssignRequest, Assignment, Code, Done, Lease, LeaseRequest, OfflineFailed, Offlined, Permissions, PoolStatus, Refused, RenewRequest,
    Renewed, SliceList, WorkList,
};

/// How large an answer may be: some hundred bytes for each slice of the largest pools.
const ANSWER_MAX: u64 = 64 << 20;

/// Why there is no good answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The manager will not. Nothing has changed.
    #[error("the pool manager refuses: {0}")]
    Refused(Refusal),
    /// No answer came. The request may have been followed all the same; say the same again.
    #[error("no pool manager answers at {url}: {why}")]
    Unreachable {
        /// Where it should be.
        url: String,
        /// What happened.
        why: String,
    },
    /// Something answered that is no pool manager of this version.
    #[error("{url} is no pool manager of API version 1: {why}")]
    Strange {
        /// Where.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// The certificates or the URL cannot be used.
    #[error("{what}: {why}")]
    Setup {
        /// Which file or URL.
        what: String,
        /// What is wrong with it.
        why: String,
    },
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Which kind.
    pub code: Code,
    /// For people.
    pub message: String,
}

impl Error {
    /// Which kind of refusal this is, if it is one.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused(refusal) => Some(refusal.code),
            _ => None,
        }
    }
}

/// The files by which client and manager know each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Who signs the manager's certificate, as PEM.
    pub ca: PathBuf,
    /// The client's own certificate, as PEM.
    pub cert: PathBuf,
    /// Its key, as PEM.
    pub key: PathBuf,
}

impl Identity {
    /// Returns the files of an identity by the path without extension of its certificate (`.pem`) and key (`.key`); the authority's
    /// `ca.pem` is in the same directory.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self { ca: path.with_file_name("ca.pem"), cert: path.with_added_extension("pem"), key: path.with_added_extension("key") }
    }
}

/// A client. Cheap to clone; connections are kept and shared.
#[derive(Clone, Debug)]
pub struct Client {
    agent: ureq::Agent,
    url: String,
}

impl Client {
    /// A client of the manager at `url`, such as `https://pool-1:7443`. Without an identity only a manager that listens on
    /// a loopback address, and was told to do without TLS, will answer. No request takes longer than `patience`.
    ///
    /// # Errors
    /// [`Error::Setup`] when a file cannot be read, or does not hold what it should.
    pub fn new(url: &str, identity: Option<&Identity>, patience: Duration) -> Result<Self, Error> {
        let secure = url.starts_with("https://");
        let setup = |why: &str| Error::Setup { what: url.to_owned(), why: why.to_owned() };
        if !secure && !url.starts_with("http://") {
            return Err(setup("not a URL of a pool manager; write https://HOST:PORT"));
        }
        let mut config = ureq::Agent::config_builder()
            .timeout_global(Some(patience))
            .http_status_as_error(false)
            .max_redirects(0)
            .https_only(secure)
            .max_idle_connections_per_host(16)
            // A pool is not asked about through somebody else.
            .proxy(None);
        match identity {
            Some(identity) if secure => config = config.tls_config(tls(identity)?),
            None if secure => return Err(setup("https needs a certificate: name ca, cert and key")),
            _ => {}
        }
        Ok(Self { agent: config.build().into(), url: url.trim_end_matches('/').to_owned() })
    }

    /// Where the manager is.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Takes a lease; what was done under earlier ones is fenced from now on.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn lease(&self, host: &str, instance: &str) -> Result<Lease, Error> {
        self.post(&format!("/v1/hosts/{}/lease", segment(host)), &LeaseRequest { instance: instance.to_owned() })
    }

    /// Keeps the lease, and asks what there is to do.
    ///
    /// # Errors
    /// [`enum@Error`]; of code [`Code::Fenced`] when the lease has run out.
    pub fn renew(&self, host: &str, epoch: u64) -> Result<Renewed, Error> {
        self.post(&format!("/v1/hosts/{}/renew", segment(host)), &RenewRequest { epoch })
    }

    /// Asks for the slices of a VM that is about to start.
    ///
    /// # Errors
    /// [`enum@Error`]; of code [`Code::Short`] when there are not enough.
    pub fn assign(&self, host: &str, ask: &AssignRequest) -> Result<Assignment, Error> {
        self.post(&format!("/v1/hosts/{}/assignments", segment(host)), ask)
    }

    /// Gives back what a VM has. The host is to take its slices offline then, one by one, at leisure.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn give_back(&self, host: &str, epoch: u64, request: &str, vm: &str) -> Result<WorkList, Error> {
        let path = format!("/v1/hosts/{}/assignments/{}?epoch={epoch}&request={}", segment(host), segment(vm), segment(request));
        self.ask(Method::DELETE, &path, None::<&Done>)
    }

    /// Says that a slice is offline, and let go of.
    ///
    /// # Errors
    /// [`enum@Error`]; of code [`Code::Stale`] when it was said before.
    pub fn offlined(&self, host: &str, epoch: u64, slice: &crate::api::Slice) -> Result<(), Error> {
        let path = format!("/v1/hosts/{}/slices/{}/{}/offlined", segment(host), slice.emc, slice.index);
        self.post::<Done>(&path, &Offlined { epoch, generation: slice.generation }).map(drop)
    }

    /// Says that a slice cannot be taken offline now, and why.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn offline_failed(&self, host: &str, epoch: u64, slice: &crate::api::Slice, why: &str) -> Result<(), Error> {
        let path = format!("/v1/hosts/{}/slices/{}/{}/offline-failed", segment(host), slice.emc, slice.index);
        self.post::<Done>(&path, &OfflineFailed { epoch, generation: slice.generation, why: why.to_owned() }).map(drop)
    }

    /// The pool at a glance.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn pool(&self) -> Result<PoolStatus, Error> {
        self.ask(Method::GET, "/v1/pool", None::<&Done>)
    }

    /// Every slice.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn slices(&self) -> Result<SliceList, Error> {
        self.ask(Method::GET, "/v1/slices", None::<&Done>)
    }

    /// Who may access what.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn permissions(&self) -> Result<Permissions, Error> {
        self.ask(Method::GET, "/v1/permissions", None::<&Done>)
    }

    /// Says that an EMC has failed, as an operator.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn emc_failed(&self, emc: u16) -> Result<(), Error> {
        self.post::<Done>(&format!("/v1/emcs/{emc}/failed"), &Done {}).map(drop)
    }

    /// Says that an EMC works again, and is empty, as an operator.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn emc_repaired(&self, emc: u16) -> Result<(), Error> {
        self.post::<Done>(&format!("/v1/emcs/{emc}/repaired"), &Done {}).map(drop)
    }

    fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Error> {
        self.ask(Method::POST, path, Some(body))
    }

    fn ask<T: DeserializeOwned>(&self, method: Method, path: &str, body: Option<&impl Serialize>) -> Result<T, Error> {
        let unreachable = |error: &ureq::Error| Error::Unreachable { url: self.url.clone(), why: error.to_string() };
        let strange = |why: String| Error::Strange { url: self.url.clone(), why };
        let body = body.map(serde_json::to_vec).transpose().map_err(|error| strange(error.to_string()))?.unwrap_or_default();
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header("content-type", "application/json")
            .body(body)
            .map_err(|error| Error::Setup { what: self.url.clone(), why: error.to_string() })?;
        let mut response = self.agent.run(request).map_err(|error| unreachable(&error))?;
        let status = response.status();
        let answer = response.body_mut().with_config().limit(ANSWER_MAX).read_to_vec().map_err(|error| unreachable(&error))?;
        if status.is_success() {
            return serde_json::from_slice(&answer).map_err(|error| strange(format!("HTTP {status}: {error}")));
        }
        match serde_json::from_slice(&answer) {
            Ok(Refused { error: code, message }) => Err(Error::Refused(Refusal { code, message })),
            Err(error) => Err(strange(format!("HTTP {status}: {error}"))),
        }
    }
}

/// A name as one segment of a path, or one value of a query.
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
    fn names_are_one_segment() {
        assert_eq!(segment("a-1.b_c~"), "a-1.b_c~");
        assert_eq!(segment("a/b c?é%"), "a%2Fb%20c%3F%C3%A9%25");
    }

    #[test]
    fn what_cannot_be_used_is_told_before_anything_is_sent() {
        let told = |url: &str| Client::new(url, None, Duration::from_secs(1)).unwrap_err().to_string();
        assert!(told("pool-1:7443").contains("https://HOST:PORT"));
        assert!(told("https://pool-1:7443").contains("certificate"));
        let nobody = Client::new("http://127.0.0.1:1", None, Duration::from_secs(1)).unwrap().pool().unwrap_err();
        assert!(matches!(nobody, Error::Unreachable { .. }) && nobody.to_string().contains("127.0.0.1:1"), "{nobody}");
    }
}
