//! The control socket of a machine with pool memory: one JSON request per connection, one JSON reply.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use daemon::socket::Limits;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use units::Bytes;

use super::machine::{Machine, Refused};
use crate::socket::Error;

/// Name of the socket in the runtime directory.
const NAME: &str = "pool-memory.sock";

const LIMITS: Limits = Limits { request_bytes: 1 << 16, request_timeout: Duration::from_secs(5), clients: 32 };

/// How long a client waits for the reply. Taking memory offline takes long.
const REPLY_TIMEOUT: Duration = Duration::from_secs(600);

/// A request to a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Add memory.
    Add {
        /// Its name.
        name: String,
        /// Its size.
        bytes: Bytes,
    },
    /// Remove memory.
    Remove {
        /// Its name.
        name: String,
    },
    /// Show what there is.
    List,
}

/// Serves the control socket in separate threads until the process exits.
///
/// # Errors
/// As [`daemon::socket::serve`].
pub fn serve(runtime: &Path, machine: Arc<Machine>) -> daemon::Result<()> {
    daemon::socket::serve(&runtime.join(NAME), LIMITS, move |line| match serde_json::from_str(line) {
        Ok(request) => handle(&machine, &request).map_or_else(|refused| daemon::socket::error(refused.0), |reply| reply.to_string()),
        Err(error) => daemon::socket::error(format_args!("unknown request: {error}")),
    })
}

fn handle(machine: &Machine, request: &Request) -> Result<Value, Refused> {
    let value = |value: serde_json::Result<Value>| value.map_err(|error| Refused(error.to_string()));
    match request {
        Request::Add { name, bytes } => value(serde_json::to_value(machine.add(name, machine.slices_of(*bytes)?)?)),
        Request::Remove { name } => machine.remove(name).map(|()| json!({ "removed": name })),
        Request::List => value(serde_json::to_value(machine.list())),
    }
}

/// Sends a request to the machine with this runtime directory, and returns its reply.
///
/// # Errors
/// [`enum@Error`]
pub fn request(runtime: &Path, request: &Request) -> Result<Value, Error> {
    let remedy = "start it with `thermocline pool memory serve`";
    crate::socket::exchange(&runtime.join(NAME), request, REPLY_TIMEOUT, "pool memory daemon", remedy)
}
