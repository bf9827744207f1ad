//! A tracing instance of our own: `/sys/kernel/tracing/instances/NAME` (`Documentation/trace/ftrace.rst`, "Instances").
//!
//! An instance has buffers, events and settings of its own, so the tracing of other users is neither read nor changed.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use units::Bytes;

use crate::{Error, Result, Roots, file};

/// The most text that one [`Instance::drain`] takes, in bytes: several times what the buffers hold.
const DRAIN_MAX: usize = 64 << 20;

/// An instance with one enabled event. Dropping it removes the instance, and ignores errors.
#[derive(Debug)]
pub struct Instance {
    directory: PathBuf,
    /// `trace_pipe`, which consumes what it returns; `None` once closed.
    pipe: Option<File>,
    pending: Vec<u8>,
}

/// Where instances are created.
///
/// # Errors
/// [`Error::Unsupported`] if tracefs is not mounted or has no instances.
pub fn probe(roots: &Roots) -> Result<PathBuf> {
    // debugfs mounts tracefs below itself at the first access.
    let places = [roots.sys.join("kernel/tracing/instances"), roots.debug.join("tracing/instances")];
    places.into_iter().find(|place| place.is_dir()).ok_or_else(|| {
        Error::unsupported("tracefs is not mounted, or this kernel has no trace events", "mount -t tracefs tracefs /sys/kernel/tracing")
    })
}

impl Instance {
    /// Creates the instance `name` and enables `event` (`SYSTEM/EVENT`) in it, with `buffer` bytes per CPU. Times are since boot.
    /// An instance of that name that a killed process left is replaced.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without tracefs or the event; [`Error::Busy`] if another process has the instance open;
    /// [`Error::Io`]. After an error, no instance is left.
    pub fn create(roots: &Roots, name: &str, event: &str, buffer: Bytes) -> Result<Self> {
        let directory = probe(roots)?.join(name);
        remove(&directory)?;
        fs::create_dir(&directory).map_err(|source| Error::from_io(&directory, "create", source))?;
        let mut instance = Self { directory, pipe: None, pending: Vec::new() };
        // From here on, an early return drops the instance, which removes it.
        let enable = instance.directory.join("events").join(event).join("enable");
        if !enable.exists() {
            return Err(Error::unsupported(
                format!("this kernel has no trace event {event}"),
                "boot a kernel with that event, or use another tracker",
            ));
        }
        file::write(&instance.directory.join("trace_clock"), "boot")?;
        file::write(&instance.directory.join("buffer_size_kb"), &buffer.0.div_ceil(1 << 10).max(4).to_string())?;
        // Otherwise enabling any event has the kernel trace each wakeup and context switch, to know the names of the processes in
        // the trace. An instance has no file `options/record-cmd` (`TOP_LEVEL_TRACE_FLAGS` in `kernel/trace/trace.c`). Where the
        // kernel refuses, tracing works as well, and costs more.
        let _ = file::write(&instance.directory.join("trace_options"), "norecord-cmd");
        let pipe = instance.directory.join("trace_pipe");
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe);
        instance.pipe = Some(opened.map_err(|source| Error::from_io(&pipe, "open", source))?);
        file::write(&enable, "1")?;
        Ok(instance)
    }

    /// Calls `visit` for each line that was traced since the last call, in order.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn drain(&mut self, visit: &mut dyn FnMut(&str)) -> Result<()> {
        let mut buffer = vec![0u8; 64 << 10];
        let mut taken = 0;
        while taken < DRAIN_MAX {
            let Some(pipe) = &mut self.pipe else { return Ok(()) };
            let count = match pipe.read(&mut buffer) {
                // End of file: tracing was switched off by someone. Nothing more comes.
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(source) => return Err(Error::from_io(&self.directory.join("trace_pipe"), "read", source)),
            };
            taken += count;
            self.pending.extend_from_slice(&buffer[..count]);
            self.visit_lines(visit);
        }
        Ok(())
    }

    /// Visits the complete lines of `pending` and keeps the rest.
    fn visit_lines(&mut self, visit: &mut dyn FnMut(&str)) {
        let complete = self.pending.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in self.pending[..complete].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            visit(&String::from_utf8_lossy(line));
        }
        self.pending.drain(..complete);
    }

    /// Removes the instance. May be called again after an error.
    ///
    /// # Errors
    /// [`Error::Busy`] if another process has it open; [`Error::Io`].
    pub fn stop(&mut self) -> Result<()> {
        // The kernel refuses to remove an instance of which a file is open.
        self.pipe = None;
        remove(&self.directory)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // The next start removes leftovers: the name is fixed.
        let _ = self.stop();
    }
}

/// Removes the instance `name` that a killed process left. Returns whether there was one.
///
/// # Errors
/// As [`Instance::stop`].
pub fn reap(roots: &Roots, name: &str) -> Result<bool> {
    let Ok(instances) = probe(roots) else { return Ok(false) };
    let directory = instances.join(name);
    let there = directory.is_dir();
    remove(&directory)?;
    Ok(there)
}

fn remove(directory: &PathBuf) -> Result<()> {
    match fs::remove_dir(directory) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Err(Error::busy(
            format!("another process reads {}", directory.display()),
            "end that process: it has one of the directory's files open",
        )),
        Err(source) => Err(Error::from_io(directory, "remove", source)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tree;

    #[test]
    fn only_complete_lines_are_visited() {
        let mut instance = Instance { directory: PathBuf::from("/nowhere"), pipe: None, pending: Vec::new() };
        let mut seen = Vec::new();
        for part in ["one\ntw", "o\n\nthr", "ee\n"] {
            instance.pending.extend_from_slice(part.as_bytes());
            instance.visit_lines(&mut |line| seen.push(line.to_owned()));
        }
        assert_eq!(seen, ["one", "two", "three"]);
    }

    #[test]
    fn a_leftover_instance_is_removed_and_none_is_no_error() {
        let (_keep, roots) = tree(&[("sys/kernel/tracing/README", "")]);
        assert!(probe(&roots).unwrap_err().is_unsupported());
        assert!(!reap(&roots, "thermocline").unwrap(), "no tracefs");
        fs::create_dir_all(roots.sys.join("kernel/tracing/instances/thermocline")).unwrap();
        assert!(reap(&roots, "thermocline").unwrap());
        assert!(!reap(&roots, "thermocline").unwrap());
        let error = Instance::create(&roots, "thermocline", "damon/damon_aggregated", Bytes(1)).unwrap_err();
        assert!(error.is_unsupported(), "{error}");
        assert!(!roots.sys.join("kernel/tracing/instances/thermocline").exists(), "left behind");
    }
}
