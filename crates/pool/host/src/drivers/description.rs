//! Descriptions of guests: disks, networks and boot options, each in the form of its driver.

use std::fmt::Display;
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize};

use super::{libvirt::guest as libvirt, qemu::guest as qemu};

/// The description of a guest, in the form of the driver that starts it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Description {
    /// For a host that starts QEMU.
    Qemu(qemu::Guest),
    /// For a host that uses libvirt.
    Libvirt(libvirt::Guest),
}

impl Description {
    /// Tables of a guest's file, one for each driver.
    pub const TABLES: [&str; 2] = ["qemu", "libvirt"];

    /// Reads the table named `name` of a guest's file in `directory`.
    ///
    /// # Errors
    /// The key, the value found and what is allowed.
    pub fn read<'de, D>(name: &str, table: D, directory: &Path) -> Result<Self, String>
    where
        D: Deserializer<'de>,
        D::Error: Display,
    {
        match name {
            "qemu" => qemu::Guest::deserialize(table).map(Self::Qemu).map_err(|error| error.to_string()),
            "libvirt" => libvirt::Guest::read(table, directory).map(Self::Libvirt),
            other => Err(format!("there is no driver {other:?}; the drivers are {}", Self::TABLES.join(", "))),
        }
    }

    /// Name of the driver's table in a guest's file.
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
    /// The first invalid value, and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Qemu(guest) => guest.check(),
            Self::Libvirt(guest) => guest.check(),
        }
    }
}
