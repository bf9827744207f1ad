//! Start and stop of a scheduler.

use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use daemon::http::Server;
use manager::client::{Client, Identity};

use crate::event::Event;
use crate::log_file::{self, LogFile, SCHEDULER};
use crate::observer;
use crate::server;
use crate::settings::Settings;
use crate::state::{Inconsistent, State};
use crate::writer::{self, Handle};

/// Why a scheduler cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log cannot be used.
    #[error(transparent)]
    Log(#[from] log_file::Error),
    /// A manager's address or a certificate cannot be used.
    #[error(transparent)]
    Manager(#[from] manager::client::Error),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] manager::tls::Error),
    /// The VMs of the log do not fit the configured hosts.
    #[error("the VMs in {log} do not fit the configuration: {why}; end them first, or configure their hosts")]
    Mismatch {
        /// The log.
        log: String,
        /// The cause.
        why: String,
    },
    /// Without TLS it must not be reachable from other machines.
    #[error("{listen} can be reached from elsewhere; configure [tls], or listen on 127.0.0.1 and use --insecure-loopback")]
    Insecure {
        /// The configured address.
        listen: SocketAddr,
    },
    /// A system call failed.
    #[error("cannot {op}: {source}")]
    System {
        /// The operation.
        op: String,
        /// The cause.
        source: std::io::Error,
    },
}

impl Error {
    /// Whether another scheduler has the log.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        matches!(self, Self::Log(log_file::Error::Lock(daemon::Error::Locked { .. })))
    }
}

fn system(op: &str) -> impl FnOnce(std::io::Error) -> Error {
    let op = op.to_owned();
    move |source| Error::System { op, source }
}

/// A running scheduler.
#[derive(Debug)]
pub struct Scheduler {
    /// The address that it listens on.
    pub address: SocketAddr,
    server: Option<Server>,
    stop_observers: Vec<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
    handle: Option<Handle>,
}

/// Starts a scheduler. It serves requests when this returns.
///
/// # Errors
/// [`enum@Error`]; [`Error::is_locked`] while another one has the log.
pub fn start(settings: &Settings, insecure_loopback: bool) -> Result<Scheduler, Error> {
    let secure = match &settings.tls {
        Some(tls) => Some(manager::tls::server(tls)?),
        None if insecure_loopback && settings.listen.ip().is_loopback() => None,
        None => return Err(Error::Insecure { listen: settings.listen }),
    };
    let clients = clients(settings)?;
    // Only the scheduler that has the log listens.
    let (log, state) = open(settings)?;
    let listener = TcpListener::bind(settings.listen).map_err(system(&format!("listen on {}", settings.listen)))?;
    let address = listener.local_addr().map_err(system("determine the address"))?;
    let (handle, writer) = writer::start(log, state).map_err(system("start a thread"))?;
    let (mut stop_observers, mut threads) = (Vec::new(), Vec::new());
    for (pool, client) in clients {
        let (stop, stopped) = channel();
        stop_observers.push(stop);
        threads.push(observer::observe(pool, client, handle.clone(), stopped).map_err(system("start a thread"))?);
    }
    threads.push(writer);
    let server = server::serve(listener, secure, handle.clone(), settings.operators.clone()).map_err(system("start the HTTP server"))?;
    log::info!("the scheduler serves {} pools on {address}", settings.topology.pools.len());
    Ok(Scheduler { address, server: Some(server), stop_observers, threads, handle: Some(handle) })
}

/// Clients of the pools' managers.
fn clients(settings: &Settings) -> Result<Vec<(String, Client)>, Error> {
    let identity = Identity::at(&settings.identity);
    let managed = settings.managers.iter().filter_map(|(pool, url)| Some((pool, url.as_ref()?)));
    let clients = managed.map(|(pool, url)| Ok((pool.clone(), Client::new(url, Some(&identity), observer::READ_TIMEOUT)?)));
    clients.collect()
}

/// Opens the log and continues with the configured hosts.
fn open(settings: &Settings) -> Result<(LogFile, State), Error> {
    let (mut log, state) = LogFile::open(&settings.log, settings.log_size)?;
    let mismatch = |Inconsistent(why)| Error::Mismatch { log: settings.log.display().to_string(), why };
    let topology = Event::Topology(settings.topology.clone());
    let state = match state {
        Some(state) if *state.topology() == settings.topology => state,
        earlier => {
            let mut state = earlier;
            log_file::follow(&mut state, &topology).map_err(mismatch)?;
            log.append(std::iter::once((SCHEDULER, &topology)))?;
            state.ok_or_else(|| mismatch(Inconsistent("it has no topology".to_owned())))?
        }
    };
    Ok((log, state))
}

impl Scheduler {
    /// Stops: open requests are answered, and the log is closed.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
        self.stop_observers.clear();
        drop(self.handle.take());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.end();
    }
}
