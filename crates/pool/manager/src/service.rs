//! Start and stop of a manager.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use daemon::http::Server;
use pool::{Kept, Ns, Slices};
use units::Bytes;

use crate::audit::Audit;
use crate::chain::Hash;
use crate::files::{self, Files};
use crate::group::machine::Core;
use crate::group::{self, Running};
use crate::ledger::Ledger;
use crate::mark;
pub use crate::recover::{RecoverySummary, recover};
use crate::restore::build_ledger;
use crate::server::{self, Rights};
use crate::settings::Members;
use crate::settings::Settings;
use crate::storage::{self, Storage, Stored};
use crate::tls::{self, ServerConfig};
use crate::writer::{self, Clock, Handle, Wake};
use crate::{leader, maintenance, scrubber};

/// Why a manager cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The ledger's file cannot be used.
    #[error(transparent)]
    Ledger(#[from] storage::Error),
    /// This member of a group cannot start.
    #[error(transparent)]
    Group(#[from] group::Error),
    /// The slices' files cannot be used.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// The ledger does not match the configuration, or is inconsistent.
    #[error("the ledger {path} does not match the configuration: {why}")]
    Mismatch {
        /// The ledger's file.
        path: String,
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

/// Adds what was tried to the error of a system call.
pub(crate) fn system(op: &str) -> impl FnOnce(std::io::Error) -> Error {
    let op = op.to_owned();
    move |source| Error::System { op, source }
}

/// Summary of `init`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct InitSummary {
    /// Number of slices of the pool.
    pub slices: Slices,
    /// Number of files that were created.
    pub files: u32,
    /// Size of all slices.
    pub capacity_bytes: Bytes,
}

/// Creates a pool's ledger and files, or the missing parts.
///
/// # Errors
/// [`enum@Error`]
pub fn init(settings: &Settings, overcommit: bool) -> Result<InitSummary, Error> {
    let files = files_of(settings);
    std::fs::create_dir_all(&settings.pool_dir).map_err(system(&format!("create {}", settings.pool_dir.display())))?;
    if !overcommit {
        files.check_capacity(settings.in_files())?;
    }
    if let Some(directory) = settings.ledger.parent() {
        std::fs::create_dir_all(directory).map_err(system(&format!("create {}", directory.display())))?;
    }
    let mut storage = Storage::open(&settings.ledger, &settings.pool_dir)?;
    let ledger = open_ledger(settings, &mut storage, &files, Clock::start().now())?;
    let created = files.create_missing(ledger.pool())?;
    Ok(InitSummary { slices: settings.slices(), files: created, capacity_bytes: settings.capacity() })
}

/// Creates the files of a member of a group: an empty ledger, and its part of the log. With `joining`, the group exists, and the member
/// gets everything from the others.
///
/// # Errors
/// [`enum@Error`]: among others, the member has files.
pub fn init_member(settings: &Settings, joining: bool) -> Result<InitSummary, Error> {
    if settings.ledger.exists() {
        return Err(group::Error::from(group::log::Error::Exists { path: settings.ledger.clone() }).into());
    }
    for directory in [settings.ledger.parent(), Some(settings.pool_dir.as_path())].into_iter().flatten() {
        std::fs::create_dir_all(directory).map_err(system(&format!("create {}", directory.display())))?;
    }
    // The mark of a ledger that is gone.
    let _ = std::fs::remove_file(settings.pool_dir.join(mark::NAME));
    let is_first = settings.group.as_ref().is_some_and(|group| group.member == 1);
    let identity = if is_first && !joining { Some(Hash::random().ok_or(storage::Error::Random)?) } else { None };
    group::log::Log::create(&settings.group_log(), joining, identity).map_err(group::Error::from)?;
    Ok(InitSummary { slices: settings.slices(), files: 0, capacity_bytes: settings.capacity() })
}

/// The files of the configured pool.
pub(crate) fn files_of(settings: &Settings) -> Files {
    Files::new(settings.layout(), settings.mode().unwrap_or(0o600))
}

/// Reads and checks the ledger, and saves additions by the configuration.
fn open_ledger(settings: &Settings, storage: &mut Storage, files: &Files, now: Ns) -> Result<Ledger, Error> {
    let stored = storage.load(files.exist()?)?;
    let new = || Stored { slice_bytes: settings.slice_size, next_vm: 1, kept: Kept::default(), ..Stored::default() };
    let mismatch = |why| Error::Mismatch { path: settings.ledger.display().to_string(), why };
    let ledger = build_ledger(settings, stored.unwrap_or_else(new), now).map_err(mismatch)?;
    storage.save(None, &ledger)?;
    Ok(ledger)
}

/// A running manager.
#[derive(Debug)]
pub struct Manager {
    /// The address that it listens on.
    pub address: SocketAddr,
    stop_clock: Option<Sender<()>>,
    wake: SyncSender<Wake>,
    server: Option<Server>,
    others: Vec<JoinHandle<()>>,
    handle: Option<Handle>,
    group: Option<Running>,
}

/// Starts a manager. It serves requests when this returns.
///
/// # Errors
/// [`enum@Error`]
pub fn start(settings: &Settings, insecure_loopback: bool) -> Result<Manager, Error> {
    let secure = match &settings.tls {
        Some(tls) => Some(tls::server(tls)?),
        None if insecure_loopback && settings.listen.ip().is_loopback() => None,
        None => return Err(Error::Insecure { listen: settings.listen }),
    };
    if let Some(members) = &settings.group {
        return start_member(settings, members, secure);
    }
    ensure_pool(settings)?;
    let listener = listen(settings)?;
    let address = listener.local_addr().map_err(system("determine the address"))?;
    let clock = Clock::start();
    let mut storage = Storage::open(&settings.ledger, &settings.pool_dir)?;
    let files = files_of(settings);
    let ledger = open_ledger(settings, &mut storage, &files, clock.now())?;
    let created = files.create_missing(ledger.pool())?;
    if created > 0 {
        log::warn!("created {created} missing files of free slices under {}", settings.pool_dir.display());
    }
    let (wake, woken) = sync_channel(1);
    let (stop_clock, stopped) = channel();
    let rebuild_settings = settings.clone();
    let now = clock.clone();
    let rebuild = Box::new(move |stored| build_ledger(&rebuild_settings, stored, now.now()));
    let audit = Audit::open(settings.audit_log(), settings.audit_size);
    let (handle, writer) = writer::start(storage, ledger, clock, rebuild, wake.clone(), audit).map_err(system("start a thread"))?;
    let clock = maintenance::tick(handle.clone(), stopped).map_err(system("start a thread"))?;
    let maintenance = maintenance::maintain(handle.clone(), files, woken).map_err(system("start a thread"))?;
    let rights = Rights { operators: settings.operators.clone(), hosts: settings.hosts.clone() };
    let server = server::serve(listener, secure, handle.clone(), rights).map_err(system("start the HTTP server"))?;
    log::info!("the pool manager serves {} on {address}", settings.hosts.join(", "));
    Ok(Manager {
        address,
        stop_clock: Some(stop_clock),
        wake,
        server: Some(server),
        others: vec![clock, maintenance, writer],
        handle: Some(handle),
        group: None,
    })
}

fn listen(settings: &Settings) -> Result<TcpListener, Error> {
    TcpListener::bind(settings.listen).map_err(system(&format!("listen on {}", settings.listen)))
}

/// Starts a member of a group. It does not wait for a leader.
fn start_member(settings: &Settings, members: &Members, secure: Option<Arc<ServerConfig>>) -> Result<Manager, Error> {
    let listener = listen(settings)?;
    let address = listener.local_addr().map_err(system("determine the address"))?;
    let clock = Clock::start();
    group::log::Log::check_exists(&settings.group_log()).map_err(group::Error::from)?;
    // It has no memory of the pool, only the mark of the ledger.
    std::fs::create_dir_all(&settings.pool_dir).map_err(system(&format!("create {}", settings.pool_dir.display())))?;
    let storage = Storage::open(&settings.ledger, &settings.pool_dir)?;
    let core = Core::open(settings, storage, clock.now()).map_err(group::Error::from)?;
    let (group, running) = group::start(settings, members, core)?;
    let (wake, woken) = sync_channel(1);
    let (stop_clock, stopped) = channel();
    let audit = Audit::open(settings.audit_log(), settings.audit_size);
    let thread = || system("start a thread");
    let (handle, writer) = leader::start(&group, settings, clock, wake.clone(), audit).map_err(thread())?;
    let clock = maintenance::tick(handle.clone(), stopped).map_err(thread())?;
    let scrubber = scrubber::start(handle.clone(), group, settings.layout(), woken).map_err(thread())?;
    let rights = Rights { operators: settings.operators.clone(), hosts: settings.hosts.clone() };
    let server = server::serve(listener, secure, handle.clone(), rights).map_err(system("start the HTTP server"))?;
    log::info!("member {} of {} pool managers serves {} on {address}", members.member, members.members.len(), settings.hosts.join(", "));
    Ok(Manager {
        address,
        stop_clock: Some(stop_clock),
        wake,
        server: Some(server),
        others: vec![clock, scrubber, writer],
        handle: Some(handle),
        group: Some(running),
    })
}

/// Creates the pool if it does not exist. A pool with a ledger and without its directory has lost its memory file
/// system.
fn ensure_pool(settings: &Settings) -> Result<(), Error> {
    if !settings.ledger.exists() {
        let created = init(settings, false)?;
        log::info!("created a pool of {} slices, {} bytes in all", created.slices, created.capacity_bytes.0);
    } else if !settings.pool_dir.exists() {
        let why = format!("{} does not exist; mount it, and run `thermocline pool manager init`", settings.pool_dir.display());
        return Err(Error::Mismatch { path: settings.ledger.display().to_string(), why });
    }
    Ok(())
}

impl Manager {
    /// A handle to its writer, for use within the process.
    #[must_use]
    pub fn handle(&self) -> Option<Handle> {
        self.handle.clone()
    }

    /// Stops: open requests are answered, and the ledger's file is closed.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
        drop(self.stop_clock.take());
        let _ = self.wake.send(Wake::Stop);
        drop(self.handle.take());
        for thread in self.others.drain(..) {
            let _ = thread.join();
        }
        if let Some(mut group) = self.group.take() {
            group.stop();
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.end();
    }
}
