//! Huge pages that the kernel has collapsed since the last scan.
//!
//! khugepaged makes a huge page of a block in which some page was accessed. On x86 the entry of the new huge page has the accessed bit
//! set from the beginning: `collapse_huge_page()` in `mm/khugepaged.c` takes it from `vm_page_prot`, which has it. All sampled pages of
//! the block seem to be accessed then, at whatever age they were. Of memory that was split because it is idle, that happened
//! every few scans: each time a huge page's worth of promotions, which no objective permits, and none of them was real.
//!
//! What the parts of a new huge page show is therefore forgotten, unless they were accessed before the others. They are idle as
//! before, and the huge page is split again in the same scan.
//!
//! # Limitations
//! A block that is really accessed as a whole counts as idle if khugepaged collapses it before the next scan. By default
//! khugepaged goes through 16 MiB in 10 s, so that in a scan of two minutes it goes through 192 MiB of the machine.

use std::collections::BTreeMap;

use kernel::{Result, Roots};

use super::job::JobSample;
use super::split;

/// Forgets the accesses since the last scan that are a collapse, and which blocks were small: what is not split in this scan, because
/// the job's policy has changed, may be a huge page in use at the next.
///
/// # Errors
/// Any error of `/proc/PID/pagemap`, except that a process has exited.
pub(super) fn forget(roots: &Roots, job: &mut JobSample) -> Result<()> {
    let mut blocks: BTreeMap<i32, Vec<u64>> = BTreeMap::new();
    for (pid, block) in job.accessed_as_a_whole() {
        blocks.entry(pid).or_default().push(block);
    }
    for (pid, blocks) in blocks {
        let huge = match split::huge(roots, pid, &blocks) {
            Err(error) if error.is_gone() => continue,
            huge => huge?,
        };
        huge.into_iter().for_each(|block| job.forget_last_accesses(pid, block));
    }
    job.small.clear();
    Ok(())
}
