//! Progress of connections, and which one to close when there are too many.

use std::collections::HashMap;
use std::io;
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
    /// Registers a new connection. If `limit` are open, evicts the one that has made no progress for the longest time;
    /// returns `None` if a request is being answered on every one.
    pub(super) fn admit(&self, limit: usize) -> Option<Open> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= limit {
            let stalled = open.iter().filter(|(_, activity)| !activity.answering.load(Ordering::Relaxed));
            let (&id, _) = stalled.min_by_key(|(_, activity)| activity.progress_ms.load(Ordering::Relaxed))?;
            open.remove(&id)?.evicted.notify_one();
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let activity = Arc::new(Activity::new());
        open.insert(id, Arc::clone(&activity));
        Some(Open { id, activity, open: Arc::clone(&self.open) })
    }
}

/// A registered connection; dropping it removes the registration.
pub(super) struct Open {
    id: u64,
    pub(super) activity: Arc<Activity>,
    open: Arc<Mutex<HashMap<u64, Arc<Activity>>>>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

/// Progress of one connection.
pub(super) struct Activity {
    begun: Instant,
    /// When the last byte was received or sent, in milliseconds of [`process_ms`].
    progress_ms: AtomicU64,
    /// Whether a request is being answered. Bytes are not expected then.
    answering: AtomicBool,
    /// Notified when the connection must be closed to admit another one.
    pub(super) evicted: Notify,
}

impl Activity {
    fn new() -> Self {
        Self { begun: Instant::now(), progress_ms: AtomicU64::new(process_ms()), answering: AtomicBool::new(false), evicted: Notify::new() }
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
