//! A client of QEMU's monitor protocol (QMP) over its Unix socket. QEMU serves one client at a time, so connections are
//! short.
//!
//! Crate `qapi` (0.15, tried) is not used. The next reply fails after an event that its copy of QEMU's schema does not have, and a
//! reply that arrives after its command's time limit counts as that of the next command. It limits neither the length of a line nor the time,
//! and passes no files. A guest that has taken over its QEMU would choose what arrives here.

use std::collections::VecDeque;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde_json::{Value, json};

mod message;

pub(super) use message::Event;
use message::{Message, parse};

use crate::driver;

/// How long QEMU may take to reply. It replies within milliseconds unless the machine is starved.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest line that is read, in bytes.
const LINE_MAX: usize = 16 << 20;
/// Most events that are queued.
const EVENTS_MAX: usize = 4096;

/// An error of the monitor.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The socket cannot be used.
    #[error("QEMU does not answer at {path}: {source}")]
    Socket {
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// QEMU has exited.
    #[error("QEMU has closed its monitor at {path}: the process has exited")]
    Closed {
        /// The socket.
        path: PathBuf,
    },
    /// No reply in time.
    #[error("QEMU did not reply to {command} at {path} within {seconds} s")]
    Timeout {
        /// The socket.
        path: PathBuf,
        /// The command.
        command: String,
        /// The time limit.
        seconds: u64,
    },
    /// QEMU refused a command.
    #[error("QEMU refuses {command}: {message}")]
    Refused {
        /// The command.
        command: String,
        /// QEMU's message.
        message: String,
    },
    /// A line is not a message of the protocol.
    #[error("the process at {path} does not use QEMU's monitor protocol")]
    Protocol {
        /// The socket.
        path: PathBuf,
    },
}

impl From<Error> for driver::Error {
    fn from(error: Error) -> Self {
        Self::Hypervisor(Box::new(error))
    }
}

/// A file that QEMU has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Passed {
    number: u64,
    set: u64,
}

impl Passed {
    /// The path by which QEMU itself opens the file again.
    pub(super) fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.number)
    }
}

/// A connection to one QEMU process.
#[derive(Debug)]
pub(super) struct Qmp {
    stream: UnixStream,
    path: PathBuf,
    /// Bytes received and not yet parsed.
    received: Vec<u8>,
    events: VecDeque<Event>,
    last_id: u64,
}

impl Qmp {
    /// Connects and negotiates capabilities.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(super) fn connect(path: &Path) -> Result<Self, Error> {
        Self::connect_within(path, REPLY_TIMEOUT)
    }

    /// [`Qmp::connect`] to a process that may take this long to be ready.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(super) fn connect_within(path: &Path, timeout: Duration) -> Result<Self, Error> {
        let stream = UnixStream::connect(path).map_err(|source| Error::Socket { path: path.to_owned(), source })?;
        let mut qmp = Self { stream, path: path.to_owned(), received: Vec::new(), events: VecDeque::new(), last_id: 0 };
        let deadline = Instant::now() + timeout;
        match qmp.message(deadline)? {
            Some(Message::Greeting) => {}
            Some(_) => return Err(Error::Protocol { path: qmp.path }),
            None => return Err(qmp.timeout("the greeting")),
        }
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Executes a command and returns its result.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(super) fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, Error> {
        self.execute_with(command, arguments, None)
    }

    /// Passes an open file to QEMU, which keeps it under `name` until [`Qmp::close`] or its own exit, also after this
    /// connection ends.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(super) fn pass_file(&mut self, name: &str, file: BorrowedFd<'_>) -> Result<(), Error> {
        self.execute_with("getfd", &json!({ "fdname": name }), Some(file)).map(drop)
    }

    /// Passes an open file to QEMU by a number that its options can name.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(super) fn add_file(&mut self, file: BorrowedFd<'_>) -> Result<Passed, Error> {
        let reply = self.execute_with("add-fd", &json!({}), Some(file))?;
        let number = |key: &str| reply.get(key).and_then(Value::as_u64).ok_or_else(|| Error::Protocol { path: self.path.clone() });
        Ok(Passed { number: number("fd")?, set: number("fdset-id")? })
    }

    /// Closes a file of [`Qmp::add_file`]. Before QEMU 9.1, files are closed only while the guest runs.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(super) fn remove_file(&mut self, file: &Passed) -> Result<(), Error> {
        self.execute("remove-fd", &json!({ "fdset-id": file.set })).map(drop)
    }

    /// Closes a file that was passed to QEMU.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(super) fn close(&mut self, name: &str) -> Result<(), Error> {
        self.execute("closefd", &json!({ "fdname": name })).map(drop)
    }

    /// Waits until `deadline` for an event, queued or new, for which `select` returns a value. Other events are
    /// dropped. Returns `None` if none arrives in time.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(super) fn wait<T>(&mut self, deadline: Instant, mut select: impl FnMut(&Event) -> Option<T>) -> Result<Option<T>, Error> {
        loop {
            while let Some(event) = self.events.pop_front() {
                if let Some(found) = select(&event) {
                    return Ok(Some(found));
                }
            }
            match self.message(deadline)? {
                Some(message) => self.queue(message),
                None => return Ok(None),
            }
        }
    }

    fn execute_with(&mut self, command: &str, arguments: &Value, file: Option<BorrowedFd<'_>>) -> Result<Value, Error> {
        self.last_id += 1;
        let id = self.last_id;
        let line = format!("{}\n", json!({ "execute": command, "arguments": arguments, "id": id }));
        let deadline = Instant::now() + REPLY_TIMEOUT;
        self.send(line.as_bytes(), file).map_err(|source| Error::Socket { path: self.path.clone(), source })?;
        loop {
            match self.message(deadline)? {
                Some(Message::Return(of, value)) if of == id => return Ok(value),
                Some(Message::Error(of, message)) if of.is_none_or(|of| of == id) => {
                    return Err(Error::Refused { command: command.to_owned(), message });
                }
                Some(other) => self.queue(other),
                None => return Err(self.timeout(command)),
            }
        }
    }

    /// Sends a line. The file is attached to its first byte, as QEMU requires.
    fn send(&mut self, line: &[u8], file: Option<BorrowedFd<'_>>) -> std::io::Result<()> {
        self.stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let files = [file.unwrap_or_else(|| self.stream.as_fd())];
        if file.is_some() {
            ancillary.push(SendAncillaryMessage::ScmRights(&files));
        }
        let sent = rustix::net::sendmsg(&self.stream, &[IoSlice::new(line)], &mut ancillary, SendFlags::NOSIGNAL)?;
        std::io::Write::write_all(&mut self.stream, line.get(sent..).unwrap_or_default())
    }

    fn queue(&mut self, message: Message) {
        if let Message::Event(event) = message {
            if self.events.len() == EVENTS_MAX {
                self.events.pop_front();
            }
            self.events.push_back(event);
        }
    }

    fn timeout(&self, command: &str) -> Error {
        Error::Timeout { path: self.path.clone(), command: command.to_owned(), seconds: REPLY_TIMEOUT.as_secs() }
    }

    /// The next message; `None` if none arrives before `deadline`.
    fn message(&mut self, deadline: Instant) -> Result<Option<Message>, Error> {
        let failed = |path: &Path, source| Error::Socket { path: path.to_owned(), source };
        loop {
            if let Some(end) = self.received.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return parse(&line).map(Some).ok_or_else(|| Error::Protocol { path: self.path.clone() });
            }
            if self.received.len() > LINE_MAX {
                return Err(Error::Protocol { path: self.path.clone() });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left)).map_err(|source| failed(&self.path, source))?;
            let mut buffer = [0; 8192];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(Error::Closed { path: self.path.clone() }),
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) => match error.kind() {
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut | std::io::ErrorKind::Interrupted => {}
                    std::io::ErrorKind::ConnectionReset => return Err(Error::Closed { path: self.path.clone() }),
                    _ => return Err(failed(&self.path, error)),
                },
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
