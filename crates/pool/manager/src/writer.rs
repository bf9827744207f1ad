//! The one thread that changes the book: takes all requests that wait, follows them on a copy, writes what has changed in one
//! transaction, and answers when that is on the disk.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use pool::Ns;
use tokio::sync::oneshot;

use crate::api::{Code, Refused};
use crate::book::{Answer, Ask, Book};
use crate::keeper::Wake;
use crate::ledger::{self, Ledger, Stored};
use crate::metrics::Metrics;

/// Requests that wait; more are refused.
const WAITING_MAX: usize = 4096;
/// Requests of one transaction.
const BATCH_MAX: usize = 512;

/// What a request came to.
pub(crate) type Followed = Result<Answer, Refused>;
type Request = (Ask, oneshot::Sender<Followed>);

/// Monotonic time in nanoseconds that starts at the Unix time, so that the next process can compare it with the ledger's times.
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

/// What everybody may read without waiting.
#[derive(Clone, Debug)]
pub struct Published {
    /// As it is on the disk.
    pub book: Arc<Book>,
    /// Why nothing changes hands.
    pub trouble: Option<String>,
}

/// The way to the writer. When all copies are gone, it ends.
#[derive(Clone, Debug)]
pub struct Handle {
    requests: SyncSender<Request>,
    published: Arc<Mutex<Published>>,
    /// When it is.
    pub clock: Clock,
    /// What has happened.
    pub metrics: Arc<Metrics>,
}

impl Handle {
    /// Hands a request over; the answer comes when it is on the disk.
    ///
    /// # Errors
    /// When too many wait, or the manager is about to stop.
    pub fn submit(&self, ask: Ask) -> Result<oneshot::Receiver<Followed>, Refused> {
        let (reply, answer) = oneshot::channel();
        self.requests.try_send((ask, reply)).map_err(|error| match error {
            TrySendError::Full(_) => busy("too many requests wait; say it again in a second"),
            TrySendError::Disconnected(_) => stopping(),
        })?;
        Ok(answer)
    }

    /// Asks, and waits for the answer; not from an asynchronous task.
    ///
    /// # Errors
    /// Why it was not followed.
    pub fn ask(&self, ask: Ask) -> Followed {
        self.submit(ask)?.blocking_recv().unwrap_or_else(|_| Err(stopping()))
    }

    /// The book as it is on the disk.
    #[must_use]
    pub fn published(&self) -> Published {
        self.published.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn busy(message: &str) -> Refused {
    Refused { error: Code::Busy, message: message.to_owned() }
}

/// To who asks when the end has begun.
pub(crate) fn stopping() -> Refused {
    busy("the pool manager is about to stop; say it again when it is back")
}

/// How a book is made of what is on the disk.
pub(crate) type Rebuild = Box<dyn Fn(Stored) -> Result<Book, String> + Send>;

struct Writer {
    ledger: Ledger,
    book: Book,
    trouble: Option<String>,
    rebuild: Rebuild,
    handle: (Arc<Mutex<Published>>, Clock, Arc<Metrics>),
    /// Told when there is something to scrub.
    wake: SyncSender<Wake>,
}

/// Starts the writer. It ends, and the ledger is closed, when the last handle is dropped.
pub(crate) fn start(
    ledger: Ledger,
    book: Book,
    clock: Clock,
    rebuild: Rebuild,
    wake: SyncSender<Wake>,
) -> std::io::Result<(Handle, thread::JoinHandle<()>)> {
    let published = Arc::new(Mutex::new(Published { book: Arc::new(book.clone()), trouble: None }));
    let metrics = Arc::new(Metrics::default());
    let (requests, waiting) = sync_channel(WAITING_MAX);
    let handle = Handle { requests, published: Arc::clone(&published), clock: clock.clone(), metrics: Arc::clone(&metrics) };
    let writer = Writer { ledger, book, trouble: None, rebuild, handle: (published, clock, metrics), wake };
    let thread = thread::Builder::new().name("ledger".to_owned()).spawn(move || writer.run(&waiting))?;
    Ok((handle, thread))
}

impl Writer {
    fn run(mut self, waiting: &Receiver<Request>) {
        while let Ok(first) = waiting.recv() {
            let mut batch = vec![first];
            batch.extend(waiting.try_iter().take(BATCH_MAX - 1));
            self.follow(batch);
        }
    }

    fn follow(&mut self, batch: Vec<Request>) {
        let (published, clock, metrics) = self.handle.clone();
        let now = clock.now();
        let mut next = self.book.clone();
        let mut answers: Vec<Followed> = batch.iter().map(|(ask, _)| next.follow(now, ask)).collect();
        // In trouble, even a request that changes nothing tries whether there is still trouble.
        if self.trouble.is_some() || next.differs(&self.book) {
            let began = Instant::now();
            match self.ledger.save(Some(&self.book), &next) {
                Ok(()) => {
                    metrics.committed(batch.len(), began.elapsed());
                    if self.trouble.take().is_some() {
                        log::info!("the ledger can be written again");
                    }
                }
                Err(error) => {
                    metrics.commit_failed();
                    let refused = self.recover(&error);
                    next = self.book.clone();
                    for ((ask, _), answer) in batch.iter().zip(&mut answers) {
                        // A lease that goes on changes nothing on the disk: a full one must not end it.
                        *answer = match ask {
                            Ask::Renew { .. } => next.follow(now, ask),
                            _ if answer.is_ok() => Err(refused.clone()),
                            _ => continue,
                        };
                    }
                }
            }
        }
        if next.to_scrub().next().is_some() {
            // If it is full, the keeper has been told already.
            let _ = self.wake.try_send(Wake::Scrub);
        }
        *published.lock().unwrap_or_else(PoisonError::into_inner) =
            Published { book: Arc::new(next.clone()), trouble: self.trouble.clone() };
        self.book = next;
        for ((ask, reply), answer) in batch.into_iter().zip(answers) {
            metrics.answered(&ask, &answer);
            // Who asked may have gone.
            let _ = reply.send(answer);
        }
    }

    /// After a failed transaction: what is on the disk is what counts, whether the transaction came through or not. If that
    /// cannot be read either, the book stays what it was.
    fn recover(&mut self, error: &ledger::Error) -> Refused {
        let code = if matches!(error, ledger::Error::Full { .. }) { Code::LedgerFull } else { Code::Ledger };
        if self.trouble.is_none() {
            log::error!("{error}; nothing changes hands until it can be written; guests go on");
        }
        let message = format!("{error}; nothing changes hands until it can be written; say it again later");
        self.trouble = Some(error.to_string());
        match self.ledger.load() {
            Ok(Some(stored)) => match (self.rebuild)(stored) {
                Ok(book) => self.book = book.with_memory_of(&self.book),
                Err(why) => log::error!("what the ledger holds cannot be: {why}"),
            },
            Ok(None) => {}
            Err(error) => log::debug!("{error}"),
        }
        Refused { error: code, message }
    }
}
