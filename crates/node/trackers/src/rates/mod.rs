//! How often memory is accessed: looks at the accessed bits of single pages, and what they say of whole blocks.
//!
//! A *block* is what is placed as a whole: up to 2 MiB of one mapping of one process, one huge page or its base pages
//! ([`blocks`]). A *point* is one page whose accessed bit is looked at. Trackers look, behind one trait:
//!
//! | tracker | looks at | sees | cannot see |
//! |---|---|---|---|
//! | [`page_idle`] | page frames | accesses by every process, and by the kernel for it | parts of a huge page |
//! | [`damon`] | addresses of a process | accesses of that process | accesses while DAMON starts or hands its counts out |
//! | [`perf`], if asked for | samples of accesses by the processor | also what the TLB holds, and parts of huge pages | most single accesses |
//!
//! [`sampler`] says which points to look at in the three stages of a period, and makes rates of what was seen.
//!
//! # What the accessed bit does not show
//! Both trackers clear the bit without flushing TLBs, as the kernel's own reclaim does. While a processor holds the
//! translation of a page in its TLB, further accesses leave the bit clear. The rates are therefore of TLB misses at the
//! most: right for memory much larger than what TLBs cover, too low for a small working set. Parts of a huge page that was
//! split have translations of their own, which is another reason to split those that are accessed much.
//!
//! No call from outside a process makes its processors forget its translations without harm. `process_madvise(MADV_COLD)`
//! flushes only what it has made old itself: a single page costs a single translation, and a flush of everything takes more
//! young pages in one range than are flushed one by one (33 on x86), with all that lie between them. Each of these would be
//! moved to the inactive list, from which reclaim takes first, and lose the very bit that is looked at. Writing 4 to
//! `clear_refs` flushes the whole address space, and write-protects it: every page that is written faults once more, and
//! what others (CRIU) know by the soft-dirty bits is gone. So the caveat stays, and is told.
//!
//! # Not beside ages
//! A look marks pages idle anew. An age that another tracker keeps of the same page, by the same bits, then misses the
//! accesses that were seen here. A job has rates or ages that are acted upon, never both.

use std::fmt;
use std::time::Duration;

use kernel::{Error, Result, Roots};
use policy::slowdown::rate::Looks;

pub mod blocks;
pub mod damon;
mod later;
pub mod page_idle;
pub mod perf;
pub mod sampler;
pub mod selection;
mod translate;

/// One page of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Point {
    /// The process.
    pub pid: i32,
    /// The page's first byte.
    pub address: u64,
}

/// What a watch is about.
#[derive(Clone, Copy, Debug)]
pub struct Watch<'a> {
    /// Pages to look at every time.
    pub often: &'a [Point],
    /// Pages of which only counts whether they were accessed at all. A tracker may look at them just once, at the end.
    pub once: &'a [Point],
    /// The time from look to look.
    pub look_period: Duration,
    /// How many looks there will be.
    pub looks: u32,
}

/// What a watch has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// A result for each point, those looked at often first, in the order in which they were given. `None` where the page
    /// vanished, moved, or cannot be looked at.
    pub looks: Vec<Option<Looks>>,
    /// The time from when the bits were first cleared to the last look.
    pub window: Duration,
}

/// Looks at accessed bits. There is one watch at a time.
pub trait RateTracker: fmt::Debug {
    /// Which one it is, as people are told.
    fn name(&self) -> &'static str;

    /// The most points that one watch may have.
    fn points_max(&self) -> usize;

    /// The shortest time from look to look.
    fn look_min(&self) -> Duration {
        Duration::ZERO
    }

    /// For how many looks more it takes its time to tell what was seen, once a watch has ended.
    fn looks_after(&self) -> u32 {
        0
    }

    /// Begins to watch. What was watched before is forgotten.
    ///
    /// Those of [`Watch::often`] are looked at as often as [`RateTracker::look`] is called, or by the kernel itself.
    ///
    /// # Errors
    /// When the kernel interface fails; a process that has ended is no error.
    fn watch(&mut self, watch: &Watch<'_>) -> Result<()>;

    /// Looks once; to be called each look period.
    ///
    /// # Errors
    /// When the kernel interface fails.
    fn look(&mut self) -> Result<()>;

    /// Ends the watch, and tells what was seen. `None` where the kernel takes its time to tell: to be called again until it
    /// has. Never waits.
    ///
    /// # Errors
    /// When the kernel interface fails; `Busy` where it takes far too long.
    fn finish(&mut self) -> Result<Option<Seen>>;

    /// Whether watching takes kernel threads, which outlive this process if it is killed. The processes watched must then
    /// be written down before [`RateTracker::watch`] ([`sampler::Sampler::pids`]).
    fn has_kernel_threads(&self) -> bool {
        false
    }

    /// Processes that are watched through kernel threads now.
    fn kdamond_targets(&self) -> Vec<i32> {
        Vec::new()
    }

    /// CPU time that the kernel's threads have spent on our behalf, ever.
    fn kernel_cpu_time(&self) -> Duration {
        Duration::ZERO
    }

    /// CPU time that threads of this process have spent beside the caller's, ever.
    fn threads_cpu_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Ends a watch without a result, and leaves nothing behind in the kernel. Where a result is on its way, it is waited for.
    ///
    /// # Errors
    /// What could not be taken down.
    fn stop(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The best tracker of rates that this kernel offers: idle page tracking, which sees every access, else DAMON. The processor's own
/// samples only where they are asked for, and nothing in their place where there are none.
///
/// # Errors
/// `Busy` where there is but DAMON, and somebody uses it; `Unsupported` with the remedy where there is neither, or no samples.
pub fn choose(roots: &Roots, access_sampling: bool) -> Result<Box<dyn RateTracker>> {
    if access_sampling {
        return Ok(Box::new(perf::Perf::open(roots)?));
    }
    let without = match page_idle::PageIdle::open(roots) {
        Ok(tracker) => return Ok(Box::new(tracker)),
        Err(error) if error.is_unsupported() => error,
        Err(error) => return Err(error),
    };
    match damon::Damon::open(roots) {
        Ok(tracker) => Ok(Box::new(tracker)),
        Err(error) if error.is_unsupported() => Err(Error::Unsupported {
            what: format!("nothing here tells how often a page is accessed: {without}"),
            remedy: format!("or: {error}"),
        }),
        Err(error) => Err(error),
    }
}
