//! The tree of cgroups: listing, processes, creation and removal.
//!
//! `cgroup.procs` holds one pid per line, `cgroup.events` the lines `populated 1` and `frozen 0`.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::Path;

use super::{Cgroup, CgroupRoot};
use crate::text::FlatKeyed;
use crate::{Error, Malformed, Result, text};

/// Lists the names of the cgroups below the root, breadth first and sorted within a parent, with a leading slash.
///
/// The root itself is not listed. Returns at most `limit`; if `limit` are returned, there may be more. Cgroups that vanish
/// during the listing are omitted.
///
/// # Errors
/// [`Error::Io`] if the hierarchy cannot be read.
pub fn list(root: &CgroupRoot, limit: usize) -> Result<Vec<String>> {
    Ok(names(list_with_ids(root, limit)?))
}

/// As [`list`], with the kernel id of each cgroup ([`Cgroup::id`]). The directory that has it states it, so that no cgroup is opened.
///
/// # Errors
/// As [`list`].
pub fn list_with_ids(root: &CgroupRoot, limit: usize) -> Result<Vec<(String, u64)>> {
    below(root, "", limit)
}

fn names(listed: Vec<(String, u64)>) -> Vec<String> {
    listed.into_iter().map(|(name, _)| name).collect()
}

/// Links to a directory without subdirectories: its own entry, and `.`. Each subdirectory has another one, `..`. File systems that do not
/// count so have one link.
const LEAF_LINKS: u64 = 2;

/// Lists the names and ids below the cgroup `top` (without a trailing slash), breadth first.
fn below(root: &CgroupRoot, top: &str, limit: usize) -> Result<Vec<(String, u64)>> {
    let mut found = Vec::new();
    let mut queue = VecDeque::from([top.to_owned()]);
    while let Some(parent) = queue.pop_front() {
        let directory = root.directory_of(&parent);
        // Most cgroups have none below, and listing their files takes ten times as long as asking.
        let leaf = directory.metadata().is_ok_and(|metadata| metadata.nlink() == LEAF_LINKS);
        let children = match if leaf { Ok(Vec::new()) } else { subdirectories(&directory) } {
            Ok(children) => children,
            Err(error) if error.is_gone() => continue,
            Err(error) => return Err(error),
        };
        for (child, id) in children {
            if found.len() == limit {
                return Ok(found);
            }
            let name = format!("{parent}/{child}");
            queue.push_back(name.clone());
            found.push((name, id));
        }
    }
    Ok(found)
}

/// Names and inode numbers of the directories in `directory`, sorted. Names that are not UTF-8 are omitted: they cannot be configured.
fn subdirectories(directory: &Path) -> Result<Vec<(String, u64)>> {
    let fail = |source| Error::from_io(directory, "list", source);
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir())
            && let Ok(name) = entry.file_name().into_string()
        {
            names.push((name, entry.ino()));
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Creates the cgroup `rel` below an existing parent, with the memory controller enabled for it.
///
/// Enables `memory` in the parent's `cgroup.subtree_control` if it is disabled. This is not undone, because it has no effect
/// on cgroups without limits.
///
/// # Errors
/// [`Error::Gone`] if the parent does not exist; [`Error::Busy`] if `rel` exists, or if the parent holds processes, so that
/// the kernel enables no controllers for its children; [`Error::Io`].
pub fn create(root: &CgroupRoot, rel: &str) -> Result<Cgroup> {
    let name = rel.trim_matches('/');
    let parent = Cgroup::open(root, name.rsplit_once('/').map_or("", |(parent, _)| parent))?;
    parent.enable_memory_below()?;
    let path = root.directory_of(name);
    match fs::create_dir(&path) {
        Ok(()) => Cgroup::open(root, name),
        Err(source) if source.raw_os_error() == Some(libc::EEXIST) => {
            Err(Error::busy(format!("the cgroup /{name} exists already"), "choose another name, or remove it"))
        }
        Err(source) => Err(Error::from_io(&path, "create", source)),
    }
}

impl Cgroup {
    /// The processes of the cgroup and its descendants, at most `limit`; if `limit` are returned, there may be more.
    ///
    /// Processes outside the caller's pid namespace are omitted, and so are cgroups that vanish during the walk.
    ///
    /// # Errors
    /// [`Error::Gone`]; [`Error::Parse`]; [`Error::Io`].
    pub fn procs(&self, limit: usize) -> Result<Vec<i32>> {
        let mut pids = self.own_procs()?;
        // Cgroups may be empty, so the number of pids does not bound the walk.
        for name in names(below(&self.root, self.name.trim_end_matches('/'), limit)?) {
            if pids.len() >= limit {
                break;
            }
            match Self::open(&self.root, &name).and_then(|child| child.own_procs()) {
                Ok(more) => pids.extend(more),
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        pids.truncate(limit);
        Ok(pids)
    }

    fn own_procs(&self) -> Result<Vec<i32>> {
        match self.require("cgroup.procs", parse_procs) {
            // A threaded cgroup: its processes are listed in its domain cgroup.
            Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => Ok(Vec::new()),
            other => other,
        }
    }

    /// The cgroups directly below. Those that vanish meanwhile are omitted.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Gone`].
    pub fn children(&self) -> Result<Vec<Self>> {
        let names = subdirectories(&self.path)?;
        Ok(names.iter().filter_map(|(name, _)| Self::open(&self.root, &format!("{}/{name}", self.name)).ok()).collect())
    }

    /// Removes the cgroup.
    ///
    /// # Errors
    /// [`Error::Gone`] if it no longer exists; [`Error::Busy`] if it holds processes or cgroups;
    /// [`Error::Io`].
    pub fn remove(&self) -> Result<()> {
        match fs::remove_dir(&self.path) {
            Ok(()) => Ok(()),
            Err(source) if source.raw_os_error() == Some(libc::EBUSY) => {
                Err(Error::busy(format!("the cgroup {} still holds processes or cgroups", self.name), "terminate or move them first"))
            }
            Err(source) => Err(Error::from_io(&self.path, "remove", source)),
        }
    }

    fn enable_memory_below(&self) -> Result<()> {
        const FILE: &str = "cgroup.subtree_control";
        let has_memory = |text: &str| Ok(text.split_ascii_whitespace().any(|name| name == "memory"));
        if self.require(FILE, has_memory)? {
            return Ok(());
        }
        match self.write(FILE, "+memory") {
            Err(error) if error.errno() == Some(libc::EBUSY) => Err(Error::busy(
                format!("the cgroup {} holds processes, so that no controllers can be enabled for its children", self.name),
                "choose a parent cgroup without processes of its own",
            )),
            Err(error) if error.is_gone() && self.path.exists() => Err(Error::unsupported(
                format!("the memory controller is not enabled for the cgroup {}", self.name),
                "echo +memory > cgroup.subtree_control in each of its ancestors, from the root down",
            )),
            other => other,
        }
    }
}

/// Parses one pid per line; 0 stands for a process outside the caller's pid namespace and is omitted.
pub(super) fn parse_procs(text: &str) -> Result<Vec<i32>, Malformed> {
    let pids = text::lines(text).map(|(line, row)| text::number(Some(row), line, "a pid"));
    pids.filter(|pid| *pid != Ok(0)).collect()
}

/// Parses the line `populated 0` or `populated 1` of `cgroup.events`.
pub(super) fn parse_populated(text: &str) -> Result<bool, Malformed> {
    FlatKeyed::split(text)?.require("populated").map(|populated| populated != 0)
}

/// Parses the line `frozen 0` or `frozen 1` of `cgroup.events`.
pub(super) fn parse_frozen(text: &str) -> Result<bool, Malformed> {
    FlatKeyed::split(text)?.get("frozen").map(|frozen| frozen.is_some_and(|frozen| frozen != 0))
}
