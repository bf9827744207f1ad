//! Access rates of memory: samples of the accessed bits of single pages, and estimates for whole blocks.
//!
//! A *block* is the unit of placement: up to 2 MiB of one mapping of one process, one huge page or its base pages
//! ([`blocks`]). A *point* is one page whose accessed bit is sampled. Trackers implement one trait, [`RateTracker`]:
//!
//! | tracker | samples | sees | does not see |
//! |---|---|---|---|
//! | [`page_idle`] | page frames | accesses by every process, and by the kernel for it | parts of a huge page |
//! | [`damon`] | addresses of a process | accesses by that process | accesses while DAMON starts or reports its counts |
//! | [`perf`], on request | accesses sampled by the processor | also pages that the TLB holds, and parts of huge pages | most single accesses |
//!
//! [`sampler`] chooses the points of the stages of a period, and turns the samples into rates.
//!
//! # Limitations of the accessed bit
//! The first two trackers clear the bit without flushing TLBs, as the kernel's own reclaim does. While a processor holds the
//! translation of a page in its TLB, further accesses leave the bit clear. The rates are therefore at most those of TLB
//! misses: right for memory much larger than the TLB's reach, too low for a small working set. Parts of a split huge page
//! have translations of their own, which is another reason to split huge pages that are accessed often.
//!
//! No call from outside a process flushes its translations without harm. `process_madvise(MADV_COLD)` flushes only the
//! pages that it made old: a single page costs a single translation, and a flush of everything takes more young pages in one
//! range than are flushed one by one (33 on x86), and all pages between them. Each of these would be moved to the inactive
//! list, from which reclaim takes first, and lose the bit that is sampled. Writing 4 to `clear_refs` flushes the whole
//! address space, and write-protects it: every page that is written faults once more, and users of the soft-dirty bits
//! (CRIU) lose them. So the limitation stays, and is documented.
//!
//! # Interference with ages
//! A sample marks its page idle again. An age that another tracker keeps for the same page, from the same bits, then misses
//! the accesses that were seen here. A job has rates or ages that are acted upon, never both.

pub mod blocks;
mod choose;
pub mod damon;
pub mod page_idle;
mod pending;
pub mod perf;
mod point;
pub mod sampler;
pub mod selection;
mod tracker;
mod translate;

pub use choose::choose;
pub use point::Point;
pub use tracker::{Observation, RateTracker, Watch};
