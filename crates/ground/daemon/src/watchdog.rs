//! The service manager's watchdog (`sd_watchdog_enabled(3)`), fed only while every thread of the daemon is alive and
//! none is busy for longer than it may be.
//!
//! A thread becomes a member with [`join`]. It is idle, which it may be without limit, or busy between [`Member::busy`]
//! and the drop of what that returns. A member whose thread is gone without having dropped the [`Member`], or that was
//! dropped by a panic, is dead: the watchdog is then triggered at once, and the service manager ends and restarts the
//! service.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// Members of the process.
static MEMBERS: Members = Members(Mutex::new(Vec::new()));
/// Directory with an entry for each thread of this process.
const THREADS: &str = "/proc/self/task";

struct Members(Mutex<Vec<Arc<State>>>);

#[derive(Debug)]
struct State {
    name: String,
    thread: i32,
    limit: Duration,
    activity: Mutex<Activity>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    Idle,
    Since(Instant),
    Panicked,
}

impl State {
    fn set(&self, activity: Activity) {
        *self.activity.lock().unwrap_or_else(PoisonError::into_inner) = activity;
    }

    /// Why the daemon does not work; `None` if this thread is well.
    fn failure(&self, now: Instant, threads: &Path) -> Option<String> {
        let name = &self.name;
        match *self.activity.lock().unwrap_or_else(PoisonError::into_inner) {
            Activity::Panicked => return Some(format!("thread {name} has panicked")),
            Activity::Since(begin) if now.saturating_duration_since(begin) > self.limit => {
                return Some(format!("thread {name} makes no progress for more than {} s", self.limit.as_secs()));
            }
            Activity::Since(_) | Activity::Idle => {}
        }
        (!threads.join(self.thread.to_string()).exists()).then(|| format!("thread {name} has died"))
    }
}

/// Membership of a thread.
#[derive(Debug)]
pub struct Member(Arc<State>);

/// Makes this thread a member, which may be busy for `limit` at a time.
#[must_use]
pub fn join(name: &str, limit: Duration) -> Member {
    MEMBERS.join(name, limit)
}

impl Members {
    fn join(&self, name: &str, limit: Duration) -> Member {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let state = Arc::new(State { name: name.to_owned(), thread, limit, activity: Mutex::new(Activity::Idle) });
        let mut members = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Only those that have panicked are still listed without a thread.
        members.push(Arc::clone(&state));
        Member(state)
    }

    fn leave(&self, state: &Arc<State>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|member| !Arc::ptr_eq(member, state));
    }

    fn failure(&self, now: Instant, threads: &Path) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().find_map(|member| member.failure(now, threads))
    }
}

impl Member {
    /// The thread is busy until the returned value is dropped.
    #[must_use]
    pub fn busy(&self) -> Busy<'_> {
        self.0.set(Activity::Since(Instant::now()));
        Busy(self)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.set(Activity::Panicked);
        } else {
            MEMBERS.leave(&self.0);
        }
    }
}

/// The time in which a thread is busy.
#[derive(Debug)]
pub struct Busy<'a>(&'a Member);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.0.set(Activity::Idle);
        }
    }
}

/// Starts the thread that feeds the watchdog, if the service manager has one for this process.
///
/// # Errors
/// The thread cannot be started.
pub fn feed() -> std::io::Result<()> {
    let Some(interval) = sd_notify::watchdog_enabled() else { return Ok(()) };
    let feed = move || {
        loop {
            if let Some(why) = MEMBERS.failure(Instant::now(), Path::new(THREADS)) {
                log::error!("{why}: the service manager ends and restarts this service");
                notify(NotifyState::WatchdogTrigger);
                return;
            }
            notify(NotifyState::Watchdog);
            std::thread::sleep(interval / 4);
        }
    };
    std::thread::Builder::new().name("watchdog".to_owned()).spawn(feed).map(drop)
}

fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        log::warn!("cannot notify the service manager's watchdog: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    fn failure(members: &Members, after: Duration) -> Option<String> {
        members.failure(Instant::now() + after, Path::new(THREADS))
    }

    #[test]
    fn an_idle_thread_may_wait_and_a_busy_one_may_not() {
        let members = Members(Mutex::default());
        let member = members.join("loop", LIMIT);
        assert_eq!(failure(&members, LIMIT * 100), None);
        let busy = member.busy();
        assert_eq!(failure(&members, Duration::ZERO), None);
        assert!(failure(&members, LIMIT * 2).unwrap().contains("thread loop makes no progress for more than 5 s"));
        drop(busy);
        assert_eq!(failure(&members, LIMIT * 2), None);
        members.leave(&member.0);
        std::mem::forget(member);
    }

    #[test]
    fn a_thread_that_panicked_or_vanished_is_a_failure() {
        let members = Arc::new(Members(Mutex::default()));
        let within = Arc::clone(&members);
        let ended = std::thread::spawn(move || {
            let member = within.join("scan", LIMIT);
            let _busy = member.busy();
            panic!("expected by the test");
        });
        assert!(ended.join().is_err());
        assert!(failure(&members, Duration::ZERO).unwrap().contains("thread scan has panicked"));
        let members = Arc::new(Members(Mutex::default()));
        let within = Arc::clone(&members);
        // As if the thread had been ended from outside: nothing is dropped.
        std::thread::spawn(move || std::mem::forget(within.join("control", LIMIT))).join().unwrap();
        // The kernel removes the entry shortly after the join.
        let until = Instant::now() + LIMIT;
        while failure(&members, Duration::ZERO).is_none() && Instant::now() < until {
            std::thread::yield_now();
        }
        assert!(failure(&members, Duration::ZERO).unwrap().contains("thread control has died"));
    }
}
