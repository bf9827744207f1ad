//! What each pool's manager can assign, read once per second.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use manager::client::Client;

use crate::log_file::SCHEDULER;
use crate::writer::{Command, Handle, Response};

/// Pause between two readings of a pool.
const PERIOD: Duration = Duration::from_secs(1);
/// Timeout of a reading. A pool whose manager is slower gets no VM.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// A reading and its event in the log take seconds. One that takes this long hangs in the kernel.
const READING_LIMIT: Duration = Duration::from_secs(6 * 60);

/// Observes one pool until the other end of `stopped` is dropped.
pub(crate) fn observe(pool: String, client: Client, handle: Handle, stopped: Receiver<()>) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name("observer".to_owned()).spawn(move || {
        let member = daemon::watchdog::join("observer", READING_LIMIT);
        let mut answered = true;
        loop {
            let busy = member.busy();
            let slices = match client.pool() {
                Ok(status) => Some(status.grantable),
                Err(error) => {
                    if answered {
                        log::warn!("{pool} gets no new VMs until its manager answers: {error}");
                    }
                    None
                }
            };
            answered = slices.is_some();
            let recorded = handle.submit(SCHEDULER, Command::Grantable { pool: pool.clone(), slices });
            // The next reading repeats what could not be recorded.
            if let Err(refused) = recorded.and_then(|answer| answer.blocking_recv().unwrap_or(Ok(Response::Done))) {
                log::debug!("{pool}: {refused}");
            }
            drop(busy);
            match stopped.recv_timeout(PERIOD) {
                Err(RecvTimeoutError::Timeout) => {}
                _ => return,
            }
        }
    })
}
