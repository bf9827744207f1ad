//! The machine: its kernel release and its power switch.

use std::ffi::CStr;

/// Returns the kernel release, as `uname -r` prints it.
pub(crate) fn kernel_release() -> String {
    // SAFETY: utsname is arrays of characters, for which all zeroes is valid.
    let mut name: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: `name` is writable and of the type that the call fills.
    unsafe { libc::uname(&raw mut name) };
    // SAFETY: the field is NUL-terminated, by the kernel or by the zeroes it started with.
    unsafe { CStr::from_ptr(name.release.as_ptr()) }.to_string_lossy().into_owned()
}

/// Writes out dirty data and powers the machine off; for process 1 of a guest only.
/// Returns only if the kernel refuses both to power off and to restart.
pub(crate) fn power_off() {
    // SAFETY: `sync` and `reboot` take no pointers.
    unsafe {
        libc::sync();
        libc::reboot(libc::LINUX_REBOOT_CMD_POWER_OFF);
        libc::reboot(libc::LINUX_REBOOT_CMD_RESTART);
    }
}
