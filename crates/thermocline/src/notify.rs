//! Tells the service manager that a daemon is ready (`sd_notify(3)`, by its protocol alone).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Whoever waits for this daemon may go on. Does nothing where nobody started it that waits.
pub(crate) fn ready() {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&socket, b"READY=1") {
        log::warn!("cannot tell {} that this daemon is ready: {error}", socket.display());
    }
}

/// A path, or behind `@` an abstract name.
fn send(socket: &OsStr, message: &[u8]) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message, &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_arrives_by_path_and_by_abstract_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("thermocline-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        for (told, address) in
            [(path.clone().into_os_string(), SocketAddr::from_pathname(&path).unwrap()), (format!("@{name}").into(), abstract_name)]
        {
            let listener = UnixDatagram::bind_addr(&address).unwrap();
            send(&told, b"READY=1").unwrap();
            let mut heard = [0; 16];
            let length = listener.recv(&mut heard).unwrap();
            assert_eq!(&heard[..length], b"READY=1", "{told:?}");
        }
        assert!(send(OsStr::new("/nowhere/notify"), b"READY=1").is_err());
    }
}
