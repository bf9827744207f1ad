//! The control socket of a host: a line of JSON asks, a line of JSON answers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use daemon::socket::Limits;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::host::{Host, Refused};
use crate::vm::Request;

/// The name of the socket in the runtime directory.
const NAME: &str = "pool-host.sock";

/// A request may describe a guest with all its arguments; guests start and stop in parallel.
const LIMITS: Limits = Limits { request_bytes: 1 << 20, request_timeout: Duration::from_secs(5), clients: 32 };

/// How long a client waits: a guest that is stopped with grace, or has many slices to give up, takes its time.
const ANSWER_WITHIN: Duration = Duration::from_secs(600);

/// What may be asked of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// Start a guest.
    Start(Box<Request>),
    /// Stop one.
    Stop {
        /// Which.
        name: String,
        /// How long it may take to switch itself off.
        grace_seconds: f64,
    },
    /// Take a guest's pool memory back while it runs.
    Release {
        /// Whose.
        name: String,
    },
    /// All guests.
    List,
    /// All about one.
    Explain {
        /// Which.
        name: String,
    },
}

/// Serves the control socket of a host in threads of its own until the process exits.
///
/// # Errors
/// As [`daemon::socket::serve`].
pub fn serve(runtime: &Path, host: Arc<Host>) -> daemon::Result<()> {
    daemon::socket::serve(&runtime.join(NAME), LIMITS, move |line| answer(&host, line))
}

fn answer(host: &Host, line: &str) -> String {
    match serde_json::from_str(line) {
        Ok(ask) => follow(host, ask).map_or_else(|refused| daemon::socket::error(refused.0), |answer| answer.to_string()),
        Err(error) => daemon::socket::error(format_args!("unknown request: {error}")),
    }
}

fn follow(host: &Host, ask: Ask) -> Result<Value, Refused> {
    let value = |value: serde_json::Result<Value>| value.map_err(|error| Refused(error.to_string()));
    match ask {
        Ask::Start(request) => value(serde_json::to_value(host.start(*request)?)),
        Ask::Stop { name, grace_seconds } => {
            let grace = Duration::try_from_secs_f64(grace_seconds).map_err(|error| Refused(format!("grace_seconds: {error}")))?;
            host.stop(&name, grace.min(ANSWER_WITHIN / 2))?;
            Ok(json!({ "stopped": name }))
        }
        Ask::Release { name } => value(serde_json::to_value(host.release(&name)?)),
        Ask::List => value(serde_json::to_value(host.list())),
        Ask::Explain { name } => value(serde_json::to_value(host.explain(&name)?)),
    }
}

/// Why a host did not follow.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// None is there.
    #[error("no pool host answers at {path}: {source}; start one with `thermocline pool host --config FILE`")]
    Nobody {
        /// Its socket.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
    /// It will not.
    #[error("{0}")]
    Refused(String),
}

/// Asks the host of a runtime directory.
///
/// # Errors
/// [`Unanswered`]
pub fn ask(runtime: &Path, ask: &Ask) -> Result<Value, Unanswered> {
    let path = runtime.join(NAME);
    let talk = || -> std::io::Result<Value> {
        let answer = daemon::socket::ask(&path, &serde_json::to_string(ask)?, ANSWER_WITHIN)?;
        Ok(serde_json::from_str(&answer)?)
    };
    let answer = talk().map_err(|source| Unanswered::Nobody { path: path.clone(), source })?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => Err(Unanswered::Refused(error.to_owned())),
        None => Ok(answer),
    }
}
