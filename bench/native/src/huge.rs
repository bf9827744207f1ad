//! What a program loses whose huge pages in use are split: each access waits for the one before, in a quarter of the memory, which is
//! the most that tracker `sampled` finds in use where it splits.

use std::hint::black_box;
use std::ops::Range;

use anyhow::{Context, Result, ensure};
use kernel::Roots;
use kernel::madvise::PidFd;
use kernel::pagemap::{Categories, Pagemap, Query};
use kernel::thp::HUGE_PAGE;

use crate::measure::{Bench, Effort, Report};

/// Memory of each kind.
const BYTES: usize = 256 << 20;

/// Accesses of one turn.
const ACCESSES: u64 = 1 << 20;

/// One page in this many is in use.
const IN_USE: usize = 4;

/// Measures accesses to split huge pages beside those to whole ones.
pub(crate) fn bench(report: &mut Report, effort: Effort) -> Result<()> {
    let page = usize::try_from(kernel::page_size().bytes())?;
    let (whole, split) = (Memory::new()?, Memory::new()?);
    let process = PidFd::open(own_pid()?)?;
    for memory in [&whole, &split] {
        process.advise_collapse(&[memory.addresses()])?;
    }
    if whole.huge()? < BYTES || split.huge()? < BYTES {
        eprintln!("left out: this machine gives no huge pages");
        return Ok(());
    }
    let blocks = split.addresses().step_by(usize::try_from(HUGE_PAGE)?);
    process.advise_cold(&blocks.map(|block| block..block + page as u64).collect::<Vec<_>>())?;
    ensure!(split.huge()? == 0, "{} bytes are still in huge pages", split.huge()?);
    let mut random = fastrand::Rng::with_seed(7);
    let pages: Vec<usize> = (0..BYTES / page).filter(|_| random.usize(0..IN_USE) == 0).collect();
    let mut work = || read(split.bytes(), &pages, page);
    let mut limit = || read(whole.bytes(), &pages, page);
    report.measure(
        effort,
        Bench { name: "access_to_split_huge_pages", unit: "accesses", work: &mut work, limit: Some(&mut limit), required: None },
    )?;
    ensure!(whole.huge()? == BYTES && split.huge()? == 0, "the kernel split or collapsed huge pages meanwhile");
    Ok(())
}

/// Reads random words of `pages`, one after the other.
fn read(memory: &[u8], pages: &[usize], page: usize) -> u64 {
    let mut at = 1_u64;
    for _ in 0..ACCESSES {
        // All bytes are one: the next address waits for the byte that is read, and does not depend on its value.
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let number = usize::try_from(at >> 33).unwrap_or_default();
        at += u64::from(memory[pages[number % pages.len()] * page + (number >> 7) % page]);
    }
    black_box(at);
    ACCESSES
}

/// Memory, all of which is there, and none of which is zero: since Linux 6.12 a split gives zeroed parts back, and maps one page of zeros
/// in their place.
struct Memory {
    bytes: Vec<u8>,
    start: usize,
}

impl Memory {
    fn new() -> Result<Self> {
        let block = usize::try_from(HUGE_PAGE)?;
        let bytes = vec![1; BYTES + block];
        let first = bytes.as_ptr().addr();
        Ok(Self { bytes, start: first.next_multiple_of(block) - first })
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + BYTES]
    }

    fn addresses(&self) -> Range<u64> {
        let start = self.bytes().as_ptr().addr() as u64;
        start..start + BYTES as u64
    }

    /// Bytes that are mapped as huge pages.
    fn huge(&self) -> Result<usize> {
        let query = Query { all: Categories::HUGE | Categories::PRESENT, ..Query::default() };
        let (found, _) = Pagemap::open(&Roots::host(), own_pid()?)?.scan(self.addresses(), query, usize::MAX)?;
        Ok(usize::try_from(found.iter().map(|range| range.end - range.start).sum::<u64>())?)
    }
}

fn own_pid() -> Result<i32> {
    i32::try_from(std::process::id()).context("the process id exceeds 31 bits")
}
