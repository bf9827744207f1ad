//! Slices as memory devices of a guest: added by QMP, known again by what QEMU says it has, taken away by the guest's consent.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use manager::api::Slice;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{dimm, virtio_mem};
use crate::driver::{Machine, Offline};
use crate::qmp::{Error, Qmp};

/// As what guests get their slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// A memory module each: fast, and in one piece; a request for it cannot be taken back.
    #[default]
    Dimm,
    /// A virtio-mem device each, of which a request can be taken back.
    VirtioMem,
}

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

/// A memory device that a guest has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    /// Its name, as in [`Names`] if it is a slice's.
    pub(super) name: String,
    /// What it is, and where. Bytes.
    pub(super) place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Dimm { address: u64, slot: u64 },
    VirtioMem { address: u64, block_bytes: u64, requested_bytes: u64, plugged_bytes: u64 },
}

impl Place {
    pub(super) fn way(self) -> Way {
        match self {
            Self::Dimm { .. } => Way::Dimm,
            Self::VirtioMem { .. } => Way::VirtioMem,
        }
    }
}

/// The memory devices of a guest, whoever has added them, and by which setting.
pub(super) fn devices(qmp: &mut Qmp) -> Result<Vec<Device>, Error> {
    Ok(read(&qmp.ask("query-memory-devices", &json!({}))?))
}

fn read(told: &Value) -> Vec<Device> {
    let device = |device: &Value| {
        let data = device.get("data")?;
        let number = |key: &str| data.get(key)?.as_u64();
        let place = match device.get("type")?.as_str()? {
            "dimm" => Place::Dimm { address: number("addr")?, slot: number("slot")? },
            "virtio-mem" => Place::VirtioMem {
                address: number("memaddr")?,
                block_bytes: number("block-size")?,
                requested_bytes: number("requested-size")?,
                plugged_bytes: number("size")?,
            },
            _ => return None,
        };
        Some(Device { name: data.get("id")?.as_str()?.to_owned(), place })
    };
    told.as_array().into_iter().flatten().filter_map(device).collect()
}

/// One device, if the guest has it.
pub(super) fn device(qmp: &mut Qmp, name: &str) -> Result<Option<Place>, Error> {
    Ok(devices(qmp)?.into_iter().find(|device| device.name == name).map(|device| device.place))
}

/// Adds the `ordinal`th slice of a guest to node 1. QEMU gets the lock before it maps.
pub(super) fn add(qmp: &mut Qmp, way: Way, ordinal: usize, slice: &Slice, file: BorrowedFd<'_>) -> Result<(), Error> {
    let names = Names::of(slice);
    qmp.hand_over(&names.lock, file)?;
    let backend = json!({
        "qom-type": "memory-backend-file", "id": names.memory, "mem-path": slice.path, "size": slice.bytes,
        "share": true, "prealloc": false, "dump": false,
    });
    qmp.ask("object-add", &backend)?;
    let device = match way {
        Way::Dimm => dimm::device(&names),
        Way::VirtioMem => virtio_mem::device(&names, ordinal, slice.bytes),
    };
    qmp.ask("device_add", &device).map(drop)
}

/// Takes a slice away, as what the guest has it, and has QEMU let go of its file. May be said again after a failure.
pub(super) fn remove(qmp: &mut Qmp, slice: &Slice, deadline: Instant) -> Result<Offline, Error> {
    let names = Names::of(slice);
    let taken = match device(qmp, &names.device)?.map(Place::way) {
        None => Offline::Done,
        Some(Way::Dimm) => dimm::take(qmp, &names.device, deadline)?,
        Some(Way::VirtioMem) => virtio_mem::take(qmp, &names.device, slice.bytes, deadline)?,
    };
    if taken == Offline::Done {
        let_go(qmp, &names)?;
    }
    Ok(taken)
}

fn let_go(qmp: &mut Qmp, names: &Names) -> Result<(), Error> {
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
        Err(Error::Refused { said, .. }) if said.contains("not found") => Ok(()),
        closed => closed,
    }
}

/// The slices that a guest still has, and as what, for the command line of a process that it is moved to. None if it has
/// none, or in two ways at once.
pub(super) fn waiting_with(machine: &Machine, devices: &[Device]) -> Option<(Way, Vec<String>)> {
    let mut argv = Vec::new();
    let mut ways = Vec::new();
    for (ordinal, slice) in machine.slices.iter().enumerate() {
        let names = Names::of(slice);
        // One that was released has no device any more.
        let Some(Device { place, .. }) = devices.iter().find(|device| device.name == names.device) else { continue };
        let device = match *place {
            Place::Dimm { address, slot } => dimm::placed(&names, address, slot),
            Place::VirtioMem { address, block_bytes, .. } => virtio_mem::placed(&names, ordinal, address, block_bytes),
        };
        argv.extend(["-object".to_owned(), format!("memory-backend-memfd,id={},size={},share=on", names.memory, slice.bytes)]);
        argv.extend(["-device".to_owned(), device]);
        ways.push(place.way());
    }
    let way = *ways.first()?;
    ways.iter().all(|&other| other == way).then_some((way, argv))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qmp::tests::qemu;

    fn slice(index: u32) -> Slice {
        Slice { emc: 0, index, turn: 4, path: "/pool/a".into(), bytes: 1 << 28 }
    }

    #[test]
    fn memory_devices_are_told_apart() {
        let told = json!([
            { "type": "dimm", "data": { "id": "slice0-3", "addr": 0x1_0000_0000_u64, "slot": 2, "size": 1 << 28, "node": 1 } },
            { "type": "virtio-mem", "data": {
                "id": "slice0-1", "memaddr": 0x1_1000_0000_u64, "block-size": 1 << 21, "size": 1 << 22, "max-size": 1 << 28,
                "requested-size": 1 << 28, "node": 1, "memdev": "/objects/memory0-1",
            } },
            { "type": "nvdimm", "data": { "id": "disk", "addr": 1, "slot": 1 } },
            { "type": "dimm", "data": { "addr": 1, "slot": 1 } },
            "surprise",
        ]);
        let dimm = Place::Dimm { address: 0x1_0000_0000, slot: 2 };
        let virtio_mem =
            Place::VirtioMem { address: 0x1_1000_0000, block_bytes: 1 << 21, requested_bytes: 1 << 28, plugged_bytes: 1 << 22 };
        let device = |name: &str, place| Device { name: name.to_owned(), place };
        assert_eq!(read(&told), [device("slice0-3", dimm), device("slice0-1", virtio_mem)]);
        assert_eq!(read(&json!({ "a": 1 })), []);
    }

    #[test]
    fn a_slice_is_asked_for_as_what_the_guest_has_it() {
        let check = |answers: &'static [&'static str], want: &[&str]| {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("qmp");
            let server = qemu(&path, answers);
            let mut qmp = Qmp::connect(&path).unwrap();
            assert_eq!(remove(&mut qmp, &slice(1), Instant::now() + Duration::from_secs(30)).unwrap(), Offline::Done);
            drop(qmp);
            let said: Vec<Value> = server.join().unwrap().iter().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
            assert_eq!(said.iter().map(|command| command["execute"].as_str().unwrap()).collect::<Vec<_>>(), want);
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
        let look = "query-memory-devices";
        check(&[DIMM, GONE, YES, YES], &[look, "device_del", "object-del", "closefd"]);
        check(&[VIRTIO_MEM, YES, VIRTIO_MEM, GONE, YES, YES], &[look, "qom-set", look, "device_del", "object-del", "closefd"]);
        // Said again, after it was done.
        check(&[NONE, NO, NO], &[look, "object-del", "closefd"]);
    }

    #[test]
    fn the_second_process_has_the_devices_where_they_were() {
        let machine = Machine {
            name: "vm".to_owned(),
            cores: 1,
            local_bytes: 1 << 29,
            slices: vec![slice(3), slice(1), slice(2)],
            arguments: Vec::new(),
            domain: None,
        };
        let check = |places: &[(&str, Place)], want: Option<(Way, &str)>| {
            let devices: Vec<_> = places.iter().map(|&(name, place)| Device { name: name.to_owned(), place }).collect();
            let told = waiting_with(&machine, &devices).map(|(way, argv)| (way, argv.join(" ")));
            assert_eq!(told, want.map(|(way, line)| (way, line.to_owned())));
        };
        let dimm = |slot| Place::Dimm { address: 0x1_0000_0000 + slot * 0x1000_0000, slot };
        let virtio_mem = Place::VirtioMem { address: 0x1_1000_0000, block_bytes: 1 << 21, requested_bytes: 1 << 28, plugged_bytes: 0 };
        check(
            &[("slice0-1", dimm(1)), ("slice0-3", dimm(0)), ("another", dimm(2))],
            Some((
                Way::Dimm,
                "-object memory-backend-memfd,id=memory0-3,size=268435456,share=on \
                 -device pc-dimm,id=slice0-3,memdev=memory0-3,node=1,addr=4294967296,slot=0 \
                 -object memory-backend-memfd,id=memory0-1,size=268435456,share=on \
                 -device pc-dimm,id=slice0-1,memdev=memory0-1,node=1,addr=4563402752,slot=1",
            )),
        );
        check(
            &[("slice0-1", virtio_mem)],
            Some((
                Way::VirtioMem,
                "-object memory-backend-memfd,id=memory0-1,size=268435456,share=on \
                 -device virtio-mem-pci,id=slice0-1,memdev=memory0-1,node=1,bus=slices1,memaddr=4563402752,block-size=2097152,\
                 unplugged-inaccessible=on",
            )),
        );
        check(&[("slice0-1", virtio_mem), ("slice0-3", dimm(0))], None);
        check(&[("another", dimm(0))], None);
    }
}
