//! A non-blocking connection to a server.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::linux::poll::{interest, poll};

/// A stream socket with its buffers.
pub(super) struct Connection {
    stream: Stream,
    /// Bytes to send; the first `sent` are sent already.
    outgoing: Vec<u8>,
    sent: usize,
    /// Received bytes; the first `taken` are processed already.
    incoming: Vec<u8>,
    taken: usize,
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl Connection {
    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// Those of `connect(2)`, with the path.
    pub(super) fn to_socket(path: &Path) -> Result<Self> {
        let connect = || {
            let stream = UnixStream::connect(path)?;
            stream.set_nonblocking(true)?;
            io::Result::Ok(Self::new(Stream::Unix(stream)))
        };
        connect().with_context(|| format!("cannot connect to {}; check that the server runs", path.display()))
    }

    /// Connects to a TCP port of this machine.
    ///
    /// # Errors
    /// Those of `connect(2)`, with the port.
    pub(super) fn to_port(port: u16) -> Result<Self> {
        let connect = || {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            io::Result::Ok(Self::new(Stream::Tcp(stream)))
        };
        connect().with_context(|| format!("cannot connect to 127.0.0.1:{port}; check that the server runs"))
    }

    fn new(stream: Stream) -> Self {
        Self { stream, outgoing: Vec::new(), sent: 0, incoming: Vec::new(), taken: 0 }
    }

    /// Returns the buffer to which requests are appended.
    pub(super) fn outgoing(&mut self) -> &mut Vec<u8> {
        &mut self.outgoing
    }

    /// Returns the received bytes that were not taken yet.
    pub(super) fn incoming(&self) -> &[u8] {
        &self.incoming[self.taken..]
    }

    /// Removes the first `bytes` of the received bytes.
    pub(super) fn take(&mut self, bytes: usize) {
        self.taken += bytes;
    }

    /// Sends as much as the socket accepts without blocking.
    ///
    /// # Errors
    /// Those of `write(2)`: the server closed the connection.
    pub(super) fn send(&mut self) -> io::Result<()> {
        while self.sent < self.outgoing.len() {
            let rest = &self.outgoing[self.sent..];
            let written = match &mut self.stream {
                Stream::Unix(stream) => stream.write(rest),
                Stream::Tcp(stream) => stream.write(rest),
            };
            match written {
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Ok(())
    }

    /// Waits, at most `timeout`, until data can be received, or sent if there is data to send.
    ///
    /// # Errors
    /// Those of `ppoll(2)`.
    pub(super) fn wait(&self, timeout: Duration) -> io::Result<()> {
        let events = if self.outgoing.is_empty() { libc::POLLIN } else { libc::POLLIN | libc::POLLOUT };
        poll(&mut [interest(self.stream.as_fd(), events)], Some(timeout)).map(drop)
    }

    /// Receives available data; returns whether there was any.
    ///
    /// # Errors
    /// Those of `read(2)`, and `UnexpectedEof` if the server closed the connection.
    pub(super) fn receive(&mut self) -> io::Result<bool> {
        self.incoming.drain(..self.taken);
        self.taken = 0;
        let mut chunk = [0; 1 << 16];
        let got = match &mut self.stream {
            Stream::Unix(stream) => stream.read(&mut chunk),
            Stream::Tcp(stream) => stream.read(&mut chunk),
        };
        match got {
            Ok(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "the server closed the connection")),
            Ok(got) => {
                self.incoming.extend_from_slice(&chunk[..got]);
                Ok(true)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
