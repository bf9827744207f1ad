//! Kernel modules that can be loaded: `/lib/modules/RELEASE/modules.dep`, written by `depmod(8)`.
//!
//! ```text
//! kernel/drivers/cxl/cxl_acpi.ko.xz: kernel/drivers/cxl/core/cxl_core.ko.xz
//! ```

use crate::{Result, Roots, file};

/// The release of the running kernel, as `uname -r` prints it; empty if procfs does not have it.
#[must_use]
pub fn release(roots: &Roots) -> String {
    let path = roots.proc.join("sys/kernel/osrelease");
    file::read(&path, file::SMALL).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// Whether `modprobe name` would find a module file. Built-in modules and modules loaded from other paths are not considered.
///
/// # Errors
/// [`crate::Error::Io`].
pub fn can_load(roots: &Roots, name: &str) -> Result<bool> {
    let path = roots.root.join("lib/modules").join(release(roots)).join("modules.dep");
    let text = file::read_optional(&path, file::LARGE)?.unwrap_or_default();
    Ok(listed(&text, name))
}

/// Whether a line of `modules.dep`, `path: dependencies`, belongs to the module `name`.
fn listed(text: &str, name: &str) -> bool {
    let file = |line: &str| {
        let path = line.split(':').next().unwrap_or_default();
        path.rsplit('/').next().unwrap_or_default().split('.').next().unwrap_or_default().replace('-', "_")
    };
    text.lines().any(|line| file(line) == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tree;

    const RELEASE: (&str, &str) = ("proc/sys/kernel/osrelease", "6.12.1-amd64\n");
    const DEPENDENCIES: &str = "kernel/drivers/cxl/cxl_acpi.ko.xz: kernel/drivers/cxl/core/cxl_core.ko.xz\n\
        kernel/drivers/cxl/core/cxl_core.ko.xz:\nkernel/drivers/md/dm-delay.ko:\n";

    #[test]
    fn modules_are_found_by_the_kernels_names() {
        let (_keep, roots) = tree(&[RELEASE, ("lib/modules/6.12.1-amd64/modules.dep", DEPENDENCIES)]);
        assert_eq!(release(&roots), "6.12.1-amd64");
        for (name, want) in [("cxl_acpi", true), ("cxl_core", true), ("dm_delay", true), ("cxl", false), ("kmem", false), ("", false)] {
            assert_eq!(can_load(&roots, name).unwrap(), want, "{name}");
        }
        let (_keep, roots) = tree(&[RELEASE]);
        assert!(!can_load(&roots, "cxl_acpi").unwrap());
    }
}
