//! A result that the kernel takes a while to produce: a thread waits for it, so that the caller's loop does not.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// A result on its way.
#[derive(Debug)]
pub(super) struct Pending<T> {
    result: Receiver<T>,
    due: Instant,
}

/// No result arrived in time, or the thread that waited for it has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overdue;

impl<T: Send + 'static> Pending<T> {
    /// Starts a thread named `name` that computes the result. The result is overdue after `timeout`.
    pub(super) fn spawn(name: &str, timeout: Duration, work: impl FnOnce() -> T + Send + 'static) -> io::Result<Self> {
        let (sender, result) = sync_channel(1);
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            // The receiver may have been dropped.
            let _ = sender.send(work());
        })?;
        Ok(Self { result, due: Instant::now() + timeout })
    }

    /// Returns the result if it has arrived. Never waits.
    pub(super) fn poll(&self) -> Result<Option<T>, Overdue> {
        match self.result.try_recv() {
            Ok(result) => Ok(Some(result)),
            Err(TryRecvError::Empty) if Instant::now() < self.due => Ok(None),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => Err(Overdue),
        }
    }

    /// Waits for the result until it is overdue.
    pub(super) fn wait(&self) -> Result<T, Overdue> {
        let left = self.due.saturating_duration_since(Instant::now());
        self.result.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected => Overdue,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn polling_does_not_wait_for_the_result() {
        let (open, gate) = sync_channel::<u32>(0);
        let pending = Pending::spawn("test", LONG, move || gate.recv().unwrap()).unwrap();
        assert_eq!(pending.poll(), Ok(None));
        open.send(7).unwrap();
        assert_eq!(pending.wait(), Ok(7));
        // The sender is dropped shortly after the result was sent.
        while pending.poll() == Ok(None) {
            thread::yield_now();
        }
        assert_eq!(pending.poll(), Err(Overdue), "there is only one result");
    }

    #[test]
    fn a_result_is_overdue_after_the_timeout() {
        let (open, gate) = sync_channel::<u32>(0);
        let pending = Pending::spawn("test", Duration::ZERO, move || gate.recv()).unwrap();
        assert_eq!((pending.poll(), pending.wait()), (Err(Overdue), Err(Overdue)));
        drop(open);
    }

    #[test]
    fn a_result_that_arrives_late_is_returned() {
        let (done, is_done) = sync_channel::<()>(0);
        let pending = Pending::spawn("test", Duration::ZERO, move || done).unwrap();
        // The result owns one end of the channel, so dropping it disconnects the other end.
        let result = loop {
            if let Ok(Some(result)) = pending.poll() {
                break result;
            }
            thread::yield_now();
        };
        drop(result);
        assert!(is_done.recv().is_err());
    }

    #[test]
    fn a_panicking_thread_makes_the_result_overdue() {
        let pending = Pending::<u32>::spawn("test", LONG, || panic!("as intended")).unwrap();
        assert_eq!(pending.wait(), Err(Overdue));
    }
}
