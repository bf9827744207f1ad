//! Signals as messages to the agent's loop.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use agent::Message;
use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The most messages that wait for the loop.
const WAITING_MAX: usize = 64;

/// A channel on which SIGTERM, SIGINT and SIGHUP arrive as [`Message::Stop`]; other threads may send as well.
pub(crate) fn messages() -> Result<(SyncSender<Message>, Receiver<Message>)> {
    messages_of(|| Message::Stop)
}

/// The same, but SIGHUP arrives as the message that `hangup` makes.
pub(crate) fn messages_of(hangup: impl Fn() -> Message + Send + 'static) -> Result<(SyncSender<Message>, Receiver<Message>)> {
    let (sender, receiver) = sync_channel(WAITING_MAX);
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot listen for signals")?;
    let from_signals = sender.clone();
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let _member = daemon::watchdog::join("signals", Duration::MAX);
        for signal in signals.forever() {
            let message = if signal == SIGHUP { hangup() } else { Message::Stop };
            if from_signals.send(message).is_err() {
                break;
            }
        }
    })?;
    Ok((sender, receiver))
}
