//! Location and migration of a process's pages between NUMA nodes: `move_pages(2)`, `migrate_pages(2)`.
//!
//! One address represents a whole huge page, which moves as one. Pages that other processes also map are not moved by address
//! ([`Reason::Shared`]).
//!
//! # Missing statuses
//! If a page cannot be migrated for a transient reason, such as a pin for I/O, the call stops there, returns the number of
//! remaining pages, and writes no status for any of them (`do_pages_move()` in `mm/migrate.c`). These pages are then moved one
//! by one, to distinguish the failed page from those that were not tried.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::path::PathBuf;

use serde::Serialize;

use crate::{Error, Result};

/// Addresses per call: 128 MiB if each is a huge page, so that no call delays the other process for long.
const PER_CALL: usize = 64;

/// `MPOL_MF_MOVE` of `include/uapi/linux/mempolicy.h`: move pages that only this process maps.
const MPOL_MF_MOVE: libc::c_int = 1 << 1;

/// A status that the kernel never writes: neither a node nor an error number.
const UNKNOWN: i32 = i32::MIN;

/// Nodes that a node mask may name: the largest `CONFIG_NODES_SHIFT` of any architecture is 10.
const NODES_MAX: u32 = 1024;

/// Where the page at an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Located {
    /// On this NUMA node.
    Node(u32),
    /// Unknown or not moved: the page stays on its node.
    Failed(Reason),
}

/// Why the location of a page is unknown, or why it was not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// `ENOENT`: no page is present, or it is swapped out.
    Absent,
    /// `EBUSY`, or not tried by the call: under I/O, pinned, or already in migration.
    Busy,
    /// `EACCES`: other processes also map it.
    Shared,
    /// `EFAULT`: nothing is mapped there, or only the zero page.
    Unmapped,
    /// `ENOMEM`: the node has no memory left for it.
    NodeFull,
    /// Any other error number, such as `EIO` for a dirty page that cannot be written.
    Other(i32),
}

impl Reason {
    fn from_errno(errno: i32) -> Self {
        match errno {
            libc::ENOENT => Self::Absent,
            libc::EBUSY => Self::Busy,
            libc::EACCES => Self::Shared,
            libc::EFAULT => Self::Unmapped,
            libc::ENOMEM => Self::NodeFull,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("no page is there"),
            Self::Busy => f.write_str("the page is pinned or in use by the kernel"),
            Self::Shared => f.write_str("other processes map the page too"),
            Self::Unmapped => f.write_str("nothing is mapped there"),
            Self::NodeFull => f.write_str("the node is full"),
            Self::Other(errno) => write!(f, "{}", io::Error::from_raw_os_error(*errno)),
        }
    }
}

impl Located {
    fn from_status(status: i32) -> Self {
        u32::try_from(status).map_or_else(|_| Self::Failed(Reason::from_errno(status.saturating_neg())), Self::Node)
    }
}

/// Returns the locations of the pages at `addresses` of the process, in order.
///
/// # Errors
/// [`Error::Gone`] if the process has exited; [`Error::Io`], `EPERM` without `CAP_SYS_PTRACE`.
pub fn locate(pid: i32, addresses: &[u64]) -> Result<Vec<Located>> {
    let mut located = Vec::with_capacity(addresses.len());
    for batch in addresses.chunks(PER_CALL) {
        let mut status = [UNKNOWN; PER_CALL];
        call(pid, batch, None, &mut status).map_err(|source| fail(pid, None, source))?;
        located.extend(status.iter().take(batch.len()).map(|status| Located::from_status(*status)));
    }
    Ok(located)
}

/// Moves the pages at `addresses` of the process to `node` (`MPOL_MF_MOVE`), one address for each huge page. Returns in order
/// where each page is, or why it was not moved; a page that was already on the node is reported on it.
///
/// If the node has free memory but no free huge page, the kernel splits the huge page and moves the parts.
///
/// Stops at the first page for which the node has no free memory: this page and all later ones are [`Reason::NodeFull`].
///
/// # Errors
/// [`Error::Gone`] if the process has exited, possibly after some pages were moved; [`Error::Unsupported`] if the node is
/// offline or without memory, or not permitted for the process; [`Error::Io`], `EPERM` without `CAP_SYS_NICE`.
pub fn to_node(pid: i32, addresses: &[u64], node: u32) -> Result<Vec<Located>> {
    move_by(addresses, |batch, status| call(pid, batch, Some(node), status)).map_err(|source| fail(pid, Some(node), source))
}

/// Moves addresses by `call`, which writes a status for every page that it tried; the others keep `UNKNOWN`.
fn move_by(addresses: &[u64], mut call: impl FnMut(&[u64], &mut [i32]) -> io::Result<()>) -> io::Result<Vec<Located>> {
    let mut located = Vec::with_capacity(addresses.len());
    // Up to this index, pages are moved one by one.
    let mut single_until = 0;
    while located.len() < addresses.len() {
        let rest = &addresses[located.len()..];
        let single = located.len() < single_until;
        let batch = &rest[..rest.len().min(if single { 1 } else { PER_CALL })];
        let mut status = [UNKNOWN; PER_CALL];
        match call(batch, &mut status) {
            Ok(()) => {
                let known = status.iter().take(batch.len()).take_while(|status| **status != UNKNOWN);
                let before = located.len();
                located.extend(known.map(|status| Located::from_status(*status)));
                match (located.len() - before < batch.len(), single) {
                    (true, true) => located.push(Located::Failed(Reason::Busy)),
                    (true, false) => single_until = before + batch.len(),
                    (false, _) => {}
                }
            }
            // ENOMEM fails the whole call; moving one by one finds the pages for which the node has memory.
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && batch.len() > 1 => {
                single_until = located.len() + batch.len();
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                located.resize(addresses.len(), Located::Failed(Reason::NodeFull));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(located)
}

/// Moves all pages of the process from node `from` to node `to` (`migrate_pages(2)`), with `CAP_SYS_NICE` also pages that other
/// processes map. Returns the number of pages that could not be moved.
///
/// # Errors
/// As [`to_node`].
pub fn all(pid: i32, from: u32, to: u32) -> Result<u64> {
    const WORD: u32 = u64::BITS;
    let mask = |node: u32| {
        let mut mask = [0_u64; (NODES_MAX / WORD) as usize];
        let word = mask.get_mut((node / WORD) as usize).ok_or_else(|| fail(pid, Some(node), io::Error::from_raw_os_error(libc::ENODEV)))?;
        *word = 1 << (node % WORD);
        Ok(mask)
    };
    let (from_mask, to_mask) = (mask(from)?, mask(to)?);
    // The kernel subtracts one bit from the length (get_nodes() in mm/mempolicy.c).
    let length = NODES_MAX + 1;
    // SAFETY: both masks are valid arrays of NODES_MAX bits that outlive the call, and the kernel only reads them.
    let left = unsafe { libc::syscall(libc::SYS_migrate_pages, named(pid)?, length, from_mask.as_ptr(), to_mask.as_ptr()) };
    u64::try_from(left).map_err(|_| match io::Error::last_os_error() {
        // EINVAL: a node is offline, or the process may use none of them.
        error if error.raw_os_error() == Some(libc::EINVAL) => fail(pid, Some(to), io::Error::from_raw_os_error(libc::ENODEV)),
        error => fail(pid, Some(to), error),
    })
}

/// Calls `move_pages(2)`; without a node it only reports locations. `status` has one entry per address.
fn call(pid: i32, addresses: &[u64], node: Option<u32>, status: &mut [i32]) -> io::Result<()> {
    let unusable = |_| io::Error::from_raw_os_error(libc::EINVAL);
    let pages = addresses.iter().map(|address| usize::try_from(*address).map(std::ptr::without_provenance::<libc::c_void>));
    let pages = pages.collect::<Result<Vec<_>, _>>().map_err(unusable)?;
    let nodes = match node {
        Some(node) => Some(vec![i32::try_from(node).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?; pages.len()]),
        None => None,
    };
    assert!(status.len() >= pages.len(), "one status per address");
    // SAFETY: the three arrays have `pages.len()` entries at least and outlive the call; the addresses are those of the
    // other process, and the kernel checks them. A page that moves keeps its address and content.
    let left = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            named(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?,
            pages.len(),
            pages.as_ptr(),
            nodes.as_ref().map_or(std::ptr::null(), |nodes| nodes.as_ptr()),
            status.as_mut_ptr(),
            if node.is_some() { MPOL_MF_MOVE } else { 0 },
        )
    };
    if left < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the pid; rejects 0, which these calls interpret as the caller.
fn named(pid: i32) -> Result<i32> {
    if pid > 0 { Ok(pid) } else { Err(Error::Gone { path: path_of(pid) }) }
}

fn path_of(pid: i32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

fn fail(pid: i32, node: Option<u32>, source: io::Error) -> Error {
    match (source.raw_os_error(), node) {
        (Some(libc::ENODEV), Some(node)) => Error::unsupported(
            format!("node {node} is offline or has no memory, so that pages of process {pid} cannot move there"),
            "bring its memory online (echo online > /sys/devices/system/node/nodeN/memoryM/state), or name another node",
        ),
        (Some(libc::EACCES), Some(node)) => Error::unsupported(
            format!("the cpuset of process {pid} does not hold node {node}"),
            "add the node to cpuset.mems of its cgroup, or name another node",
        ),
        (Some(libc::ENOSYS), _) => {
            Error::unsupported("this kernel has no move_pages", "boot a kernel with CONFIG_MIGRATION=y and CONFIG_NUMA=y")
        }
        _ => Error::from_io(&path_of(pid), if node.is_some() { "move pages of" } else { "locate pages of" }, source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Mapping, own_pid};

    #[test]
    fn pages_of_this_process_are_located_and_not_moved() {
        let pages = PER_CALL + 10;
        let memory = Mapping::new(pages);
        let addresses: Vec<u64> = (0..pages).map(|page| memory.range(page..page + 1).start).collect();
        let untouched = locate(own_pid(), &addresses[..1]).unwrap();
        assert_eq!(untouched, [Located::Failed(Reason::Absent)]);
        (0..pages).for_each(|page| memory.touch(page));
        memory.unmap(pages - 1..pages);
        let located = locate(own_pid(), &addresses).unwrap();
        let Located::Node(node) = located[0] else { panic!("{located:?}") };
        assert!(located[..pages - 1].iter().all(|page| matches!(page, Located::Node(_))), "{located:?}");
        assert_eq!(located[pages - 1], Located::Failed(Reason::Unmapped));
        let moved = to_node(own_pid(), &addresses, node).unwrap();
        assert_eq!(moved[..pages - 1], vec![Located::Node(node); pages - 1]);
        // Kernels report a hole in either way.
        assert!(matches!(moved[pages - 1], Located::Failed(Reason::Unmapped | Reason::Absent)), "{moved:?}");
        assert_eq!(all(own_pid(), node, node).unwrap(), 0);
    }

    #[test]
    fn a_missing_process_or_node_is_reported() {
        for pid in [i32::MAX, 0, -1] {
            assert!(locate(pid, &[4096]).unwrap_err().is_gone(), "{pid}");
            assert!(to_node(pid, &[4096], 0).unwrap_err().is_gone(), "{pid}");
            assert!(all(pid, 0, 0).unwrap_err().is_gone(), "{pid}");
        }
        for node in [NODES_MAX - 1, NODES_MAX, u32::MAX] {
            for error in [to_node(own_pid(), &[4096], node).map(drop), all(own_pid(), 0, node).map(drop)] {
                let error = error.unwrap_err();
                assert!(error.is_unsupported() && error.to_string().contains(&format!("node {node} is offline")), "{error}");
            }
        }
        assert!(to_node(own_pid(), &[], 0).unwrap().is_empty());
    }

    #[test]
    fn an_error_number_has_a_name() {
        let check = |status, expected, said: &str| {
            let located = Located::from_status(status);
            assert_eq!(located, expected);
            assert!(matches!(located, Located::Failed(reason) if reason.to_string().contains(said)) || said.is_empty(), "{located:?}");
        };
        check(3, Located::Node(3), "");
        check(-libc::ENOENT, Located::Failed(Reason::Absent), "no page");
        check(-libc::EBUSY, Located::Failed(Reason::Busy), "pinned");
        check(-libc::EACCES, Located::Failed(Reason::Shared), "other processes");
        check(-libc::EFAULT, Located::Failed(Reason::Unmapped), "mapped");
        check(-libc::ENOMEM, Located::Failed(Reason::NodeFull), "full");
        check(-libc::EIO, Located::Failed(Reason::Other(libc::EIO)), "Input/output");
    }

    /// Moves pages with a simulated kernel that cannot migrate the `pinned` ones and has memory for `room`; addresses are indices.
    fn moved_on(pages: u64, pinned: &[u64], room: usize) -> (Vec<Located>, usize) {
        let mut there = std::collections::HashSet::new();
        let mut calls = 0;
        let moved = move_by(&(0..pages).collect::<Vec<_>>(), |batch, status| {
            calls += 1;
            // As in the kernel, one failure leaves the statuses of the whole batch unwritten.
            let mut busy = false;
            for page in batch {
                if pinned.contains(page) {
                    busy = true;
                } else if there.len() < room || there.contains(page) {
                    there.insert(*page);
                } else {
                    return Err(io::Error::from_raw_os_error(libc::ENOMEM));
                }
            }
            if !busy {
                status[..batch.len()].fill(1);
            }
            Ok(())
        });
        (moved.unwrap(), calls)
    }

    #[test]
    fn a_pinned_page_is_distinguished_from_the_pages_after_it() {
        let check = |pages: u64, pinned: &[u64], room: usize, calls_max: usize| {
            let (moved, calls) = moved_on(pages, pinned, room);
            assert!(calls <= calls_max, "{calls} calls");
            let mut left = room;
            for (page, located) in (0..pages).zip(&moved) {
                let expected = if pinned.contains(&page) && left > 0 {
                    Located::Failed(Reason::Busy)
                } else if left > 0 {
                    left -= 1;
                    Located::Node(1)
                } else {
                    Located::Failed(Reason::NodeFull)
                };
                assert_eq!(*located, expected, "page {page} of {pages}, pinned {pinned:?}, room for {room}");
            }
            assert_eq!(moved.len() as u64, pages);
        };
        check(200, &[], 1000, 4);
        check(1, &[0], 1000, 1 + 1);
        check(200, &[0, 63, 64, 130], 1000, 4 + 3 * PER_CALL);
        check(200, &[], 100, 2 + PER_CALL);
        check(200, &[], 0, 2);
    }
}
