//! Hypervisor drivers. Each driver owns its settings and the description of its guests.
//!
//! A new driver is a module here, a variant of [`Settings`] and of [`description::Description`], and its tables in
//! [`HOST_TABLES`] and [`description::GUEST_TABLES`].

use std::path::Path;

use ::settings::{Document, Group as _, Table};
use kernel::Roots;

use crate::driver::Driver;

pub mod description;
pub mod libvirt;
pub mod qemu;
mod sampling;

/// The drivers' tables in the configuration of a host.
pub(crate) const HOST_TABLES: &[Table] = &[qemu::Settings::TABLE, libvirt::Settings::TABLE];

/// The driver of a host, with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settings {
    /// QEMU processes.
    Qemu(qemu::Settings),
    /// Domains of libvirt.
    Libvirt(libvirt::Settings),
}

impl Settings {
    /// Reads the driver whose table the configuration of a host contains; QEMU if it contains none.
    pub(crate) fn read(document: &mut Document) -> Self {
        match description::only_table(document, HOST_TABLES) {
            Some("libvirt") => Self::Libvirt(libvirt::Settings::checked(document)),
            _ => Self::Qemu(document.get()),
        }
    }

    /// Checks that this machine has what the driver requires.
    ///
    /// # Errors
    /// The configuration key, the value and what is missing.
    pub fn check(&self, roots: &Roots) -> Result<(), String> {
        match self {
            Self::Qemu(settings) => settings.check(roots),
            Self::Libvirt(settings) => settings.check(roots),
        }
    }

    /// The driver. `runtime` is an existing directory for sockets and pid files.
    #[must_use]
    pub fn driver(self, runtime: &Path) -> Box<dyn Driver> {
        match self {
            Self::Qemu(settings) => Box::new(qemu::Qemu::new(settings, runtime.to_owned())),
            Self::Libvirt(settings) => Box::new(libvirt::Libvirt::new(settings)),
        }
    }
}
