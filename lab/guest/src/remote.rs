//! Accesses to memory of another process through the kernel, as a debugger or a device model without a mapping makes.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::linux::mapping::page_bytes;
use crate::linux::remote;
use crate::linux::signals::Signals;

/// The memory, and how it is accessed.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The process
    pid: i32,
    /// First address
    start: u64,
    /// Address after the last byte
    end: u64,
    /// Write by `process_vm_writev`; default: read by `process_vm_readv`
    #[arg(long)]
    write: bool,
    /// Milliseconds from period to period, in each of which every page is accessed
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    period_ms: u64,
}

/// Accesses every page once, prints `ready by` and how, and accesses them in each period until `SIGTERM`.
///
/// A kernel without `CONFIG_CROSS_MEMORY_ATTACH` lacks the calls. `/proc/PID/mem` takes their place: it gets pages by
/// `get_user_pages_remote()`, with `FOLL_TOUCH` as they do.
///
/// # Errors
/// The process has exited, does not map all of the range, or may not be accessed.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let signals = Signals::block(&[libc::SIGTERM, libc::SIGINT])?;
    let addresses: Vec<u64> = (arguments.start..arguments.end).step_by(page_bytes()).collect();
    let access = if arguments.write { remote::write } else { remote::read };
    let context = || format!("memory of process {}", arguments.pid);
    let calls = match access(arguments.pid, &addresses) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => false,
        other => other.map(|()| true).with_context(context)?,
    };
    let path = format!("/proc/{}/mem", arguments.pid);
    let file = OpenOptions::new().read(true).write(true).open(path).with_context(context)?;
    let pass = || if calls { access(arguments.pid, &addresses) } else { through(&file, &addresses, arguments.write) };
    pass().with_context(context)?;
    println!("ready by {}", if calls { "calls" } else { "file" });
    io::stdout().flush()?;
    while signals.take(Some(Duration::from_millis(arguments.period_ms))).is_none() {
        pass().with_context(context)?;
    }
    Ok(())
}

/// Reads or writes the byte at each address through `/proc/PID/mem`.
fn through(memory: &File, addresses: &[u64], write: bool) -> io::Result<()> {
    let mut byte = [0];
    addresses
        .iter()
        .try_for_each(|&address| if write { memory.write_all_at(&byte, address) } else { memory.read_exact_at(&mut byte, address) })
}
