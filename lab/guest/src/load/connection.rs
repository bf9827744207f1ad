//! A connection to a server that never blocks the load.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::linux::poll::{interest, poll};

/// A stream socket and what waits to go through it.
pub(super) struct Connection {
    stream: Stream,
    /// Bytes not yet sent, of which the first `sent` are gone already.
    outgoing: Vec<u8>,
    sent: usize,
    /// Bytes not yet understood, of which the first `taken` are.
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
        connect().with_context(|| format!("cannot connect to {}; is the server running?", path.display()))
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
        connect().with_context(|| format!("cannot connect to 127.0.0.1:{port}; is the server running?"))
    }

    fn new(stream: Stream) -> Self {
        Self { stream, outgoing: Vec::new(), sent: 0, incoming: Vec::new(), taken: 0 }
    }

    /// Where to append what is to be sent.
    pub(super) fn outgoing(&mut self) -> &mut Vec<u8> {
        &mut self.outgoing
    }

    /// What was received and not yet taken.
    pub(super) fn incoming(&self) -> &[u8] {
        &self.incoming[self.taken..]
    }

    /// Marks the first `bytes` of what was received as understood.
    pub(super) fn take(&mut self, bytes: usize) {
        self.taken += bytes;
    }

    /// Sends what the socket takes now.
    ///
    /// # Errors
    /// Those of `write(2)`: the server is gone.
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

    /// Waits, at most `timeout`, until something can be received, or sent if something waits.
    ///
    /// # Errors
    /// Those of `ppoll(2)`.
    pub(super) fn wait(&self, timeout: Duration) -> io::Result<()> {
        let events = if self.outgoing.is_empty() { libc::POLLIN } else { libc::POLLIN | libc::POLLOUT };
        poll(&mut [interest(self.stream.as_fd(), events)], Some(timeout)).map(drop)
    }

    /// Receives what is there, and says whether that was anything.
    ///
    /// # Errors
    /// Those of `read(2)`, and `UnexpectedEof` when the server closed the connection.
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
