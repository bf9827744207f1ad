//! A relay that simulates a network partition.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Forwards connections until it is cut.
pub(crate) struct Relay {
    /// Port that it listens on.
    pub(crate) port: u16,
    cut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    /// A relay to a port of this machine.
    pub(crate) fn to(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (cut, open) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let relay = Self { port, cut: Arc::clone(&cut), open: Arc::clone(&open) };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                if cut.load(Ordering::SeqCst) {
                    // Neither refused nor answered, like dropped packets.
                    open.lock().unwrap().push(stream);
                    continue;
                }
                let Ok(further) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                open.lock().unwrap().extend([stream.try_clone().unwrap(), further.try_clone().unwrap()]);
                pass(stream.try_clone().unwrap(), further.try_clone().unwrap(), Arc::clone(&cut));
                pass(further, stream, Arc::clone(&cut));
            }
        });
        relay
    }

    /// Drops all data from now on.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }

    /// Forwards new connections again, and closes the old ones.
    pub(crate) fn heal(&self) {
        self.cut.store(false, Ordering::SeqCst);
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, cut: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(read) = from.read(&mut buffer) {
            if read == 0 {
                let _ = to.shutdown(Shutdown::Both);
                break;
            }
            if !cut.load(Ordering::SeqCst) && to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
    });
}
