//! Progress of connections, and which one to close when there are too many.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The connections that are open.
#[derive(Default)]
pub(super) struct Connections {
    open: Arc<Mutex<HashMap<u64, Arc<Activity>>>>,
    next: AtomicU64,
}

impl Connections {
    /// Registers a new connection, whose client is not known yet. If `limit` are in their handshake, evicts one of these
    /// ([`to_evict`]). Connections of known clients are never evicted for it.
    pub(super) fn admit(&self, from: IpAddr, limit: usize) -> Option<Open> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        make_room(&mut open, limit, false)?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let activity = Arc::new(Activity::new(from));
        open.insert(id, Arc::clone(&activity));
        Some(Open { id, activity, open: Arc::clone(&self.open) })
    }
}

/// Evicts a connection if `limit` of this kind are open. Returns `None` if a request is being answered on every one.
fn make_room(open: &mut HashMap<u64, Arc<Activity>>, limit: usize, known: bool) -> Option<()> {
    let of_kind = open.iter().filter(|(_, activity)| activity.is_known() == known);
    if of_kind.clone().count() >= limit {
        let id = to_evict(of_kind.map(|(&id, activity)| (id, activity.as_ref())))?;
        open.remove(&id)?.evicted.notify_one();
    }
    Some(())
}

/// The connection to evict: of the address with the most connections, the one that has made no progress for the longest time. An
/// address that opens many evicts its own.
fn to_evict<'a>(connections: impl Iterator<Item = (u64, &'a Activity)> + Clone) -> Option<u64> {
    let mut by_address: HashMap<IpAddr, usize> = HashMap::new();
    for (_, activity) in connections.clone() {
        *by_address.entry(activity.from).or_default() += 1;
    }
    let idle = connections.filter(|(_, activity)| !activity.answering.load(Ordering::Relaxed));
    let rank = |activity: &Activity| (std::cmp::Reverse(by_address[&activity.from]), activity.progress_ms.load(Ordering::Relaxed));
    idle.min_by_key(|&(id, activity)| (rank(activity), id)).map(|(id, _)| id)
}

/// A registered connection; dropping it removes the registration.
pub(super) struct Open {
    id: u64,
    pub(super) activity: Arc<Activity>,
    open: Arc<Mutex<HashMap<u64, Arc<Activity>>>>,
}

impl Open {
    /// The client is known now. If `limit` connections of known clients are open, evicts one of these; returns whether there is room.
    pub(super) fn client_is_known(&self, limit: usize) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let room = make_room(&mut open, limit, true).is_some();
        self.activity.known.store(room, Ordering::Relaxed);
        self.activity.record();
        room
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

/// Progress of one connection.
pub(super) struct Activity {
    /// The client's address.
    from: IpAddr,
    begun: Instant,
    /// Whether the handshake is complete.
    known: AtomicBool,
    /// When the last byte was received or sent, in milliseconds of [`process_ms`].
    progress_ms: AtomicU64,
    /// Whether a request is being answered. Bytes are not expected then.
    answering: AtomicBool,
    /// Notified when the connection must be closed to admit another one.
    pub(super) evicted: Notify,
}

impl Activity {
    fn new(from: IpAddr) -> Self {
        Self {
            from,
            begun: Instant::now(),
            known: AtomicBool::new(false),
            progress_ms: AtomicU64::new(process_ms()),
            answering: AtomicBool::new(false),
            evicted: Notify::new(),
        }
    }

    fn is_known(&self) -> bool {
        self.known.load(Ordering::Relaxed)
    }

    fn record(&self) {
        self.progress_ms.store(process_ms(), Ordering::Relaxed);
    }

    /// Marks that a request is being answered, until the guard is dropped.
    pub(super) fn answering(self: &Arc<Self>) -> Answering {
        self.answering.store(true, Ordering::Relaxed);
        Answering(Arc::clone(self))
    }

    /// Completes when the connection has made no progress for `stall`, or has been open for `lifetime`.
    pub(super) async fn expired(&self, stall: Duration, lifetime: Option<Duration>) {
        loop {
            let end = lifetime.map(|lifetime| self.begun + lifetime);
            let idle = Duration::from_millis(process_ms().saturating_sub(self.progress_ms.load(Ordering::Relaxed)));
            let answering = self.answering.load(Ordering::Relaxed);
            if end.is_some_and(|end| Instant::now() >= end) || (!answering && idle >= stall) {
                return;
            }
            let check = Instant::now() + if answering { stall } else { stall.saturating_sub(idle) };
            tokio::time::sleep_until(end.map_or(check, |end| end.min(check))).await;
        }
    }
}

/// A request is being answered while this exists.
pub(super) struct Answering(Arc<Activity>);

impl Drop for Answering {
    fn drop(&mut self) {
        // The answer is written next: its time starts now.
        self.0.record();
        self.0.answering.store(false, Ordering::Relaxed);
    }
}

/// Milliseconds since the first call in this process.
fn process_ms() -> u64 {
    static BEGUN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    units::millis(BEGUN.elapsed())
}

/// A stream that records its progress.
pub(super) struct Recorded<S> {
    stream: S,
    activity: Arc<Activity>,
}

impl<S> Recorded<S> {
    pub(super) fn new(stream: S, activity: Arc<Activity>) -> Self {
        Self { stream, activity }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Recorded<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.activity.record();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Recorded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if polled.is_ready() {
            self.activity.record();
        }
        polled
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, slices: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        if polled.is_ready() {
            self.activity.record();
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
