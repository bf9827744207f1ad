//! The writer: the one thread that changes the ledger. It takes all waiting requests, applies them to a copy, writes
//! the changes in one transaction, and answers after the transaction is on disk.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use pool::Ns;
use tokio::sync::oneshot;

use crate::api::{Code, ErrorResponse};
use crate::audit::{self, Audit};
use crate::group::Group;
use crate::ledger::{Ledger, Outcome, Request};
use crate::metrics::Metrics;
use crate::published::{Published, Shared};
use crate::storage::{self, Storage, Stored};

/// Most waiting requests; more are refused.
const WAITING_MAX: usize = 4096;
/// A transaction takes milliseconds. One that takes this long hangs in the kernel.
pub(crate) const TRANSACTION_LIMIT: Duration = Duration::from_secs(5 * 60);
/// Most requests of one transaction.
pub(crate) const BATCH_MAX: usize = 512;

/// A request, the name of its client, and where the answer goes.
pub(crate) struct Pending {
    pub(crate) who: String,
    pub(crate) request: Request,
    pub(crate) reply: oneshot::Sender<Outcome>,
}

/// Why the maintenance thread wakes early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// There are slices to scrub.
    Scrub,
    /// The manager stops.
    Stop,
}

/// Monotonic time in nanoseconds that starts at the Unix time, so that the next process can compare it with the
/// ledger's times.
#[derive(Clone, Debug)]
pub struct Clock(daemon::Clock);

impl Clock {
    /// The system's clock.
    #[must_use]
    pub fn start() -> Self {
        Self(daemon::Clock::system_from_unix())
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> Ns {
        Ns(units::nanos(self.0.now()))
    }
}

/// A handle to the writer, which ends when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct Handle {
    requests: SyncSender<Pending>,
    published: Shared,
    /// The group that this manager is a member of.
    pub(crate) group: Option<Group>,
    /// The manager's clock.
    pub clock: Clock,
    /// Counters of requests and transactions.
    pub metrics: Arc<Metrics>,
}

impl Handle {
    /// A handle, and what is submitted to it.
    pub(crate) fn new(published: Shared, clock: Clock, group: Option<Group>) -> (Self, Receiver<Pending>) {
        let (requests, waiting) = sync_channel(WAITING_MAX);
        (Self { requests, published, group, clock, metrics: Arc::default() }, waiting)
    }

    /// Submits a request of the manager itself. The answer arrives when its effect is on disk.
    ///
    /// # Errors
    /// Too many requests wait, or the manager is stopping.
    pub fn submit(&self, request: Request) -> Result<oneshot::Receiver<Outcome>, ErrorResponse> {
        self.submit_as(audit::MANAGER, request)
    }

    /// [`Handle::submit`] for the client with this name in its certificate.
    pub(crate) fn submit_as(&self, who: &str, request: Request) -> Result<oneshot::Receiver<Outcome>, ErrorResponse> {
        let (reply, answer) = oneshot::channel();
        self.requests.try_send(Pending { who: who.to_owned(), request, reply }).map_err(|error| match error {
            TrySendError::Full(_) => busy("too many requests are waiting; repeat the request in a second"),
            TrySendError::Disconnected(_) => stopping(),
        })?;
        Ok(answer)
    }

    /// Submits a request and waits for the answer. Must not be called from an asynchronous task.
    ///
    /// # Errors
    /// Why it was refused.
    pub fn call(&self, request: Request) -> Outcome {
        self.submit(request)?.blocking_recv().unwrap_or_else(|_| Err(stopping()))
    }

    /// The ledger as it is on disk.
    #[must_use]
    pub fn published(&self) -> Published {
        self.published.get()
    }
}

fn busy(message: &str) -> ErrorResponse {
    ErrorResponse { error: Code::Busy, message: message.to_owned() }
}

/// The answer to requests while the manager stops.
pub(crate) fn stopping() -> ErrorResponse {
    busy("the pool manager is stopping; repeat the request when it runs again")
}

/// Makes a ledger from stored rows.
pub(crate) type Rebuild = Box<dyn Fn(Stored) -> Result<Ledger, String> + Send>;

struct Writer {
    storage: Storage,
    ledger: Ledger,
    error: Option<String>,
    rebuild: Rebuild,
    handle: (Shared, Clock, Arc<Metrics>),
    wake: SyncSender<Wake>,
    audit: Audit,
}

/// Starts the writer. When the last handle is dropped, it ends and the storage is closed.
pub(crate) fn start(
    storage: Storage,
    ledger: Ledger,
    clock: Clock,
    rebuild: Rebuild,
    wake: SyncSender<Wake>,
    audit: Audit,
) -> std::io::Result<(Handle, thread::JoinHandle<()>)> {
    let published = Shared::new(ledger.clone());
    let (handle, waiting) = Handle::new(published.clone(), clock.clone(), None);
    let metrics = Arc::clone(&handle.metrics);
    let writer = Writer { storage, ledger, error: None, rebuild, handle: (published, clock, metrics), wake, audit };
    let thread = thread::Builder::new().name("ledger".to_owned()).spawn(move || writer.run(&waiting))?;
    Ok((handle, thread))
}

impl Writer {
    fn run(mut self, waiting: &Receiver<Pending>) {
        let member = daemon::watchdog::join("ledger", TRANSACTION_LIMIT);
        while let Ok(first) = waiting.recv() {
            let _busy = member.busy();
            let mut batch = vec![first];
            batch.extend(waiting.try_iter().take(BATCH_MAX - 1));
            self.apply(batch);
        }
    }

    fn apply(&mut self, batch: Vec<Pending>) {
        let (published, clock, metrics) = self.handle.clone();
        let now = clock.now();
        let mut next = self.ledger.clone();
        let mut answers: Vec<Outcome> = batch.iter().map(|pending| next.apply(now, &pending.request)).collect();
        // After an error, a request that changes nothing writes as well, to find out whether the error persists.
        if self.error.is_some() || next.differs(&self.ledger) {
            let begin = Instant::now();
            match self.storage.save(Some(&self.ledger), &next) {
                Ok(()) => {
                    metrics.committed(batch.len(), begin.elapsed());
                    if self.error.take().is_some() {
                        log::info!("the ledger can be written again");
                    }
                }
                Err(error) => {
                    metrics.commit_failed();
                    let refused = self.recover(&error);
                    next = self.ledger.clone();
                    for (Pending { request, .. }, answer) in batch.iter().zip(&mut answers) {
                        // A renewal changes nothing on disk: a full disk must not end a lease.
                        *answer = match request {
                            Request::Renew { .. } => next.apply(now, request),
                            _ if answer.is_ok() => Err(refused.clone()),
                            _ => continue,
                        };
                    }
                }
            }
        }
        if next.to_scrub().next().is_some() {
            // If the channel is full, the maintenance thread wakes anyway.
            let _ = self.wake.try_send(Wake::Scrub);
        }
        published.set(Published { ledger: Arc::new(next.clone()), error: self.error.clone() });
        self.ledger = next;
        let recorded = batch.iter().zip(&answers).map(|(pending, answer)| (pending.who.as_str(), &pending.request, answer));
        self.audit.record(now.0 / 1_000_000, recorded);
        for (Pending { request, reply, .. }, answer) in batch.into_iter().zip(answers) {
            metrics.answered(&request, &answer);
            // The client may have disconnected.
            let _ = reply.send(answer);
        }
    }

    /// After a failed transaction, reads back what is on disk: the transaction may have been written or not. If that
    /// fails too, the ledger stays as it was.
    fn recover(&mut self, error: &storage::Error) -> ErrorResponse {
        let code = if matches!(error, storage::Error::Full { .. }) { Code::LedgerFull } else { Code::Ledger };
        if self.error.is_none() {
            log::error!("{error}; no slice changes its owner until the ledger can be written; guests continue to run");
        }
        let message = format!("{error}; no slice changes its owner until the ledger can be written; repeat the request later");
        self.error = Some(error.to_string());
        match self.storage.load(true) {
            Ok(Some(stored)) => match (self.rebuild)(stored) {
                Ok(ledger) => self.ledger = ledger.with_memory_of(&self.ledger),
                Err(why) => log::error!("the ledger on disk is inconsistent: {why}"),
            },
            Ok(None) => {}
            Err(error @ (storage::Error::Damaged { .. } | storage::Error::Other { .. })) => log::error!("{error}"),
            Err(error) => log::debug!("{error}"),
        }
        ErrorResponse { error: code, message }
    }
}
