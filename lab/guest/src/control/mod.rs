//! The server of the control channel: performs the harness's operations in the guest.
//!
//! Requests are processed concurrently, so that long operations do not delay others. When the harness closes the
//! channel, process 1 powers the machine off; any other process kills the programs that it spawned and exits.

mod channel;
mod expect;
mod processes;
mod protocol;
mod run;

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::linux::{child, power};

use channel::{Channel, Line, Outbox};
use processes::Processes;
use protocol::{DATA_BYTES_MAX, Fields, Operation};

/// Limit of concurrent operations; further ones are refused.
const OPERATIONS_MAX: usize = 64;

/// Transport of the control channel.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Listen on this Unix socket and serve one connection, instead of the virtio-serial port
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Name of the virtio-serial port in the virtual machine's configuration
    #[arg(long, default_value = "lab", conflicts_with = "socket")]
    port: String,
}

/// Serves requests until the other end closes the channel.
///
/// # Errors
/// The channel cannot be opened or read. Failed operations are replies, not errors.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let served = match &arguments.socket {
        Some(path) => channel::accept(path),
        None => channel::open_port(&arguments.port),
    }
    .and_then(serve);
    if std::process::id() == 1 {
        // Process 1 has no parent; the error goes to the console.
        if let Err(error) = &served {
            eprintln!("labguest: {error:#}");
        }
        power::power_off();
    }
    served
}

fn serve(channel: Channel) -> Result<()> {
    let outbox = Arc::new(Outbox::new(channel.writer));
    let processes = Processes::new(Arc::clone(&outbox)).context("cannot start the reaper thread")?;
    outbox.send(&protocol::ready_event(&power::kernel_release()));
    let mut reader = BufReader::new(channel.reader);
    // Every operation in progress holds a clone.
    let in_progress = Arc::new(());
    let ended = loop {
        let line = match channel::next_line(&mut reader) {
            Ok(Line::Complete(line)) => line,
            Ok(Line::TooLong) => {
                let error = format!("the request is longer than {DATA_BYTES_MAX} bytes");
                outbox.send(&protocol::reply(None, Err(error)));
                continue;
            }
            Ok(Line::End) => break Ok(()),
            Err(error) => break Err(error).context("cannot read the control channel"),
        };
        match protocol::parse(&line) {
            Ok((id, operation)) => dispatch(id, operation, &outbox, &processes, &in_progress),
            Err(refusal) => outbox.send(&protocol::reply(refusal.id, Err(refusal.error))),
        }
    };
    processes.kill_all();
    ended
}

/// Performs an operation in a thread of its own and sends its reply.
fn dispatch(id: u64, operation: Operation, outbox: &Arc<Outbox>, processes: &Arc<Processes>, in_progress: &Arc<()>) {
    let refuse = |error: String| outbox.send(&protocol::reply(Some(id), Err(error)));
    if Arc::strong_count(in_progress) > OPERATIONS_MAX {
        return refuse(format!("{OPERATIONS_MAX} operations are in progress already; wait until some of them end"));
    }
    let permit = Arc::clone(in_progress);
    let (sender, own_processes) = (Arc::clone(outbox), Arc::clone(processes));
    let thread = thread::Builder::new().name("operation".to_owned()).spawn(move || {
        let outcome = perform(id, &operation, &own_processes).map_err(|error| format!("{error:#}"));
        drop(permit);
        if let Some(outcome) = outcome.transpose() {
            sender.send(&protocol::reply(Some(id), outcome));
        }
    });
    if let Err(error) = thread {
        refuse(format!("cannot start a thread for the operation: {error}"));
    }
}

/// Performs an operation; returns `None` if the reply was sent already.
fn perform(id: u64, operation: &Operation, processes: &Processes) -> Result<Option<Fields>> {
    match operation {
        Operation::Run(request) => run::run(processes, request),
        Operation::Spawn(request) => return processes.spawn(id, request).map(|()| None),
        Operation::Expect(request) => expect::expect(request),
        Operation::Read(request) => read(&request.path),
        Operation::Write(request) => write(request),
        Operation::Mkdir(request) => fs::create_dir_all(&request.path)
            .with_context(|| format!("cannot create directory {}", request.path.display()))
            .map(|()| Fields::new()),
        Operation::Kill(request) => kill(request),
    }
    .map(Some)
}

fn read(path: &Path) -> Result<Fields> {
    let context = || format!("cannot read {}", path.display());
    let mut data = Vec::new();
    let limit = u64::try_from(DATA_BYTES_MAX).unwrap_or(u64::MAX);
    File::open(path).with_context(context)?.take(limit + 1).read_to_end(&mut data).with_context(context)?;
    if data.len() > DATA_BYTES_MAX {
        bail!("cannot read {}: it is longer than {DATA_BYTES_MAX} bytes", path.display());
    }
    Ok(Fields::from_iter([("data".to_owned(), String::from_utf8_lossy(&data).into())]))
}

fn write(request: &protocol::Write) -> Result<Fields> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .append(request.append)
        .truncate(!request.append)
        .open(&request.path)
        .and_then(|mut file| file.write_all(request.data.as_bytes()))
        .with_context(|| {
            let start: String = request.data.chars().take(80).collect();
            format!("cannot write {start:?} to {}", request.path.display())
        })?;
    Ok(Fields::new())
}

fn kill(request: &protocol::Kill) -> Result<Fields> {
    // 0 and -1 address groups of processes, 1 is this program.
    if matches!(request.pid, -1..=1) {
        bail!("cannot signal pid {}: it addresses this program or all processes", request.pid);
    }
    child::kill(request.pid, request.signal).with_context(|| format!("cannot send signal {} to {}", request.signal, request.pid))?;
    Ok(Fields::new())
}

/// Parses a duration given in seconds in the request field `name`.
fn seconds(name: &str, value: f64) -> Result<Duration> {
    const SECONDS_MAX: f64 = 86_400.0;
    match Duration::try_from_secs_f64(value) {
        Ok(duration) if value <= SECONDS_MAX => Ok(duration),
        _ => bail!("{name:?} is {value}; it must be between 0 and {SECONDS_MAX} seconds"),
    }
}
