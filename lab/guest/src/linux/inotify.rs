//! `inotify(7)`, reduced to change notifications of directories.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// A queue of change notifications for watched directories.
pub(crate) struct Inotify {
    queue: File,
}

impl Inotify {
    /// Returns an empty queue.
    ///
    /// # Errors
    /// `EMFILE` if the user's limit of inotify instances is reached.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: takes no pointers.
        let fd = super::checked(unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) })?;
        // SAFETY: the descriptor was just opened and nothing else owns it.
        Ok(Self { queue: unsafe { File::from_raw_fd(fd) } })
    }

    /// Watches `directory` for entries that are created, moved in, extended or written. Repeated calls have no effect.
    ///
    /// # Errors
    /// Those of `inotify_add_watch(2)`, with `ENOENT` if the directory does not exist.
    pub(crate) fn watch(&self, directory: &Path) -> io::Result<()> {
        let path = CString::new(directory.as_os_str().as_bytes())?;
        let mask = libc::IN_CREATE | libc::IN_MOVED_TO | libc::IN_MODIFY | libc::IN_CLOSE_WRITE | libc::IN_ONLYDIR;
        // SAFETY: `path` is a NUL-terminated string that outlives the call.
        super::checked(unsafe { libc::inotify_add_watch(self.queue.as_raw_fd(), path.as_ptr(), mask) })?;
        Ok(())
    }

    /// Waits for a notification, at most `timeout`, and empties the queue.
    ///
    /// # Errors
    /// Those of `ppoll(2)` and `read(2)`.
    pub(crate) fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        super::poll::poll(&mut [super::poll::interest(self.queue.as_fd(), libc::POLLIN)], Some(timeout))?;
        let mut notices = [0; 4096];
        loop {
            match self.queue.read(&mut notices) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}
