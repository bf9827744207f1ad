//! Page frames and pages, as processed by the exact tracker and the exact actuator.

use std::collections::HashMap;
use std::hint::black_box;

use anyhow::{Context, Result, ensure};
use kernel::Roots;
use kernel::page_idle::{KPF_COMPOUND_TAIL, KPF_LRU, KPF_SLAB, KPF_SWAPBACKED};
use kernel::pagemap::{Entry, Pagemap};
use trackers::ages::Scan;
use trackers::ages::page_idle::{FrameAge, Frames, Owner, age_frames};
use trackers::walk::{Flow, Walker};

use crate::measure::{Bench, Effort, Report};

/// Frames of 16 GiB, whose flags fill 32 MiB.
const FRAMES: usize = 4 << 20;

/// Frames per call, as in the tracker.
const CHUNK: usize = 1 << 16;

/// Jobs that own frames.
const JOBS: usize = 8;

/// Memory of this process that is walked.
const WALKED_BYTES: usize = 256 << 20;

/// Measures ageing and walking.
pub(crate) fn bench(report: &mut Report, effort: Effort) -> Result<()> {
    ageing(report, effort)?;
    walking(report, effort)
}

/// The kernel's data about a machine's page frames.
struct Machine {
    flags: Vec<u64>,
    cgroups: Vec<u64>,
    idle: Vec<u64>,
}

impl Machine {
    /// Generates runs of frames of all kinds: jobs' anonymous and file pages, huge pages, kernel memory.
    fn new() -> Self {
        let mut random = fastrand::Rng::with_seed(4);
        let (mut flags, mut cgroups) = (Vec::with_capacity(FRAMES), Vec::with_capacity(FRAMES));
        while flags.len() < FRAMES {
            let owner = random.u64(1..=JOBS as u64 + 2);
            match random.u8(0..10) {
                0 => {
                    flags.resize((flags.len() + random.usize(1..64)).min(FRAMES), KPF_SLAB);
                    cgroups.resize(flags.len(), 0);
                }
                // Huge pages are aligned; frames in between are free.
                1 => {
                    let start = flags.len().next_multiple_of(512).min(FRAMES);
                    flags.resize(start, 0);
                    cgroups.resize(start, 0);
                    flags.push(KPF_LRU | KPF_SWAPBACKED);
                    flags.resize((start + 512).min(FRAMES), KPF_LRU | KPF_SWAPBACKED | KPF_COMPOUND_TAIL);
                    cgroups.resize(flags.len(), owner);
                }
                kind => {
                    let flag = if kind < 5 { KPF_LRU } else { KPF_LRU | KPF_SWAPBACKED };
                    flags.resize((flags.len() + random.usize(1..128)).min(FRAMES), flag);
                    cgroups.resize(flags.len(), owner);
                }
            }
        }
        flags.truncate(FRAMES);
        cgroups.truncate(FRAMES);
        let idle = (0..FRAMES / 64).map(|_| random.u64(..) | random.u64(..) | random.u64(..)).collect();
        Self { flags, cgroups, idle }
    }
}

fn ageing(report: &mut Report, effort: Effort) -> Result<()> {
    let machine = Machine::new();
    let owners: HashMap<u64, Owner> = (0..JOBS).map(|index| (index as u64 + 1, Owner::new(index, index as u64 + 1))).collect();
    let mut ages = vec![FrameAge::default(); FRAMES];
    let mut idle = machine.idle.clone();
    let mut scans = vec![Scan::default(); JOBS];
    let mut work = || {
        for first in (0..FRAMES).step_by(CHUNK) {
            let words = first / 64..(first + CHUNK) / 64;
            // The kernel refills the buffer for each chunk.
            idle[words.clone()].copy_from_slice(&machine.idle[words.clone()]);
            let frames = Frames {
                flags: black_box(&machine.flags[first..first + CHUNK]),
                cgroups: &machine.cgroups[first..first + CHUNK],
                idle: &mut idle[words],
            };
            age_frames(frames, &mut ages[first..first + CHUNK], &owners, &mut scans);
        }
        FRAMES as u64
    };
    let mut limit = || {
        let words = [&machine.flags, &machine.cgroups, &machine.idle]
            .map(|words| black_box(words).iter().fold(0, |sum: u64, &word| sum.wrapping_add(word)));
        black_box(words);
        FRAMES as u64
    };
    report.measure(
        effort,
        Bench { name: "page_idle_age_frames", unit: "frames", work: &mut work, limit: Some(&mut limit), required: None },
    )?;
    ensure!(scans.iter().all(|scan| scan.resident.total().0 > 0), "a job has no pages");
    Ok(())
}

fn walking(report: &mut Report, effort: Effort) -> Result<()> {
    let page = usize::try_from(kernel::page_size().bytes())?;
    let mut memory = vec![0u8; WALKED_BYTES];
    for first in memory.iter_mut().step_by(page) {
        *first = 1;
    }
    let start = memory.as_ptr().addr() as u64;
    let pages = (WALKED_BYTES / page) as u64;
    let pid = i32::try_from(std::process::id()).context("the process id exceeds 31 bits")?;
    let roots = Roots::host();
    let mut walker = Walker::default();
    let mut work = || {
        let mut present = 0;
        let walked = walker.walk(&roots, pid, 0, u64::MAX, &mut |_, entry| {
            present += u64::from(black_box(entry).present());
            Flow::Continue
        });
        walked.map_or(0, |_| present)
    };
    ensure!(work() >= pages, "not all of this process's {pages} pages are present; check that /proc is mounted");
    let mut entries = vec![Entry::default(); CHUNK];
    let pagemap = Pagemap::open(&roots, pid)?;
    let mut limit = || {
        let chunks = (0..pages).step_by(CHUNK);
        let read = chunks.map(|first| {
            let count = CHUNK.min(usize::try_from(pages - first).unwrap_or(CHUNK));
            pagemap.read(start + first * page as u64, &mut entries[..count]).unwrap_or(0) as u64
        });
        read.sum()
    };
    report.measure(effort, Bench { name: "page_walk", unit: "pages", work: &mut work, limit: Some(&mut limit), required: None })?;
    drop(black_box(memory));
    Ok(())
}
