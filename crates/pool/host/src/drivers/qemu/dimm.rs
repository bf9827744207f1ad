//! Slices as memory modules (`pc-dimm`). The guest is asked to give up a module as a whole, and the request cannot be
//! withdrawn.

use std::time::Instant;

use serde_json::{Value, json};

use super::memory_device::Names;
use super::qmp::{Error, Event, Qmp};
use crate::driver::Offline;

/// Values of `source` and `status` in `ACPI_DEVICE_OST` (ACPI 6.4, tables 6.55 to 6.61).
const SOURCE_INSERTION: u64 = 1;
const SOURCE_EJECTION: u64 = 3;
const STATUS_SUCCESS: u64 = 0;
const STATUS_IN_PROGRESS: u64 = 0x84;

/// Arguments of `device_add`.
pub(super) fn arguments(Names { device, memory, .. }: &Names) -> Value {
    json!({ "driver": "pc-dimm", "id": device, "memdev": memory, "node": 1 })
}

/// The module at its address and slot, for the command line of the process that a guest is moved to.
pub(super) fn option(Names { device, memory, .. }: &Names, address: u64, slot: u64) -> String {
    format!("pc-dimm,id={device},memdev={memory},node=1,addr={address},slot={slot}")
}

/// Progress of an ejection.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    /// The guest reports on the insertion, and has not seen the ejection request.
    NotSeen,
    /// The guest has started.
    Started,
    /// The module is removed.
    Removed,
    /// The guest refused; its reason.
    Refused(String),
}

/// The progress that an event reports for a device; `None` for other events.
fn progress(event: &Event, device: &str) -> Option<Progress> {
    match event.name.as_str() {
        "DEVICE_DELETED" if event.text(&["device"]) == Some(device) => Some(Progress::Removed),
        "DEVICE_UNPLUG_GUEST_ERROR" | "MEM_UNPLUG_ERROR" if event.text(&["device"]) == Some(device) => {
            Some(Progress::Refused(event.text(&["msg"]).unwrap_or("the guest refuses").to_owned()))
        }
        "ACPI_DEVICE_OST" if event.text(&["info", "device"]) == Some(device) => {
            match (event.number(&["info", "source"])?, event.number(&["info", "status"])?) {
                (SOURCE_INSERTION, _) => Some(Progress::NotSeen),
                (SOURCE_EJECTION, STATUS_IN_PROGRESS) => Some(Progress::Started),
                (SOURCE_EJECTION, STATUS_SUCCESS) => None,
                (SOURCE_EJECTION, status) => Some(Progress::Refused(format!("the guest's kernel reports ACPI status {status:#x}"))),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Removes the module from the guest.
pub(super) fn remove(qmp: &mut Qmp, device: &str, deadline: Instant) -> Result<Offline, Error> {
    let mut state = "the guest has not answered";
    qmp.execute("device_del", &json!({ "id": device }))?;
    loop {
        match qmp.wait(deadline, |event| progress(event, device))? {
            Some(Progress::Removed) => return Ok(Offline::Done),
            Some(Progress::Refused(why)) => return Ok(Offline::Refused(why)),
            Some(Progress::Started) => state = "the guest is moving its pages",
            // A guest that found the module during boot reports on the insertion first, and ignores requests until
            // then.
            Some(Progress::NotSeen) => drop(qmp.execute("device_del", &json!({ "id": device }))?),
            None => return Ok(Offline::Pending(state.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_report_the_progress_of_an_ejection() {
        let check = |name: &str, data: Value, expected: Option<Progress>| {
            assert_eq!(progress(&Event { name: name.to_owned(), data: data.clone() }, "slice0-1"), expected, "{name} {data}");
        };
        let ost = |device: &str, source: u64, status: u64| json!({ "info": { "device": device, "source": source, "status": status } });
        check("DEVICE_DELETED", json!({ "device": "slice0-1", "path": "/machine/peripheral/slice0-1" }), Some(Progress::Removed));
        check("DEVICE_DELETED", json!({ "device": "slice0-2" }), None);
        check("DEVICE_DELETED", json!({ "path": "/machine/unattached" }), None);
        check("ACPI_DEVICE_OST", ost("slice0-1", 1, 0), Some(Progress::NotSeen));
        check("ACPI_DEVICE_OST", ost("slice0-1", 3, 132), Some(Progress::Started));
        check("ACPI_DEVICE_OST", ost("slice0-2", 3, 1), None);
        check("ACPI_DEVICE_OST", ost("slice0-1", 3, 0), None);
        let refused = "the guest's kernel reports ACPI status 0x1".to_owned();
        check("ACPI_DEVICE_OST", ost("slice0-1", 3, 1), Some(Progress::Refused(refused)));
        // The slot still reports after the device is removed.
        check("ACPI_DEVICE_OST", json!({ "info": { "source": 3, "status": 0, "slot": "0" } }), None);
        let error = json!({ "device": "slice0-1", "msg": "acpi: device unplug request for not supported" });
        check("MEM_UNPLUG_ERROR", error, Some(Progress::Refused("acpi: device unplug request for not supported".to_owned())));
        check("DEVICE_UNPLUG_GUEST_ERROR", json!({ "device": "slice0-1" }), Some(Progress::Refused("the guest refuses".to_owned())));
        check("STOP", Value::Null, None);
    }
}
