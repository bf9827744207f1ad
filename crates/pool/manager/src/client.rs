//! A blocking client of the manager's API, or of that of a group of managers. Every request may be repeated: with several URLs, it repeats
//! a request at the next one until a leader answers it. With one URL it does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::{
    AssignRequest, Assignment, Code, Empty, ErrorResponse, Lease, LeaseRequest, OfflineFailedRequest, OfflinedRequest, Permissions,
    PoolStatus, RenewRequest, RenewResponse, SliceList, WorkList,
};
use crate::connection::{Connection, Method, segment};
pub use crate::connection::{Error, Identity, Refusal};

/// Pause after all members of a group were tried: an election takes about a second.
const ROUND_PAUSE: Duration = Duration::from_millis(50);
/// Limit of a request to one member, at least: one that is stopped accepts connections, and answers nothing.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(2);

/// A client. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Client {
    connections: Arc<[Connection]>,
    /// The one that answered last.
    last: Arc<AtomicUsize>,
    urls: String,
    timeout: Duration,
}

impl Client {
    /// A client of the manager at `url`, such as `https://pool-1:7443`, or of a group of managers: then `url` has the URLs of its
    /// members with commas between them. Only a manager without TLS, on a loopback address, accepts clients without an identity.
    /// `timeout` limits each request.
    ///
    /// # Errors
    /// [`Error::Setup`]: the URL or a file is invalid.
    pub fn new(url: &str, identity: Option<&Identity>, timeout: Duration) -> Result<Self, Error> {
        let urls: Vec<&str> = url.split(',').map(str::trim).collect();
        let limit = if urls.len() > 1 { (timeout / 4).max(ATTEMPT_LIMIT).min(timeout) } else { timeout };
        let connect = |url: &&str| Connection::new("pool manager", url, identity, limit);
        let connections = urls.iter().map(connect).collect::<Result<_, _>>()?;
        let urls = urls.iter().map(|url| url.trim_end_matches('/')).collect::<Vec<_>>().join(",");
        Ok(Self { connections, last: Arc::default(), urls, timeout })
    }

    /// URL of the manager, or those of the members of a group.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.urls
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

    /// Status of the pool. Of a group, any member answers; the leader is preferred, because others may lack the last changes.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn pool(&self) -> Result<PoolStatus, Error> {
        let status: PoolStatus = self.send(Method::GET, "/v1/pool", None::<&Empty>)?;
        let group = status.group.as_ref().filter(|group| group.leader != Some(group.member));
        let leader = group.and_then(|group| group.members.iter().find(|member| member.is_leader));
        let known = leader.and_then(|leader| self.connections.iter().position(|connection| connection.url() == leader.url));
        let Some(at) = known else { return Ok(status) };
        match self.connections[at].send::<PoolStatus, ErrorResponse>(Method::GET, "/v1/pool", None::<&Empty>) {
            Ok(Ok(status)) => {
                self.last.store(at, Ordering::Relaxed);
                Ok(status)
            }
            _ => Ok(status),
        }
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

    /// Reports that a host's machine is off, or cannot access the pool's devices any more; for operators.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn host_fenced(&self, host: &str) -> Result<(), Error> {
        self.post::<Empty>(&format!("/v1/hosts/{}/fenced", segment(host)), &Empty {}).map(drop)
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
        let refused = |ErrorResponse { error: code, message }| Error::Refused(Refusal { code, message });
        let begin = Instant::now();
        let count = self.connections.len();
        let mut at = self.last.load(Ordering::Relaxed);
        let mut attempts = 0;
        loop {
            attempts += 1;
            let answer = self.connections[at].send(method.clone(), path, body).and_then(|answer| answer.map_err(refused));
            let next = match &answer {
                Err(Error::Unreachable { .. }) => (at + 1) % count,
                Err(Error::Refused(Refusal { code: Code::NotLeader, message })) => self.named(message, at).unwrap_or((at + 1) % count),
                _ => {
                    self.last.store(at, Ordering::Relaxed);
                    return answer;
                }
            };
            if count == 1 || begin.elapsed() >= self.timeout {
                return answer;
            }
            at = next;
            if attempts % count == 0 {
                thread::sleep(ROUND_PAUSE);
            }
        }
    }

    /// The member that a refusal names as the leader, unless it refused itself.
    fn named(&self, message: &str, by: usize) -> Option<usize> {
        let named = |connection: &Connection| message.split_whitespace().any(|word| word == connection.url());
        self.connections.iter().position(named).filter(|named| *named != by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_urls_are_refused_and_missing_managers_are_reported() {
        let error = |url: &str| Client::new(url, None, Duration::from_secs(1)).unwrap_err().to_string();
        assert!(error("pool-1:7443").contains("https://HOST:PORT"));
        assert!(error("https://pool-1:7443").contains("certificate"));
        let missing = Client::new("http://127.0.0.1:1", None, Duration::from_secs(1)).unwrap().pool().unwrap_err();
        assert!(matches!(missing, Error::Unreachable { .. }) && missing.to_string().contains("127.0.0.1:1"), "{missing}");
    }
}
