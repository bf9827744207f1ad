//! Memory of another process, by system calls that map nothing.

use std::io;

/// Most ranges of one call (`UIO_MAXIOV` in `include/uapi/linux/uio.h`).
const RANGES_MAX: usize = 1024;

/// Reads the byte at each of `addresses` of process `pid` (`process_vm_readv(2)`).
///
/// # Errors
/// `ESRCH`, `EPERM`, or `EFAULT` for an address that is not mapped.
pub(crate) fn read(pid: i32, addresses: &[u64]) -> io::Result<()> {
    each(addresses, |local, remote, count| {
        // SAFETY: `local` is one range within a live buffer of at least `count` bytes, and the kernel checks the remote ones.
        unsafe { libc::process_vm_readv(pid, local, 1, remote, count, 0) }
    })
}

/// Writes a zero byte at each of `addresses` of process `pid` (`process_vm_writev(2)`).
///
/// # Errors
/// Those of [`read`].
pub(crate) fn write(pid: i32, addresses: &[u64]) -> io::Result<()> {
    each(addresses, |local, remote, count| {
        // SAFETY: as in `read`. The memory of the other process is not ours, so that no reference of this program changes.
        unsafe { libc::process_vm_writev(pid, local, 1, remote, count, 0) }
    })
}

/// Calls `transfer` with a local range, and the remote ranges of one byte each, until all addresses are done.
fn each(addresses: &[u64], transfer: impl Fn(*const libc::iovec, *const libc::iovec, libc::c_ulong) -> libc::ssize_t) -> io::Result<()> {
    let mut buffer = [0_u8; RANGES_MAX];
    for addresses in addresses.chunks(RANGES_MAX) {
        let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: addresses.len() };
        let remote = |&address: &u64| -> io::Result<libc::iovec> {
            let address = usize::try_from(address).map_err(io::Error::other)?;
            Ok(libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: 1 })
        };
        let ranges: Vec<libc::iovec> = addresses.iter().map(remote).collect::<io::Result<_>>()?;
        match usize::try_from(transfer(&raw const local, ranges.as_ptr(), ranges.len() as libc::c_ulong)) {
            Ok(done) if done == addresses.len() => {}
            // The kernel stops at the first address that it cannot reach.
            Ok(_) => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::mapping::{Mapping, page_bytes};
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn every_address_is_read_or_written() {
        let pages = RANGES_MAX + 1;
        let mapping = Mapping::anonymous(pages * page_bytes(), 1).unwrap();
        let addresses: Vec<u64> = (0..pages).map(|page| mapping.start() + (page * page_bytes()) as u64).collect();
        for page in 0..pages {
            mapping.write(page * page_bytes(), &[7, 7, 7, 7]);
        }
        let me = i32::try_from(std::process::id()).unwrap();
        read(me, &addresses).unwrap();
        write(me, &addresses).unwrap();
        let zeroed = |page: usize| mapping.u32_at(page * page_bytes()).load(Relaxed).to_ne_bytes();
        assert!((0..pages).all(|page| zeroed(page) == [0, 7, 7, 7]));
        for access in [read, write] {
            assert_eq!(access(me, &[addresses[0], 1]).unwrap_err().raw_os_error(), Some(libc::EFAULT));
            assert_eq!(access(i32::MAX, &addresses).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        }
    }
}
