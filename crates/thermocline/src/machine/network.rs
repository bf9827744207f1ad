//! `thermocline network`: the agent's connections, in a process that needs no privilege.
//!
//! The agent runs as root. With `agent.network` it has no connection but the one to this process's socket: for the stores of traces
//! and bundles, whose contents it verifies itself, and for its metrics.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use daemon::relay::Relay;
use store::access::Carrier;

/// How long a client may pause within a request.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Clients at the same time. The agent has three at most.
const CLIENTS_MAX: usize = 16;

/// The longest first line of a request, in bytes.
const LINE_MAX: u64 = 512;

#[derive(Debug, Args)]
pub(crate) struct Network {
    /// The socket that is made, and that only this user and root can use [default: standard input, which a socket unit opens]
    #[arg(long, value_name = "FILE")]
    pub(crate) listen: Option<PathBuf>,
}

/// Serves the agent until SIGTERM.
pub(crate) fn network(arguments: &Network) -> Result<()> {
    let listener = match &arguments.listen {
        Some(path) => bind(path)?,
        None => inherited()?,
    };
    let served = Arc::new(Served::default());
    daemon::notify_ready();
    let _member = daemon::watchdog::join("accept", Duration::MAX);
    for stream in listener.incoming() {
        let stream = stream.context("cannot accept a connection")?;
        let place = Place(Arc::clone(&served));
        if served.clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MAX {
            log::warn!("{CLIENTS_MAX} clients are served already; one more was closed");
            continue;
        }
        std::thread::Builder::new()
            .name("client".to_owned())
            .spawn(move || place.0.answer(stream).unwrap_or_else(|error| log::warn!("a client of the socket: {error}")))
            .context("cannot start a thread")?;
    }
    Ok(())
}

/// Makes the socket. One that no process serves any more is replaced.
fn bind(path: &Path) -> Result<UnixListener> {
    if UnixStream::connect(path).is_ok() {
        bail!("another process serves {}; stop it first, or name another file with --listen", path.display());
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot replace {}", path.display()));
        }
        _ => {}
    }
    let listener = UnixListener::bind(path).with_context(|| format!("cannot make the socket {}", path.display()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .with_context(|| format!("cannot restrict the mode of {}", path.display()))?;
    Ok(listener)
}

/// The socket that the service manager opened (`StandardInput=socket`).
fn inherited() -> Result<UnixListener> {
    let listener = UnixListener::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    listener.local_addr().context("standard input is no socket; name the socket to make with --listen FILE")?;
    Ok(listener)
}

#[derive(Debug, Default)]
struct Served {
    carrier: Carrier,
    relay: Relay,
    clients: AtomicUsize,
}

/// One of the places that [`CLIENTS_MAX`] counts; dropping it frees the place.
struct Place(Arc<Served>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Served {
    fn answer(&self, stream: UnixStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(PAUSE_MAX))?;
        stream.set_write_timeout(Some(PAUSE_MAX))?;
        let mut from = BufReader::new(stream);
        let mut head = String::new();
        from.by_ref().take(LINE_MAX).read_line(&mut head)?;
        let head = head.trim_end_matches('\n');
        let Some(address) = head.strip_prefix("metrics ") else { return self.carrier.answer(head, &mut from) };
        let address: SocketAddr = address.parse().map_err(|_| std::io::Error::other(format!("{address:?} is no address")))?;
        if self.relay.serves_elsewhere(address) {
            // The socket unit starts it again when the agent connects again.
            log::info!("metrics are to be served at {address}: ends, for a new start");
            std::process::exit(0);
        }
        self.relay.accept(address, from)
    }
}
