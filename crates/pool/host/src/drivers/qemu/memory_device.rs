//! Memory devices of a guest: their names, types and addresses, as QEMU reports them.

use manager::api::Slice;
use serde_json::{Value, json};
use units::Bytes;

use super::qmp::{Error, Qmp};

settings::choice! {
    /// Device type of a slice in the guest.
    Kind {
        /// A memory module (`pc-dimm`) per slice: fast, but removed as a whole, and a request for it cannot be
        /// withdrawn.
        Dimm = "dimm",
        /// A virtio-mem device per slice, for which a request can be withdrawn.
        VirtioMem = "virtio-mem",
    }
}

/// Names of a slice's device, memory backend and lock file in QEMU.
pub(super) struct Names {
    pub(super) device: String,
    pub(super) memory: String,
    pub(super) lock: String,
}

impl Names {
    pub(super) fn of(slice: &Slice) -> Self {
        let name = |prefix: &str| format!("{prefix}{}-{}", slice.emc, slice.index);
        Self { device: name("slice"), memory: name("memory"), lock: name("lock") }
    }
}

/// A memory device that a guest has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    /// Device id; [`Names::device`] if the device is a slice.
    pub(super) name: String,
    /// Type and address.
    pub(super) place: Place,
}

/// Type and address of a memory device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Dimm { address: u64, slot: u64 },
    VirtioMem { address: u64, block: Bytes, requested: Bytes, plugged: Bytes },
}

impl Place {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Dimm { .. } => Kind::Dimm,
            Self::VirtioMem { .. } => Kind::VirtioMem,
        }
    }
}

/// All memory devices of a guest.
pub(super) fn all(qmp: &mut Qmp) -> Result<Vec<Device>, Error> {
    Ok(parse(&qmp.execute("query-memory-devices", &json!({}))?))
}

/// The device with this id; `None` if the guest has none.
pub(super) fn find(qmp: &mut Qmp, name: &str) -> Result<Option<Place>, Error> {
    Ok(all(qmp)?.into_iter().find(|device| device.name == name).map(|device| device.place))
}

/// Parses the reply to `query-memory-devices`. Devices of other types are skipped.
fn parse(reply: &Value) -> Vec<Device> {
    let device = |device: &Value| {
        let data = device.get("data")?;
        let number = |key: &str| data.get(key)?.as_u64();
        let place = match device.get("type")?.as_str()? {
            "dimm" => Place::Dimm { address: number("addr")?, slot: number("slot")? },
            "virtio-mem" => Place::VirtioMem {
                address: number("memaddr")?,
                block: Bytes(number("block-size")?),
                requested: Bytes(number("requested-size")?),
                plugged: Bytes(number("size")?),
            },
            _ => return None,
        };
        Some(Device { name: data.get("id")?.as_str()?.to_owned(), place })
    };
    reply.as_array().into_iter().flatten().filter_map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_devices_are_parsed_by_type() {
        let reply = json!([
            { "type": "dimm", "data": { "id": "slice0-3", "addr": 0x1_0000_0000_u64, "slot": 2, "size": 1 << 28, "node": 1 } },
            { "type": "virtio-mem", "data": {
                "id": "slice0-1", "memaddr": 0x1_1000_0000_u64, "block-size": 1 << 21, "size": 1 << 22, "max-size": 1 << 28,
                "requested-size": 1 << 28, "node": 1, "memdev": "/objects/memory0-1",
            } },
            { "type": "nvdimm", "data": { "id": "disk", "addr": 1, "slot": 1 } },
            { "type": "dimm", "data": { "addr": 1, "slot": 1 } },
            "unexpected",
        ]);
        let dimm = Place::Dimm { address: 0x1_0000_0000, slot: 2 };
        let virtio_mem =
            Place::VirtioMem { address: 0x1_1000_0000, block: Bytes(1 << 21), requested: Bytes(1 << 28), plugged: Bytes(1 << 22) };
        let device = |name: &str, place| Device { name: name.to_owned(), place };
        assert_eq!(parse(&reply), [device("slice0-3", dimm), device("slice0-1", virtio_mem)]);
        assert_eq!(parse(&json!({ "a": 1 })), []);
    }
}
