//! The mount points of the kernel's file systems.

use std::path::{Path, PathBuf};

/// The mount points below which handles find their files; tests point them at a fake tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// The root directory, `/`, to which paths of swap files are relative.
    pub root: PathBuf,
    /// procfs, `/proc`.
    pub proc: PathBuf,
    /// sysfs, `/sys`.
    pub sys: PathBuf,
    /// The cgroup v2 hierarchy, `/sys/fs/cgroup`.
    pub cgroup: PathBuf,
    /// debugfs, `/sys/kernel/debug`.
    pub debug: PathBuf,
    /// Device nodes, `/dev`.
    pub dev: PathBuf,
}

impl Roots {
    /// The mount points of this machine.
    #[must_use]
    pub fn host() -> Self {
        Self::under(Path::new("/"))
    }

    /// The usual mount points below `root`.
    #[must_use]
    pub fn under(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            proc: root.join("proc"),
            sys: root.join("sys"),
            cgroup: root.join("sys/fs/cgroup"),
            debug: root.join("sys/kernel/debug"),
            dev: root.join("dev"),
        }
    }

    /// `/proc/PID/name`.
    pub(crate) fn of_process(&self, pid: i32, name: &str) -> PathBuf {
        self.proc.join(pid.to_string()).join(name)
    }
}
