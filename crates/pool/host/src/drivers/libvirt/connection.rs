//! A connection to libvirt, with the operations that the driver and the mitigation share.

use kernel::Roots;
use manager::api::Slice;
use serde_json::json;

use super::domain;
use super::settings::Settings;
use super::virsh::{self, Virsh};
use crate::driver::Error;

/// libvirt, as this host uses it.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) settings: Settings,
    pub(super) virsh: Virsh,
    pub(super) roots: Roots,
}

impl Connection {
    /// Name of a slice's lock file in QEMU.
    pub(super) fn lock_name(slice: &Slice) -> String {
        format!("lock{}-{}", slice.emc, slice.index)
    }

    /// Closes a slice's lock file in the guest's process, which releases the lock.
    pub(super) fn release_lock(&self, name: &str, slice: &Slice) -> Result<(), Error> {
        let command = json!({ "execute": "closefd", "arguments": { "fdname": Self::lock_name(slice) } });
        match self.virsh.monitor(name, &command, None) {
            // Closed by an earlier attempt.
            Err(virsh::Error { message, .. }) if message.contains("not found") => Ok(()),
            other => Ok(other?),
        }
    }

    /// The running domain of this name.
    pub(super) fn running(&self, name: &str) -> Result<domain::Running, virsh::Error> {
        let xml = self.virsh.run(&["dumpxml", name])?;
        domain::parse_running(&xml).map_err(|message| virsh::Error { command: "dumpxml".to_owned(), message })
    }
}
