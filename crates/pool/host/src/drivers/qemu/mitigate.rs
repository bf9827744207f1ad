//! Mitigation (Pond section 4.2) by live migration: the guest is moved to a second process on the same host whose
//! memory is all local. Its devices have the same names and addresses, so the guest sees no change. The slices are
//! released with the first process.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use units::Bytes;

use super::launcher::Launcher;
use super::qmp::{self, Qmp};
use super::{memory_device, slices};
use crate::driver::{Error, Machine, Moved};
use crate::process::{EXIT_TIMEOUT, Process};

/// Bandwidth limit in bytes per second, above that of any memory.
const BANDWIDTH: u64 = 1 << 40;
/// Name of the migration's socket in both processes.
const CHANNEL: &str = "move";
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long the second process may take to run the guest after the migration has completed.
const RESUME_TIMEOUT: Duration = Duration::from_secs(10);

/// Moves the guest; on failure the first process continues to run it.
pub(super) fn move_to_local(launcher: &Launcher, machine: &Machine, from: &Process, timeout: Duration) -> Result<Moved, Error> {
    let begin = Instant::now();
    let failed = |why: String| Error::Move { guest: machine.name.clone(), why };
    if from.generation != 1 {
        return Err(failed("it was moved before".to_owned()));
    }
    let mut source = launcher.connect(machine, from)?;
    let devices = memory_device::all(&mut source)?;
    let (kind, devices) = slices::migration_options(machine, &devices)
        .ok_or_else(|| failed(format!("its memory devices in QEMU are not the guest's slices: {devices:?}")))?;
    let mut more = vec!["-incoming".to_owned(), "defer".to_owned()];
    more.extend(devices);
    // The user is reserved until the process is known to have it.
    let to = launcher.spawn(machine, 2, kind, &more)?.process;
    match migrate(launcher, machine, &mut source, &to, begin + timeout) {
        Ok(moved) => {
            // The first process is paused and must not keep the slices.
            drop(source);
            launcher.stop(machine, from, Duration::ZERO);
            Ok(Moved { total: begin.elapsed(), ..moved })
        }
        Err(error) => {
            // Only one of the two may ever run, so the second exits before the first continues.
            to.kill(&launcher.roots);
            launcher.clean_up(machine, &to);
            if let Err(second) = run_again(&mut source) {
                return Err(failed(format!("{error}; the guest could not be resumed: {second}")));
            }
            Err(failed(error.to_string()))
        }
    }
}

/// Settles a move that an earlier daemon left unfinished: the second process has the guest if it runs it. Returns the
/// process that remains.
pub(super) fn settle(launcher: &Launcher, machine: &Machine, first: Process, second: Process) -> Result<Process, Error> {
    if launcher.connect(machine, &second).and_then(|mut target| Ok(is_running(&mut target)?)).unwrap_or(false) {
        first.kill(&launcher.roots);
        launcher.clean_up(machine, &first);
        return Ok(second);
    }
    second.kill(&launcher.roots);
    launcher.clean_up(machine, &second);
    run_again(&mut launcher.connect(machine, &first)?)?;
    Ok(first)
}

fn migrate(launcher: &Launcher, machine: &Machine, source: &mut Qmp, to: &Process, deadline: Instant) -> Result<Moved, Error> {
    let mut target = launcher.connect(machine, to)?;
    // A pair of sockets, which no other process can connect to.
    let (near, far) = UnixStream::pair().map_err(|error| Error::Move { guest: machine.name.clone(), why: error.to_string() })?;
    source.pass_file(CHANNEL, near.as_fd())?;
    target.pass_file(CHANNEL, far.as_fd())?;
    drop((near, far));
    let uri = format!("fd:{CHANNEL}");
    let pause = units::millis(launcher.settings.pause);
    source.execute("migrate-set-parameters", &json!({ "max-bandwidth": BANDWIDTH, "downtime-limit": pause }))?;
    target.execute("migrate-incoming", &json!({ "uri": uri }))?;
    source.execute("migrate", &json!({ "uri": uri }))?;
    let failed = |why: String| Error::Move { guest: machine.name.clone(), why };
    let status = loop {
        let status = source.execute("query-migrate", &json!({}))?;
        match status.get("status").and_then(Value::as_str).unwrap_or_default() {
            "completed" => break status,
            "failed" | "cancelled" => {
                let why = status.get("error-desc").and_then(Value::as_str).unwrap_or("QEMU gives no reason");
                return Err(failed(why.to_owned()));
            }
            _ if Instant::now() >= deadline => {
                source.execute("migrate_cancel", &json!({}))?;
                return Err(failed("it changes its memory faster than the memory can be copied".to_owned()));
            }
            _ => std::thread::sleep(POLL_INTERVAL),
        }
    };
    let until = Instant::now() + RESUME_TIMEOUT;
    while !is_running(&mut target)? {
        if Instant::now() >= until {
            return Err(failed("the migration has completed, but the second process does not run the guest".to_owned()));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let number = |path: &[&str]| path.iter().try_fold(&status, |value, key| value.get(key)).and_then(Value::as_u64).unwrap_or_default();
    let pause = Duration::from_millis(number(&["downtime"]));
    Ok(Moved { process: *to, pause, total: Duration::ZERO, copied: Bytes(number(&["ram", "transferred"])) })
}

fn is_running(qmp: &mut Qmp) -> Result<bool, qmp::Error> {
    let status = qmp.execute("query-status", &json!({}))?;
    Ok(status.get("running").and_then(Value::as_bool).unwrap_or(false))
}

/// Makes the first process run its guest again, at whatever point the migration stopped.
fn run_again(source: &mut Qmp) -> Result<(), qmp::Error> {
    let until = Instant::now() + EXIT_TIMEOUT;
    loop {
        if is_running(source)? {
            return Ok(());
        }
        // Refused while the migration is being cancelled.
        match source.execute("cont", &json!({})) {
            Err(error) if Instant::now() >= until => return Err(error),
            _ => std::thread::sleep(POLL_INTERVAL),
        }
    }
}
