//! Descriptions of guests: disks, networks and boot options, each in the form of its driver.

use serde::{Deserialize, Serialize};
use settings::{Document, Group as _, Invalid, Table};

use super::{libvirt::guest as libvirt, qemu::guest as qemu};

/// The drivers' tables in a guest file.
pub(crate) const GUEST_TABLES: &[Table] = &[qemu::Table::TABLE, libvirt::Table::TABLE];

/// The description of a guest (disks, networks, boot options), in the form of the driver that starts it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Description {
    /// For a host that starts QEMU.
    Qemu(qemu::Guest),
    /// For a host that uses libvirt.
    Libvirt(libvirt::Guest),
}

impl Description {
    /// Reads the table of the driver that a guest file contains; `None` if it contains none.
    pub(crate) fn read(document: &mut Document) -> Option<Self> {
        match only_table(document, GUEST_TABLES)? {
            "libvirt" => Some(Self::Libvirt(libvirt::Guest::read(document))),
            _ => Some(Self::Qemu(qemu::Guest::read(document))),
        }
    }

    /// Name of the driver's table in a guest file.
    #[must_use]
    pub fn table(&self) -> &'static str {
        match self {
            Self::Qemu(_) => "qemu",
            Self::Libvirt(_) => "libvirt",
        }
    }

    /// Checks the values.
    ///
    /// # Errors
    /// The key within the table, its first invalid value, and what is allowed.
    pub fn check(&self) -> Result<(), (&'static str, Invalid)> {
        match self {
            Self::Qemu(guest) => guest.check(),
            Self::Libvirt(guest) => guest.check(),
        }
    }
}

/// Returns the name of the one table of these that a file contains. Reports it if there are several.
pub(super) fn only_table(document: &mut Document, tables: &[Table]) -> Option<&'static str> {
    let found: Vec<_> = tables.iter().map(|table| document.section(table)).filter(|section| section.line().is_some()).collect();
    let last = found.last()?;
    if found.len() > 1 {
        let names: Vec<_> = found.iter().map(|section| format!("[{}]", section.table().name)).collect();
        let remedy = format!("keep the table of the host's driver: {}", names.join(" or "));
        document.report(last.place(""), Invalid::new("only one driver starts guests", remedy));
    }
    Some(last.table().name)
}
