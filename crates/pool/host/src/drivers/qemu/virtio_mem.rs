//! Slices as virtio-mem devices. Requires QEMU 8.1 and a guest with the `virtio_mem` driver (Linux 5.16).
//!
//! Each slice is one device on its own PCI Express root port: a device can only be removed as a whole, and only from
//! such a port. QEMU before 8.1 cannot remove these devices, so a slice would stay mapped by a guest that no longer
//! uses it.
//!
//! A slice is requested from the guest by a requested size of zero. If the time limit passes, the request is withdrawn
//! and the guest gets back the part that it gave: the pool cannot use part of a slice, and a guest that is short of
//! memory must not be asked again and again. Once the guest has given the whole slice, only the empty device is left.
//! The request for the device stays, because it asks the guest for nothing that it uses.
//!
//! A device has one block where possible, instead of QEMU's default of 2 MiB. Linux gives blocks smaller than its own
//! memory blocks one by one, and offlines its own block after the last of them, when QEMU already reports the device as
//! empty. If the device is removed at that moment, Linux (6.12) deadlocks: the removal holds the memory hot-plug lock
//! and waits for the driver, which waits for that lock. A block at least as large as its own is offlined first and
//! given afterwards. Linux plugs nothing of a slice smaller than its memory blocks. So slices must be a power of two.

use std::time::{Duration, Instant};

use manager::api::Slice;
use serde_json::{Value, json};
use units::Bytes;

use super::memory_device::{self, Names, Place};
use super::qmp::{Error, Event, Qmp};
use crate::driver::Offline;

/// Slices of one guest: each uses one of the eight functions of a PCI slot of the root bus, from [`FIRST_SLOT`] on.
pub(super) const SLICES_MAX: usize = 64;
const FIRST_SLOT: usize = 0x10;
const FUNCTIONS: usize = 8;

/// Largest block: Linux's largest memory block. A larger one would require more alignment than QEMU leaves space for.
const BLOCK_MAX: Bytes = Bytes(2 << 30);

/// First QEMU version (major, minor) that can remove these devices.
const VERSION_MIN: (u64, u64) = (8, 1);

/// QEMU reports changed sizes once per second at most; sizes are polled more often.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// A guest may miss the first removal request.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

fn port(ordinal: usize) -> String {
    format!("slices{ordinal}")
}

/// The root ports for this number of slices.
pub(super) fn ports(slices: usize) -> impl Iterator<Item = String> {
    (0..slices).map(|ordinal| {
        let (slot, function) = (FIRST_SLOT + ordinal / FUNCTIONS, ordinal % FUNCTIONS);
        let first = if function == 0 { ",multifunction=on" } else { "" };
        // The devices have no I/O ports, which are scarce.
        format!("pcie-root-port,id={},chassis={},addr={slot:x}.{function}{first},io-reserve=0", port(ordinal), ordinal + 1)
    })
}

/// Why these slices cannot be virtio-mem devices; `None` if they can.
pub(super) fn unsupported_slices(slices: &[Slice]) -> Option<String> {
    if slices.len() > SLICES_MAX {
        return Some(format!(
            "{} slices as virtio-mem devices; a guest can have {SLICES_MAX}: reduce its pool memory, use a pool of larger slices, or set \
             qemu.slices = \"dimm\"",
            slices.len()
        ));
    }
    let odd = slices.iter().find(|slice| !slice.bytes.0.is_power_of_two())?;
    Some(format!(
        "slices of {} bytes as virtio-mem devices; the size must be a power of two, such as {}: use a pool of such slices, or set \
         qemu.slices = \"dimm\"",
        odd.bytes.0,
        1_u64 << odd.bytes.0.checked_ilog2().unwrap_or_default()
    ))
}

/// Why this QEMU cannot remove virtio-mem devices; `None` if it can.
pub(super) fn unsupported_qemu(qmp: &mut Qmp) -> Result<Option<String>, Error> {
    let reply = qmp.execute("query-version", &json!({}))?;
    let number = |key: &str| reply.get("qemu").and_then(|version| version.get(key)).and_then(Value::as_u64).unwrap_or_default();
    let version = (number("major"), number("minor"));
    let (major, minor) = VERSION_MIN;
    Ok((version < VERSION_MIN).then(|| {
        format!(
            "QEMU {}.{} cannot remove a virtio-mem device from a guest; install {major}.{minor} or newer, or set qemu.slices = \"dimm\"",
            version.0, version.1
        )
    }))
}

/// Arguments of `device_add`.
pub(super) fn arguments(names: &Names, ordinal: usize, size: Bytes) -> Value {
    json!({
        "driver": "virtio-mem-pci", "id": names.device, "memdev": names.memory, "node": 1, "bus": port(ordinal), "requested-size": size,
        "block-size": size.min(BLOCK_MAX),
        // Without it QEMU refuses to remove the device: the guest might read memory that it has given.
        "unplugged-inaccessible": "on",
    })
}

/// The device at its address, for the command line of the process that a guest is moved to. The plugged size migrates
/// with the guest.
pub(super) fn option(names: &Names, ordinal: usize, address: u64, block: Bytes) -> String {
    let (Names { device, memory, .. }, port) = (names, port(ordinal));
    format!(
        "virtio-mem-pci,id={device},memdev={memory},node=1,bus={port},memaddr={address},block-size={},unplugged-inaccessible=on",
        block.0
    )
}

/// Removes a slice of this size from the guest, including the device.
pub(super) fn remove(qmp: &mut Qmp, device: &str, size: Bytes, deadline: Instant) -> Result<Offline, Error> {
    request(qmp, device, Bytes::ZERO)?;
    match plugged(qmp, device, deadline) {
        Ok(None) => Ok(Offline::Done),
        Ok(Some(Bytes::ZERO)) => remove_empty(qmp, device, deadline),
        Ok(Some(left)) => {
            request(qmp, device, size)?;
            Ok(Offline::Pending(format!("the request is withdrawn, since the guest still has {} of its {} bytes", left.0, size.0)))
        }
        Err(error) => {
            // The connection may be broken, in which case the next adoption withdraws the request.
            let _ = request(qmp, device, size);
            Err(error)
        }
    }
}

/// Waits until the guest has given the whole device. Returns the plugged size at the end; `None` if the device is
/// removed.
fn plugged(qmp: &mut Qmp, device: &str, deadline: Instant) -> Result<Option<Bytes>, Error> {
    loop {
        let Some(Place::VirtioMem { plugged, .. }) = memory_device::find(qmp, device)? else { return Ok(None) };
        if plugged == Bytes::ZERO || Instant::now() >= deadline {
            return Ok(Some(plugged));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Withdraws the requests of a daemon that has exited. Returns the number of slices for which there was one.
pub(super) fn withdraw_requests(qmp: &mut Qmp, slices: &[Slice]) -> Result<usize, Error> {
    let devices = memory_device::all(qmp)?;
    let mut withdrawn = 0;
    for slice in slices {
        let Names { device, .. } = Names::of(slice);
        let is_requested = devices.iter().any(|found| {
            let Place::VirtioMem { requested, plugged, .. } = found.place else { return false };
            // The guest does not use an empty device.
            found.name == device && plugged > Bytes::ZERO && requested < slice.bytes
        });
        if is_requested {
            request(qmp, &device, slice.bytes)?;
            withdrawn += 1;
        }
    }
    Ok(withdrawn)
}

/// Sets the size that the guest is asked to have plugged.
fn request(qmp: &mut Qmp, device: &str, size: Bytes) -> Result<(), Error> {
    let path = format!("/machine/peripheral/{device}");
    qmp.execute("qom-set", &json!({ "path": path, "property": "requested-size", "value": size })).map(drop)
}

/// Removes the device, which is empty.
fn remove_empty(qmp: &mut Qmp, device: &str, deadline: Instant) -> Result<Offline, Error> {
    let mut state = "the guest has given the whole slice, and has not released the empty device".to_owned();
    loop {
        match qmp.execute("device_del", &json!({ "id": device })) {
            // Refused while the guest still processes the previous request.
            Err(Error::Refused { message, .. }) if memory_device::find(qmp, device)?.is_some() => {
                state = format!("the guest has given the whole slice, and its empty device remains: {message}");
            }
            Err(Error::Refused { .. }) => return Ok(Offline::Done),
            result => drop(result?),
        }
        let until = deadline.min(Instant::now() + RETRY_INTERVAL);
        match qmp.wait(until, |event| outcome(event, device))? {
            Some(outcome) => return Ok(outcome),
            None if Instant::now() >= deadline => return Ok(Offline::Pending(state)),
            None => {}
        }
    }
}

/// The outcome that an event reports for a device; `None` for other events.
fn outcome(event: &Event, device: &str) -> Option<Offline> {
    if event.text(&["device"]) != Some(device) {
        return None;
    }
    match event.name.as_str() {
        "DEVICE_DELETED" => Some(Offline::Done),
        "DEVICE_UNPLUG_GUEST_ERROR" => Some(Offline::Refused("the guest keeps the empty device".to_owned())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::qemu::qmp::tests::qemu;

    /// A device with this plugged and this requested size.
    macro_rules! device_with {
        ($plugged:literal, $requested:literal) => {
            concat!(
                r#"{"return": [{"type": "virtio-mem", "data": {"id": "slice0-1", "memaddr": 4294967296, "block-size": 2097152, "size": "#,
                $plugged,
                r#", "requested-size": "#,
                $requested,
                r#", "max-size": 268435456, "node": 1, "memdev": "/objects/memory0-1"}}], "id": ID}"#
            )
        };
    }

    const SIZE: Bytes = Bytes(256 << 20);
    const YES: &str = r#"{"return": {}, "id": ID}"#;
    const SOME: &str = device_with!(4194304, 0);
    const EMPTY: &str = device_with!(0, 0);
    const WHOLE: &str = device_with!(2097152, 268435456);
    const NONE: &str = r#"{"return": [], "id": ID}"#;
    const GONE: &str = "{\"return\": {}, \"id\": ID}\n{\"event\": \"DEVICE_DELETED\", \"data\": {\"device\": \"slice0-1\"}}";
    const KEPT: &str = "{\"return\": {}, \"id\": ID}\n{\"event\": \"DEVICE_UNPLUG_GUEST_ERROR\", \"data\": {\"device\": \"slice0-1\"}}";
    const BUSY: &str = r#"{"id": ID, "error": {"class": "GenericError", "desc": "Device slice0-1 is already in the process of unplug"}}"#;

    /// Outcome of a removal with these replies of QEMU, and the commands that QEMU received with the values they set.
    fn remove_with(replies: &'static [&'static str], timeout: Duration) -> (Offline, Vec<String>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let server = qemu(&path, replies);
        let mut qmp = Qmp::connect(&path).unwrap();
        let removed = remove(&mut qmp, "slice0-1", SIZE, Instant::now() + timeout).unwrap();
        drop(qmp);
        let short = |line: String| {
            let command: Value = serde_json::from_str(&line).unwrap();
            let value = &command["arguments"]["value"];
            format!("{}{}", command["execute"].as_str().unwrap(), if value.is_null() { String::new() } else { format!(" {value}") })
        };
        (removed, server.join().unwrap().into_iter().skip(1).map(short).collect())
    }

    #[test]
    fn unsupported_slices_are_reported() {
        let check = |count: u32, bytes: u64, why: Option<&[&str]>| {
            let slice = |index| Slice { emc: 0, index, generation: 1, path: "/pool/a".into(), offset: None, bytes: Bytes(bytes) };
            let found = unsupported_slices(&(0..count).map(slice).collect::<Vec<_>>());
            assert_eq!(found.is_some(), why.is_some(), "{found:?}");
            for word in why.into_iter().flatten() {
                assert!(found.as_ref().is_some_and(|found| found.contains(word)), "{word} in {found:?}");
            }
        };
        check(0, 1 << 30, None);
        check(64, 1 << 30, None);
        check(65, 1 << 30, Some(&["65 slices", "can have 64", "qemu.slices = \"dimm\""]));
        check(1, 3 << 30, Some(&["3221225472 bytes", "such as 2147483648", "qemu.slices = \"dimm\""]));
        check(1, 0, Some(&["0 bytes"]));
    }

    #[test]
    fn a_device_has_as_few_blocks_as_possible() {
        let check = |bytes: u64, block: u64| {
            let slice = Slice { emc: 0, index: 1, generation: 1, path: "/pool/a".into(), offset: None, bytes: Bytes(bytes) };
            assert_eq!(arguments(&Names::of(&slice), 0, slice.bytes)["block-size"], block, "{bytes}");
        };
        check(128 << 20, 128 << 20);
        check(2 << 30, 2 << 30);
        check(8 << 30, 2 << 30);
    }

    #[test]
    fn a_slice_is_removed_once_the_guest_has_given_it_all() {
        let check = |replies, expected: Offline, commands: &[&str]| {
            let commands = commands.iter().map(ToString::to_string).collect();
            assert_eq!(remove_with(replies, Duration::from_secs(30)), (expected, commands));
        };
        let query = "query-memory-devices";
        check(&[YES, SOME, SOME, EMPTY, GONE], Offline::Done, &["qom-set 0", query, query, query, "device_del"]);
        // The device was removed in the meantime.
        check(&[YES, NONE], Offline::Done, &["qom-set 0", query]);
        check(&[YES, EMPTY, BUSY, NONE], Offline::Done, &["qom-set 0", query, "device_del", query]);
        let kept = Offline::Refused("the guest keeps the empty device".to_owned());
        check(&[YES, EMPTY, KEPT], kept, &["qom-set 0", query, "device_del"]);
    }

    #[test]
    fn a_request_is_withdrawn_at_the_deadline() {
        let check = |replies, why: &str, expected: &[&str]| {
            let (removed, commands) = remove_with(replies, Duration::ZERO);
            assert!(matches!(&removed, Offline::Pending(state) if state.contains(why)), "{why}: {removed:?}");
            assert_eq!(commands, expected);
        };
        let query = "query-memory-devices";
        check(
            &[YES, SOME, YES],
            "withdrawn, since the guest still has 4194304 of its 268435456 bytes",
            &["qom-set 0", query, "qom-set 268435456"],
        );
        // The request for an empty device is not withdrawn: the guest uses nothing of it.
        check(&[YES, EMPTY, YES], "has not released the empty device", &["qom-set 0", query, "device_del"]);
        check(&[YES, EMPTY, BUSY, EMPTY], "already in the process of unplug", &["qom-set 0", query, "device_del", query]);
    }

    #[test]
    fn requests_of_a_daemon_that_exited_are_withdrawn() {
        let check = |replies: &'static [&'static str], withdrawn: usize| {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("qmp");
            let server = qemu(&path, replies);
            let slice = |index| Slice { emc: 0, index, generation: 1, path: "/pool/a".into(), offset: None, bytes: SIZE };
            let mut qmp = Qmp::connect(&path).unwrap();
            assert_eq!(withdraw_requests(&mut qmp, &[slice(1), slice(2)]).unwrap(), withdrawn);
            drop(qmp);
            let received = server.join().unwrap();
            let set = received.iter().filter(|line| line.contains("qom-set") && line.contains("268435456"));
            assert_eq!(set.count(), withdrawn, "{received:?}");
        };
        check(&[SOME, YES], 1);
        check(&[EMPTY], 0);
        check(&[NONE], 0);
        check(&[WHOLE], 0);
    }

    #[test]
    fn an_unsupported_qemu_is_reported() {
        let check = |replies: &'static [&'static str], expected: Option<&str>| {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("qmp");
            let server = qemu(&path, replies);
            let why = unsupported_qemu(&mut Qmp::connect(&path).unwrap()).unwrap();
            assert_eq!(why.as_deref().map(|why| why.split(" cannot").next().unwrap()), expected);
            server.join().unwrap();
        };
        check(&[r#"{"return": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ""}, "id": ID}"#], Some("QEMU 7.2"));
        check(&[r#"{"return": {"qemu": {"micro": 5, "minor": 0, "major": 8}, "package": ""}, "id": ID}"#], Some("QEMU 8.0"));
        check(&[r#"{"return": {"qemu": {"micro": 0, "minor": 1, "major": 8}, "package": ""}, "id": ID}"#], None);
        check(&[r#"{"return": {"qemu": {"micro": 3, "minor": 0, "major": 10}, "package": ""}, "id": ID}"#], None);
    }
}
