//! What the figures were measured on.

use anyhow::Result;
use kernel::{Roots, file};
use serde::Serialize;

/// The machine, in its own words.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    /// `model name` of `/proc/cpuinfo`; absent on architectures that do not name it.
    pub(crate) cpu: Option<String>,
    /// Cores that this process may use.
    pub(crate) cores: usize,
    /// The kernel's release.
    pub(crate) kernel: String,
}

/// Describes this machine.
///
/// # Errors
/// When `/proc` cannot be read.
pub(crate) fn describe() -> Result<Machine> {
    let roots = Roots::host();
    let info = file::read(&roots.proc.join("cpuinfo"), file::LARGE)?;
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    Ok(Machine {
        cpu: model.map(|(_, name)| name.trim().to_owned()),
        cores: std::thread::available_parallelism()?.get(),
        kernel: kernel::process::kernel_release(&roots)?,
    })
}
