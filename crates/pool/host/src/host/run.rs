//! The threads of a host: one renews the lease, one follows the manager's requests and checks guests, one runs the
//! monitor.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::Duration;

use daemon::watchdog;
use manager::api::{Assignment, Work};

use super::table::Host;

/// Interval of requests for a lease while there is none, and of checks of guests.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Bounds of the interval between renewals, which is a third of the lease.
const RENEWAL_MAX: Duration = Duration::from_secs(10);
const RENEWAL_MIN: Duration = Duration::from_millis(200);

/// Requests to the manager have a timeout of seconds.
const RENEW_LIMIT: Duration = Duration::from_secs(2 * 60);
/// Releasing all slices of a guest, or moving a large one, may take long.
const GUESTS_LIMIT: Duration = Duration::from_secs(4 * 60 * 60);

/// An answer of the manager to a renewal.
struct Answer {
    /// After a new lease: the assignments that the manager has for this host.
    assignments: Option<Vec<Assignment>>,
    work: Vec<Work>,
}

/// Runs a host until `stop` receives a message or is disconnected. Guests continue to run.
pub fn run(host: &Host, stop: &Receiver<()>) {
    // While an answer is being handled, later ones are dropped: the manager repeats open requests.
    let (answers, received) = sync_channel::<Answer>(1);
    let (end_renewal, renewal_ends) = sync_channel::<()>(0);
    let (end_monitor, monitor_ends) = sync_channel::<()>(0);
    std::thread::scope(|scope| {
        scope.spawn(move || renew(host, &answers, &renewal_ends));
        scope.spawn(move || serve(host, &received));
        scope.spawn(move || watch(host, &monitor_ends));
        // An error means that the sender is gone.
        let _ = stop.recv();
        drop((end_renewal, end_monitor));
    });
}

/// Sleeps for `time`. Returns false if the thread must end.
fn sleep(ends: &Receiver<()>, time: Duration) -> bool {
    matches!(ends.recv_timeout(time), Err(RecvTimeoutError::Timeout))
}

fn renew(host: &Host, answers: &SyncSender<Answer>, ends: &Receiver<()>) {
    let member = watchdog::join("lease", RENEW_LIMIT);
    let mut pending: Option<Vec<Assignment>> = None;
    loop {
        let busy = member.busy();
        let (pause, error) = match host.capacity.renew() {
            Ok(renewal) => {
                if let Some(assignments) = renewal.assignments {
                    log::info!("{} has a lease of {} s", host.settings.name, renewal.lease.as_secs_f64());
                    pending = Some(assignments);
                }
                // The manager does not repeat the assignments: they are kept until the other thread can take them.
                match answers.try_send(Answer { assignments: pending.take(), work: renewal.work }) {
                    Err(TrySendError::Full(back)) => pending = back.assignments,
                    Ok(()) | Err(TrySendError::Disconnected(_)) => {}
                }
                ((renewal.lease / 3).clamp(RENEWAL_MIN, RENEWAL_MAX), None)
            }
            Err(error) => (RETRY_INTERVAL, Some(error.to_string())),
        };
        let before = std::mem::replace(&mut host.table().pool_error, error.clone());
        match (before, error) {
            (None, Some(error)) => log::warn!("{error}; guests continue to run, and no slice changes its owner"),
            (Some(_), None) => log::info!("the pool manager answers again"),
            _ => {}
        }
        drop(busy);
        if !sleep(ends, pause) {
            return;
        }
    }
}

fn serve(host: &Host, received: &Receiver<Answer>) {
    let member = watchdog::join("guests", GUESTS_LIMIT);
    loop {
        let answer = received.recv_timeout(RETRY_INTERVAL);
        let _busy = member.busy();
        match answer {
            Ok(answer) => {
                if let Some(assignments) = answer.assignments {
                    host.reconcile(&assignments);
                }
                host.take_offline(answer.work);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        host.check_guests();
    }
}

fn watch(host: &Host, ends: &Receiver<()>) {
    let member = watchdog::join("monitor", GUESTS_LIMIT);
    while sleep(ends, host.settings.period) {
        let _busy = member.busy();
        host.refresh_models();
        host.watch(|| !matches!(ends.try_recv(), Err(TryRecvError::Disconnected)));
    }
}
