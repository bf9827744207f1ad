//! The machine on which figures were measured.

use anyhow::Result;
use kernel::{Roots, file};
use serde::Serialize;

/// Description of the machine.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    /// `model name` of `/proc/cpuinfo`; `None` on architectures without it.
    pub(crate) cpu: Option<String>,
    /// Cores available to this process.
    pub(crate) cores: usize,
    /// Kernel release.
    pub(crate) kernel: String,
}

/// Returns the description of this machine.
///
/// # Errors
/// `/proc` cannot be read.
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
