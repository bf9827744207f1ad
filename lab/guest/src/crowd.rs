//! A crowd of small jobs: many processes, each in a cgroup of its own, each with a little hot and some idle memory.

use std::fs;
use std::io::{PipeWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::content;
use crate::linux::child;
use crate::linux::mapping::{Advice, Mapping, page_bytes};
use crate::linux::signals::Signals;

/// Processes at most: the kernel's default number of process ids, with room for others.
const COUNT_MAX: u32 = 10_000;

/// How often each process accesses its hot memory.
const PERIOD: Duration = Duration::from_secs(1);

/// Who is to come.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The cgroup v2 directory in which each process gets a cgroup, named by its number; its children must have the
    /// memory controller
    #[arg(long, value_name = "DIRECTORY")]
    cgroup: PathBuf,
    /// How many processes
    #[arg(long)]
    count: u32,
    /// Memory of each, filled once
    #[arg(long, value_name = "KIB")]
    kib: usize,
    /// The part of it that each accesses every second
    #[arg(long, value_name = "KIB", default_value_t = 0)]
    hot_kib: usize,
}

/// Starts the crowd, says `ready` when all have filled their memory, and ends with all of them at `SIGTERM` or
/// `SIGINT`.
///
/// # Errors
/// When a cgroup cannot be made, or a process cannot be started or dies before it is ready.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Arguments { count, kib, hot_kib, .. } = *arguments;
    ensure!((1..=COUNT_MAX).contains(&count), "--count is {count}; 1 to {COUNT_MAX} are possible");
    ensure!(hot_kib <= kib && kib > 0, "--kib is {kib} and --hot-kib {hot_kib}; 1 and more, and no more hot than there is");
    let signals = Signals::block(&[libc::SIGTERM, libc::SIGINT]).context("cannot block signals")?;
    let (mut ready, tell) = std::io::pipe().context("cannot make a pipe")?;
    for number in 0..count {
        let directory = arguments.cgroup.join(format!("{number:04}"));
        fs::create_dir_all(&directory).with_context(|| format!("cannot make the cgroup {}", directory.display()))?;
        let life = || match live(&directory, number, (kib << 10, hot_kib << 10), &tell, &signals) {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("labguest: process {number} of the crowd: {error:#}");
                1
            }
        };
        child::fork(life).context("cannot fork")?;
    }
    // Only the children hold it now: were one to die, the pipe would end early once the others are ready, or never.
    drop(tell);
    let mut answers = vec![0; usize::try_from(count)?];
    ready.read_exact(&mut answers).context("a process of the crowd died before it was ready")?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready").and_then(|()| out.flush()).context("cannot write to standard output")?;
    drop(out);
    // The children end with this process.
    while signals.take(None).is_none() {}
    Ok(())
}

/// One process: enters its cgroup first, so that every page is charged there.
fn live(cgroup: &Path, number: u32, (bytes, hot_bytes): (usize, usize), mut tell: &PipeWriter, signals: &Signals) -> Result<()> {
    let procs = cgroup.join("cgroup.procs");
    fs::write(&procs, "0").with_context(|| format!("cannot write {}", procs.display()))?;
    let memory = Mapping::anonymous(bytes, 1).context("cannot map memory")?;
    // Without transparent huge pages there is nothing to forbid.
    let _ = memory.advise(Advice::NoHugePage);
    let page = page_bytes();
    let mut text = Vec::with_capacity(2 * page);
    for offset in (0..bytes / page * page).step_by(page) {
        text.clear();
        let id = u64::from(number) << 32 | offset as u64;
        content::write_records(&mut text, page, id, &mut content::seeded(&[id]));
        memory.write(offset, &text);
    }
    tell.write_all(b".").context("cannot tell that it is ready")?;
    while signals.take(Some(PERIOD)).is_none() {
        memory.touch(0..hot_bytes / page, true);
    }
    Ok(())
}
