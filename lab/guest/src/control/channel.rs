//! The control channel's transport: the virtio-serial port, or a Unix socket outside of guests.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::linux::uevent::DeviceEvents;

use super::protocol::DATA_BYTES_MAX;

/// Time limit for the named port to appear after the program starts.
const PORT_WAIT: Duration = Duration::from_secs(30);

/// Both directions of the channel.
pub(super) struct Channel {
    pub(super) reader: Box<dyn Read>,
    pub(super) writer: Box<dyn Write + Send>,
}

/// Opens the virtio-serial port with this name.
/// The kernel blocks the first write until the host has opened its end.
///
/// # Errors
/// No such port appears in time, or it cannot be opened (`EBUSY`: another process uses it).
pub(super) fn open_port(name: &str) -> Result<Channel> {
    let path = wait_for_port(Path::new("/sys/class/virtio-ports"), name)?;
    let port = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .with_context(|| format!("cannot open the control port {}", path.display()))?;
    let writer = port.try_clone().context("cannot duplicate the control port's descriptor")?;
    Ok(Channel { reader: Box::new(port), writer: Box::new(writer) })
}

/// Listens at `path`, which must not exist, and accepts one connection.
///
/// # Errors
/// Those of `bind(2)` and `accept(2)`.
pub(super) fn accept(path: &Path) -> Result<Channel> {
    let listener = UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
    let (stream, _) = listener.accept().with_context(|| format!("cannot accept at {}", path.display()))?;
    let writer = stream.try_clone().context("cannot duplicate the connection's descriptor")?;
    Ok(Channel { reader: Box::new(stream), writer: Box::new(writer) })
}

fn wait_for_port(class: &Path, name: &str) -> Result<PathBuf> {
    // Subscribe before the first search: a port that appears in between would be missed otherwise.
    let events = DeviceEvents::subscribe().context("cannot subscribe to the kernel's device events")?;
    let deadline = Instant::now() + PORT_WAIT;
    loop {
        if let Some(device) = find_port(class, name) {
            return Ok(Path::new("/dev").join(device));
        }
        let Some(left) = deadline.checked_duration_since(Instant::now()) else {
            bail!(
                "no virtio-serial port is named {name:?} under {} after {} s; \
                 give the machine `-device virtserialport,name={name}` and load virtio_console",
                class.display(),
                PORT_WAIT.as_secs()
            );
        };
        events.wait(left).context("cannot wait for device events")?;
    }
}

/// Returns the device of the port whose `name` file contains `name`; `None` if there is none.
fn find_port(class: &Path, name: &str) -> Option<std::ffi::OsString> {
    fs::read_dir(class)
        .ok()?
        .flatten()
        .find(|port| fs::read_to_string(port.path().join("name")).is_ok_and(|found| found.trim_end() == name))
        .map(|port| port.file_name())
}

/// The channel's outgoing side, shared by all operations: lines are written whole and never interleaved.
pub(super) struct Outbox {
    writer: Mutex<Box<dyn Write + Send>>,
}

impl Outbox {
    pub(super) fn new(writer: Box<dyn Write + Send>) -> Self {
        Self { writer: Mutex::new(writer) }
    }

    /// Sends one line. Errors are ignored: if the peer is gone, the reading side detects it and stops.
    pub(super) fn send(&self, message: &Value) {
        let line = format!("{message}\n");
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writer.write_all(line.as_bytes()).and_then(|()| writer.flush());
    }
}

/// Result of [`next_line`].
#[derive(Debug, PartialEq)]
pub(super) enum Line {
    /// A line, or the last part of the input, without its line break.
    Complete(Vec<u8>),
    /// A line over the limit; it was skipped.
    TooLong,
    /// The peer closed the channel.
    End,
}

/// Reads one line of at most [`DATA_BYTES_MAX`] bytes.
///
/// # Errors
/// Those of `read(2)`.
pub(super) fn next_line(reader: &mut impl BufRead) -> io::Result<Line> {
    bounded_line(reader, DATA_BYTES_MAX)
}

fn bounded_line(reader: &mut impl BufRead, bytes_max: usize) -> io::Result<Line> {
    let mut line = Vec::new();
    let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    if reader.take(limit).read_until(b'\n', &mut line)? == 0 {
        return Ok(Line::End);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() > bytes_max {
        reader.skip_until(b'\n')?;
        return Ok(Line::TooLong);
    }
    Ok(Line::Complete(line))
}

/// Opens `path` for appending a child's output.
///
/// # Errors
/// Those of `open(2)`, with the path.
pub(super) fn output_file(path: &Path) -> Result<File> {
    OpenOptions::new().append(true).create(true).open(path).with_context(|| format!("cannot open {} for output", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(input: &str, expected: &[Line]) {
        let mut reader = input.as_bytes();
        for line in expected {
            assert_eq!(&bounded_line(&mut reader, 4).unwrap(), line, "{input:?}");
        }
    }

    #[test]
    fn lines_are_bounded() {
        let complete = |text: &str| Line::Complete(text.into());
        check("", &[Line::End]);
        check("ab\n\ncd", &[complete("ab"), complete(""), complete("cd"), Line::End]);
        check("abcd\nabcde\nf\n", &[complete("abcd"), Line::TooLong, complete("f"), Line::End]);
        check("abcdefghij", &[Line::TooLong, Line::End]);
    }

    #[test]
    fn ports_are_found_by_name() {
        let class = tempfile::tempdir().unwrap();
        for (port, name) in [("vport0p1", "other\n"), ("vport1p1", "lab\n")] {
            fs::create_dir(class.path().join(port)).unwrap();
            fs::write(class.path().join(port).join("name"), name).unwrap();
        }
        fs::create_dir(class.path().join("vport2p1")).unwrap();
        for (name, expected) in [("lab", Some("vport1p1")), ("la", None), ("", None)] {
            assert_eq!(find_port(class.path(), name), expected.map(Into::into), "{name}");
        }
    }
}
