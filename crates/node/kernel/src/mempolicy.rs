//! Memory policies: `set_mempolicy(2)` and `sched_setaffinity(2)` for a program before it starts, as `numactl --membind
//! --physcpubind` does; `mbind(2)` for shared memory of a running process, and for pages of this process.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::maps::Vma;
use crate::{Error, Result, Roots};

/// Modes and a flag of `include/uapi/linux/mempolicy.h`.
const MPOL_PREFERRED: libc::c_int = 1;
const MPOL_BIND: libc::c_int = 2;
const MPOL_PREFERRED_MANY: libc::c_int = 5;
const MPOL_F_STATIC_NODES: libc::c_int = 1 << 15;

/// Bits of a node mask: the largest `CONFIG_NODES_SHIFT` of any architecture is 10.
const NODES_MAX: usize = 1024;

/// One bit per node.
type Mask = [libc::c_ulong; NODES_MAX / libc::c_ulong::BITS as usize];

/// How the nodes of a policy are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Only these nodes.
    Bind,
    /// These nodes while they have free memory (Linux 5.15).
    PreferMany,
}

/// The nodes from which pages are allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The mode.
    pub mode: Mode,
    /// The nodes.
    pub nodes: Vec<u32>,
    /// Whether `MPOL_F_STATIC_NODES` is set: the nodes are not remapped when a cpuset changes. Visible in `numa_maps`.
    pub is_static: bool,
}

/// Sets the policy of shared memory that the process maps at `vma` (tmpfs, memfd). It applies to pages that are allocated later,
/// whichever process touches them first: the policy belongs to the memory, not to a mapping. Existing pages are not moved.
///
/// The memory is opened through `/proc/PID/map_files` and mapped without access rights for the duration of the call.
///
/// # Errors
/// [`Error::Gone`] if the process has exited or the mapping no longer exists; [`Error::Unsupported`] if the mapping is private,
/// the nodes have no memory, or the kernel does not support the mode; [`Error::Io`], `EPERM` without
/// `CAP_CHECKPOINT_RESTORE`.
pub fn set_shared(roots: &Roots, pid: i32, vma: &Vma, policy: &Policy) -> Result<()> {
    let path = roots.of_process(pid, "map_files").join(format!("{:x}-{:x}", vma.start, vma.end));
    if vma.private() {
        let what = format!("{} is private memory, whose policy only process {pid} can set", path.display());
        return Err(Error::unsupported(what, "choose shared memory"));
    }
    let nodes = mask(&policy.nodes)?;
    let flags = if policy.is_static { MPOL_F_STATIC_NODES } else { 0 };
    let mode = flags
        | match policy.mode {
            Mode::Bind => MPOL_BIND,
            Mode::PreferMany => MPOL_PREFERRED_MANY,
        };
    let fail = |op, source| Error::from_io(&path, op, source);
    let file = File::open(&path).map_err(|source| fail("open", source))?;
    let beyond = |_| fail("map", io::Error::from_raw_os_error(libc::EOVERFLOW));
    let length = usize::try_from(vma.len()).map_err(beyond)?;
    let offset = libc::off_t::try_from(vma.offset).map_err(beyond)?;
    // SAFETY: a new mapping at an address of the kernel's choice, without access rights, does not affect other memory.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, libc::MAP_SHARED, file.as_raw_fd(), offset) };
    if start == libc::MAP_FAILED {
        return Err(fail("map", io::Error::last_os_error()));
    }
    // SAFETY: the mapping was created above; the mask outlives the call and has the stated number of bits, of which the kernel
    // ignores the last.
    let set = unsafe { libc::syscall(libc::SYS_mbind, start, length, mode, nodes.as_ptr(), NODES_MAX as libc::c_ulong + 1, 0) };
    let error = io::Error::last_os_error();
    // SAFETY: the mapping was created above, and no reference into it exists.
    unsafe { libc::munmap(start, length) };
    match error {
        _ if set == 0 => Ok(()),
        error if error.raw_os_error() == Some(libc::EINVAL) => Err(Error::unsupported(
            format!("the kernel rejects the memory policy {mode:#x} with nodes {:?}", policy.nodes),
            "choose nodes that have memory; to prefer several nodes, boot Linux 5.15 or newer",
        )),
        error => Err(fail("set the policy of", error)),
    }
}

/// Has pages of this process that are allocated from now on prefer a node. Where it has no free memory, they come from others.
///
/// # Errors
/// [`Error::Unsupported`] if the node does not exist or has no memory, or the kernel has no NUMA support; [`Error::Io`] if the range is not
/// mapped.
pub(crate) fn prefer(start: usize, length: usize, node: u32) -> Result<()> {
    let nodes = mask(&[node])?;
    // SAFETY: a policy changes where pages are allocated, and not what memory contains; the mask outlives the call and has the stated
    // number of bits, of which the kernel ignores the last.
    let set = unsafe { libc::syscall(libc::SYS_mbind, start, length, MPOL_PREFERRED, nodes.as_ptr(), NODES_MAX as libc::c_ulong + 1, 0) };
    match io::Error::last_os_error() {
        _ if set == 0 => Ok(()),
        error if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::EPERM)) => Err(Error::unsupported(
            format!("the kernel does not allocate this process's pages on memory node {node}: mbind: {error}"),
            "choose a node that has memory, and permit mbind (seccomp)",
        )),
        source => Err(Error::Io { path: format!("memory node {node}").into(), op: "prefer", source }),
    }
}

fn mask(nodes: &[u32]) -> Result<Mask> {
    let mut mask: Mask = [0; NODES_MAX / libc::c_ulong::BITS as usize];
    for node in nodes {
        let (word, bit) = (node / libc::c_ulong::BITS, node % libc::c_ulong::BITS);
        let none = || Error::unsupported(format!("node {node} does not exist"), "choose one of /sys/devices/system/node");
        *mask.get_mut(word as usize).ok_or_else(none)? |= 1 << bit;
    }
    Ok(mask)
}

/// Binds a program before it starts, and its descendants, to the memory of one node and to some processors. If the node has no
/// free memory left, the kernel's OOM killer kills it.
///
/// # Errors
/// [`Error::Unsupported`] for a node or processor beyond every kernel's limit. Errors of the kernel are returned when the
/// program is started.
pub fn bind(command: &mut Command, node: u32, cpus: &[u32]) -> Result<()> {
    let nodes = mask(&[node])?;
    // SAFETY: an all-zero cpu_set_t is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus {
        let place = usize::try_from(cpu).unwrap_or(usize::MAX);
        if place >= libc::CPU_SETSIZE as usize {
            return Err(Error::unsupported(format!("processor {cpu} does not exist"), "choose an online processor"));
        }
        // SAFETY: the processor lies within the set.
        unsafe { libc::CPU_SET(place, &mut set) };
    }
    let prepare = move || {
        // SAFETY: the mask outlives the call and has the stated number of bits; the kernel ignores the last.
        let bound = unsafe { libc::syscall(libc::SYS_set_mempolicy, MPOL_BIND, nodes.as_ptr(), NODES_MAX as libc::c_ulong + 1) };
        // SAFETY: the set outlives the call and has the stated size.
        let pinned = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
        if bound == 0 && pinned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: the closure only makes system calls, which is permitted between fork and exec.
    unsafe { command.pre_exec(prepare) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;

    use super::*;
    use crate::testing::own_pid;
    use crate::{maps, numa, numa_maps};

    #[test]
    fn a_program_is_bound_to_a_node() {
        let nodes = numa::nodes(&Roots::host()).unwrap();
        let Some(home) = nodes.iter().find(|node| !node.cpus.is_empty()) else {
            println!("SKIPPED: this kernel shows no NUMA nodes");
            return;
        };
        let mut command = Command::new("cat");
        bind(command.arg("/proc/self/numa_maps").arg("/proc/self/status"), home.id, &home.cpus[..1]).unwrap();
        let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert!(output.contains(&format!("bind:{}", home.id)), "{output}");
        assert!(output.contains(&format!("Cpus_allowed_list:\t{}\n", home.cpus[0])), "{output}");
    }

    /// Anonymous shared memory of this process, and its mapping.
    fn shared_memory(bytes: usize) -> (File, Vma) {
        // SAFETY: the name is NUL-terminated; the descriptor is new and has no other owner.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"mempolicy".as_ptr(), libc::MFD_CLOEXEC)) };
        file.set_len(bytes as u64).unwrap();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice does not affect other memory. It is never unmapped.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let vmas = maps::read(&Roots::host(), own_pid()).unwrap();
        let vma = vmas.into_iter().find(|vma| vma.start == start.addr() as u64).unwrap();
        (file, vma)
    }

    #[test]
    fn the_policy_of_shared_memory_can_be_set_by_another_process() {
        let roots = Roots::host();
        let Some(home) = numa::nodes(&roots).unwrap().into_iter().find(|node| !node.cpus.is_empty()) else {
            println!("SKIPPED: this kernel shows no NUMA nodes");
            return;
        };
        let (file, vma) = shared_memory(1 << 16);
        let find = || numa_maps::read(&roots, own_pid()).unwrap().unwrap().into_iter().find(|policy| policy.start == vma.start).unwrap();
        assert_eq!((find().bound, find().is_static), (vec![], false));
        let check =
            |mode, is_static, bound: &[u32]| match set_shared(&roots, own_pid(), &vma, &Policy { mode, nodes: vec![home.id], is_static }) {
                Err(error) if error.errno() == Some(libc::EPERM) => println!("SKIPPED: {error}"),
                other => {
                    other.unwrap();
                    assert_eq!((&find().bound[..], find().is_static), (bound, is_static));
                }
            };
        check(Mode::Bind, false, &[home.id]);
        check(Mode::PreferMany, true, &[]);
        check(Mode::Bind, true, &[home.id]);
        drop(file);
    }

    #[test]
    fn memory_without_a_settable_policy_is_reported() {
        let roots = Roots::host();
        let policy = |node| Policy { mode: Mode::Bind, nodes: vec![node], is_static: false };
        let (_file, vma) = shared_memory(1 << 12);
        let stack = maps::read(&roots, own_pid()).unwrap().into_iter().find(Vma::private).unwrap();
        assert!(set_shared(&roots, own_pid(), &stack, &policy(0)).unwrap_err().to_string().contains("is private memory"));
        assert!(set_shared(&roots, i32::MAX, &vma, &policy(0)).unwrap_err().is_gone());
        assert!(set_shared(&roots, own_pid(), &vma, &policy(1024)).unwrap_err().is_unsupported());
        let gone = Vma { start: 1 << 12, end: 2 << 12, ..vma };
        assert!(set_shared(&roots, own_pid(), &gone, &policy(0)).unwrap_err().is_gone());
    }

    #[test]
    fn memory_that_is_not_mapped_prefers_no_node() {
        let refused = prefer(1 << 12, 1 << 12, 0).unwrap_err();
        assert!(refused.is_unsupported() || refused.errno() == Some(libc::EFAULT), "{refused}");
    }

    #[test]
    fn impossible_nodes_and_processors_are_rejected() {
        assert!(bind(&mut Command::new("true"), 1024, &[0]).is_err());
        assert!(bind(&mut Command::new("true"), 0, &[u32::MAX]).is_err());
        // No test machine has this many nodes.
        let mut command = Command::new("true");
        bind(&mut command, 1000, &[0]).unwrap();
        assert!(command.status().is_err());
    }
}
