//! A cgroup with limits for each QEMU process, in a cgroup that is delegated to the host's service.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use units::Bytes;

/// QEMU's threads beside those of the guest's cores: the main loop, and at most 64 for disks per I/O context.
const THREADS: u32 = 256;

/// The cgroup below which each process gets its own.
#[derive(Debug)]
pub(super) struct Cgroups {
    directory: PathBuf,
}

/// Limits of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) memory: Bytes,
    pub(super) cores: u32,
}

impl Cgroups {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Creates the cgroup of a process, with its limits. Processes that an earlier guest of this name left are killed.
    ///
    /// # Errors
    /// The file that could not be created or written, and what is required.
    pub(super) fn create(&self, name: &str, limits: Limits) -> Result<PathBuf, String> {
        self.delegate().map_err(|(path, error)| {
            format!(
                "cannot limit guests: {}: {error}; run the host by its unit, which delegates the cgroup, or set qemu.cgroup",
                path.display()
            )
        })?;
        self.remove(name);
        let path = self.directory.join(name);
        let failed = |path: &Path, error| format!("cannot limit the guest: {}: {error}", path.display());
        make(&path).map_err(|error| failed(&path, error))?;
        for (file, value) in [("memory.max", limits.memory.0), ("pids.max", u64::from(limits.cores + THREADS))] {
            let file = path.join(file);
            std::fs::write(&file, value.to_string()).map_err(|error| failed(&file, error))?;
        }
        Ok(path)
    }

    /// Creates the directory, and gives its children the controllers.
    fn delegate(&self) -> Result<(), (PathBuf, std::io::Error)> {
        make(&self.directory).map_err(|error| (self.directory.clone(), error))?;
        for directory in self.directory.parent().into_iter().chain([self.directory.as_path()]) {
            let file = directory.join("cgroup.subtree_control");
            std::fs::write(&file, "+memory +pids").map_err(|error| (file, error))?;
        }
        Ok(())
    }

    /// Removes the cgroup of a process that has exited.
    pub(super) fn remove(&self, name: &str) {
        let path = self.directory.join(name);
        if !path.exists() {
            return;
        }
        // Before Linux 5.14 there is no such file; then a cgroup with processes stays.
        let _ = std::fs::OpenOptions::new()
            .write(true)
            .open(path.join("cgroup.kill"))
            .and_then(|mut file| std::io::Write::write_all(&mut file, b"1"));
        match std::fs::remove_dir(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => log::debug!("{} stays for now: {error}", path.display()),
            _ => {}
        }
    }
}

/// Moves a process into a cgroup.
pub(super) fn enter(cgroup: &Path, pid: u32) -> Result<(), String> {
    let file = cgroup.join("cgroup.procs");
    std::fs::write(&file, pid.to_string()).map_err(|error| format!("cannot limit the guest: {}: {error}", file.display()))
}

fn make(directory: &Path) -> std::io::Result<()> {
    match std::fs::create_dir(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_gets_its_limits() {
        let root = tempfile::tempdir().unwrap();
        let cgroups = Cgroups::new(root.path().join("guests"));
        let path = cgroups.create("vm.1", Limits { memory: Bytes::gib(2), cores: 4 }).unwrap();
        let read = |file: &str| std::fs::read_to_string(root.path().join(file)).unwrap();
        assert_eq!(read("cgroup.subtree_control"), "+memory +pids");
        assert_eq!(read("guests/cgroup.subtree_control"), "+memory +pids");
        assert_eq!((read("guests/vm.1/memory.max"), read("guests/vm.1/pids.max")), ("2147483648".to_owned(), "260".to_owned()));
        enter(&path, 77).unwrap();
        assert_eq!(read("guests/vm.1/cgroup.procs"), "77");
    }

    #[test]
    fn a_cgroup_that_is_not_delegated_is_named() {
        let why = Cgroups::new("/nowhere/guests".into()).create("a", Limits { memory: Bytes(1), cores: 1 }).unwrap_err();
        assert!(why.contains("/nowhere/guests") && why.contains("qemu.cgroup"), "{why}");
    }
}
