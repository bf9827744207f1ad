//! An answer that takes the kernel a while: a thread of its own waits for it, so that the loop goes on meanwhile.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// One answer that is on its way.
#[derive(Debug)]
pub(super) struct Later<T> {
    answer: Receiver<T>,
    due: Instant,
}

/// No answer came in the time that it was given, or the thread that waited for it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overdue;

impl<T: Send + 'static> Later<T> {
    /// Has a thread work out the answer, for which it has `patience`.
    pub(super) fn ask(name: &str, patience: Duration, work: impl FnOnce() -> T + Send + 'static) -> io::Result<Self> {
        let (sender, answer) = sync_channel(1);
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Whoever asked may have given up.
            let _ = sender.send(work());
        })?;
        Ok(Self { answer, due: Instant::now() + patience })
    }

    /// The answer, once it is there. Never waits.
    pub(super) fn poll(&self) -> Result<Option<T>, Overdue> {
        match self.answer.try_recv() {
            Ok(answer) => Ok(Some(answer)),
            Err(TryRecvError::Empty) if Instant::now() < self.due => Ok(None),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => Err(Overdue),
        }
    }

    /// Waits for the answer, as long as there is patience.
    pub(super) fn wait(&self) -> Result<T, Overdue> {
        let left = self.due.saturating_duration_since(Instant::now());
        self.answer.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected => Overdue,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn nobody_waits_for_an_answer_that_takes_its_time() {
        let (open, gate) = sync_channel::<u32>(0);
        let later = Later::ask("test", LONG, move || gate.recv().unwrap()).unwrap();
        assert_eq!(later.poll(), Ok(None));
        open.send(7).unwrap();
        assert_eq!(later.wait(), Ok(7));
        assert_eq!(later.poll(), Err(Overdue), "there is one answer");
    }

    #[test]
    fn patience_ends() {
        let (open, gate) = sync_channel::<u32>(0);
        let later = Later::ask("test", Duration::ZERO, move || gate.recv()).unwrap();
        assert_eq!((later.poll(), later.wait()), (Err(Overdue), Err(Overdue)));
        drop(open);
    }

    #[test]
    fn an_answer_that_came_in_the_end_is_taken_however_late() {
        let (done, is_done) = sync_channel::<()>(0);
        let later = Later::ask("test", Duration::ZERO, move || done).unwrap();
        // It hands over its end of the channel with the answer.
        let answer = loop {
            if let Ok(Some(answer)) = later.poll() {
                break answer;
            }
            thread::yield_now();
        };
        drop(answer);
        assert!(is_done.recv().is_err());
    }

    #[test]
    fn a_thread_that_dies_is_no_answer() {
        let later = Later::<u32>::ask("test", LONG, || panic!("as it should")).unwrap();
        assert_eq!(later.wait(), Err(Overdue));
    }
}
