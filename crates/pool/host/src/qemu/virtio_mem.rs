//! Slices as virtio-mem devices, for which QEMU 8.1 and a guest's driver are needed (Linux 5.16).
//!
//! Each slice is a device of its own on a PCI Express root port of its own: a device can only be taken away as a whole, and only
//! from such a port. QEMU before 8.1 takes none away, so that a slice would stay mapped by a guest that has no use for it.
//!
//! A guest is asked for a slice by a requested size of zero. When time is up, the request is taken back, and the guest gets again
//! what it gave: the pool has no use for a part of a slice, and a guest that has become short of memory is not to be asked on and
//! on. Once it has given all of it, only the empty device is left; the request for that stays, because it asks the guest for
//! nothing that it uses.
//!
//! A device is of one block, if it can be, and not of QEMU's blocks of 2 MiB. Linux gives blocks that are smaller than its own one
//! by one, and lets go of its own after the last of them, when QEMU has the device for empty. If that is taken away then, Linux
//! (6.12) hangs: who takes the device away holds the lock of memory hot-plug and waits for the driver, which waits for that lock.
//! A block that is no smaller than its own it lets go of first, and then gives. Of a slice that is smaller than its blocks it
//! takes nothing. So slices must be a power of two.

use std::time::{Duration, Instant};

use manager::api::Slice;
use serde_json::{Value, json};

use super::slices::{self, Names, Place};
use crate::driver::Offline;
use crate::qmp::{Error, Event, Qmp};

/// Slices of one guest: each takes one of the eight functions of a place on the root bus, from this place on.
pub(super) const SLICES_MAX: usize = 64;
const FIRST_PLACE: usize = 0x10;
const FUNCTIONS: usize = 8;

/// The largest block, which is Linux's largest. A larger one would have to be aligned more than QEMU leaves room for.
const BLOCK_MAX: u64 = 2 << 30;

/// The first QEMU that takes such devices away: major and minor.
const LEAST_VERSION: (u64, u64) = (8, 1);

/// QEMU tells of changed sizes once a second at most; it is asked more often.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A guest may not hear the first time that a device is to go.
const ASK_AGAIN_EVERY: Duration = Duration::from_secs(5);

fn port(ordinal: usize) -> String {
    format!("slices{ordinal}")
}

/// The root ports of so many slices.
pub(super) fn ports(slices: usize) -> impl Iterator<Item = String> {
    (0..slices).map(|ordinal| {
        let (place, function) = (FIRST_PLACE + ordinal / FUNCTIONS, ordinal % FUNCTIONS);
        let first = if function == 0 { ",multifunction=on" } else { "" };
        // The devices have no I/O ports, of which there are few.
        format!("pcie-root-port,id={},chassis={},addr={place:x}.{function}{first},io-reserve=0", port(ordinal), ordinal + 1)
    })
}

/// Why a guest cannot have these slices, if it cannot.
pub(super) fn unfit(slices: &[Slice]) -> Option<String> {
    if slices.len() > SLICES_MAX {
        return Some(format!(
            "{} slices as virtio-mem devices, of which a guest can have {SLICES_MAX}; give it less of the pool, have a pool of larger slices, \
             or set qemu.slices = \"dimm\"",
            slices.len()
        ));
    }
    let odd = slices.iter().find(|slice| !slice.bytes.is_power_of_two())?;
    Some(format!(
        "slices of {} bytes as virtio-mem devices; they must be a power of two, such as {}: have a pool of such slices, or set \
         qemu.slices = \"dimm\"",
        odd.bytes,
        1_u64 << odd.bytes.checked_ilog2().unwrap_or_default()
    ))
}

/// Why this QEMU cannot do it, if it cannot.
pub(super) fn lacking(qmp: &mut Qmp) -> Result<Option<String>, Error> {
    let told = qmp.ask("query-version", &json!({}))?;
    let number = |key: &str| told.get("qemu").and_then(|version| version.get(key)).and_then(Value::as_u64).unwrap_or_default();
    let version = (number("major"), number("minor"));
    let (major, minor) = LEAST_VERSION;
    Ok((version < LEAST_VERSION).then(|| {
        format!(
            "QEMU {}.{} never takes a virtio-mem device away from a guest; install {major}.{minor} or newer, or set qemu.slices = \"dimm\"",
            version.0, version.1
        )
    }))
}

/// What `device_add` is told.
pub(super) fn device(names: &Names, ordinal: usize, bytes: u64) -> Value {
    json!({
        "driver": "virtio-mem-pci", "id": names.device, "memdev": names.memory, "node": 1, "bus": port(ordinal), "requested-size": bytes,
        "block-size": bytes.min(BLOCK_MAX),
        // Otherwise QEMU does not take it away: a guest might read what it has given.
        "unplugged-inaccessible": "on",
    })
}

/// The same device in a process that a guest is moved to. How much of it the guest has comes with the guest.
pub(super) fn placed(names: &Names, ordinal: usize, address: u64, block_bytes: u64) -> String {
    let (Names { device, memory, .. }, port) = (names, port(ordinal));
    format!(
        "virtio-mem-pci,id={device},memdev={memory},node=1,bus={port},memaddr={address},block-size={block_bytes},unplugged-inaccessible=on"
    )
}

/// Takes a slice of so many bytes away from the guest, device and all.
pub(super) fn take(qmp: &mut Qmp, device: &str, bytes: u64, deadline: Instant) -> Result<Offline, Error> {
    request(qmp, device, 0)?;
    match left(qmp, device, deadline) {
        Ok(None) => Ok(Offline::Done),
        Ok(Some(0)) => eject(qmp, device, deadline),
        Ok(Some(left)) => {
            request(qmp, device, bytes)?;
            Ok(Offline::NotYet(format!("the request is taken back, since the guest still has {left} of its {bytes} bytes")))
        }
        Err(error) => {
            // Whether QEMU hears that is not known, as little as whether it hears anything.
            let _ = request(qmp, device, bytes);
            Err(error)
        }
    }
}

/// Waits until the guest has given all of a device; how much it still has by then. None if the device is gone.
fn left(qmp: &mut Qmp, device: &str, deadline: Instant) -> Result<Option<u64>, Error> {
    loop {
        let Some(Place::VirtioMem { plugged_bytes, .. }) = slices::device(qmp, device)? else { return Ok(None) };
        if plugged_bytes == 0 || Instant::now() >= deadline {
            return Ok(Some(plugged_bytes));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Takes back requests that nobody waits for any more: whoever made them has died meanwhile. Returns for how many slices.
pub(super) fn take_back(qmp: &mut Qmp, slices: &[Slice]) -> Result<usize, Error> {
    let devices = slices::devices(qmp)?;
    let mut taken = 0;
    for slice in slices {
        let Names { device, .. } = Names::of(slice);
        let asked = devices.iter().any(|found| {
            let Place::VirtioMem { requested_bytes, plugged_bytes, .. } = found.place else { return false };
            // One that is empty is not missed.
            found.name == device && plugged_bytes > 0 && requested_bytes < slice.bytes
        });
        if asked {
            request(qmp, &device, slice.bytes)?;
            taken += 1;
        }
    }
    Ok(taken)
}

fn request(qmp: &mut Qmp, device: &str, bytes: u64) -> Result<(), Error> {
    let path = format!("/machine/peripheral/{device}");
    qmp.ask("qom-set", &json!({ "path": path, "property": "requested-size", "value": bytes })).map(drop)
}

/// Takes the device away that is empty.
fn eject(qmp: &mut Qmp, device: &str, deadline: Instant) -> Result<Offline, Error> {
    let mut state = "the guest has given all of it, and does not let go of the empty device".to_owned();
    loop {
        match qmp.ask("device_del", &json!({ "id": device })) {
            // Refused while the last word is still with the guest.
            Err(Error::Refused { said, .. }) if slices::device(qmp, device)?.is_some() => {
                state = format!("the guest has given all of it, and its empty device stays: {said}");
            }
            Err(Error::Refused { .. }) => return Ok(Offline::Done),
            asked => drop(asked?),
        }
        let until = deadline.min(Instant::now() + ASK_AGAIN_EVERY);
        match qmp.wait(until, |event| said(event, device))? {
            Some(outcome) => return Ok(outcome),
            None if Instant::now() >= deadline => return Ok(Offline::NotYet(state)),
            None => {}
        }
    }
}

fn said(event: &Event, device: &str) -> Option<Offline> {
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
    use crate::qmp::tests::qemu;

    /// QEMU's word of a device of which the guest has so many bytes, and is to have so many.
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

    const BYTES: u64 = 256 << 20;
    const YES: &str = r#"{"return": {}, "id": ID}"#;
    const SOME: &str = device_with!(4194304, 0);
    const EMPTY: &str = device_with!(0, 0);
    const WHOLE: &str = device_with!(2097152, 268435456);
    const NONE: &str = r#"{"return": [], "id": ID}"#;
    const GONE: &str = "{\"return\": {}, \"id\": ID}\n{\"event\": \"DEVICE_DELETED\", \"data\": {\"device\": \"slice0-1\"}}";
    const KEPT: &str = "{\"return\": {}, \"id\": ID}\n{\"event\": \"DEVICE_UNPLUG_GUEST_ERROR\", \"data\": {\"device\": \"slice0-1\"}}";
    const BUSY: &str = r#"{"id": ID, "error": {"class": "GenericError", "desc": "Device slice0-1 is already in the process of unplug"}}"#;

    /// What becomes of a slice when QEMU answers so, and what QEMU was told: the commands and what they set.
    fn take_with(answers: &'static [&'static str], within: Duration) -> (Offline, Vec<String>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let server = qemu(&path, answers);
        let mut qmp = Qmp::connect(&path).unwrap();
        let taken = take(&mut qmp, "slice0-1", BYTES, Instant::now() + within).unwrap();
        drop(qmp);
        let short = |line: String| {
            let command: Value = serde_json::from_str(&line).unwrap();
            let value = &command["arguments"]["value"];
            format!("{}{}", command["execute"].as_str().unwrap(), if value.is_null() { String::new() } else { format!(" {value}") })
        };
        (taken, server.join().unwrap().into_iter().skip(1).map(short).collect())
    }

    #[test]
    fn slices_that_a_guest_cannot_have_are_told() {
        let check = |count: u32, bytes: u64, why: Option<&[&str]>| {
            let slice = |index| Slice { emc: 0, index, turn: 1, path: "/pool/a".into(), bytes };
            let told = unfit(&(0..count).map(slice).collect::<Vec<_>>());
            assert_eq!(told.is_some(), why.is_some(), "{told:?}");
            for word in why.into_iter().flatten() {
                assert!(told.as_ref().is_some_and(|told| told.contains(word)), "{word} in {told:?}");
            }
        };
        check(0, 1 << 30, None);
        check(64, 1 << 30, None);
        check(65, 1 << 30, Some(&["65 slices", "can have 64", "qemu.slices = \"dimm\""]));
        check(1, 3 << 30, Some(&["3221225472 bytes", "such as 2147483648", "qemu.slices = \"dimm\""]));
        check(1, 0, Some(&["0 bytes"]));
    }

    #[test]
    fn a_device_is_of_as_few_blocks_as_can_be() {
        let check = |bytes: u64, block: u64| {
            let slice = Slice { emc: 0, index: 1, turn: 1, path: "/pool/a".into(), bytes };
            assert_eq!(device(&Names::of(&slice), 0, bytes)["block-size"], block, "{bytes}");
        };
        check(128 << 20, 128 << 20);
        check(2 << 30, 2 << 30);
        check(8 << 30, 2 << 30);
    }

    #[test]
    fn a_guest_is_asked_until_it_has_given_all() {
        let check = |answers, want: Offline, told: &[&str]| {
            assert_eq!(take_with(answers, Duration::from_secs(30)), (want, told.iter().map(ToString::to_string).collect()));
        };
        let look = "query-memory-devices";
        check(&[YES, SOME, SOME, EMPTY, GONE], Offline::Done, &["qom-set 0", look, look, look, "device_del"]);
        // It had given all before, and QEMU has asked for the device.
        check(&[YES, NONE], Offline::Done, &["qom-set 0", look]);
        check(&[YES, EMPTY, BUSY, NONE], Offline::Done, &["qom-set 0", look, "device_del", look]);
        let kept = Offline::Refused("the guest keeps the empty device".to_owned());
        check(&[YES, EMPTY, KEPT], kept, &["qom-set 0", look, "device_del"]);
    }

    #[test]
    fn a_request_is_taken_back_when_time_is_up() {
        let check = |answers, why: &str, told: &[&str]| {
            let (taken, said) = take_with(answers, Duration::ZERO);
            assert!(matches!(&taken, Offline::NotYet(state) if state.contains(why)), "{why}: {taken:?}");
            assert_eq!(said, told);
        };
        let look = "query-memory-devices";
        check(
            &[YES, SOME, YES],
            "taken back, since the guest still has 4194304 of its 268435456 bytes",
            &["qom-set 0", look, "qom-set 268435456"],
        );
        // What is empty is not given back: nothing in the guest uses it.
        check(&[YES, EMPTY, YES], "does not let go of the empty device", &["qom-set 0", look, "device_del"]);
        check(&[YES, EMPTY, BUSY, EMPTY], "already in the process of unplug", &["qom-set 0", look, "device_del", look]);
    }

    #[test]
    fn requests_that_somebody_has_left_are_taken_back() {
        let check = |answers: &'static [&'static str], taken: usize| {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("qmp");
            let server = qemu(&path, answers);
            let slice = |index| Slice { emc: 0, index, turn: 1, path: "/pool/a".into(), bytes: BYTES };
            let mut qmp = Qmp::connect(&path).unwrap();
            assert_eq!(take_back(&mut qmp, &[slice(1), slice(2)]).unwrap(), taken);
            drop(qmp);
            let said = server.join().unwrap();
            assert_eq!(said.iter().filter(|line| line.contains("qom-set") && line.contains("268435456")).count(), taken, "{said:?}");
        };
        check(&[SOME, YES], 1);
        check(&[EMPTY], 0);
        check(&[NONE], 0);
        check(&[WHOLE], 0);
    }

    #[test]
    fn a_qemu_that_never_takes_such_devices_away_is_known() {
        let check = |answer: &'static [&'static str], want: Option<&str>| {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("qmp");
            let server = qemu(&path, answer);
            let why = lacking(&mut Qmp::connect(&path).unwrap()).unwrap();
            assert_eq!(why.as_deref().map(|why| why.split(" never").next().unwrap()), want);
            server.join().unwrap();
        };
        check(&[r#"{"return": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ""}, "id": ID}"#], Some("QEMU 7.2"));
        check(&[r#"{"return": {"qemu": {"micro": 5, "minor": 0, "major": 8}, "package": ""}, "id": ID}"#], Some("QEMU 8.0"));
        check(&[r#"{"return": {"qemu": {"micro": 0, "minor": 1, "major": 8}, "package": ""}, "id": ID}"#], None);
        check(&[r#"{"return": {"qemu": {"micro": 3, "minor": 0, "major": 10}, "package": ""}, "id": ID}"#], None);
    }
}
