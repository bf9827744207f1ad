//! A process that has idle memory and times how long the kernel makes it wait: for new mappings, page faults, and forks.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::content;
use crate::latencies::{Latencies, print_line};
use crate::linux::child;
use crate::linux::mapping::{Advice, Mapping, page_bytes};

/// Pause between two rounds.
const PAUSE: Duration = Duration::from_millis(2);

/// One in this many rounds forks a process.
const ROUNDS_PER_FORK: u64 = 8;

/// How much memory, and for how long.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Memory that is filled once and not accessed again
    #[arg(long, value_name = "MIB")]
    idle_mib: usize,
    /// Seconds to measure
    #[arg(long)]
    seconds: u64,
}

/// Fills its memory, prints `{"ready":true}`, and after some time a line with the latencies of each kind.
///
/// # Errors
/// Memory cannot be mapped, or a process not forked.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.idle_mib > 0, "--idle-mib must be at least 1");
    let idle = fill(arguments.idle_mib << 20)?;
    print_line(&json!({"ready": true}))?;
    let [mut maps, mut faults, mut forks] = [Latencies::new()?, Latencies::new()?, Latencies::new()?];
    let started = Instant::now();
    let mut round = 0;
    while started.elapsed() < Duration::from_secs(arguments.seconds) {
        let mapping = timed(&mut maps, || Mapping::anonymous(page_bytes(), 1)).context("cannot map a page")?;
        timed(&mut faults, || mapping.touch(0..1, true));
        timed(&mut maps, || drop(mapping));
        if round % ROUNDS_PER_FORK == 0 {
            let pid = timed(&mut forks, || child::fork(|| 0)).context("cannot fork")?;
            child::wait_any().context("cannot wait")?;
            child::reap(pid);
        }
        round += 1;
        std::thread::sleep(PAUSE);
    }
    drop(idle);
    let elapsed = started.elapsed();
    let of = |latencies: &Latencies| Value::from(latencies.summary(elapsed));
    print_line(&json!({"mmap": of(&maps), "fault": of(&faults), "fork": of(&forks)}))
}

fn timed<T>(latencies: &mut Latencies, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = work();
    latencies.record(began.elapsed());
    done
}

/// Memory with content that compresses as records do. Children do not have it, so that a fork does not copy its page tables.
fn fill(bytes: usize) -> Result<Mapping> {
    let memory = Mapping::anonymous(bytes, 1).context("cannot map memory")?;
    // Fails on kernels without transparent huge pages, where it is not needed.
    let _ = memory.advise(Advice::NoHugePage);
    memory.advise(Advice::DontFork).context("cannot exclude memory from forks")?;
    let mut random = content::seeded(&[7]);
    let mut page = Vec::new();
    for offset in (0..bytes).step_by(page_bytes()) {
        page.clear();
        content::write_records(&mut page, page_bytes(), offset as u64, &mut random);
        memory.write(offset, &page[..page_bytes()]);
    }
    Ok(memory)
}
