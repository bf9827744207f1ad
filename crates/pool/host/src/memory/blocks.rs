//! The memory blocks of slices.

use std::time::Duration;

use kernel::hotplug::{self, AutoOnline};
use kernel::{Roots, cxl};
use manager::api::Slice;
use units::Bytes;

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such device, or it is not memory of a node.
    #[error("{device}: {why}")]
    Device {
        /// The device.
        device: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The kernel would use memory that is not assigned to this machine.
    #[error("{0}")]
    Setting(String),
    /// A kernel interface failed.
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
}

/// The memory of one EMC, as this kernel sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The DAX device.
    pub device: String,
    /// Number of its first memory block.
    first: u64,
    /// Size of a memory block.
    block: Bytes,
    /// Size of the device.
    size: Bytes,
}

/// The regions of devices, one for each EMC, in the order of their numbers.
///
/// # Errors
/// [`enum@Error`]
pub fn regions(roots: &Roots, devices: &[String]) -> Result<Vec<Region>, Error> {
    let Some(settings) = hotplug::hotplug(roots)? else {
        return Err(Error::Setting("this kernel has no memory hotplug".to_owned()));
    };
    if settings.auto_online != AutoOnline::Offline {
        let why = "new memory comes online by itself, also what belongs to other machines: boot with memhp_default_state=offline";
        return Err(Error::Setting(why.to_owned()));
    }
    if hotplug::memmap_on_memory(roots)? {
        let why = "the kernel keeps its data about new memory in that memory, which other machines write to: boot without \
                   memory_hotplug.memmap_on_memory";
        return Err(Error::Setting(why.to_owned()));
    }
    let found = cxl::topology(roots)?.dax;
    devices.iter().map(|device| region(&found, device, settings.block)).collect()
}

fn region(found: &[cxl::Dax], device: &str, block: Bytes) -> Result<Region, Error> {
    let refused = |why: String| Error::Device { device: device.to_owned(), why };
    let Some(dax) = found.iter().find(|dax| dax.name == device) else {
        let names: Vec<&str> = found.iter().map(|dax| dax.name.as_str()).collect();
        return Err(refused(format!("there is no such DAX device; there are: {}; see `thermocline pool doctor`", names.join(", "))));
    };
    if dax.driver.as_deref() != Some("kmem") {
        let driver = dax.driver.as_deref().unwrap_or("no driver");
        return Err(refused(format!("it has {driver}, not kmem: daxctl reconfigure-device --mode=system-ram --no-online {device}")));
    }
    let Some(start) = dax.start else { return Err(refused("its address is not readable: this needs root".to_owned())) };
    if !start.is_multiple_of(block.0) {
        return Err(refused(format!("it begins within a memory block of {block}")));
    }
    Ok(Region { device: device.to_owned(), first: start / block.0, block, size: dax.size })
}

impl Region {
    /// Numbers of a slice's memory blocks.
    ///
    /// # Errors
    /// The slice does not consist of whole blocks of the device.
    pub(super) fn blocks(&self, offset: Bytes, bytes: Bytes) -> Result<std::ops::Range<u64>, String> {
        // Other threads may run before each slice.
        #[cfg(shuttle)]
        shuttle::thread::yield_now();
        let end = Bytes(offset.0.saturating_add(bytes.0));
        if end > self.size {
            return Err(format!("it ends at {end} of {}, which has {}", self.device, self.size));
        }
        if !offset.0.is_multiple_of(self.block.0) || !bytes.0.is_multiple_of(self.block.0) {
            return Err(format!("it does not consist of whole memory blocks of {}", self.block));
        }
        Ok(self.first + offset.0 / self.block.0..self.first + end.0 / self.block.0)
    }

    /// The offsets of slices of this size.
    pub(super) fn offsets(&self, bytes: Bytes) -> impl Iterator<Item = Bytes> {
        (0..self.size.0.checked_div(bytes.0).unwrap_or(0)).map(move |index| Bytes(index * bytes.0))
    }

    /// Brings a slice online.
    ///
    /// # Errors
    /// The kernel's reason; some of its blocks may be online.
    pub(super) fn bring_online(&self, roots: &Roots, slice: &Slice) -> Result<(), String> {
        for block in self.blocks(slice.offset.unwrap_or_default(), slice.bytes)? {
            if hotplug::is_online(roots, block).map_err(|error| error.to_string())? != Some(true) {
                hotplug::bring_online(roots, block).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// Takes the memory of a slice offline.
    ///
    /// # Errors
    /// Why some of it is still online.
    pub(super) fn take_offline(&self, roots: &Roots, offset: Bytes, bytes: Bytes, timeout: Duration) -> Result<(), String> {
        for block in self.blocks(offset, bytes)? {
            if hotplug::is_online(roots, block).map_err(|error| error.to_string())? == Some(true) {
                hotplug::take_offline(roots, block, timeout).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// Memory of a slice that is online.
    pub(super) fn online(&self, roots: &Roots, offset: Bytes, bytes: Bytes) -> Result<Bytes, String> {
        let mut online = Bytes::ZERO;
        for block in self.blocks(offset, bytes)? {
            if hotplug::is_online(roots, block).map_err(|error| error.to_string())? == Some(true) {
                online += self.block;
            }
        }
        Ok(online)
    }
}
