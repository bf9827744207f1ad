//! A client of QEMU's monitor protocol, over its Unix socket. QEMU talks to one client at a time: connect, do, and go.

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

pub use message::{Event, Message, parse};

/// How long QEMU may take to answer; it answers in milliseconds, unless the machine is starved.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// The longest line of QEMU's that is read, and the most events that wait to be asked for.
const LINE_MAX: usize = 16 << 20;
const EVENTS_MAX: usize = 4096;

/// Why a command was not followed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// QEMU is not there, or does not talk.
    #[error("QEMU does not answer at {path}: {source}")]
    Io {
        /// Its socket.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
    /// QEMU has ended.
    #[error("QEMU has closed its monitor at {path}: it has ended")]
    Ended {
        /// Its socket.
        path: PathBuf,
    },
    /// No answer in time.
    #[error("QEMU did not answer {command} at {path} within {seconds} s")]
    Late {
        /// Its socket.
        path: PathBuf,
        /// What was asked.
        command: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// QEMU will not.
    #[error("QEMU refuses {command}: {said}")]
    Refused {
        /// What was asked.
        command: String,
        /// Its words.
        said: String,
    },
    /// What came is no message of the protocol.
    #[error("what answers at {path} does not speak QEMU's monitor protocol")]
    Strange {
        /// The socket.
        path: PathBuf,
    },
}

/// A conversation with one QEMU.
#[derive(Debug)]
pub struct Qmp {
    stream: UnixStream,
    path: PathBuf,
    /// What was received and not yet read as a message.
    received: Vec<u8>,
    events: VecDeque<Event>,
    last: u64,
}

impl Qmp {
    /// Connects, and leaves the negotiation behind.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn connect(path: &Path) -> Result<Self, Error> {
        let stream = UnixStream::connect(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
        let mut qmp = Self { stream, path: path.to_owned(), received: Vec::new(), events: VecDeque::new(), last: 0 };
        let deadline = Instant::now() + ANSWER_WITHIN;
        match qmp.message(deadline)? {
            Some(Message::Greeting) => {}
            Some(_) => return Err(Error::Strange { path: qmp.path }),
            None => return Err(qmp.late("the greeting")),
        }
        qmp.ask("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Gives a command and returns what it returns.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn ask(&mut self, command: &str, arguments: &Value) -> Result<Value, Error> {
        self.ask_with(command, arguments, None)
    }

    /// Hands over an open file, which QEMU keeps under `name` until [`Qmp::close`], or its own end. It also keeps it when this
    /// conversation ends.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn hand_over(&mut self, name: &str, file: BorrowedFd<'_>) -> Result<(), Error> {
        self.ask_with("getfd", &json!({ "fdname": name }), Some(file)).map(drop)
    }

    /// Has QEMU close a file that it was handed.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn close(&mut self, name: &str) -> Result<(), Error> {
        self.ask("closefd", &json!({ "fdname": name })).map(drop)
    }

    /// The first event, past or to come until `deadline`, for which `wanted` has an answer. Others are forgotten. None if none comes.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub fn wait<T>(&mut self, deadline: Instant, mut wanted: impl FnMut(&Event) -> Option<T>) -> Result<Option<T>, Error> {
        loop {
            while let Some(event) = self.events.pop_front() {
                if let Some(found) = wanted(&event) {
                    return Ok(Some(found));
                }
            }
            match self.message(deadline)? {
                Some(message) => self.keep(message),
                None => return Ok(None),
            }
        }
    }

    fn ask_with(&mut self, command: &str, arguments: &Value, file: Option<BorrowedFd<'_>>) -> Result<Value, Error> {
        self.last += 1;
        let id = self.last;
        let line = format!("{}\n", json!({ "execute": command, "arguments": arguments, "id": id }));
        let deadline = Instant::now() + ANSWER_WITHIN;
        self.send(line.as_bytes(), file).map_err(|source| Error::Io { path: self.path.clone(), source })?;
        loop {
            match self.message(deadline)? {
                Some(Message::Return(of, value)) if of == id => return Ok(value),
                Some(Message::Error(of, said)) if of.is_none_or(|of| of == id) => {
                    return Err(Error::Refused { command: command.to_owned(), said });
                }
                Some(other) => self.keep(other),
                None => return Err(self.late(command)),
            }
        }
    }

    /// Sends a line; the file goes with its first byte, as QEMU wants it.
    fn send(&mut self, line: &[u8], file: Option<BorrowedFd<'_>>) -> std::io::Result<()> {
        self.stream.set_write_timeout(Some(ANSWER_WITHIN))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let files = [file.unwrap_or_else(|| self.stream.as_fd())];
        if file.is_some() {
            ancillary.push(SendAncillaryMessage::ScmRights(&files));
        }
        let sent = rustix::net::sendmsg(&self.stream, &[IoSlice::new(line)], &mut ancillary, SendFlags::NOSIGNAL)?;
        std::io::Write::write_all(&mut self.stream, line.get(sent..).unwrap_or_default())
    }

    fn keep(&mut self, message: Message) {
        if let Message::Event(event) = message {
            if self.events.len() == EVENTS_MAX {
                self.events.pop_front();
            }
            self.events.push_back(event);
        }
    }

    fn late(&self, command: &str) -> Error {
        Error::Late { path: self.path.clone(), command: command.to_owned(), seconds: ANSWER_WITHIN.as_secs() }
    }

    /// The next message; none if it does not come before `deadline`.
    fn message(&mut self, deadline: Instant) -> Result<Option<Message>, Error> {
        let io = |path: &Path, source| Error::Io { path: path.to_owned(), source };
        loop {
            if let Some(end) = self.received.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return parse(&line).map(Some).ok_or_else(|| Error::Strange { path: self.path.clone() });
            }
            if self.received.len() > LINE_MAX {
                return Err(Error::Strange { path: self.path.clone() });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left)).map_err(|source| io(&self.path, source))?;
            let mut buffer = [0; 8192];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(Error::Ended { path: self.path.clone() }),
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) => match error.kind() {
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut | std::io::ErrorKind::Interrupted => {}
                    std::io::ErrorKind::ConnectionReset => return Err(Error::Ended { path: self.path.clone() }),
                    _ => return Err(io(&self.path, error)),
                },
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
