//! The API server: three requests, over TLS that the cluster's own authority vouches for.
//!
//! Responses are bounded. Token and certificates are read again for each connection, because the kubelet renews them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use ureq::tls::{PemItem, TlsConfig, parse_pem};
use ureq::{Body, RequestBuilder};

use crate::pod::{Metadata, Pod, Text};

/// Where the kubelet mounts the credentials of a pod's service account.
const MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The longest token or bundle of certificates that is read, in bytes.
const CREDENTIAL_MAX: u64 = 1 << 20;

/// Time to connect, and to wait for the head of a response.
const PATIENCE: Duration = Duration::from_secs(15);

/// Time for one page of the list of pods.
const LIST_TIME: Duration = Duration::from_secs(60);

/// Pods of one page. The etcd of a cluster holds 1.5 MiB of each at most.
const PAGE: u32 = 100;

/// The largest page, in bytes. It is parsed while it arrives, and only a few fields of it are kept.
const PAGE_BYTES_MAX: u64 = 256 << 20;

/// Pages of one list: a server whose pages never end is not followed.
const PAGES_MAX: u32 = 200;

/// The longest event of a watch, in bytes.
const EVENT_MAX: u64 = 4 << 20;

/// How long the server keeps a watch open.
const WATCH_TIME: Duration = Duration::from_secs(240);

/// How much longer than that the response may take.
const WATCH_GRACE: Duration = Duration::from_secs(30);

/// A failed request.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The token or the certificates cannot be used.
    #[error("cannot use {}: {what}", path.display())]
    Credentials {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// No response, or one that ended early.
    #[error("the API server cannot be reached at {url}: {what}")]
    Unreachable {
        /// The address.
        url: String,
        /// What failed.
        what: String,
    },
    /// The server refused.
    #[error("the API server answers {url} with HTTP {status}: {message}{}", remedy(*status))]
    Refused {
        /// The address.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The server's reason.
        message: String,
    },
    /// The version from which a watch was to continue is no longer kept: pods have to be listed again.
    #[error("the API server no longer keeps the version that was watched")]
    Gone,
    /// The response is no list, event or pod.
    #[error("the API server's response cannot be used: {0}")]
    Malformed(String),
}

fn remedy(status: u16) -> &'static str {
    match status {
        401 => "; the token is not valid",
        403 => "; the service account needs the ClusterRole of the chart",
        404 => "; is the name of the node right?",
        _ => "",
    }
}

/// The credentials of the service account.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The directory with `token` and `ca.crt`.
    pub directory: PathBuf,
}

impl Default for Credentials {
    fn default() -> Self {
        Self { directory: MOUNT.into() }
    }
}

/// A client of the API server.
#[derive(Clone, Debug)]
pub struct Api {
    url: String,
    credentials: Credentials,
}

#[derive(Deserialize)]
struct List {
    metadata: ListMetadata,
    #[serde(default)]
    items: Option<Vec<Pod>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    resource_version: Text,
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

/// The reason that the server gives.
#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    message: Text,
    #[serde(default)]
    code: u16,
}

/// One event of a watch.
#[derive(Debug)]
pub(crate) enum Event {
    Changed(Pod),
    Deleted(Pod),
    /// Nothing but the version that was reached.
    Bookmark(String),
}

#[derive(Deserialize)]
struct RawEvent<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'a serde_json::value::RawValue,
}

#[derive(Deserialize)]
struct OnlyMetadata {
    metadata: Metadata,
}

impl Api {
    /// A client of the server at `url`: `https://`, or `http://` for a proxy on loopback, to which no token is sent.
    ///
    /// # Errors
    /// A sentence about what is wrong with the address.
    pub fn new(url: &str, credentials: Credentials) -> Result<Self, String> {
        let url = url.trim_end_matches('/');
        let proxy = ["http://127.0.0.1:", "http://[::1]:"].iter().any(|start| url.starts_with(start));
        if !proxy && !url.starts_with("https://") {
            return Err(format!("{url:?} is no address of an API server; write https://HOST:PORT, or http://127.0.0.1:PORT for a proxy"));
        }
        Ok(Self { url: url.to_owned(), credentials })
    }

    /// A client of the server that the kubelet names to each pod in its environment; `None` outside of a pod.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn from_environment(host: Option<&str>, port: Option<&str>, credentials: Credentials) -> Option<Result<Self, String>> {
        let (host, port) = (host?, port?);
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        Some(Self::new(&format!("https://{host}:{port}"), credentials))
    }

    /// Lists the pods of a node that have not ended. Each is passed to `take`; returns the version of the list.
    pub(crate) fn list(&self, node: &str, mut take: impl FnMut(Pod)) -> Result<String, Error> {
        let (mut next, mut version) = (None::<String>, String::new());
        for _ in 0..PAGES_MAX {
            let mut request =
                self.agent(LIST_TIME)?.get(self.pods()).query("fieldSelector", selector(node)).query("limit", PAGE.to_string());
            if let Some(next) = &next {
                request = request.query("continue", next);
            }
            let mut body =
                self.send(&self.pods(), || self.authorized(request)?.call().map_err(|error| self.unreachable(&self.pods(), error)))?;
            let reader = BufReader::new(body.with_config().limit(PAGE_BYTES_MAX).reader());
            let list: List = serde_json::from_reader(reader).map_err(|error| self.malformed(&self.pods(), &error))?;
            list.items.unwrap_or_default().into_iter().for_each(&mut take);
            version = list.metadata.resource_version.0;
            next = list.metadata.next.filter(|next| !next.is_empty());
            if next.is_none() {
                return Ok(version);
            }
        }
        Err(Error::Malformed(format!("more than {PAGES_MAX} pages of pods, at version {version:?}")))
    }

    /// Watches the pods of a node from a version on, until the server ends the watch. Each event is passed to `take`.
    pub(crate) fn watch(&self, node: &str, version: &str, mut take: impl FnMut(Event)) -> Result<(), Error> {
        let request = self.agent(WATCH_TIME + WATCH_GRACE)?.get(self.pods()).query("fieldSelector", selector(node));
        let request = request.query("watch", "true").query("allowWatchBookmarks", "true");
        let request = request.query("timeoutSeconds", WATCH_TIME.as_secs().to_string()).query("resourceVersion", version);
        let body = self.send(&self.pods(), || self.authorized(request)?.call().map_err(|error| self.unreachable(&self.pods(), error)))?;
        let mut reader = BufReader::new(body.into_reader());
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = (&mut reader).take(EVENT_MAX).read_until(b'\n', &mut line);
            match read.map_err(|error| self.unreachable(&self.pods(), error))? {
                0 => return Ok(()),
                _ if line.last() == Some(&b'\n') => take(event(&line)?),
                _ if u64::try_from(line.len()).is_ok_and(|len| len == EVENT_MAX) => {
                    return Err(Error::Malformed(format!("an event of more than {EVENT_MAX} bytes")));
                }
                _ => return Err(self.unreachable(&self.pods(), "the connection ended within an event")),
            }
        }
    }

    /// Merges a value into the status of a node.
    pub(crate) fn patch_status(&self, node: &str, patch: &serde_json::Value) -> Result<(), Error> {
        let url = format!("{}/api/v1/nodes/{node}/status", self.url);
        let request = self.agent(PATIENCE)?.patch(&url).header("Content-Type", "application/merge-patch+json");
        let mut body =
            self.send(&url, || self.authorized(request)?.send(patch.to_string()).map_err(|error| self.unreachable(&url, error)))?;
        // To its end, so that the server sees the response taken.
        io::copy(&mut body.with_config().limit(PAGE_BYTES_MAX).reader(), &mut io::sink()).map_err(|error| self.unreachable(&url, error))?;
        Ok(())
    }

    fn pods(&self) -> String {
        format!("{}/api/v1/pods", self.url)
    }

    fn is_secure(&self) -> bool {
        self.url.starts_with("https://")
    }

    fn agent(&self, time: Duration) -> Result<ureq::Agent, Error> {
        let config = ureq::Agent::config_builder().http_status_as_error(false).max_redirects(0).proxy(None).user_agent("thermocline");
        let config = config.timeout_connect(Some(PATIENCE)).timeout_recv_response(Some(PATIENCE)).timeout_recv_body(Some(time));
        if !self.is_secure() {
            return Ok(config.build().into());
        }
        let path = self.credentials.directory.join("ca.crt");
        let pem = read(&path)?;
        let certificates = parse_pem(pem.as_bytes()).filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        });
        let certificates: Vec<_> = certificates.collect();
        if certificates.is_empty() {
            return Err(Error::Credentials { path, what: "it has no certificate".to_owned() });
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = TlsConfig::builder().root_certs(certificates.into()).unversioned_rustls_crypto_provider(provider).build();
        Ok(config.https_only(true).tls_config(tls).build().into())
    }

    fn authorized<B>(&self, request: RequestBuilder<B>) -> Result<RequestBuilder<B>, Error> {
        if !self.is_secure() {
            return Ok(request);
        }
        let path = self.credentials.directory.join("token");
        let token = read(&path)?;
        let token = token.trim();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::Credentials { path, what: "it is no token".to_owned() });
        }
        Ok(request.header("Authorization", format!("Bearer {token}")))
    }

    /// Sends a request, and turns a status other than success into an error.
    fn send(&self, url: &str, call: impl FnOnce() -> Result<ureq::http::Response<Body>, Error>) -> Result<Body, Error> {
        let response = call()?;
        let status = response.status().as_u16();
        let mut body = response.into_body();
        if (200..300).contains(&status) {
            return Ok(body);
        }
        if status == 410 {
            return Err(Error::Gone);
        }
        let reader = body.with_config().limit(PAGE_BYTES_MAX).reader().take(64 << 10);
        let message = serde_json::from_reader(reader).map_or_else(|_| "no reason".to_owned(), |status: Status| status.message.0);
        Err(Error::Refused { url: url.to_owned(), status, message: units::quantity::excerpt(&message) })
    }

    fn unreachable(&self, url: &str, what: impl ToString) -> Error {
        Error::Unreachable { url: url.to_owned(), what: what.to_string() }
    }

    fn malformed(&self, url: &str, error: &serde_json::Error) -> Error {
        if error.is_io() { self.unreachable(url, error) } else { Error::Malformed(error.to_string()) }
    }
}

/// The pods of a node that have not ended.
fn selector(node: &str) -> String {
    format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed")
}

fn event(line: &[u8]) -> Result<Event, Error> {
    let malformed = |error: serde_json::Error| Error::Malformed(error.to_string());
    let RawEvent { kind, object } = serde_json::from_slice(line).map_err(malformed)?;
    match kind.as_str() {
        "ADDED" | "MODIFIED" => Ok(Event::Changed(serde_json::from_str(object.get()).map_err(malformed)?)),
        "DELETED" => Ok(Event::Deleted(serde_json::from_str(object.get()).map_err(malformed)?)),
        "BOOKMARK" => {
            let OnlyMetadata { metadata } = serde_json::from_str(object.get()).map_err(malformed)?;
            Ok(Event::Bookmark(metadata.resource_version.0))
        }
        "ERROR" => {
            let Status { message, code } = serde_json::from_str(object.get()).map_err(malformed)?;
            if code == 410 {
                return Err(Error::Gone);
            }
            Err(Error::Malformed(format!("the watch ended with an error: {}", units::quantity::excerpt(&message.0))))
        }
        other => Err(Error::Malformed(format!("an event of type {:?}", units::quantity::excerpt(other)))),
    }
}

fn read(path: &Path) -> Result<String, Error> {
    let failed = |what: String| Error::Credentials { path: path.to_owned(), what };
    let mut text = String::new();
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    file.take(CREDENTIAL_MAX).read_to_string(&mut text).map_err(|error| failed(error.to_string()))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tls_or_a_proxy_on_loopback_is_an_api_server() {
        let new = |url: &str| Api::new(url, Credentials::default()).map(|api| api.url);
        assert_eq!(new("https://10.0.0.1:443/").unwrap(), "https://10.0.0.1:443");
        assert!(new("http://127.0.0.1:8001").is_ok());
        for url in ["http://10.0.0.1", "10.0.0.1:443", "", "http://127.0.0.1.example.com", "file:///etc"] {
            assert!(new(url).is_err(), "{url}");
        }
        let found = Api::from_environment(Some("fd00::1"), Some("443"), Credentials::default()).unwrap().unwrap();
        assert_eq!(found.url, "https://[fd00::1]:443");
        assert!(Api::from_environment(None, Some("443"), Credentials::default()).is_none());
    }

    #[test]
    fn an_event_that_is_cut_anywhere_is_refused() {
        let pod = r#"{"metadata":{"uid":"u","name":"é","annotations":{"thermocline.io/class":"off","a":"\u00e9"}},"status":{"qosClass":"Burstable"}}"#;
        let line = format!(r#"{{"type":"ADDED","object":{pod}}}"#);
        assert!(matches!(event(line.as_bytes()), Ok(Event::Changed(_))));
        for end in 0..line.len() {
            assert!(matches!(event(&line.as_bytes()[..end]), Err(Error::Malformed(_))), "cut at {end}");
            // Another byte in each place: whatever it means, it is no panic.
            let mut other = line.clone().into_bytes();
            other[end] ^= 0x20;
            drop(event(&other));
        }
    }

    #[test]
    fn events_are_read_or_refused() {
        for line in ["", "{", "null", "[]", r#"{"type":"ADDED"}"#, r#"{"type":"ADDED","object":[]}"#, r#"{"type":"NEW","object":{}}"#] {
            assert!(matches!(event(line.as_bytes()), Err(Error::Malformed(_))), "{line}");
        }
        let gone = r#"{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old resource version"}}"#;
        assert!(matches!(event(gone.as_bytes()), Err(Error::Gone)));
        let bookmark = r#"{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"12","creationTimestamp":null}}}"#;
        assert!(matches!(event(bookmark.as_bytes()), Ok(Event::Bookmark(version)) if version == "12"));
    }
}
