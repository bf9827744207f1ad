//! Readiness notification of the service manager (`sd_notify(3)`).

use sd_notify::NotifyState;

/// Notifies the service manager that this daemon is ready to serve. Does nothing if `NOTIFY_SOCKET` is not set.
pub fn notify_ready() {
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
        log::warn!("cannot notify the service manager that this daemon is ready: {error}");
    }
}
