//! The one-time repair (Pond, section 4.2): a guest is moved, running, to a second process on the same host whose memory is all
//! local. Its devices have the same names, so that to the guest nothing changes; its slices are let go of with the first process.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Qemu, arguments, dimm};
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
    let more = waiting_with(machine, &dimm::places(&mut source)?).ok_or_else(|| failed("its slices are not where they were".to_owned()))?;
    let to = qemu.spawn(machine, 2, &more)?;
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

/// A process that waits for a guest with modules in these places.
fn waiting_with(machine: &Machine, places: &[(String, u64, u64)]) -> Option<Vec<String>> {
    let mut argv = vec!["-incoming".to_owned(), "defer".to_owned()];
    for slice in &machine.slices {
        let dimm::Names { device, memory, .. } = dimm::Names::of(slice);
        let (_, address, slot) = places.iter().find(|(known, ..)| *known == device)?;
        argv.extend(["-object".to_owned(), format!("memory-backend-memfd,id={memory},size={},share=on", slice.bytes)]);
        argv.extend(["-device".to_owned(), format!("pc-dimm,id={device},memdev={memory},node=1,addr={address},slot={slot}")]);
    }
    Some(argv)
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

#[cfg(test)]
mod tests {
    use manager::api::Slice;

    use super::*;

    #[test]
    fn the_second_process_has_the_modules_where_they_were() {
        let slice = |index| Slice { emc: 0, index, turn: 4, path: "/pool/a".into(), bytes: 1 << 28 };
        let machine = Machine {
            name: "vm".to_owned(),
            cores: 1,
            local_bytes: 1 << 29,
            slices: vec![slice(3), slice(1)],
            arguments: Vec::new(),
            domain: None,
        };
        let places = [("slice0-1".to_owned(), 0x1_1000_0000, 1), ("slice0-3".to_owned(), 0x1_0000_0000, 0)];
        let line = waiting_with(&machine, &places).unwrap().join(" ");
        assert_eq!(
            line,
            "-incoming defer -object memory-backend-memfd,id=memory0-3,size=268435456,share=on \
             -device pc-dimm,id=slice0-3,memdev=memory0-3,node=1,addr=4294967296,slot=0 \
             -object memory-backend-memfd,id=memory0-1,size=268435456,share=on \
             -device pc-dimm,id=slice0-1,memdev=memory0-1,node=1,addr=4563402752,slot=1"
        );
        assert_eq!(waiting_with(&machine, &places[..1]), None);
    }
}
