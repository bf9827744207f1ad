//! The one-time repair (Pond, section 4.2): a guest is moved, running, to a second process on the same host whose memory is all
//! local. Its devices have the same names, so that to the guest nothing changes; its slices are let go of with the first process.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Qemu, arguments, slices};
use crate::driver::{Driver, Error, GONE_WITHIN, Machine, Moved, Process};
use crate::qmp::{self, Qmp};

/// No limit that memory could reach, in bytes per second.
const BANDWIDTH: u64 = 1 << 40;
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long the second process may take to run once it has everything.
const RUN_WITHIN: Duration = Duration::from_secs(10);

pub(super) fn to_local(qemu: &Qemu, machine: &Machine, from: &Process, within: Duration) -> Result<Moved, Error> {
    let begun = Instant::now();
    let failed = |why: String| Error::Move { guest: machine.name.clone(), why };
    if from.generation != 1 {
        return Err(failed("it was moved before".to_owned()));
    }
    let mut source = qemu.connect(machine, from)?;
    let devices = slices::devices(&mut source)?;
    let (way, devices) =
        slices::waiting_with(machine, &devices).ok_or_else(|| failed(format!("QEMU does not have its slices, but {devices:?}")))?;
    let mut more = vec!["-incoming".to_owned(), "defer".to_owned()];
    more.extend(devices);
    let to = qemu.spawn(machine, 2, way, &more)?;
    let moved = transfer(qemu, machine, &mut source, &to, begun + within);
    match moved {
        Ok(stats) => {
            // It stands still for good, and must not keep the slices.
            drop(source);
            qemu.stop(machine, from, Duration::ZERO)?;
            Ok(Moved { process: to, total_seconds: begun.elapsed().as_secs_f64(), ..stats })
        }
        Err(error) => {
            // Only one of the two may ever run, so the second ends before the first goes on.
            to.kill(&qemu.roots);
            if let Err(worse) = go_on(&mut source) {
                return Err(failed(format!("{error}; and then: {worse}")));
            }
            Err(failed(error.to_string()))
        }
    }
}

/// Ends a move that somebody has left: the second process has the guest if it runs it.
pub(super) fn settle(qemu: &Qemu, machine: &Machine, first: Process, second: Process) -> Result<Process, Error> {
    if qemu.connect(machine, &second).and_then(|mut target| Ok(runs(&mut target)?)).unwrap_or(false) {
        first.kill(&qemu.roots);
        return Ok(second);
    }
    second.kill(&qemu.roots);
    go_on(&mut qemu.connect(machine, &first)?)?;
    Ok(first)
}

fn transfer(qemu: &Qemu, machine: &Machine, source: &mut Qmp, to: &Process, deadline: Instant) -> Result<Moved, Error> {
    let mut target = qemu.connect(machine, to)?;
    let uri = format!("unix:{}", arguments::escaped(&qemu.path(&machine.name, to.generation, "move")));
    let pause = u64::try_from(qemu.settings.pause.as_millis()).unwrap_or(u64::MAX);
    source.ask("migrate-set-parameters", &json!({ "max-bandwidth": BANDWIDTH, "downtime-limit": pause }))?;
    target.ask("migrate-incoming", &json!({ "uri": uri }))?;
    source.ask("migrate", &json!({ "uri": uri }))?;
    let failed = |why: String| Error::Move { guest: machine.name.clone(), why };
    let told = loop {
        let told = source.ask("query-migrate", &json!({}))?;
        match told.get("status").and_then(Value::as_str).unwrap_or_default() {
            "completed" => break told,
            "failed" | "cancelled" => {
                let why = told.get("error-desc").and_then(Value::as_str).unwrap_or("QEMU gives no reason");
                return Err(failed(why.to_owned()));
            }
            _ if Instant::now() >= deadline => {
                source.ask("migrate_cancel", &json!({}))?;
                return Err(failed("it changes its memory faster than that can be copied".to_owned()));
            }
            _ => std::thread::sleep(LOOK_EVERY),
        }
    };
    let until = Instant::now() + RUN_WITHIN;
    while !runs(&mut target)? {
        if Instant::now() >= until {
            return Err(failed("the second process has all of it and does not run it".to_owned()));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let number = |path: &[&str]| path.iter().try_fold(&told, |value, key| value.get(key)).and_then(Value::as_u64).unwrap_or_default();
    let pause = Duration::from_millis(number(&["downtime"]));
    Ok(Moved { process: *to, pause_seconds: pause.as_secs_f64(), total_seconds: 0.0, copied_bytes: number(&["ram", "transferred"]) })
}

fn runs(qmp: &mut Qmp) -> Result<bool, qmp::Error> {
    let told = qmp.ask("query-status", &json!({}))?;
    Ok(told.get("running").and_then(Value::as_bool).unwrap_or(false))
}

/// Has the first process run its guest again, however far the move had come.
fn go_on(source: &mut Qmp) -> Result<(), qmp::Error> {
    let until = Instant::now() + GONE_WITHIN;
    loop {
        if runs(source)? {
            return Ok(());
        }
        // Refused while the move is being undone.
        match source.ask("cont", &json!({})) {
            Err(error) if Instant::now() >= until => return Err(error),
            _ => std::thread::sleep(LOOK_EVERY),
        }
    }
}
