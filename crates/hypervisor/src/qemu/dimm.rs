//! Slices as memory modules of a guest: added by QMP, taken away by the guest's consent.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use manager::api::Slice;
use serde_json::{Value, json};

use crate::driver::Offline;
use crate::qmp::{Error, Event, Qmp};

/// Of `ACPI_DEVICE_OST`: what the guest speaks of, an insertion or an ejection, and what it says (ACPI 6.4, table 6.55 to 6.61).
const OF_INSERTION: u64 = 1;
const OF_EJECTION: u64 = 3;
const SUCCESS: u64 = 0;
const IN_PROGRESS: u64 = 0x84;

/// QEMU lets go of memory a moment after its device is gone.
const LET_GO_WITHIN: Duration = Duration::from_secs(5);
const LET_GO_EVERY: Duration = Duration::from_millis(20);

/// The names of a slice's device, its memory, and the file that holds its lock.
pub(super) struct Names {
    pub(super) device: String,
    pub(super) memory: String,
    lock: String,
}

impl Names {
    pub(super) fn of(slice: &Slice) -> Self {
        let name = |what: &str| format!("{what}{}-{}", slice.emc, slice.index);
        Self { device: name("slice"), memory: name("memory"), lock: name("lock") }
    }
}

/// Adds a slice to node 1. QEMU gets the lock before it maps.
pub(super) fn add(qmp: &mut Qmp, slice: &Slice, file: BorrowedFd<'_>) -> Result<(), Error> {
    let Names { device, memory, lock } = Names::of(slice);
    qmp.hand_over(&lock, file)?;
    let backend = json!({
        "qom-type": "memory-backend-file", "id": memory, "mem-path": slice.path, "size": slice.bytes,
        "share": true, "prealloc": false, "dump": false,
    });
    qmp.ask("object-add", &backend)?;
    qmp.ask("device_add", &json!({ "driver": "pc-dimm", "id": device, "memdev": memory, "node": 1 }))?;
    Ok(())
}

/// Where a guest's modules are: `(device, address, slot)`.
pub(super) fn places(qmp: &mut Qmp) -> Result<Vec<(String, u64, u64)>, Error> {
    let told = qmp.ask("query-memory-devices", &json!({}))?;
    let place = |device: &Value| {
        let data = device.get("data")?;
        Some((data.get("id")?.as_str()?.to_owned(), data.get("addr")?.as_u64()?, data.get("slot")?.as_u64()?))
    };
    Ok(told.as_array().into_iter().flatten().filter_map(place).collect())
}

/// What an event says about the ejection of a device.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    /// The guest speaks of its insertion, and has not heard of the ejection.
    NotHeard,
    Progress,
    Gone,
    No(String),
}

fn said(event: &Event, device: &str) -> Option<Said> {
    match event.name.as_str() {
        "DEVICE_DELETED" if event.text(&["device"]) == Some(device) => Some(Said::Gone),
        "DEVICE_UNPLUG_GUEST_ERROR" | "MEM_UNPLUG_ERROR" if event.text(&["device"]) == Some(device) => {
            Some(Said::No(event.text(&["msg"]).unwrap_or("the guest refuses").to_owned()))
        }
        "ACPI_DEVICE_OST" if event.text(&["info", "device"]) == Some(device) => {
            match (event.number(&["info", "source"])?, event.number(&["info", "status"])?) {
                (OF_INSERTION, _) => Some(Said::NotHeard),
                (OF_EJECTION, IN_PROGRESS) => Some(Said::Progress),
                (OF_EJECTION, SUCCESS) => None,
                (OF_EJECTION, status) => Some(Said::No(format!("the guest's kernel answers with ACPI status {status:#x}"))),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Takes a slice away, and has QEMU let go of its file. May be said again after a failure.
pub(super) fn remove(qmp: &mut Qmp, slice: &Slice, deadline: Instant) -> Result<Offline, Error> {
    let names = Names::of(slice);
    if places(qmp)?.iter().any(|(device, ..)| *device == names.device) {
        let mut state = "the guest has not answered";
        qmp.ask("device_del", &json!({ "id": names.device }))?;
        loop {
            match qmp.wait(deadline, |event| said(event, &names.device))? {
                Some(Said::Gone) => break,
                Some(Said::No(why)) => return Ok(Offline::Refused(why)),
                Some(Said::Progress) => state = "the guest is moving its pages",
                // A guest that found a module while it booted answers for that first, and to nothing else at that time.
                Some(Said::NotHeard) => drop(qmp.ask("device_del", &json!({ "id": names.device }))?),
                None => return Ok(Offline::NotYet(state.to_owned())),
            }
        }
    }
    let until = Instant::now() + LET_GO_WITHIN;
    loop {
        match qmp.ask("object-del", &json!({ "id": names.memory })) {
            Ok(_) => break,
            // Said before.
            Err(Error::Refused { said, .. }) if said.contains("not found") => break,
            Err(Error::Refused { .. }) if Instant::now() < until => std::thread::sleep(LET_GO_EVERY),
            Err(error) => return Err(error),
        }
    }
    match qmp.close(&names.lock) {
        Ok(()) => Ok(Offline::Done),
        Err(Error::Refused { said, .. }) if said.contains("not found") => Ok(Offline::Done),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_words_about_an_ejection_are_understood() {
        let check = |name: &str, data: Value, want: Option<Said>| {
            assert_eq!(said(&Event { name: name.to_owned(), data: data.clone() }, "slice0-1"), want, "{name} {data}");
        };
        let ost = |device: &str, source: u64, status: u64| json!({ "info": { "device": device, "source": source, "status": status } });
        check("DEVICE_DELETED", json!({ "device": "slice0-1", "path": "/machine/peripheral/slice0-1" }), Some(Said::Gone));
        check("DEVICE_DELETED", json!({ "device": "slice0-2" }), None);
        check("DEVICE_DELETED", json!({ "path": "/machine/unattached" }), None);
        check("ACPI_DEVICE_OST", ost("slice0-1", 1, 0), Some(Said::NotHeard));
        check("ACPI_DEVICE_OST", ost("slice0-1", 3, 132), Some(Said::Progress));
        check("ACPI_DEVICE_OST", ost("slice0-2", 3, 1), None);
        check("ACPI_DEVICE_OST", ost("slice0-1", 3, 0), None);
        let no = "the guest's kernel answers with ACPI status 0x1".to_owned();
        check("ACPI_DEVICE_OST", ost("slice0-1", 3, 1), Some(Said::No(no)));
        // After the device is gone, the slot speaks on.
        check("ACPI_DEVICE_OST", json!({ "info": { "source": 3, "status": 0, "slot": "0" } }), None);
        let error = json!({ "device": "slice0-1", "msg": "acpi: device unplug request for not supported" });
        check("MEM_UNPLUG_ERROR", error, Some(Said::No("acpi: device unplug request for not supported".to_owned())));
        check("DEVICE_UNPLUG_GUEST_ERROR", json!({ "device": "slice0-1" }), Some(Said::No("the guest refuses".to_owned())));
        check("STOP", Value::Null, None);
    }
}
