//! Signals as messages to the loop.

use std::sync::mpsc::{Receiver, Sender, channel};

use agent::node::Message;
use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// A channel on which SIGTERM, SIGINT and SIGHUP arrive as [`Message::Stop`]; others may send too.
pub(crate) fn messages() -> Result<(Sender<Message>, Receiver<Message>)> {
    let (sender, receiver) = channel();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot listen for signals")?;
    let from_signals = sender.clone();
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for _ in signals.forever() {
            if from_signals.send(Message::Stop).is_err() {
                break;
            }
        }
    })?;
    Ok((sender, receiver))
}
