//! Slices as memory devices of a guest: added through QMP, identified by what QEMU reports, removed with the guest's
//! consent.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use manager::api::Slice;
use serde_json::json;

use super::memory_device::{self, Device, Kind, Names, Place};
use super::qmp::{Error, Passed, Qmp};
use super::{dimm, virtio_mem};
use crate::driver::{Machine, Offline};

/// QEMU releases memory shortly after its device is removed.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
const RELEASE_INTERVAL: Duration = Duration::from_millis(20);

/// Adds a slice to node 1; `ordinal` is its position among the guest's slices. QEMU receives the lock before it maps
/// the slice, and opens the file by its descriptor: its user need not be able to reach the pool's directory.
pub(super) fn add(qmp: &mut Qmp, kind: Kind, ordinal: usize, slice: &Slice, lock: BorrowedFd<'_>) -> Result<Passed, Error> {
    let names = Names::of(slice);
    qmp.pass_file(&names.lock, lock)?;
    let passed = qmp.add_file(lock)?;
    let backend = json!({
        "qom-type": "memory-backend-file", "id": names.memory, "mem-path": passed.path(), "size": slice.bytes,
        "share": true, "prealloc": false, "dump": false,
    });
    qmp.execute("object-add", &backend)?;
    let device = match kind {
        Kind::Dimm => dimm::arguments(&names),
        Kind::VirtioMem => virtio_mem::arguments(&names, ordinal, slice.bytes),
    };
    qmp.execute("device_add", &device)?;
    Ok(passed)
}

/// Removes a slice by the device type that the guest has, and closes its file in QEMU. May be repeated after a failure.
pub(super) fn remove(qmp: &mut Qmp, slice: &Slice, deadline: Instant) -> Result<Offline, Error> {
    let names = Names::of(slice);
    let removed = match memory_device::find(qmp, &names.device)?.map(Place::kind) {
        None => Offline::Done,
        Some(Kind::Dimm) => dimm::remove(qmp, &names.device, deadline)?,
        Some(Kind::VirtioMem) => virtio_mem::remove(qmp, &names.device, slice.bytes, deadline)?,
    };
    if removed == Offline::Done {
        release(qmp, &names)?;
    }
    Ok(removed)
}

/// Deletes the slice's memory backend and closes its lock file.
fn release(qmp: &mut Qmp, names: &Names) -> Result<(), Error> {
    let until = Instant::now() + RELEASE_TIMEOUT;
    loop {
        match qmp.execute("object-del", &json!({ "id": names.memory })) {
            Ok(_) => break,
            // Deleted by an earlier attempt.
            Err(Error::Refused { message, .. }) if message.contains("not found") => break,
            Err(Error::Refused { .. }) if Instant::now() < until => std::thread::sleep(RELEASE_INTERVAL),
            Err(error) => return Err(error),
        }
    }
    match qmp.close(&names.lock) {
        Err(Error::Refused { message, .. }) if message.contains("not found") => Ok(()),
        closed => closed,
    }
}

/// Options that give the process to which a guest is moved the slices that the guest still has, in local memory, and
/// their device type. `None` if the guest has no slice, or has slices of both types.
pub(super) fn migration_options(machine: &Machine, devices: &[Device]) -> Option<(Kind, Vec<String>)> {
    let mut argv = Vec::new();
    let mut kinds = Vec::new();
    for (ordinal, slice) in machine.slices.iter().enumerate() {
        let names = Names::of(slice);
        // A released slice has no device.
        let Some(Device { place, .. }) = devices.iter().find(|device| device.name == names.device) else { continue };
        let device = match *place {
            Place::Dimm { address, slot } => dimm::option(&names, address, slot),
            Place::VirtioMem { address, block, .. } => virtio_mem::option(&names, ordinal, address, block),
        };
        argv.extend(["-object".to_owned(), format!("memory-backend-memfd,id={},size={},share=on", names.memory, slice.bytes.0)]);
        argv.extend(["-device".to_owned(), device]);
        kinds.push(place.kind());
    }
    let kind = *kinds.first()?;
    kinds.iter().all(|&other| other == kind).then_some((kind, argv))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use units::Bytes;

    use super::*;
    use crate::drivers::qemu::qmp::tests::qemu;

    fn slice(index: u32) -> Slice {
        Slice { emc: 0, index, generation: 4, path: "/pool/a".into(), offset: None, bytes: Bytes(1 << 28) }
    }

    #[test]
    fn a_slice_is_removed_by_its_device_type() {
        let check = |replies: &'static [&'static str], expected: &[&str]| {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("qmp");
            let server = qemu(&path, replies);
            let mut qmp = Qmp::connect(&path).unwrap();
            assert_eq!(remove(&mut qmp, &slice(1), Instant::now() + Duration::from_secs(30)).unwrap(), Offline::Done);
            drop(qmp);
            let received: Vec<Value> = server.join().unwrap().iter().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
            assert_eq!(received.iter().map(|command| command["execute"].as_str().unwrap()).collect::<Vec<_>>(), expected);
        };
        const YES: &str = r#"{"return": {}, "id": ID}"#;
        const NO: &str = r#"{"id": ID, "error": {"class": "GenericError", "desc": "object 'memory0-1' not found"}}"#;
        const NONE: &str = r#"{"return": [], "id": ID}"#;
        const DIMM: &str = r#"{"return": [{"type": "dimm", "data": {"id": "slice0-1", "addr": 4294967296, "slot": 0}}], "id": ID}"#;
        const VIRTIO_MEM: &str = concat!(
            r#"{"return": [{"type": "virtio-mem", "data": {"id": "slice0-1", "memaddr": 4294967296, "#,
            r#""block-size": 2097152, "requested-size": 0, "size": 0}}], "id": ID}"#
        );
        const GONE: &str = "{\"return\": {}, \"id\": ID}\n{\"event\": \"DEVICE_DELETED\", \"data\": {\"device\": \"slice0-1\"}}";
        let query = "query-memory-devices";
        check(&[DIMM, GONE, YES, YES], &[query, "device_del", "object-del", "closefd"]);
        check(&[VIRTIO_MEM, YES, VIRTIO_MEM, GONE, YES, YES], &[query, "qom-set", query, "device_del", "object-del", "closefd"]);
        // Repeated after it was done.
        check(&[NONE, NO, NO], &[query, "object-del", "closefd"]);
    }

    #[test]
    fn the_second_process_has_the_devices_at_the_same_addresses() {
        let machine = Machine {
            name: "vm".to_owned(),
            cores: 1,
            local_bytes: Bytes(1 << 29),
            slices: vec![slice(3), slice(1), slice(2)],
            description: None,
        };
        let check = |places: &[(&str, Place)], expected: Option<(Kind, &str)>| {
            let devices: Vec<_> = places.iter().map(|&(name, place)| Device { name: name.to_owned(), place }).collect();
            let found = migration_options(&machine, &devices).map(|(kind, argv)| (kind, argv.join(" ")));
            assert_eq!(found, expected.map(|(kind, line)| (kind, line.to_owned())));
        };
        let dimm = |slot| Place::Dimm { address: 0x1_0000_0000 + slot * 0x1000_0000, slot };
        let virtio_mem =
            Place::VirtioMem { address: 0x1_1000_0000, block: Bytes(1 << 21), requested: Bytes(1 << 28), plugged: Bytes::ZERO };
        check(
            &[("slice0-1", dimm(1)), ("slice0-3", dimm(0)), ("another", dimm(2))],
            Some((
                Kind::Dimm,
                "-object memory-backend-memfd,id=memory0-3,size=268435456,share=on \
                 -device pc-dimm,id=slice0-3,memdev=memory0-3,node=1,addr=4294967296,slot=0 \
                 -object memory-backend-memfd,id=memory0-1,size=268435456,share=on \
                 -device pc-dimm,id=slice0-1,memdev=memory0-1,node=1,addr=4563402752,slot=1",
            )),
        );
        check(
            &[("slice0-1", virtio_mem)],
            Some((
                Kind::VirtioMem,
                "-object memory-backend-memfd,id=memory0-1,size=268435456,share=on \
                 -device virtio-mem-pci,id=slice0-1,memdev=memory0-1,node=1,bus=slices1,memaddr=4563402752,block-size=2097152,\
                 unplugged-inaccessible=on",
            )),
        );
        check(&[("slice0-1", virtio_mem), ("slice0-3", dimm(0))], None);
        check(&[("another", dimm(0))], None);
    }
}
