//! A blocking client of the scheduler's API. It does not retry; every request may be repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use manager::connection::{self, Connection, Identity, Method, segment};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::{Empty, HostView, Placed, Refusal, Status, VmList, VmRequest};

/// Why a request has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The scheduler refused the request. Nothing has changed.
    #[error("the scheduler refuses: {0}")]
    Refused(Refusal),
    /// No answer arrived. The request may have been applied; repeat it.
    #[error(transparent)]
    Connection(#[from] connection::Error),
    /// [`Client::new`] was given no URL.
    #[error("no URL of a scheduler is given")]
    NoUrl,
}

/// A client. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Client {
    /// One for each scheduler, of which one has the log.
    connections: Arc<[Connection]>,
    /// The one that answered last.
    last: Arc<AtomicUsize>,
}

impl Client {
    /// A client of the schedulers at `urls`, such as `https://scheduler-1:7445`: those that share a log, in any order. Only a
    /// scheduler without TLS, on a loopback address, accepts clients without an identity. `timeout` limits each request to each
    /// of them.
    ///
    /// # Errors
    /// A URL or a file is invalid.
    pub fn new(urls: &[String], identity: Option<&Identity>, timeout: Duration) -> Result<Self, Error> {
        let connect = |url: &String| Connection::new("scheduler", url, identity.filter(|_| url.starts_with("https://")), timeout);
        let connections: Result<Vec<_>, _> = urls.iter().map(connect).collect();
        Ok(Self { connections: connections?.into(), last: Arc::default() })
    }

    /// URLs of the schedulers.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.connections.iter().map(|connection| connection.url().to_owned()).collect()
    }

    /// Requests a host for a VM that is about to start.
    ///
    /// # Errors
    /// [`enum@Error`]; with [`crate::api::Code::Full`] if no host can hold it.
    pub fn place(&self, request: &VmRequest) -> Result<Placed, Error> {
        self.send(Method::POST, "/v1/vms", Some(request))
    }

    /// Where a VM runs.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn vm(&self, vm: &str) -> Result<Placed, Error> {
        self.send(Method::GET, &format!("/v1/vms/{}", segment(vm)), None::<&Empty>)
    }

    /// All VMs.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn vms(&self) -> Result<VmList, Error> {
        self.send(Method::GET, "/v1/vms", None::<&Empty>)
    }

    /// A VM has ended.
    ///
    /// # Errors
    /// [`enum@Error`]; with [`crate::api::Code::NotFound`] if it was reported before.
    pub fn end(&self, vm: &str) -> Result<(), Error> {
        self.send::<Empty>(Method::DELETE, &format!("/v1/vms/{}", segment(vm)), None::<&Empty>).map(drop)
    }

    /// A host gets no new VMs, or gets them again.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn drain(&self, host: &str, drained: bool) -> Result<HostView, Error> {
        let what = if drained { "drain" } else { "restore" };
        self.send(Method::POST, &format!("/v1/hosts/{}/{what}", segment(host)), Some(&Empty {}))
    }

    /// Status of the cluster.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn status(&self) -> Result<Status, Error> {
        self.send(Method::GET, "/v1/status", None::<&Empty>)
    }

    /// Asks the scheduler that answered last, and the others if it cannot be reached.
    fn send<T: DeserializeOwned>(&self, method: Method, path: &str, body: Option<&impl Serialize>) -> Result<T, Error> {
        let count = self.connections.len();
        let first = self.last.load(Ordering::Relaxed);
        let mut unreachable = None;
        for at in (0..count).map(|next| (first + next) % count) {
            match self.connections[at].send(method.clone(), path, body) {
                Err(error @ connection::Error::Unreachable { .. }) => unreachable = unreachable.or(Some(error)),
                answered => {
                    self.last.store(at, Ordering::Relaxed);
                    return answered?.map_err(Error::Refused);
                }
            }
        }
        Err(unreachable.map_or(Error::NoUrl, Error::Connection))
    }
}
