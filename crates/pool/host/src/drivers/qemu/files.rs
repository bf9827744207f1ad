//! Descriptors that QEMU inherits: the socket of its monitor, and the files of the guest's description.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::FdFlags;

/// Id of the monitor's socket in QEMU.
const MONITOR: &str = "thermocline-monitor";
/// `O_NONBLOCK`: a FIFO must not keep the host waiting. Without effect on the files that are accepted.
const NONBLOCK: i32 = 0o4000;

/// Held while descriptors are inheritable, so that no other guest's process inherits them.
static STARTING: Mutex<()> = Mutex::new(());

/// Descriptors for one QEMU process, and the options that name them.
#[derive(Debug, Default)]
pub(super) struct Inherited {
    descriptors: Vec<OwnedFd>,
    pub(super) argv: Vec<String>,
}

impl Inherited {
    /// The monitor's socket at `path`, which QEMU's user need not be able to reach.
    pub(super) fn monitor(&mut self, path: &Path) -> std::io::Result<()> {
        let socket: OwnedFd = UnixListener::bind(path)?.into();
        let number = socket.as_raw_fd();
        self.argv.extend(["-chardev".to_owned(), format!("socket,id={MONITOR},fd={number},server=on,wait=off")]);
        self.argv.extend(["-mon".to_owned(), format!("chardev={MONITOR},mode=control")]);
        self.descriptors.push(socket);
        Ok(())
    }

    /// A file that QEMU opens as `/dev/fdset/ORDINAL`, for reading, and for writing if the file permits that.
    ///
    /// # Errors
    /// The file cannot be opened, or is neither a regular file nor a block device.
    pub(super) fn file(&mut self, ordinal: usize, path: &Path) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("qemu.files: cannot open {}: {error}", path.display());
        let read = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path).map_err(failed)?;
        let kind = read.metadata().map_err(failed)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(format!("qemu.files: {} is neither a regular file nor a block device", path.display()));
        }
        // QEMU takes the descriptor whose access is the one that it needs.
        let both = OpenOptions::new().read(true).write(true).custom_flags(NONBLOCK).open(path).ok();
        for file in [Some(read), both].into_iter().flatten() {
            self.argv.extend(["-add-fd".to_owned(), format!("fd={},set={ordinal}", file.as_raw_fd())]);
            self.descriptors.push(file.into());
        }
        Ok(())
    }

    /// Makes the descriptors inheritable until the returned value is dropped.
    pub(super) fn inheritable(&self) -> std::io::Result<Inheritable<'_>> {
        let guard = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let inheritable = Inheritable { files: self, _guard: guard };
        self.set(FdFlags::empty())?;
        Ok(inheritable)
    }

    fn set(&self, flags: FdFlags) -> std::io::Result<()> {
        Ok(self.descriptors.iter().try_for_each(|descriptor| rustix::io::fcntl_setfd(descriptor, flags))?)
    }
}

/// The time in which a child inherits descriptors.
pub(super) struct Inheritable<'a> {
    files: &'a Inherited,
    _guard: MutexGuard<'static, ()>,
}

impl Drop for Inheritable<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.files.set(FdFlags::CLOEXEC) {
            log::error!("a descriptor of a guest stays inheritable: {error}");
        }
    }
}

/// The log file of a process, emptied.
pub(super) fn log(path: &Path) -> std::io::Result<File> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    file.set_len(0)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_passed_for_reading_and_writing() {
        let directory = tempfile::tempdir().unwrap();
        let disk = directory.path().join("disk");
        std::fs::write(&disk, "a").unwrap();
        let mut inherited = Inherited::default();
        inherited.file(1, &disk).unwrap();
        let sets = inherited.argv.iter().filter(|word| word.ends_with(",set=1")).count();
        assert_eq!((sets, inherited.descriptors.len()), (2, 2));
        let why = |path: &Path| Inherited::default().file(1, path).unwrap_err();
        assert!(why(directory.path()).contains("neither a regular file nor a block device"));
        assert!(why(&directory.path().join("none")).contains("cannot open"));
    }

    #[test]
    fn descriptors_are_inherited_by_one_child_only() {
        let directory = tempfile::tempdir().unwrap();
        let disk = directory.path().join("disk");
        std::fs::write(&disk, "a").unwrap();
        let mut inherited = Inherited::default();
        inherited.file(1, &disk).unwrap();
        let listed = || {
            let listed = std::process::Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
            String::from_utf8_lossy(&listed.stdout).matches(disk.to_str().unwrap()).count()
        };
        let time = inherited.inheritable().unwrap();
        assert_eq!(listed(), 2);
        drop(time);
        assert_eq!(listed(), 0);
    }
}
