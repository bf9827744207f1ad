//! Where a program's memory comes from: `set_mempolicy(2)` and `sched_setaffinity(2)`, as `numactl --membind --physcpubind`.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::{Error, Result};

/// `MPOL_BIND` of `include/uapi/linux/mempolicy.h`: memory of these nodes and no other.
const MPOL_BIND: libc::c_long = 2;

/// Nodes that a mask may name: the largest `CONFIG_NODES_SHIFT` of any architecture is 10.
const NODES_MAX: usize = 1024;

/// Binds a program that is yet to be started, and all that it starts, to the memory of one node and to some processors.
/// Where it has no more memory on that node, it is killed, as the kernel's rule is.
///
/// # Errors
/// [`Error::Unsupported`] for a node or processor that no kernel has. What the kernel refuses shows when it is started.
pub fn bind(command: &mut Command, node: u32, cpus: &[u32]) -> Result<()> {
    let mut nodes = [0 as libc::c_ulong; NODES_MAX / libc::c_ulong::BITS as usize];
    let (word, bit) = (node / libc::c_ulong::BITS, node % libc::c_ulong::BITS);
    let none = || Error::unsupported(format!("there is no node {node} to bind to"), "name one of /sys/devices/system/node");
    *nodes.get_mut(word as usize).ok_or_else(none)? |= 1 << bit;
    // SAFETY: an all-zero cpu_set_t is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus {
        let place = usize::try_from(cpu).unwrap_or(usize::MAX);
        if place >= libc::CPU_SETSIZE as usize {
            return Err(Error::unsupported(format!("there is no processor {cpu} to bind to"), "name one that is online"));
        }
        // SAFETY: the processor lies within the set.
        unsafe { libc::CPU_SET(place, &mut set) };
    }
    let prepare = move || {
        // SAFETY: the mask lives as long as the call, and has as many bits as it is told; the kernel ignores the last of them.
        let bound = unsafe { libc::syscall(libc::SYS_set_mempolicy, MPOL_BIND, nodes.as_ptr(), NODES_MAX as libc::c_ulong + 1) };
        // SAFETY: the set lives as long as the call, and is as large as it is told.
        let pinned = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
        if bound == 0 && pinned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: the closure makes system calls only, which is allowed between fork and exec.
    unsafe { command.pre_exec(prepare) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Roots, numa};

    #[test]
    fn a_program_is_bound_to_a_node() {
        let nodes = numa::nodes(&Roots::host()).unwrap();
        let Some(home) = nodes.iter().find(|node| !node.cpus.is_empty()) else {
            println!("SKIPPED: this kernel shows no NUMA nodes");
            return;
        };
        let mut command = Command::new("cat");
        bind(command.arg("/proc/self/numa_maps").arg("/proc/self/status"), home.id, &home.cpus[..1]).unwrap();
        let told = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert!(told.contains(&format!("bind:{}", home.id)), "{told}");
        assert!(told.contains(&format!("Cpus_allowed_list:\t{}\n", home.cpus[0])), "{told}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(bind(&mut Command::new("true"), 1024, &[0]).is_err());
        assert!(bind(&mut Command::new("true"), 0, &[u32::MAX]).is_err());
        // No machine of the tests has so many nodes.
        let mut command = Command::new("true");
        bind(&mut command, 1000, &[0]).unwrap();
        assert!(command.status().is_err());
    }
}
