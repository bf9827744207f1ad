//! Uploads the files of the spool to the store, in a thread of its own: a slow or unreachable store does not block the
//! agent.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use store::{Access, Backoff, FileError};
use units::Bytes;

use crate::error::Result;
use crate::spool::ready_files;

/// Waiting time after failed uploads.
const RETRY: Backoff = Backoff { first: Duration::from_secs(5), max: Duration::from_secs(300) };
/// How long [`Sink::stop`] waits for pending uploads; the next start sends the rest.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// The thread and its status.
#[derive(Debug)]
pub struct Sink {
    wake: Sender<()>,
    thread: JoinHandle<()>,
    status: Arc<Mutex<Status>>,
}

/// Progress of the uploads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Files uploaded.
    pub sent_files: u64,
    /// Size of the uploaded files.
    pub sent_bytes: Bytes,
    /// Error of the last upload; `None` after a success.
    pub error: Option<String>,
}

impl Sink {
    /// Starts to upload the files below `ready` to the store at `url`, by a connection of this process's or of the process that
    /// listens at `network` ([`Access::open`]). Each file is removed after its upload.
    ///
    /// # Errors
    /// [`crate::Error::File`] if the thread cannot be started.
    pub fn start(ready: &Path, url: &str, network: Option<&Path>) -> Result<Self> {
        let (wake, woken) = mpsc::channel();
        let status = Arc::new(Mutex::new(Status::default()));
        let (url, network) = (url.to_owned(), network.map(Path::to_owned));
        let carrier = Carrier { ready: ready.to_owned(), url, network, store: None, status: Arc::clone(&status) };
        let thread = std::thread::Builder::new().name("trace-sink".to_owned()).spawn(move || carrier.run(&woken));
        Ok(Self { wake, thread: thread.map_err(FileError::at(ready, "start a thread for"))?, status })
    }

    /// Signals that there is a new file.
    pub fn wake(&self) {
        // The thread ends only when this value is dropped.
        let _ = self.wake.send(());
    }

    /// Returns the current status.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stops the thread after a last attempt to upload the pending files; waits at most ten seconds.
    pub fn stop(self) {
        drop(self.wake);
        let (done, ended) = mpsc::channel();
        let thread = self.thread;
        let waiter = std::thread::Builder::new().spawn(move || {
            let _ = thread.join();
            let _ = done.send(());
        });
        if waiter.is_ok() {
            let _ = ended.recv_timeout(LAST_WAIT);
        }
    }
}

struct Carrier {
    ready: PathBuf,
    url: String,
    network: Option<PathBuf>,
    store: Option<Access>,
    status: Arc<Mutex<Status>>,
}

impl Carrier {
    fn run(mut self, woken: &Receiver<()>) {
        let mut failures = 0;
        let mut stopping = false;
        loop {
            let carried = self.carry_all();
            failures = if carried.is_ok() { 0 } else { failures + 1 };
            self.status.lock().unwrap_or_else(PoisonError::into_inner).error = carried.err().map(|error| error.to_string());
            if stopping {
                return;
            }
            // Without an error there is nothing to do until the next file.
            let woke = match failures {
                0 => woken.recv().map_err(|_| RecvTimeoutError::Disconnected),
                _ => woken.recv_timeout(RETRY.wait(failures)),
            };
            stopping = woke == Err(RecvTimeoutError::Disconnected);
            while woken.try_recv().is_ok() {}
        }
    }

    fn carry_all(&mut self) -> Result<()> {
        for file in ready_files(&self.ready)? {
            let store = match &mut self.store {
                Some(store) => store,
                none => none.insert(Access::open(&self.url, self.network.as_deref())?),
            };
            let path = file.path.strip_prefix(&self.ready).unwrap_or(&file.path).to_string_lossy().into_owned();
            match store.put(&path, &file.path) {
                // Removed by the spool to stay within its limit.
                Err(error) if error.is_missing_file() => continue,
                put => put?,
            }
            std::fs::remove_file(&file.path).map_err(FileError::at(&file.path, "remove"))?;
            remove_empty(&self.ready, &file.path);
            let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
            status.sent_files += 1;
            status.sent_bytes += file.bytes;
        }
        Ok(())
    }
}

/// Removes the empty directories of past days.
fn remove_empty(ready: &Path, file: &Path) {
    for directory in file.ancestors().skip(1).take_while(|directory| *directory != ready) {
        // Fails if the directory is not empty.
        if std::fs::remove_dir(directory).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{basis, entries};
    use crate::{Entry, Spool, Trace};
    use store::Store;

    fn entries_in(store: &Path) -> Vec<Entry> {
        let store = Store::open(store.to_str().unwrap()).unwrap();
        let mut found = Vec::new();
        for object in store.list(crate::EXTENSION).unwrap() {
            let file = store.fetch(&object.path).unwrap();
            found.extend(Trace::open(file.path()).unwrap().rows().flat_map(|rows| rows.unwrap().entries().collect::<Vec<_>>()));
        }
        found.sort_by(|a, b| a.order().cmp(&b.order()));
        found
    }

    #[test]
    fn files_wait_while_the_store_is_unreachable() {
        let dir = tempfile::tempdir().unwrap();
        let given = entries("m", 2, 4, 3);
        let (mut spool, _) = Spool::open(&dir.path().join("spool"), basis(2), Bytes(u64::MAX)).unwrap();
        // A file in place of the store's directory.
        let store = dir.path().join("store");
        std::fs::write(&store, "").unwrap();
        for part in given.chunks(2) {
            spool.append(part).unwrap();
            spool.close().unwrap();
        }
        let ready = spool.ready();
        let carry = || {
            let sink = Sink::start(&ready, store.to_str().unwrap(), None).unwrap();
            let status = Arc::clone(&sink.status);
            sink.stop();
            status.lock().unwrap().clone()
        };
        let away = carry();
        assert_eq!((away.sent_files, ready_files(&spool.ready()).unwrap().len()), (0, 4));
        assert!(away.error.unwrap().contains("store"));
        std::fs::remove_file(&store).unwrap();
        let back = carry();
        assert_eq!((back.sent_files, back.error), (4, None));
        assert_eq!(entries_in(&store), given);
        assert_eq!(std::fs::read_dir(spool.ready()).unwrap().count(), 0, "empty directories are removed");
        // Killed between upload and removal: the file is uploaded again and stored once.
        spool.append(&given[..2]).unwrap();
        spool.close().unwrap();
        assert_eq!(carry().sent_files, 1);
        assert_eq!(entries_in(&store), given);
    }
}
