//! The threads of a host: one keeps the lease, one does what the manager wants and looks after guests, one watches them.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::Duration;

use manager::api::{Assignment, Work};

use super::Host;

/// Without a lease, how often one is asked for; with one, at most and at least so often is it renewed.
const ASK_EVERY: Duration = Duration::from_secs(1);
const RENEW_AT_MOST: Duration = Duration::from_secs(10);
const RENEW_AT_LEAST: Duration = Duration::from_millis(200);

/// What the manager had to say.
struct News {
    fresh: Option<Vec<Assignment>>,
    work: Vec<Work>,
}

/// Runs a host until `stop` says so, or nobody is left to say it. Guests go on after that.
pub fn run(host: &Host, stop: &Receiver<()>) {
    // A round that is not over keeps no second one waiting: what is left out is said again.
    let (news, heard) = sync_channel::<News>(1);
    let (end_keeper, keeper_ends) = sync_channel::<()>(0);
    let (end_monitor, monitor_ends) = sync_channel::<()>(0);
    std::thread::scope(|scope| {
        scope.spawn(move || keep(host, &news, &keeper_ends));
        scope.spawn(move || attend(host, &heard));
        scope.spawn(move || watch(host, &monitor_ends));
        // An error is that nobody is left.
        let _ = stop.recv();
        drop((end_keeper, end_monitor));
    });
}

/// Whether to go on after so much time.
fn sleep(ends: &Receiver<()>, time: Duration) -> bool {
    matches!(ends.recv_timeout(time), Err(RecvTimeoutError::Timeout))
}

fn keep(host: &Host, news: &SyncSender<News>, ends: &Receiver<()>) {
    let mut fresh: Option<Vec<Assignment>> = None;
    loop {
        let (pause, trouble) = match host.capacity.keep() {
            Ok(kept) => {
                if let Some(assignments) = kept.fresh {
                    log::info!("{} has a lease of {} s", host.settings.name, kept.lease_seconds);
                    fresh = Some(assignments);
                }
                // A fresh list is not said again: it is kept until somebody has time for it.
                match news.try_send(News { fresh: fresh.take(), work: kept.work }) {
                    Err(TrySendError::Full(back)) => fresh = back.fresh,
                    Ok(()) | Err(TrySendError::Disconnected(_)) => {}
                }
                let third = Duration::try_from_secs_f64(kept.lease_seconds / 3.0).unwrap_or(ASK_EVERY);
                (third.clamp(RENEW_AT_LEAST, RENEW_AT_MOST), None)
            }
            Err(error) => (ASK_EVERY, Some(error.to_string())),
        };
        let before = std::mem::replace(&mut host.table().trouble, trouble.clone());
        match (before, trouble) {
            (None, Some(trouble)) => log::warn!("{trouble}; guests go on, and slices stay where they are"),
            (Some(_), None) => log::info!("the pool manager answers again"),
            _ => {}
        }
        if !sleep(ends, pause) {
            return;
        }
    }
}

fn attend(host: &Host, heard: &Receiver<News>) {
    loop {
        match heard.recv_timeout(ASK_EVERY) {
            Ok(news) => {
                if let Some(assignments) = news.fresh {
                    host.reconcile(&assignments);
                }
                host.follow(news.work);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        host.look_after();
    }
}

fn watch(host: &Host, ends: &Receiver<()>) {
    while sleep(ends, host.settings.period) {
        host.watch(|| !matches!(ends.try_recv(), Err(TryRecvError::Disconnected)));
    }
}
