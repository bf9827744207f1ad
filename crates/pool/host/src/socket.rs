//! The control socket of a host: a line of JSON asks, a line of JSON answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::host::{Host, Refused};
use crate::vm::Request;

/// The name of the socket in the runtime directory.
const NAME: &str = "pool-host.sock";

/// The longest request, how long a client may take to make it, and how many are heard at once.
const REQUEST_MAX: u64 = 1 << 20;
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
const CLIENTS_MAX: usize = 32;

/// How long a client waits: a guest that is stopped with grace, or has many slices to give up, takes its time.
const ANSWER_WITHIN: Duration = Duration::from_secs(600);

/// How long nobody is let in after the kernel could not.
const RETRY_WAIT: Duration = Duration::from_secs(1);

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

/// Answers in threads of their own for the life of the process. Only the daemon's user can connect.
///
/// # Errors
/// When the socket cannot be made.
pub fn serve(runtime: &Path, host: Arc<Host>) -> std::io::Result<()> {
    let path = runtime.join(NAME);
    // The caller holds the host's lock: a socket that stands here is a dead daemon's.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    let clients = Arc::new(AtomicUsize::new(0));
    thread::Builder::new().name("control".to_owned()).spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                thread::sleep(RETRY_WAIT);
                continue;
            };
            let (host, clients) = (Arc::clone(&host), Arc::clone(&clients));
            if clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MAX {
                clients.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let counted = Arc::clone(&clients);
            let spawned = thread::Builder::new().name("client".to_owned()).spawn(move || {
                if let Err(error) = answer(&stream, &host) {
                    log::debug!("a client of the control socket: {error}");
                }
                counted.fetch_sub(1, Ordering::Relaxed);
            });
            if spawned.is_err() {
                clients.fetch_sub(1, Ordering::Relaxed);
            }
        }
    })?;
    Ok(())
}

fn answer(stream: &UnixStream, host: &Host) -> std::io::Result<()> {
    stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(stream.take(REQUEST_MAX)).read_line(&mut line)?;
    let answer = match serde_json::from_str(&line) {
        Ok(ask) => follow(host, ask).unwrap_or_else(|refused| json!({ "error": refused.0 })),
        Err(error) => json!({ "error": format!("not a request that is known here: {error}") }),
    };
    let mut out = stream;
    serde_json::to_writer(&mut out, &answer)?;
    out.write_all(b"\n")
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
        let mut stream = UnixStream::connect(&path)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        let mut line = serde_json::to_vec(ask)?;
        line.push(b'\n');
        stream.write_all(&line)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(serde_json::from_str(&answer)?)
    };
    let answer = talk().map_err(|source| Unanswered::Nobody { path: path.clone(), source })?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => Err(Unanswered::Refused(error.to_owned())),
        None => Ok(answer),
    }
}
