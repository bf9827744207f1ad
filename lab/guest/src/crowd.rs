//! Many small jobs: one process per cgroup, each with a little hot and some idle memory.

use std::fs;
use std::io::{PipeWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::content;
use crate::linux::child;
use crate::linux::mapping::{Advice, Mapping, page_bytes};
use crate::linux::signals::Signals;

/// Limit of processes: below the kernel's default number of process ids.
const COUNT_MAX: u32 = 10_000;

/// Interval at which each process accesses its hot memory.
const PERIOD: Duration = Duration::from_secs(1);

/// Number and size of the processes.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The cgroup v2 directory in which each process gets a cgroup named by its number; the memory controller must be
    /// enabled for its children
    #[arg(long, value_name = "DIRECTORY")]
    cgroup: PathBuf,
    /// Number of processes
    #[arg(long)]
    count: u32,
    /// Memory of each process, filled once
    #[arg(long, value_name = "KIB")]
    kib: usize,
    /// The part of it that each process accesses every second
    #[arg(long, value_name = "KIB", default_value_t = 0)]
    hot_kib: usize,
}

/// Starts the processes, prints `ready` when all have filled their memory, and exits with all of them at `SIGTERM` or
/// `SIGINT`.
///
/// # Errors
/// A cgroup cannot be created, or a process cannot be started or exits before it is ready.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Arguments { count, kib, hot_kib, .. } = *arguments;
    ensure!((1..=COUNT_MAX).contains(&count), "--count is {count}; 1 to {COUNT_MAX} are allowed");
    ensure!(hot_kib <= kib && kib > 0, "--kib is {kib} and --hot-kib {hot_kib}; --kib must be at least 1, and --hot-kib at most --kib");
    let signals = Signals::block(&[libc::SIGTERM, libc::SIGINT]).context("cannot block signals")?;
    let (mut ready, notify) = std::io::pipe().context("cannot create a pipe")?;
    for number in 0..count {
        let directory = arguments.cgroup.join(format!("{number:04}"));
        fs::create_dir_all(&directory).with_context(|| format!("cannot create the cgroup {}", directory.display()))?;
        let life = || match live(&directory, number, (kib << 10, hot_kib << 10), &notify, &signals) {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("labguest: process {number}: {error:#}");
                1
            }
        };
        child::fork(life).context("cannot fork")?;
    }
    // Only the children hold the write end now, so that the pipe ends if a child exits before it is ready.
    drop(notify);
    let mut answers = vec![0; usize::try_from(count)?];
    ready.read_exact(&mut answers).context("a process exited before it was ready")?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready").and_then(|()| out.flush()).context("cannot write to standard output")?;
    drop(out);
    // The children are killed when this process exits.
    while signals.take(None).is_none() {}
    Ok(())
}

/// Body of one process: enters its cgroup first, so that every page is charged there.
fn live(cgroup: &Path, number: u32, (bytes, hot_bytes): (usize, usize), mut notify: &PipeWriter, signals: &Signals) -> Result<()> {
    let procs = cgroup.join("cgroup.procs");
    fs::write(&procs, "0").with_context(|| format!("cannot write {}", procs.display()))?;
    let memory = Mapping::anonymous(bytes, 1).context("cannot map memory")?;
    // Fails on kernels without transparent huge pages, where it is not needed.
    let _ = memory.advise(Advice::NoHugePage);
    let page = page_bytes();
    let mut text = Vec::with_capacity(2 * page);
    for offset in (0..bytes / page * page).step_by(page) {
        text.clear();
        let id = u64::from(number) << 32 | offset as u64;
        content::write_records(&mut text, page, id, &mut content::seeded(&[id]));
        memory.write(offset, &text);
    }
    notify.write_all(b".").context("cannot report readiness")?;
    while signals.take(Some(PERIOD)).is_none() {
        memory.touch(0..hot_bytes / page, true);
    }
    Ok(())
}
