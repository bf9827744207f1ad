//! Memory behind a device file that several machines see, such as a CXL expander with several ports (`/dev/dax0.0`).
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use units::Bytes;

/// Writes zeros to a range, through a mapping of its own: a DAX device has no `write(2)`. `offset` and `length` must be multiples of
/// the device's alignment, 2 MiB unless it was made otherwise.
///
/// # Errors
/// The file cannot be opened or mapped, or a regular file is shorter than the range: a mapping beyond its end would raise a signal.
pub fn zero(path: &Path, offset: u64, length: Bytes) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let metadata = file.metadata()?;
    let end = offset.checked_add(length.0).ok_or_else(|| io::Error::other("the range does not fit 64 bits"))?;
    if metadata.is_file() && metadata.len() < end {
        return Err(io::Error::other(format!("it has {} bytes, and {end} are needed", metadata.len())));
    }
    let out_of_range = |_| io::Error::other("the range does not fit the address space");
    let bytes = usize::try_from(length.0).map_err(out_of_range)?;
    let start = libc::off_t::try_from(offset).map_err(out_of_range)?;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: the kernel chooses the address, so that no mapping of this process is replaced; the descriptor is open.
    let mapping = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, file.as_raw_fd(), start) };
    if mapping == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping has just been made with this length, is writable, and nothing else in this process knows it. A regular file
    // is long enough; a device refuses to map more than it has.
    unsafe { std::ptr::write_bytes(mapping.cast::<u8>(), 0, bytes) };
    // SAFETY: the range is the whole mapping, which nothing refers to any more.
    if unsafe { libc::munmap(mapping, bytes) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_becomes_zero_and_nothing_else() {
        const MIB: usize = 1 << 20;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("device");
        std::fs::write(&path, vec![7; 4 * MIB]).unwrap();
        zero(&path, MIB as u64, Bytes::mib(2)).unwrap();
        let found = std::fs::read(&path).unwrap();
        assert!(found[MIB..3 * MIB].iter().all(|&byte| byte == 0));
        assert!(found[..MIB].iter().chain(&found[3 * MIB..]).all(|&byte| byte == 7));
        let error = zero(&path, 3 * MIB as u64, Bytes::mib(2)).unwrap_err().to_string();
        assert!(error.contains("5242880"), "{error}");
        assert!(zero(&path, u64::MAX, Bytes(1)).is_err());
        assert_eq!(zero(&directory.path().join("none"), 0, Bytes(1)).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
