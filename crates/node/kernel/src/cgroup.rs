//! Control groups, version 2 (`Documentation/admin-guide/cgroup-v2.rst`).
//!
//! A [`Cgroup`] is a directory together with its kernel id: every read and write opens the directory, checks the id, and
//! opens the file relative to the directory. A cgroup that was removed and recreated under the same name is therefore
//! [`Error::Gone`] and is never modified by mistake.

mod limits;
mod memory;
mod protection;
mod reclaim;
#[cfg(test)]
mod tests;
mod tree;

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use units::Bytes;

pub use limits::LimitLevel;
pub use memory::{Limit, MemoryEvents, MemoryStat, parse_events, parse_limit, parse_stat};
pub use protection::{Protected, ProtectionTree, is_recursive};
pub use reclaim::{ReclaimOutcome, Swappiness};
pub use tree::{create, list, list_with_ids};

use crate::psi::{self, Psi};
use crate::text::FlatKeyed;
use crate::{Error, Malformed, Result, Roots, file, text};

/// The cgroup v2 hierarchy of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupRoot {
    path: PathBuf,
    controllers: Vec<String>,
}

impl CgroupRoot {
    /// Finds the hierarchy and its controllers (`cgroup.controllers`).
    ///
    /// # Errors
    /// [`Error::Unsupported`] if cgroup v2 is not mounted there or lacks the memory controller.
    pub fn probe(roots: &Roots) -> Result<Self> {
        const REMEDY: &str = "boot with systemd.unified_cgroup_hierarchy=1 \
                              (or cgroup_no_v1=all without systemd), so that cgroup v2 has every controller";
        let path = roots.cgroup.clone();
        let shown = path.display();
        let Some(text) = file::read_optional(&path.join("cgroup.controllers"), file::SMALL)? else {
            let unified = path.join("unified");
            let what = if unified.join("cgroup.controllers").exists() {
                let unified = unified.display();
                format!("a hybrid hierarchy: cgroup v2 is at {unified} without the memory controller, which cgroup v1 has at {shown}")
            } else if path.join("memory").is_dir() {
                format!("cgroup v1 only at {shown}: its memory controller has no proactive reclaim")
            } else {
                format!("no cgroup v2 hierarchy at {shown}")
            };
            return Err(Error::unsupported(what, REMEDY));
        };
        let controllers: Vec<String> = text.split_ascii_whitespace().map(str::to_owned).collect();
        if !controllers.iter().any(|controller| controller == "memory") {
            let what = format!("the cgroup v2 hierarchy at {shown} has no memory controller");
            return Err(Error::unsupported(what, format!("{REMEDY}; drop cgroup_disable=memory")));
        }
        Ok(Self { path, controllers })
    }

    /// The mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The controllers of the hierarchy, in the kernel's order.
    #[must_use]
    pub fn controllers(&self) -> &[String] {
        &self.controllers
    }

    /// The directory of the cgroup `rel`, a path below the mount point.
    fn directory_of(&self, rel: &str) -> PathBuf {
        self.path.join(rel.trim_matches('/'))
    }
}

/// One cgroup.
#[derive(Clone, Debug)]
pub struct Cgroup {
    root: CgroupRoot,
    path: PathBuf,
    name: String,
    id: u64,
}

impl Cgroup {
    /// The cgroup `rel`, a path below the mount point with or without a slash at either end; `/` is the root.
    ///
    /// # Errors
    /// [`Error::Gone`] if the cgroup does not exist; [`Error::Io`].
    pub fn open(root: &CgroupRoot, rel: &str) -> Result<Self> {
        if rel.split('/').any(|part| part == "..") {
            let source = std::io::Error::from_raw_os_error(libc::EINVAL);
            return Err(Error::Io { path: rel.into(), op: "open as a cgroup", source });
        }
        let path = root.directory_of(rel);
        let metadata = path.metadata().map_err(|source| Error::from_io(&path, "stat", source))?;
        let name = format!("/{}", rel.trim_matches('/'));
        Ok(Self { root: root.clone(), path, name, id: metadata.ino() })
    }

    /// The cgroup with a path and an id that are known, such as from [`list_with_ids`]. If it no longer exists, its files are `Gone`.
    #[must_use]
    pub fn known(root: &CgroupRoot, rel: &str, id: u64) -> Self {
        Self { root: root.clone(), path: root.directory_of(rel), name: format!("/{}", rel.trim_matches('/')), id }
    }

    /// The cgroup's directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The cgroup's path below the mount point, with a leading slash.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The cgroup's kernel id: the inode number of the directory, which is never reused on 64-bit machines.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// `memory.current`: memory used by the cgroup and its descendants, the zswap pool included.
    ///
    /// # Errors
    /// [`Error::Gone`]; [`Error::Unsupported`] on the root cgroup or without the memory controller;
    /// [`Error::Parse`]; [`Error::Io`].
    pub fn current(&self) -> Result<Bytes> {
        self.require("memory.current", parse_bytes)
    }

    /// `memory.max`: the hard limit. Above it the kernel reclaims, then invokes the OOM killer.
    ///
    /// # Errors
    /// As [`Cgroup::current`].
    pub fn max(&self) -> Result<Limit> {
        self.require("memory.max", parse_limit)
    }

    /// `memory.high`: the throttle limit. Above it the kernel reclaims and throttles.
    ///
    /// # Errors
    /// As [`Cgroup::current`].
    pub fn high(&self) -> Result<Limit> {
        self.require("memory.high", parse_limit)
    }

    /// `memory.low`: best-effort protection. Below it the kernel reclaims only if no unprotected memory is left.
    ///
    /// # Errors
    /// As [`Cgroup::current`].
    pub fn low(&self) -> Result<Limit> {
        self.require("memory.low", parse_limit)
    }

    /// `memory.min`: hard protection. Below it the kernel does not reclaim.
    ///
    /// # Errors
    /// As [`Cgroup::current`].
    pub fn min(&self) -> Result<Limit> {
        self.require("memory.min", parse_limit)
    }

    /// Sets `memory.low`.
    ///
    /// # Errors
    /// As [`Cgroup::current`].
    pub fn set_low(&self, low: Limit) -> Result<()> {
        self.write("memory.low", &low.to_string())
    }

    /// `memory.swap.current`: swap in use, zswap included; `None` on kernels built without swap.
    ///
    /// # Errors
    /// [`Error::Gone`]; [`Error::Parse`]; [`Error::Io`].
    pub fn swap_current(&self) -> Result<Option<Bytes>> {
        self.read("memory.swap.current", parse_bytes)
    }

    /// `memory.swap.max`; `None` on kernels built without swap.
    ///
    /// # Errors
    /// As [`Cgroup::swap_current`].
    pub fn swap_max(&self) -> Result<Option<Limit>> {
        self.read("memory.swap.max", parse_limit)
    }

    /// Sets `memory.swap.max`.
    ///
    /// # Errors
    /// As [`Cgroup::current`].
    pub fn set_swap_max(&self, max: Limit) -> Result<()> {
        self.write("memory.swap.max", &max.to_string())
    }

    /// `memory.zswap.current`: the compressed size of the cgroup's pages in zswap; `None` on kernels built without zswap.
    ///
    /// # Errors
    /// As [`Cgroup::swap_current`].
    pub fn zswap_current(&self) -> Result<Option<Bytes>> {
        self.read("memory.zswap.current", parse_bytes)
    }

    /// `memory.zswap.max`: the limit of the compressed size of the cgroup's pages in zswap; the limits of ancestors apply, too.
    /// `None` on kernels built without zswap.
    ///
    /// # Errors
    /// As [`Cgroup::swap_current`].
    pub fn zswap_max(&self) -> Result<Option<Limit>> {
        self.read("memory.zswap.max", parse_limit)
    }

    /// `memory.zswap.writeback` (Linux 6.8): whether the cgroup's pages may be written to the swap device, from zswap or
    /// directly. `false` in an ancestor applies, too. `None` if the kernel does not have the file.
    ///
    /// # Errors
    /// As [`Cgroup::swap_current`].
    pub fn zswap_writeback(&self) -> Result<Option<bool>> {
        self.read("memory.zswap.writeback", parse_switch)
    }

    /// `memory.stat`.
    ///
    /// # Errors
    /// As [`Cgroup::current`], except that the machine's root cgroup has this file.
    pub fn stat(&self) -> Result<MemoryStat> {
        self.require("memory.stat", parse_stat)
    }

    /// `memory.events` of the cgroup and its descendants.
    ///
    /// # Errors
    /// As [`Cgroup::current`].
    pub fn events(&self) -> Result<MemoryEvents> {
        self.require("memory.events", parse_events)
    }

    /// `memory.pressure` of the cgroup and its descendants.
    ///
    /// # Errors
    /// [`Error::Gone`]; [`Error::Unsupported`] if the kernel does not account pressure, or not for this cgroup;
    /// [`Error::Parse`]; [`Error::Io`].
    pub fn pressure(&self) -> Result<Psi> {
        self.psi("memory.pressure")
    }

    /// `io.pressure`: stalls of the cgroup and its descendants on block I/O. Does not need the io controller.
    ///
    /// # Errors
    /// As [`Cgroup::pressure`].
    pub fn io_pressure(&self) -> Result<Psi> {
        self.psi("io.pressure")
    }

    fn psi(&self, name: &str) -> Result<Psi> {
        match self.read(name, psi::parse) {
            Ok(Some(psi)) => Ok(psi),
            // `cgroup.pressure` (Linux 6.1) hides the files of one cgroup.
            Ok(None) if self.read("cgroup.pressure", parse_switch)? == Some(false) => Err(Error::unsupported(
                format!("pressure stall information is disabled for the cgroup {}", self.name),
                format!("echo 1 > {}", self.path.join("cgroup.pressure").display()),
            )),
            Ok(None) => Err(psi::unsupported_for_cgroups()),
            Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => Err(psi::unsupported_for_cgroups()),
            Err(error) => Err(error),
        }
    }

    /// Whether the cgroup or a descendant holds a process (`populated` of `cgroup.events`).
    ///
    /// # Errors
    /// As [`Cgroup::current`].
    pub fn populated(&self) -> Result<bool> {
        self.require("cgroup.events", tree::parse_populated)
    }

    /// `cgroup.freeze` (Linux 5.2): whether freezing is requested; [`Cgroup::frozen`] reports whether it is complete. `None`
    /// if the file does not exist, as on the root cgroup.
    ///
    /// # Errors
    /// As [`Cgroup::swap_current`].
    pub fn freeze(&self) -> Result<Option<bool>> {
        self.read("cgroup.freeze", parse_switch)
    }

    /// Whether all processes of the cgroup are frozen (`frozen` of `cgroup.events`); `false` before Linux 5.2, which cannot
    /// freeze.
    ///
    /// # Errors
    /// As [`Cgroup::current`].
    pub fn frozen(&self) -> Result<bool> {
        self.require("cgroup.events", tree::parse_frozen)
    }

    /// CPU time of the cgroup and its descendants since its creation, in microseconds (`usage_usec` of `cpu.stat`, which does
    /// not need the cpu controller); `None` if the kernel does not report it.
    ///
    /// # Errors
    /// [`Error::Gone`]; [`Error::Parse`]; [`Error::Io`].
    pub fn cpu_usage_us(&self) -> Result<Option<u64>> {
        self.read("cpu.stat", parse_cpu_usage).map(Option::flatten)
    }

    /// Kills every process of the cgroup and its descendants with `SIGKILL` (`cgroup.kill`, Linux 5.14).
    ///
    /// # Errors
    /// [`Error::Gone`]; [`Error::Unsupported`] on the root cgroup; [`Error::Io`].
    pub fn kill(&self) -> Result<()> {
        self.write("cgroup.kill", "1")
    }

    /// Moves a process with all its threads into the cgroup.
    ///
    /// # Errors
    /// [`Error::Gone`] if the cgroup or the process no longer exists; [`Error::Busy`] if controllers are enabled for its
    /// children, so that it cannot hold processes; [`Error::Io`].
    pub fn move_process(&self, pid: i32) -> Result<()> {
        match self.write("cgroup.procs", &pid.to_string()) {
            Err(error) if error.errno() == Some(libc::EBUSY) => Err(Error::busy(
                format!("{} has children with controllers and cannot hold processes", self.name),
                "move the process into a leaf below it",
            )),
            other => other,
        }
    }

    /// Opens a file of the cgroup; `None` if the cgroup exists and the file does not.
    fn open_file(&self, name: &str, writing: bool) -> Result<Option<File>> {
        let fail = |source| Error::from_io(&self.path, "open", source);
        let directory = file::open_directory(&self.path).map_err(fail)?;
        if directory.metadata().map_err(fail)?.ino() != self.id {
            return Err(Error::Gone { path: self.path.clone() });
        }
        match file::open_at(&directory, name, writing) {
            Ok(file) => Ok(Some(file)),
            // A file of a removed cgroup is also ENOENT: only the directory distinguishes the two.
            Err(source) if file::is_absent(&source) => match self.path.metadata() {
                Ok(now) if now.ino() == self.id => Ok(None),
                _ => Err(Error::Gone { path: self.path.clone() }),
            },
            Err(source) => Err(Error::from_io(&self.path.join(name), "open", source)),
        }
    }

    fn read<T>(&self, name: &str, parse: impl FnOnce(&str) -> Result<T, Malformed>) -> Result<Option<T>> {
        let Some(file) = self.open_file(name, false)? else { return Ok(None) };
        let path = self.path.join(name);
        let text = file::read_opened(&file, &path, file::LARGE)?;
        parse(&text).map(Some).map_err(|malformed| malformed.at(&path))
    }

    fn require<T>(&self, name: &str, parse: impl FnOnce(&str) -> Result<T, Malformed>) -> Result<T> {
        self.read(name, parse)?.ok_or_else(|| self.missing(name))
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let file = self.open_file(name, true)?.ok_or_else(|| self.missing(name))?;
        file::write_opened(&file, text).map_err(|source| Error::from_io(&self.path.join(name), "write", source))
    }

    fn missing(&self, name: &str) -> Error {
        let remedy = if self.name == "/" {
            "the root cgroup does not have this file: choose a cgroup below it"
        } else if name.starts_with("memory.") && !self.path.join("memory.current").exists() {
            "enable the controller: echo +memory > cgroup.subtree_control in the parent cgroup"
        } else {
            "this kernel is too old or was built without it"
        };
        Error::unsupported(format!("the cgroup {} has no {name}", self.name), remedy)
    }
}

/// Parses `0` or `1`.
pub(crate) fn parse_switch(text: &str) -> Result<bool, Malformed> {
    match text.trim() {
        "0" => Ok(false),
        "1" => Ok(true),
        other => Err(Malformed::new(1, other, "0 or 1")),
    }
}

/// The line `usage_usec N` of `cpu.stat`.
fn parse_cpu_usage(text: &str) -> Result<Option<u64>, Malformed> {
    FlatKeyed::split(text)?.get("usage_usec")
}

fn parse_bytes(text: &str) -> Result<Bytes, Malformed> {
    text::only_number(text, "a number of bytes").map(Bytes)
}
