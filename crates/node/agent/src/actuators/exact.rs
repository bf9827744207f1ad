//! kreclaimd in user space (SDFM section 5.1): finds the pages whose age reached the threshold and passes them to
//! `process_madvise(MADV_PAGEOUT)` in batches.

use std::collections::HashSet;
use std::ops::Range;

use kernel::madvise::PidFd;
use kernel::pagemap::Entry;
use kernel::{Result, Roots, process};
use units::{Age, Pages};

use super::{Asked, STEP_ENTRIES, push};
use trackers::ages::{PageAges, Tracker};
use trackers::compressibility::PageTest;
use trackers::walk::{Flow, Walker};

/// The position in a job's pages.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    /// The processes that are left; `None` before the first step.
    pids: Option<Vec<i32>>,
    address: u64,
}

impl Cursor {
    /// Before the first step, goes to the first page of the processes that `list` returns.
    pub fn begin(&mut self, list: impl FnOnce() -> Vec<i32>) {
        self.pids.get_or_insert_with(list);
    }
}

/// Cold pages of one process, in the order of their addresses.
#[derive(Debug, Default)]
struct Batch {
    pages: Vec<Page>,
    /// Others that are as cold, and whose offload was found to be in vain.
    passed_over: Pages,
    /// Where the walk stopped; `None` at the end.
    stopped_at: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Page {
    address: u64,
    entry: Entry,
    frame: u64,
    age: Age,
}

/// What to offload of a job.
#[derive(Debug)]
pub struct Order<'a> {
    /// Its cgroup.
    pub job: &'a str,
    /// The fewest scans that a page was idle.
    pub threshold: Age,
    /// The most pages.
    pub limit: Pages,
    /// Which pages are worth it; `None` for all.
    pub test: Option<&'a mut PageTest>,
}

/// Carries out a part of the order, and advances the cursor.
///
/// A pidfd pins the process before it is checked to be in the cgroup `job`, and before its pages are read: if its number is reused
/// later, the kernel refuses the request instead of applying it to another process. One that has left the job ends its part of the
/// plan.
///
/// # Errors
/// Any error except the end of a process, which ends its part of the plan.
pub fn step(roots: &Roots, walker: &mut Walker, tracker: &mut dyn Tracker, cursor: &mut Cursor, order: Order<'_>) -> Result<Asked> {
    let pids = cursor.pids.get_or_insert_default();
    let Some(&pid) = pids.last() else {
        return Ok(Asked { finished: true, ..Asked::default() });
    };
    let page_bytes = kernel::page_size().bytes();
    let mut asked = Asked::default();
    let mut stopped_at = None;
    let done = PidFd::open(pid).and_then(|pinned| {
        let Some(ages) = tracker.page_ages() else { return Ok(()) };
        process::check_cgroup(roots, pid, order.job)?;
        let mut batch = collect(roots, walker, ages, (pid, cursor.address), &order)?;
        stopped_at = batch.stopped_at;
        asked.found = batch.passed_over + Pages(batch.pages.len() as u64);
        if let Some(test) = order.test {
            let failed = batch.without_failing(|page| test.passes(roots, ages, pid, page.address, page.entry));
            tracker.pass_over(&failed);
        }
        let mut frames: Vec<u64> = batch.pages.iter().map(|page| page.frame).collect();
        let still_idle = tracker.still_idle(&frames)?;
        let mut ranges = Vec::new();
        frames.clear();
        for (page, _) in batch.pages.iter().zip(still_idle).filter(|&(_, idle)| idle) {
            push(&mut ranges, page.address..page.address + page_bytes);
            frames.push(page.frame);
            asked.ages.add(page.age, Pages(1));
        }
        asked.pages = Pages(frames.len() as u64);
        if !ranges.is_empty() {
            pinned.advise_pageout(&ranges)?;
            tracker.reclaim_requested(&frames);
        }
        Ok(())
    });
    match stopped_at {
        Some(address) => cursor.address = address,
        None => {
            pids.pop();
            cursor.address = 0;
        }
    }
    match done {
        Err(error) if !error.is_gone() => Err(error),
        _ => {
            asked.finished = pids.is_empty();
            Ok(asked)
        }
    }
}

impl Batch {
    /// Removes the pages that fail a test; returns their frames.
    fn without_failing(&mut self, mut passes: impl FnMut(&Page) -> bool) -> Vec<u64> {
        let mut failed = Vec::new();
        self.pages.retain(|page| {
            let passed = passes(page);
            failed.extend((!passed).then_some(page.frame));
            passed
        });
        failed
    }
}

/// The next cold pages of a process from an address on.
///
/// A page that other processes map as well is skipped: the kernel would not reclaim it for one of them (`mm/madvise.c`,
/// `madvise_cold_or_pageout_pte_range`). Policy `cold_age` asks the kernel's lists for these pages.
fn collect(roots: &Roots, walker: &mut Walker, ages: &dyn PageAges, (pid, from): (i32, u64), order: &Order<'_>) -> Result<Batch> {
    let mut batch = Batch::default();
    let reached = walker.walk(roots, pid, from, STEP_ENTRIES, &mut |address, entry| {
        if !entry.present() || !entry.exclusive() {
            return Flow::Continue;
        }
        let Some(age) = ages.age(pid, address, entry).filter(|&age| age >= order.threshold) else { return Flow::Continue };
        if order.test.is_some() && ages.is_passed_over(entry) {
            batch.passed_over += Pages(1);
            return Flow::Continue;
        }
        if batch.pages.len() as u64 >= order.limit.0 {
            batch.stopped_at = Some(address);
            return Flow::Stop;
        }
        // Frame numbers are hidden only without CAP_SYS_ADMIN, and then the trackers do not work either.
        batch.pages.extend(entry.pfn().map(|frame| Page { address, entry, frame, age }));
        Flow::Continue
    })?;
    batch.stopped_at = batch.stopped_at.or(reached);
    Ok(batch)
}

/// Ranges of each process whose resident swap-backed pages are `threshold` old or older, for people and tests.
/// Processes that have ended are left out.
///
/// In contrast to [`step`], they include pages that several processes map, if the page is that old for all of them.
///
/// # Errors
/// Any error except the end of a process.
pub fn cold_ranges(roots: &Roots, ages: &dyn PageAges, pids: &[i32], threshold: Age) -> Result<Vec<(i32, Vec<Range<u64>>)>> {
    let page = kernel::page_size().bytes();
    let mut walker = Walker::default();
    let mut young = HashSet::new();
    for &pid in pids {
        let walked = walker.walk(roots, pid, 0, u64::MAX, &mut |address, entry| {
            if entry.present() && !entry.exclusive() && ages.age(pid, address, entry).is_none_or(|age| age < threshold) {
                young.extend(entry.pfn());
            }
            Flow::Continue
        });
        walked.map(drop).or_else(|error| if error.is_gone() { Ok(()) } else { Err(error) })?;
    }
    let mut found = Vec::new();
    for &pid in pids {
        let mut ranges = Vec::new();
        let walked = walker.walk(roots, pid, 0, u64::MAX, &mut |address, entry| {
            let cold = entry.present() && ages.age(pid, address, entry).is_some_and(|age| age >= threshold);
            if cold && (entry.exclusive() || entry.pfn().is_some_and(|pfn| !young.contains(&pfn))) {
                push(&mut ranges, address..address + page);
            }
            Flow::Continue
        });
        match walked {
            Err(error) if !error.is_gone() => return Err(error),
            Err(_) => {}
            Ok(_) => found.push((pid, ranges)),
        }
    }
    Ok(found)
}
