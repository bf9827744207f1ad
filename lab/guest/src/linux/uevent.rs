//! The kernel's device events (`NETLINK_KOBJECT_UEVENT`), reduced to change notifications.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// A subscription to the kernel's device events.
pub(crate) struct DeviceEvents {
    socket: OwnedFd,
}

impl DeviceEvents {
    /// Subscribes; events from now on are queued.
    ///
    /// # Errors
    /// Those of `socket(2)` and `bind(2)`: a kernel without networking, or a sandbox that forbids netlink.
    pub(crate) fn subscribe() -> io::Result<Self> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: takes no pointers.
        let fd = super::checked(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_KOBJECT_UEVENT) })?;
        // SAFETY: the descriptor was just opened and nothing else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: sockaddr_nl is plain integers, for which all zeroes is valid.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::sa_family_t::try_from(libc::AF_NETLINK).unwrap_or_default();
        address.nl_groups = 1;
        let length = libc::socklen_t::try_from(size_of::<libc::sockaddr_nl>()).unwrap_or_default();
        // SAFETY: the address is initialised and its length is passed.
        super::checked(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
        Ok(Self { socket })
    }

    /// Waits for the next event, at most `timeout`, and empties the queue.
    ///
    /// # Errors
    /// Those of `ppoll(2)`.
    pub(crate) fn wait(&self, timeout: Duration) -> io::Result<()> {
        super::poll::poll(&mut [super::poll::interest(self.socket.as_fd(), libc::POLLIN)], Some(timeout))?;
        let mut event = [0_u8; 4096];
        loop {
            // SAFETY: the buffer is writable for the given length.
            let got = unsafe { libc::recv(self.socket.as_raw_fd(), event.as_mut_ptr().cast(), event.len(), 0) };
            // An error means an empty or an overrun queue; the caller searches again in both cases.
            if got <= 0 {
                return Ok(());
            }
        }
    }
}
