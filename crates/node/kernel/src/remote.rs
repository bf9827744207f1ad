//! Reads single bytes of another process's pages: `process_vm_readv(2)`.
#![allow(unsafe_code)]

use std::io;
use std::path::PathBuf;

use crate::{Error, Result};

/// The most pages per call (`UIO_MAXIOV`).
const PAGES_PER_CALL: usize = 1024;

/// Reads the byte at each of `addresses` of process `pid`, which swaps in and maps the pages that they are in. The pages are charged
/// to the cgroup of their owner. The bytes are dropped.
///
/// `MADV_WILLNEED` is no substitute: it reads pages into the swap cache and maps none, and `MADV_PAGEOUT` takes mapped pages only.
///
/// Returns how many were read: the first address that is not mapped or not readable ends it.
///
/// # Errors
/// [`Error::Gone`] if the process has exited; [`Error::Io`], `EPERM` without `CAP_SYS_PTRACE`.
pub fn touch(pid: i32, addresses: &[u64]) -> Result<usize> {
    let mut done = 0;
    for part in addresses.chunks(PAGES_PER_CALL) {
        let read = match read_bytes(pid, part) {
            Ok(read) => read,
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => 0,
            Err(source) => return Err(Error::from_io(&PathBuf::from(format!("/proc/{pid}")), "read the memory of", source)),
        };
        done += read;
        if read < part.len() {
            break;
        }
    }
    Ok(done)
}

/// One system call. Returns the bytes read.
fn read_bytes(pid: i32, addresses: &[u64]) -> io::Result<usize> {
    let mut buffer = vec![0_u8; addresses.len()];
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let remote = addresses.iter().map(|address| one_byte(*address)).collect::<io::Result<Vec<_>>>()?;
    // SAFETY: `local` is one vector over `buffer`, which outlives the call and has a byte for each of the remote vectors; the addresses
    // are those of the other process and are checked by the kernel, which only reads there.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, remote.as_ptr(), remote.len() as libc::c_ulong, 0) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

fn one_byte(address: u64) -> io::Result<libc::iovec> {
    let address = usize::try_from(address).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    Ok(libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address), iov_len: 1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pagemap::{Entry, Pagemap};
    use crate::testing::{Mapping, own_pid};
    use crate::{Roots, page_size};

    #[test]
    fn reading_a_byte_maps_its_page_and_no_other() {
        let pages = PAGES_PER_CALL + 8;
        let memory = Mapping::new(pages);
        // Page 3 is left out, and is not touched by the reads of its neighbours.
        let of = |page: usize| memory.range(page..page + 1).start;
        let addresses: Vec<u64> = (0..pages).filter(|page| *page != 3).map(of).collect();
        assert_eq!(touch(own_pid(), &addresses).unwrap(), pages - 1);
        let mut entries = vec![Entry::default(); pages];
        Pagemap::open(&Roots::host(), own_pid()).unwrap().read(of(0), &mut entries).unwrap();
        let absent: Vec<_> = (0..pages).filter(|page| !entries[*page].present() && !entries[*page].swapped()).collect();
        assert_eq!(absent, [3]);
    }

    #[test]
    fn an_unmapped_page_ends_it_and_an_exited_process_is_gone() {
        let memory = Mapping::new(8);
        memory.unmap(5..6);
        let addresses: Vec<u64> = (2..8).map(|page| memory.range(0..1).start + page * page_size().bytes()).collect();
        assert_eq!(touch(own_pid(), &addresses).unwrap(), 3);
        assert_eq!(touch(own_pid(), &addresses[3..]).unwrap(), 0);
        assert_eq!(touch(own_pid(), &[]).unwrap(), 0);
        assert!(touch(i32::MAX, &addresses).unwrap_err().is_gone());
    }
}
