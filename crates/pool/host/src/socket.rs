//! The control socket of a host: one JSON request per connection, one JSON reply, a line each.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use daemon::socket::Limits;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::host::{Host, Refused};
use crate::vm;

/// Name of the socket in the runtime directory.
const NAME: &str = "pool-host.sock";

/// A request may contain a domain of libvirt; guests start and stop in parallel.
const LIMITS: Limits = Limits { request_bytes: 1 << 20, request_timeout: Duration::from_secs(5), clients: 32 };

/// How long a client waits for the reply. Stopping a guest with grace, or releasing many slices, takes long.
const REPLY_TIMEOUT: Duration = Duration::from_secs(600);

/// A request to a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Start a guest.
    Start(Box<vm::Request>),
    /// Stop a guest.
    Stop {
        /// Guest name.
        name: String,
        /// How long the guest may take to shut down before its process is killed.
        grace_seconds: f64,
    },
    /// Take all pool memory from a running guest.
    Release {
        /// Guest name.
        name: String,
    },
    /// List the guests.
    List,
    /// Show the record of a guest.
    Explain {
        /// Guest name.
        name: String,
    },
}

/// Serves the control socket in separate threads until the process exits.
///
/// # Errors
/// As [`daemon::socket::serve`].
pub fn serve(runtime: &Path, host: Arc<Host>) -> daemon::Result<()> {
    daemon::socket::serve(&runtime.join(NAME), LIMITS, move |line| reply(&host, line))
}

fn reply(host: &Host, line: &str) -> String {
    match serde_json::from_str(line) {
        Ok(request) => handle(host, request).map_or_else(|refused| daemon::socket::error(refused.0), |reply| reply.to_string()),
        Err(error) => daemon::socket::error(format_args!("unknown request: {error}")),
    }
}

fn handle(host: &Host, request: Request) -> Result<Value, Refused> {
    let value = |value: serde_json::Result<Value>| value.map_err(|error| Refused(error.to_string()));
    match request {
        Request::Start(request) => value(serde_json::to_value(host.start(*request)?)),
        Request::Stop { name, grace_seconds } => {
            let grace = Duration::try_from_secs_f64(grace_seconds).map_err(|error| Refused(format!("grace_seconds: {error}")))?;
            host.stop(&name, grace.min(REPLY_TIMEOUT / 2))?;
            Ok(json!({ "stopped": name }))
        }
        Request::Release { name } => value(serde_json::to_value(host.release(&name)?)),
        Request::List => value(serde_json::to_value(host.list())),
        Request::Explain { name } => value(serde_json::to_value(host.explain(&name)?)),
    }
}

/// Why a request has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No daemon answers.
    #[error("no {daemon} answers at {path}: {source}; {remedy}")]
    NoHost {
        /// What should answer.
        daemon: &'static str,
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// The host refused the request; its message.
    #[error("{0}")]
    Refused(String),
}

/// Sends a request to the host with this runtime directory, and returns its reply.
///
/// # Errors
/// [`enum@Error`]
pub fn request(runtime: &Path, request: &Request) -> Result<Value, Error> {
    request_within(runtime, request, REPLY_TIMEOUT)
}

/// [`request`], for a client that does not wait as long for the reply.
///
/// # Errors
/// [`enum@Error`]
pub fn request_within(runtime: &Path, request: &Request, timeout: Duration) -> Result<Value, Error> {
    exchange(&runtime.join(NAME), request, timeout, "pool host", "start it with `thermocline pool host --config FILE`")
}

/// Sends a request to a daemon's socket.
pub(crate) fn exchange(
    path: &Path,
    request: &impl Serialize,
    timeout: Duration,
    daemon: &'static str,
    remedy: &'static str,
) -> Result<Value, Error> {
    let ask = || -> std::io::Result<Value> {
        let reply = daemon::socket::ask(path, &serde_json::to_string(request)?, timeout)?;
        Ok(serde_json::from_str(&reply)?)
    };
    let reply = ask().map_err(|source| Error::NoHost { daemon, path: path.to_owned(), source, remedy })?;
    match reply.get("error").and_then(Value::as_str) {
        Some(error) => Err(Error::Refused(error.to_owned())),
        None => Ok(reply),
    }
}
