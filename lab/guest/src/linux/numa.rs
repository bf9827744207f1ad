//! NUMA nodes: the nodes of pages (`move_pages(2)`), and the nodes of new memory (`set_mempolicy(2)`).

use std::io;

/// Addresses per call.
const BATCH: usize = 1024;

/// Returns the node of each of these pages of a process; `None` for a page that is not in memory.
///
/// # Errors
/// `ESRCH` if the process does not exist, `EPERM` if it belongs to another user.
pub(crate) fn nodes_of(pid: i32, addresses: &[u64]) -> io::Result<Vec<Option<u32>>> {
    let mut nodes = Vec::with_capacity(addresses.len());
    let mut status = [0_i32; BATCH];
    for batch in addresses.chunks(BATCH) {
        // SAFETY: `batch` has the given number of addresses, which the kernel does not dereference, and `status` has
        // room for as many results; without a list of nodes no page is moved.
        let done = unsafe {
            libc::syscall(libc::SYS_move_pages, pid, batch.len(), batch.as_ptr(), std::ptr::null::<i32>(), status.as_mut_ptr(), 0)
        };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        nodes.extend(status[..batch.len()].iter().map(|&status| u32::try_from(status).ok()));
    }
    Ok(nodes)
}

/// Restricts new memory of this thread to one node.
///
/// # Errors
/// `EINVAL` if there is no such node, or it has no memory.
pub(crate) fn bind_to(node: u32) -> io::Result<()> {
    const NODES_MAX: u32 = u64::BITS;
    let mask = 1_u64.checked_shl(node).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: the kernel reads as many bits as `mask` has; the argument counts one more than it reads.
    let done = unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_BIND, &raw const mask, u64::from(NODES_MAX) + 1) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Removes the restriction of new memory to a node.
///
/// # Errors
/// `ENOSYS` on kernels without NUMA support.
pub(crate) fn unbind() -> io::Result<()> {
    // SAFETY: this policy has no mask, so the kernel does not read the null pointer.
    let done = unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_DEFAULT, std::ptr::null::<u64>(), 0_u64) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::super::mapping::{Mapping, page_bytes};
    use super::*;

    #[test]
    fn pages_in_memory_have_a_node() {
        let mapping = Mapping::anonymous(2 * page_bytes(), 1).unwrap();
        mapping.touch(0..1, true);
        let page = page_bytes() as u64;
        let addresses: Vec<u64> = (0..3000).map(|index| mapping.start() + index % 2 * page).collect();
        let pid = i32::try_from(std::process::id()).unwrap();
        let nodes = match nodes_of(pid, &addresses) {
            Ok(nodes) => nodes,
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => return println!("skipped: no move_pages(2) here"),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(nodes.len(), 3000);
        assert!(nodes.chunks(2).all(|pair| pair[0].is_some() && pair[1].is_none()), "{:?}", &nodes[..4]);
    }
}
