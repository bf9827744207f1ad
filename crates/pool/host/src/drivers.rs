//! Hypervisor drivers. Each driver owns its settings and the description of its guests.
//!
//! A new driver is a module here, a variant of [`Settings`], a variant of [`description::Description`], and its table
//! in the host's configuration.

use std::path::Path;

use kernel::Roots;

use crate::driver::Driver;

pub mod description;
pub mod libvirt;
pub mod qemu;
mod sampling;

/// The driver of a host, with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settings {
    /// QEMU processes.
    Qemu(qemu::Settings),
    /// Domains of libvirt.
    Libvirt(libvirt::Settings),
}

impl Settings {
    /// Checks that this machine has what the driver requires.
    ///
    /// # Errors
    /// The configuration key, the value and what is missing.
    pub fn check(&self, roots: &Roots) -> Result<(), String> {
        match self {
            Self::Qemu(_) => Ok(()),
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
