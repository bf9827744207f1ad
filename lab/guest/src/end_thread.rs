//! Ends one thread of another process.

use anyhow::{Context, Result};

use crate::linux::thread;

/// The process and the name of its thread.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Process id
    #[arg(long)]
    pid: u32,
    /// The thread's name
    #[arg(long)]
    name: String,
}

/// Ends the thread.
///
/// # Errors
/// There is no such thread, or it cannot be stopped.
pub(crate) fn run(Arguments { pid, name }: &Arguments) -> Result<()> {
    let directory = format!("/proc/{pid}/task");
    for entry in std::fs::read_dir(&directory).with_context(|| format!("cannot list {directory}"))? {
        let entry = entry?;
        if std::fs::read_to_string(entry.path().join("comm"))?.trim_end() == name {
            let id = entry.file_name().to_string_lossy().parse()?;
            return thread::end(id).with_context(|| format!("cannot end thread {id}"));
        }
    }
    anyhow::bail!("process {pid} has no thread {name}")
}
