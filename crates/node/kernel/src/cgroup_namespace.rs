//! Cgroup namespaces (`cgroup_namespaces(7)`): paths in `/proc/PID/cgroup` are relative to the reader's. In a container with a namespace
//! of its own, a process of another container is in `/../../pod2/c`, and would count as one that left its cgroup.

#![allow(unsafe_code)]

use std::fs::{self, File};
use std::os::fd::AsRawFd;

use crate::{Error, Result, Roots};

/// Enters the cgroup namespace of process 1, which is the machine's if process numbers are the machine's. Returns whether this process
/// was in another one. Threads that exist already stay where they are.
///
/// # Errors
/// [`Error::Io`]: the namespace of process 1 cannot be read or entered, which needs `CAP_SYS_PTRACE` and `CAP_SYS_ADMIN`.
pub fn enter_first(roots: &Roots) -> Result<bool> {
    let (own, first) = (roots.proc.join("thread-self/ns/cgroup"), roots.proc.join("1/ns/cgroup"));
    let read = |path| fs::read_link(path).map_err(|error| Error::from_io(path, "read", error));
    if read(&own)? == read(&first)? {
        return Ok(false);
    }
    let file = File::open(&first).map_err(|error| Error::from_io(&first, "open", error))?;
    // SAFETY: setns takes no pointer, and the descriptor is open. A cgroup namespace changes how paths are shown, and nothing that Rust
    // relies on.
    if unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWCGROUP) } != 0 {
        return Err(Error::from_io(&first, "enter", std::io::Error::last_os_error()));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_in_a_namespace_of_its_own_enters_the_first() {
        let roots = Roots::host();
        let own = || fs::read_link("/proc/thread-self/ns/cgroup").unwrap();
        let first = fs::read_link("/proc/1/ns/cgroup").ok();
        let test = move || {
            // SAFETY: unshare takes no pointer; the namespace is this thread's alone.
            let apart = unsafe { libc::unshare(libc::CLONE_NEWCGROUP) } == 0;
            if !apart || first.is_none() {
                println!("not as root: not tested");
                return;
            }
            assert_ne!(Some(own()), first);
            assert!(enter_first(&roots).unwrap());
            assert_eq!(Some(own()), first);
            assert!(!enter_first(&roots).unwrap(), "and is there");
        };
        std::thread::spawn(test).join().unwrap();
    }
}
