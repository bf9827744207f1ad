//! A machine with four slices of two blocks each, on a fake kernel.

use std::path::{Path, PathBuf};

use kernel::Roots;
use manager::api::{Code, Slice};
use manager::client::{Error, Refusal};
use tempfile::TempDir;
use units::Bytes;

pub(super) const BLOCK: u64 = 128 << 20;
pub(super) const SLICE: Bytes = Bytes(2 * BLOCK);
pub(super) const FIRST: u64 = 64;

pub(super) fn refused(code: Code) -> Error {
    Error::Refused(Refusal { code, message: format!("{code:?}") })
}

pub(super) fn slice(index: u32) -> Slice {
    let offset = Some(Bytes(u64::from(index) * SLICE.0));
    Slice { emc: 0, index, generation: 1, path: PathBuf::from("/dev/dax0.0"), offset, bytes: SLICE }
}

pub(super) fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// A kernel whose first `online` blocks of the device are online.
pub(super) fn kernel(online: u64) -> (TempDir, Roots) {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    put(root, "sys/devices/system/memory/block_size_bytes", "8000000\n");
    put(root, "sys/devices/system/memory/auto_online_blocks", "offline\n");
    put(root, "sys/bus/dax/devices/dax0.0/size", &format!("{}\n", 8 * BLOCK));
    put(root, "sys/bus/dax/devices/dax0.0/resource", &format!("{:#x}\n", FIRST * BLOCK));
    put(root, "sys/bus/dax/drivers/kmem/unused", "");
    std::os::unix::fs::symlink("../../drivers/kmem", root.join("sys/bus/dax/devices/dax0.0/driver")).unwrap();
    for block in 0..8 {
        let state = if block < online { "online\n" } else { "offline\n" };
        put(root, &format!("sys/devices/system/memory/memory{}/state", FIRST + block), state);
    }
    let roots = Roots::under(root);
    (directory, roots)
}

/// The blocks that are online, from 0.
pub(super) fn online(roots: &Roots) -> Vec<u64> {
    (0..8).filter(|block| kernel::hotplug::is_online(roots, FIRST + block).unwrap() == Some(true)).collect()
}
