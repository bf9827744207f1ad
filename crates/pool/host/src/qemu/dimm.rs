//! Slices as memory modules. A guest is asked for one as a whole, and cannot be asked to forget that.

use std::time::Instant;

use serde_json::{Value, json};

use super::slices::Names;
use crate::driver::Offline;
use crate::qmp::{Error, Event, Qmp};

/// Of `ACPI_DEVICE_OST`: what the guest speaks of, an insertion or an ejection, and what it says (ACPI 6.4, table 6.55 to 6.61).
const OF_INSERTION: u64 = 1;
const OF_EJECTION: u64 = 3;
const SUCCESS: u64 = 0;
const IN_PROGRESS: u64 = 0x84;

/// What `device_add` is told.
pub(super) fn device(Names { device, memory, .. }: &Names) -> Value {
    json!({ "driver": "pc-dimm", "id": device, "memdev": memory, "node": 1 })
}

/// The same module in a process that a guest is moved to.
pub(super) fn placed(Names { device, memory, .. }: &Names, address: u64, slot: u64) -> String {
    format!("pc-dimm,id={device},memdev={memory},node=1,addr={address},slot={slot}")
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

/// Takes the module away.
pub(super) fn take(qmp: &mut Qmp, device: &str, deadline: Instant) -> Result<Offline, Error> {
    let mut state = "the guest has not answered";
    qmp.ask("device_del", &json!({ "id": device }))?;
    loop {
        match qmp.wait(deadline, |event| said(event, device))? {
            Some(Said::Gone) => return Ok(Offline::Done),
            Some(Said::No(why)) => return Ok(Offline::Refused(why)),
            Some(Said::Progress) => state = "the guest is moving its pages",
            // A guest that found a module while it booted answers for that first, and to nothing else at that time.
            Some(Said::NotHeard) => drop(qmp.ask("device_del", &json!({ "id": device }))?),
            None => return Ok(Offline::NotYet(state.to_owned())),
        }
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
