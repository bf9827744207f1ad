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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kernel::thp::HUGE_PAGE;
    use units::Age;

    use super::*;
    use crate::ages::sampled::blocks::Space;
    use crate::ages::sampled::held::Held;
    use crate::ages::sampled::point::{Report, Watching};

    const SCAN: Duration = Duration::from_secs(120);
    const WATCHING: Watching = Watching { interval: Duration::from_secs(30), since: Duration::ZERO };

    #[test]
    fn accesses_count_unless_the_block_has_become_a_huge_page_of_this_process() {
        let memory = vec![1u8; 3 * usize::try_from(HUGE_PAGE).unwrap()].leak();
        let block = (memory.as_ptr().addr() as u64).next_multiple_of(HUGE_PAGE);
        let (roots, pid) = (Roots::host(), i32::try_from(std::process::id()).unwrap());
        if split::collapse(pid, &[block]).is_err() || split::huge(&roots, pid, &[block]).unwrap().is_empty() {
            return println!("skipped: no huge page here");
        }
        let addresses = [block, block + (40 << 12)];
        assert_eq!(split::split(&roots, pid, &addresses).unwrap().1, [block], "idle, and therefore split");
        let age_after = |collapsed: bool| {
            let mut job = JobSample::default();
            let held = addresses
                .map(|address| (pid, Held { address, space: Space::PRIVATE, page: address >> 12, shared: Some(false), swapped: false }));
            job.scan(&held, Duration::ZERO, Duration::ZERO, SCAN);
            for at in (30..=630).step_by(30) {
                let report = Report { at: Duration::from_secs(at), accessed: at == 630, age: 0 };
                addresses.iter().for_each(|&address| job.take(pid, address, report, &WATCHING));
            }
            job.small.insert((pid, block));
            if collapsed {
                split::collapse(pid, &[block]).unwrap();
            }
            forget(&roots, &mut job).unwrap();
            assert!(job.small.is_empty(), "known for one scan");
            job.age(pid, block, SCAN)
        };
        assert_eq!((age_after(false), age_after(true)), (Some(Age(0)), Some(Age(5))));
        assert!(memory.iter().all(|&byte| byte == 1));
    }
}
