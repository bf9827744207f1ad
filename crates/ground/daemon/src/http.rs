//! An HTTP/1.1 server with limits: hyper on a current-thread runtime in a thread of its own.
//!
//! # Limits
//! - When [`Limits::connections`] are open, one is closed to admit a new one: of the address with the most connections, the one
//!   that has made no progress for the longest time. Idle or stalled clients cannot lock others out.
//! - Connections in their handshake have a limit of their own, [`Limits::handshakes`]: clients that are not known never evict one
//!   that is.
//! - A connection is closed if no complete request head arrives within [`Limits::head_timeout`], counted from the handshake or
//!   the previous answer, and if a client does not read its answer.
//! - Head and body are limited in bytes; the body is only read after [`Service::route`] has accepted the head.
//! - A request that is not answered within [`Limits::request_timeout`] is abandoned.

mod activity;
mod connection;

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub use hyper::body::Bytes;
pub use hyper::http::request::Parts;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::activity::Connections;
use crate::watchdog;

/// Time for open requests to complete after the server is stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after a failed `accept(2)`: without descriptors or memory, an immediate retry would keep a CPU busy.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections of known clients that are open at the same time.
    pub connections: usize,
    /// Connections whose handshake is not complete.
    pub handshakes: usize,
    /// Time for a handshake.
    pub handshake_timeout: Duration,
    /// The longest request head, in bytes; at least 8 KiB.
    pub head_bytes: usize,
    /// The longest request body, in bytes; zero if no request has one.
    pub body_bytes: usize,
    /// Time for each request head, the idle time before the head included.
    pub head_timeout: Duration,
    /// Time from the end of the head to the answer, the body included.
    pub request_timeout: Duration,
    /// Whether a connection may carry more than one request. If not, it is closed after `head_timeout` plus
    /// `request_timeout` in any case, which also limits clients that read their answer slowly.
    pub keep_alive: bool,
}

/// How connections are set up: plain TCP, or TLS.
pub trait Accept: Send + Sync + 'static {
    /// The stream that carries HTTP.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// The identity of the client.
    type Peer: Send + Sync + 'static;

    /// Performs the handshake.
    fn accept(&self, stream: TcpStream) -> impl Future<Output = io::Result<(Self::Stream, Self::Peer)>> + Send;
}

/// Plain TCP. The client's identity is unknown.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl Accept for Plain {
    type Stream = TcpStream;
    type Peer = ();

    async fn accept(&self, stream: TcpStream) -> io::Result<(TcpStream, ())> {
        Ok((stream, ()))
    }
}

/// What a server serves.
pub trait Service<Peer>: Send + Sync + 'static {
    /// The operation that a request head asks for.
    type Route: Send;

    /// Finds the operation and checks the client's permission, before the body is read.
    ///
    /// # Errors
    /// The answer that refuses the request.
    fn route(&self, peer: &Peer, head: &Parts) -> Result<Self::Route, Answer>;

    /// The longest body of a request with this route, in bytes, if it is not [`Limits::body_bytes`].
    fn body_bytes(&self, route: &Self::Route) -> Option<usize> {
        let _ = route;
        None
    }

    /// Answers a request.
    fn answer(&self, route: Self::Route, head: Parts, body: Bytes) -> impl Future<Output = Answer> + Send;

    /// The answer to a request whose body is rejected.
    fn reject(&self, rejection: Rejection) -> Answer;
}

/// Why the body of a request is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The body exceeds this many bytes.
    BodyTooLong(usize),
    /// The body is incomplete after this time.
    BodyTimeout(Duration),
    /// The connection failed while the body was read.
    BodyBroken(String),
}

impl Rejection {
    /// The HTTP status code of the rejection.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::BodyTooLong(_) => 413,
            Self::BodyTimeout(_) => 408,
            Self::BodyBroken(_) => 400,
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BodyTooLong(limit) => write!(f, "the request body exceeds {limit} bytes"),
            Self::BodyTimeout(limit) => write!(f, "the request body is incomplete after {} s", limit.as_secs()),
            Self::BodyBroken(error) => write!(f, "cannot read the request body: {error}"),
        }
    }
}

/// An answer with a complete body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status code.
    pub status: u16,
    /// The value of the header `Content-Type`.
    pub content_type: &'static str,
    /// Further headers, names in lower case.
    pub headers: &'static [(&'static str, &'static str)],
    /// The body.
    pub body: Vec<u8>,
}

impl Answer {
    /// An answer.
    #[must_use]
    pub fn new(status: u16, content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status, content_type, headers: &[], body: body.into() }
    }

    /// The same answer with further headers, names in lower case.
    #[must_use]
    pub fn with_headers(self, headers: &'static [(&'static str, &'static str)]) -> Self {
        Self { headers, ..self }
    }
}

/// A running server. Dropping it does not stop the server, which then serves until the process exits.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl Server {
    /// The address at which the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting connections, lets open requests complete for up to five seconds, and waits for the server's thread.
    pub fn stop(self) {
        let _ = self.stop.send(true);
        let _ = self.thread.join();
    }
}

/// Serves on `listener` in a thread called `name`.
///
/// # Errors
/// The I/O error if the runtime or the thread cannot be started.
pub fn serve<A: Accept, S: Service<A::Peer>>(
    name: &str,
    listener: TcpListener,
    accept: A,
    service: S,
    limits: Limits,
) -> io::Result<Server> {
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (stop, stopped) = watch::channel(false);
    let shared = Arc::new(Shared { accept, service, limits, connections: Connections::default() });
    let member = name.to_owned();
    let run = move || {
        // Its tasks share the thread: only its end can be seen.
        let _member = watchdog::join(&member, Duration::MAX);
        if let Err(error) = runtime.block_on(listen(listener, shared, stopped)) {
            log::error!("the HTTP server at {address} has stopped: {error}");
        }
    };
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
    Ok(Server { address, stop, thread })
}

struct Shared<A, S> {
    accept: A,
    service: S,
    limits: Limits,
    connections: Connections,
}

/// Completes when the server is stopped; never if its [`Server`] was dropped.
async fn stop_requested(stopped: &mut watch::Receiver<bool>) {
    if stopped.wait_for(|&stop| stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn listen<A: Accept, S: Service<A::Peer>>(
    listener: TcpListener,
    shared: Arc<Shared<A, S>>,
    mut stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut tasks = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = tasks.join_next() => continue,
            () = stop_requested(&mut stopped) => break,
        };
        match accepted {
            Ok((stream, from)) => {
                if let Some(open) = shared.connections.admit(from.ip(), shared.limits.handshakes) {
                    let (shared, stopped) = (Arc::clone(&shared), stopped.clone());
                    tasks.spawn(async move { connection::serve(stream, from, &shared, open, stopped).await });
                }
            }
            Err(error) => {
                log::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
    let _ = tokio::time::timeout(STOP_TIMEOUT, async { while tasks.join_next().await.is_some() {} }).await;
    Ok(())
}

#[cfg(test)]
mod tests;
