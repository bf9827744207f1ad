//! The writer: the one thread that decides. It takes all waiting commands, decides them on a copy of the state, appends the
//! events to the log with one fsync, and answers after that.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::oneshot;
use units::Slices;

use crate::api::{Code, HostView, Placed, Refusal, VmRequest};
use crate::event::Event;
use crate::log_file::{self, LogFile};
use crate::state::{Inconsistent, State, missing};

/// Most waiting commands; more are refused.
const WAITING_MAX: usize = 4096;
/// Most commands of one fsync.
const BATCH_MAX: usize = 512;
/// Syncing a log takes milliseconds. One that takes this long hangs in the kernel.
const BATCH_LIMIT: Duration = Duration::from_secs(5 * 60);

/// A change of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Place(VmRequest),
    End { vm: String },
    Drain { host: String, drained: bool },
    Grantable { pool: String, slices: Option<Slices> },
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Response {
    Placed(Placed),
    Host(HostView),
    Done,
}

pub(crate) type Outcome = Result<Response, Refusal>;

struct Pending {
    who: String,
    command: Command,
    reply: oneshot::Sender<Outcome>,
}

/// The state that readers get without waiting for the writer.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    /// The state as it is on disk.
    pub(crate) state: Arc<State>,
    /// Why the log cannot be written; `None` if it can.
    pub(crate) error: Option<String>,
}

/// A handle to the writer, which ends when the last handle is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    commands: SyncSender<Pending>,
    published: Arc<Mutex<Published>>,
}

impl Handle {
    /// Submits a command. The answer arrives when its effect is on disk.
    ///
    /// # Errors
    /// Too many commands wait, or the scheduler is stopping.
    pub(crate) fn submit(&self, who: &str, command: Command) -> Result<oneshot::Receiver<Outcome>, Refusal> {
        let (reply, answer) = oneshot::channel();
        let pending = Pending { who: who.to_owned(), command, reply };
        self.commands.try_send(pending).map_err(|error| match error {
            TrySendError::Full(_) => busy("too many requests are waiting; repeat the request in a second"),
            TrySendError::Disconnected(_) => stopping(),
        })?;
        Ok(answer)
    }

    pub(crate) fn published(&self) -> Published {
        self.published.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn busy(message: &str) -> Refusal {
    Refusal { error: Code::Busy, message: message.to_owned() }
}

/// The answer to requests while the scheduler stops.
pub(crate) fn stopping() -> Refusal {
    busy("the scheduler is stopping; repeat the request when it runs again")
}

struct Writer {
    log: LogFile,
    state: Arc<State>,
    published: Arc<Mutex<Published>>,
}

/// Starts the writer. When the last handle is dropped, it ends and the log is closed.
pub(crate) fn start(log: LogFile, state: State) -> std::io::Result<(Handle, JoinHandle<()>)> {
    let state = Arc::new(state);
    let published = Arc::new(Mutex::new(Published { state: Arc::clone(&state), error: None }));
    let (commands, waiting) = sync_channel(WAITING_MAX);
    let handle = Handle { commands, published: Arc::clone(&published) };
    let writer = Writer { log, state, published };
    let thread = thread::Builder::new().name("log".to_owned()).spawn(move || writer.run(&waiting))?;
    Ok((handle, thread))
}

impl Writer {
    fn run(mut self, waiting: &Receiver<Pending>) {
        let member = daemon::watchdog::join("log", BATCH_LIMIT);
        while let Ok(first) = waiting.recv() {
            let _busy = member.busy();
            let mut batch = vec![first];
            batch.extend(waiting.try_iter().take(BATCH_MAX - 1));
            self.apply(batch);
        }
    }

    fn apply(&mut self, batch: Vec<Pending>) {
        let mut next = (*self.state).clone();
        let decided: Vec<_> = batch.iter().map(|pending| decide(&mut next, &pending.command)).collect();
        if decided.iter().any(|(event, _)| event.is_some()) {
            let events = batch.iter().zip(&decided).filter_map(|(pending, (event, _))| Some((pending.who.as_str(), event.as_ref()?)));
            let error = self.log.append(events).err();
            self.recorded(next, error.as_ref());
            if let Some(error) = error {
                for Pending { command, reply, .. } in batch {
                    let _ = reply.send(unrecorded(&self.state, &command, &error));
                }
                return;
            }
        }
        for (Pending { reply, .. }, (_, outcome)) in batch.into_iter().zip(decided) {
            // The client may have disconnected.
            let _ = reply.send(outcome);
        }
    }

    /// Publishes the next state if its events are on disk, and the present one with the error if they are not.
    fn recorded(&mut self, next: State, error: Option<&log_file::Error>) {
        match error {
            None => {
                self.state = Arc::new(next);
                // The events are on disk, whether a new file could be begun or not.
                if let Err(error) = self.log.rotate(&self.state) {
                    log::warn!("{error}; the log grows beyond its limit");
                }
            }
            Some(error) => log::error!("{error}; nothing is placed until the log can be written; VMs continue to run"),
        }
        *self.published.lock().unwrap_or_else(PoisonError::into_inner) =
            Published { state: Arc::clone(&self.state), error: error.map(ToString::to_string) };
    }
}

/// The answer to a command of a batch whose events could not be written: none of them has happened.
fn unrecorded(state: &State, command: &Command, error: &log_file::Error) -> Outcome {
    match decide_event(state, command)? {
        None => answer(state, command),
        Some(_) => Err(Refusal { error: Code::Log, message: format!("{error}; nothing has changed; repeat the request later") }),
    }
}

/// Decides a command and applies it. Returns its event, if it changes anything or is to be known later, and the answer.
fn decide(state: &mut State, command: &Command) -> (Option<Event>, Outcome) {
    match decide_event(state, command) {
        Ok(Some(event)) => match state.apply(&event) {
            Ok(()) => (Some(event), answer(state, command)),
            // The command names what does not exist; nothing has changed.
            Err(Inconsistent(why)) => (None, Err(Refusal { error: Code::NotFound, message: why })),
        },
        Ok(None) => (None, answer(state, command)),
        Err(refused) => (None, Err(refused)),
    }
}

fn decide_event(state: &State, command: &Command) -> Result<Option<Event>, Refusal> {
    Ok(match command {
        Command::Place(request) if state.known(request).is_some() => None,
        Command::Place(request) => Some(state.decide(request)?),
        Command::End { vm } => Some(Event::Ended { vm: state.vm(vm)?.vm }),
        Command::Drain { host, drained } => {
            let known = state.host(host)?;
            (known.drained != *drained).then(|| Event::Drained { host: host.clone(), drained: *drained })
        }
        Command::Grantable { pool, slices } => {
            let known = state.grantable(pool).ok_or_else(|| missing(&format!("pool {pool}")))?;
            (known != *slices).then(|| Event::Grantable { pool: pool.clone(), slices: *slices })
        }
    })
}

fn answer(state: &State, command: &Command) -> Outcome {
    match command {
        Command::Place(request) => match state.known(request) {
            Some(vm) => Ok(Response::Placed(state.placed(vm))),
            None => Err(state.full(request)),
        },
        Command::Drain { host, .. } => Ok(Response::Host(state.host(host)?)),
        Command::End { .. } | Command::Grantable { .. } => Ok(Response::Done),
    }
}

#[cfg(test)]
mod tests {
    use placement::{Shape, Strategy};
    use units::Bytes;

    use super::*;
    use crate::event::{PoolOfHosts, Topology};

    #[test]
    fn nothing_is_placed_while_the_log_cannot_be_written() {
        let directory = tempfile::tempdir().unwrap();
        let (mut log, _) = LogFile::open(&directory.path().join("log"), Bytes::gib(1)).unwrap();
        log.set_writable(false);
        let hosts = PoolOfHosts { name: "p".to_owned(), slices: Slices(1), managed: false, hosts: vec!["a".to_owned()] };
        let shape = Shape { nodes: 1, node_cores: 4, node_mib: 4096 };
        let topology = Topology { shape, slice_bytes: Bytes::gib(1), strategy: Strategy::BestFit, pools: vec![hosts], domains: Vec::new() };
        let (handle, thread) = start(log, State::new(topology).unwrap()).unwrap();
        let call = |command| handle.submit("op", command).unwrap().blocking_recv().unwrap();
        let request = VmRequest { vm: "one".to_owned(), cores: 1, memory_bytes: Bytes::gib(1), pool_bytes: Bytes(0), spread: None };
        assert_eq!(call(Command::Place(request)).unwrap_err().error, Code::Log);
        let published = handle.published();
        assert_eq!((published.state.list().vms.len(), published.error.is_some()), (0, true));
        assert_eq!(call(Command::End { vm: "one".to_owned() }).unwrap_err().error, Code::NotFound);
        drop(handle);
        thread.join().unwrap();
    }
}
