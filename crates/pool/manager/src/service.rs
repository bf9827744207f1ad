//! Starting and stopping a manager.

use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use daemon::http::Server;
use pool::{Broken, Kept, Ns, Pool};

use crate::book::{Book, Host};
use crate::files::{self, Files};
use crate::keeper::{self, Wake};
use crate::ledger::{self, Ledger, Stored};
use crate::server::{self, Rights};
use crate::settings::Settings;
use crate::tls;
use crate::writer::{self, Clock, Handle};

/// Why a manager does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
    /// The slices.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// The certificates.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// The ledger and the configuration are of different pools, or the ledger is not true to itself.
    #[error("the ledger {path} does not fit: {why}")]
    Unfit {
        /// The ledger.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// It must not be open to all.
    #[error("{listen} can be reached from elsewhere; configure [tls], or listen on 127.0.0.1 and say --insecure-loopback")]
    Insecure {
        /// Where it would listen.
        listen: SocketAddr,
    },
    /// The system.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What it said.
        source: std::io::Error,
    },
}

fn system(what: &str) -> impl FnOnce(std::io::Error) -> Error {
    let what = what.to_owned();
    move |source| Error::System { what, source }
}

/// What `init` has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Made {
    /// Slices of the pool.
    pub slices: u64,
    /// Files that were missing.
    pub files: u32,
    /// Bytes of all slices.
    pub capacity_bytes: u64,
}

/// Makes a pool's ledger and files, or what they lack.
///
/// # Errors
/// [`enum@Error`]
pub fn init(settings: &Settings, overcommit: bool) -> Result<Made, Error> {
    let files = files_of(settings);
    std::fs::create_dir_all(&settings.pool_dir).map_err(system(&format!("make {}", settings.pool_dir.display())))?;
    if !overcommit {
        files.check_room(settings.capacity())?;
    }
    if let Some(directory) = settings.ledger.parent() {
        std::fs::create_dir_all(directory).map_err(system(&format!("make {}", directory.display())))?;
    }
    let mut ledger = Ledger::open(&settings.ledger)?;
    let book = open_book(settings, &mut ledger, Clock::start().now())?;
    let made = files.make_missing(book.pool())?;
    let slices = settings.emcs.iter().map(|emc| u64::from(emc.slices)).sum();
    Ok(Made { slices, files: made, capacity_bytes: settings.capacity() })
}

fn files_of(settings: &Settings) -> Files {
    Files::new(settings.layout(), settings.mode().unwrap_or(0o600))
}

/// The book that a ledger and a configuration make together.
fn book_of(settings: &Settings, stored: Stored, now: Ns) -> Result<Book, String> {
    let Stored { slice_bytes, next_vm, kept, mut hosts, vms } = stored;
    if slice_bytes.0 != settings.slice_size {
        return Err(format!(
            "its slices have {} bytes and the configuration says {}; a pool keeps its size",
            slice_bytes.0, settings.slice_size
        ));
    }
    // Whoever was once known keeps its number; who is new gets the next.
    for name in &settings.hosts {
        if !hosts.iter().any(|host| host.name == *name) {
            hosts.push(Host { name: name.clone(), ..Host::default() });
        }
    }
    let count = u16::try_from(hosts.len()).map_err(|_| format!("{} hosts have used it, too many to count", hosts.len()))?;
    let pool = Pool::restore(settings.pool(count), kept).map_err(|broken: Broken| broken.to_string())?;
    Ok(Book::new(pool, hosts, vms, next_vm, settings.terms(), settings.layout(), now))
}

/// Reads the ledger, checks it, and writes what the configuration has added.
fn open_book(settings: &Settings, ledger: &mut Ledger, now: Ns) -> Result<Book, Error> {
    let stored = ledger.load()?;
    let new = || Stored { slice_bytes: units::Bytes(settings.slice_size), next_vm: 1, kept: Kept::default(), ..Stored::default() };
    let unfit = |why| Error::Unfit { path: settings.ledger.display().to_string(), why };
    let book = book_of(settings, stored.unwrap_or_else(new), now).map_err(unfit)?;
    ledger.save(None, &book)?;
    Ok(book)
}

/// A manager that runs.
#[derive(Debug)]
pub struct Manager {
    /// Where it listens.
    pub address: SocketAddr,
    stop_clock: Option<Sender<()>>,
    wake: SyncSender<Wake>,
    server: Option<Server>,
    others: Vec<JoinHandle<()>>,
    handle: Option<Handle>,
}

/// Starts a manager. It serves when this returns.
///
/// # Errors
/// [`enum@Error`]
pub fn start(settings: &Settings, insecure_loopback: bool) -> Result<Manager, Error> {
    let secure = match &settings.tls {
        Some(tls) => Some(tls::server(tls)?),
        None if insecure_loopback && settings.listen.ip().is_loopback() => None,
        None => return Err(Error::Insecure { listen: settings.listen }),
    };
    begin(settings)?;
    let listener = TcpListener::bind(settings.listen).map_err(system(&format!("listen on {}", settings.listen)))?;
    let address = listener.local_addr().map_err(system("tell the address"))?;
    let clock = Clock::start();
    let mut ledger = Ledger::open(&settings.ledger)?;
    let book = open_book(settings, &mut ledger, clock.now())?;
    let files = files_of(settings);
    let made = files.make_missing(book.pool())?;
    if made > 0 {
        log::warn!("{made} files of free slices were missing under {} and are made anew", settings.pool_dir.display());
    }
    let (wake, woken) = sync_channel(1);
    let (stop_clock, stopped) = channel();
    let again = settings.clone();
    let now = clock.clone();
    let rebuild = Box::new(move |stored| book_of(&again, stored, now.now()));
    let (handle, ledger) = writer::start(ledger, book, clock, rebuild, wake.clone()).map_err(system("start a thread"))?;
    let clock = keeper::tick(handle.clone(), stopped).map_err(system("start a thread"))?;
    let keeper = keeper::keep(handle.clone(), files, woken).map_err(system("start a thread"))?;
    let rights = Rights { operators: settings.operators.clone(), hosts: settings.hosts.clone() };
    let server = server::serve(listener, secure, handle.clone(), rights).map_err(system("start the HTTP server"))?;
    log::info!("the pool manager serves {} on {address}", settings.hosts.join(", "));
    Ok(Manager {
        address,
        stop_clock: Some(stop_clock),
        wake,
        server: Some(server),
        others: vec![clock, keeper, ledger],
        handle: Some(handle),
    })
}

/// A pool that is not there yet is made. One whose ledger is there and whose files are not has lost its memory file system.
fn begin(settings: &Settings) -> Result<(), Error> {
    if !settings.ledger.exists() {
        let made = init(settings, false)?;
        log::info!("a new pool of {} slices, {} bytes in all", made.slices, made.capacity_bytes);
    } else if !settings.pool_dir.exists() {
        let why = format!("there is no {}; mount it, and say `thermocline pool manager init`", settings.pool_dir.display());
        return Err(Error::Unfit { path: settings.ledger.display().to_string(), why });
    }
    Ok(())
}

impl Manager {
    /// The way to its writer, for what lives in the same process.
    #[must_use]
    pub fn handle(&self) -> Option<Handle> {
        self.handle.clone()
    }

    /// Stops: open requests are answered, and the ledger is closed.
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
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.end();
    }
}
