//! Tells the service manager that a daemon is ready.

use sd_notify::NotifyState;

/// Whoever waits for this daemon may go on. Does nothing where nobody started it that waits.
pub(crate) fn ready() {
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
        log::warn!("cannot tell the service manager that this daemon is ready: {error}");
    }
}
