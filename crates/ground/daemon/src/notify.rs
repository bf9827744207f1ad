//! Notifications of the service manager (`sd_notify(3)`).

use sd_notify::NotifyState;

/// Notifies the service manager that this daemon is ready to serve, and begins to feed its watchdog. Does nothing if
/// `NOTIFY_SOCKET` is not set.
pub fn notify_ready() {
    if let Err(error) = crate::watchdog::feed() {
        log::warn!("cannot start the thread that feeds the service manager's watchdog: {error}");
    }
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
        log::warn!("cannot notify the service manager that this daemon is ready: {error}");
    }
}
