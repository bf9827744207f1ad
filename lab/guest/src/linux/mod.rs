//! System calls without a safe wrapper elsewhere. All `unsafe` code of the program is here; each function is safe to
//! call, and each block states why it is sound.
#![allow(unsafe_code)]

pub(crate) mod child;
pub(crate) mod clock;
pub(crate) mod faults;
pub(crate) mod inotify;
pub(crate) mod mapping;
pub(crate) mod numa;
pub(crate) mod poll;
pub(crate) mod power;
pub(crate) mod remote;
pub(crate) mod signals;
pub(crate) mod thread;
pub(crate) mod uevent;

use std::io;

/// Converts the `-1` of a system call to the error in `errno`.
fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Repeats a call while signals interrupt it.
fn retried(mut call: impl FnMut() -> libc::c_int) -> io::Result<libc::c_int> {
    loop {
        match checked(call()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
