//! A small test compression of a job's cold pages.
//!
//! LZ4 stands for whatever zswap uses: what LZ4 cannot shrink, the kernel's lzo, lz4 and zstd hardly shrink either.
//! Reading a page marks it accessed, so samples are few and rare, and trackers that would see it are told.

use kernel::pagemap::Entry;
use kernel::{Result, Roots, process};
use policy::incompressible::Sample;
use policy::units::{Age, RatioPpm};

use crate::trackers::PageAges;
use crate::walk::{Flow, Walker};

/// Compresses up to `wanted` resident pages of the given processes, spread evenly over the processes and, in each, over
/// the pages that are at least `threshold` old, or over all where single pages' ages are not known.
///
/// # Errors
/// Any error but the end of a process.
pub fn take(
    roots: &Roots,
    walker: &mut Walker,
    pids: &[i32],
    ages: Option<&dyn PageAges>,
    threshold: Age,
    wanted: usize,
    ratio_max: RatioPpm,
) -> Result<Sample> {
    let mut sample = Sample { pages: 0, incompressible: 0 };
    for (done, &pid) in pids.iter().enumerate() {
        // What one process has too few pages for, the later ones make up.
        let share = wanted.saturating_sub(sample.pages as usize).div_ceil(pids.len() - done);
        if share == 0 {
            break;
        }
        let chosen = match choose(roots, walker, pid, ages, threshold, share) {
            Err(error) if error.is_gone() => continue,
            chosen => chosen?,
        };
        for (address, entry) in chosen {
            let mut shrinks = None;
            let mut read = || shrinks = page_shrinks(roots, pid, address, ratio_max);
            match ages {
                Some(ages) => ages.unseen(entry, &mut read),
                None => read(),
            }
            if let Some(shrinks) = shrinks {
                sample.pages += 1;
                sample.incompressible += u32::from(!shrinks);
            }
        }
    }
    Ok(sample)
}

/// Up to `wanted` pages, evenly spread.
fn choose(
    roots: &Roots,
    walker: &mut Walker,
    pid: i32,
    ages: Option<&dyn PageAges>,
    threshold: Age,
    wanted: usize,
) -> Result<Vec<(u64, Entry)>> {
    let is_cold = |address: u64, entry: Entry| {
        entry.present() && ages.is_none_or(|ages| ages.age(pid, address, entry).is_some_and(|age| age >= threshold))
    };
    let mut chosen = Vec::with_capacity(2 * wanted);
    let (mut stride, mut seen) = (1usize, 0usize);
    walker.walk(roots, pid, 0, &mut |address, entry| {
        if is_cold(address, entry) {
            if seen.is_multiple_of(stride) {
                chosen.push((address, entry));
            }
            seen += 1;
            // Too many: keep every other one and look at half as many from here on.
            if chosen.len() == 2 * wanted {
                let mut keep = false;
                chosen.retain(|_| {
                    keep = !keep;
                    keep
                });
                stride *= 2;
            }
        }
        Flow::Continue
    })?;
    Ok(thinned(chosen, wanted))
}

/// At most `wanted` of the pages, evenly spread from the first on.
fn thinned<T: Copy>(pages: Vec<T>, wanted: usize) -> Vec<T> {
    let count = pages.len();
    if count <= wanted {
        return pages;
    }
    (0..wanted).map(|i| pages[i * count / wanted]).collect()
}

/// Whether a page's payload stays within the ratio; `None` where it cannot be read any more.
fn page_shrinks(roots: &Roots, pid: i32, address: u64, ratio_max: RatioPpm) -> Option<bool> {
    let size = usize::try_from(kernel::page_size().bytes()).ok()?;
    let mut page = vec![0; size];
    if process::read_memory(roots, pid, address, &mut page).ok()? < size {
        return None;
    }
    Some(payload_fits(&page, ratio_max))
}

fn payload_fits(page: &[u8], ratio_max: RatioPpm) -> bool {
    lz4_flex::block::compress(page).len() as u64 <= ratio_max.share_of(page.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_reaches_to_the_end_of_memory() {
        for (count, wanted, want) in
            [(0, 4, &[][..]), (3, 4, &[0, 1, 2]), (4, 4, &[0, 1, 2, 3]), (7, 4, &[0, 1, 3, 5]), (8, 4, &[0, 2, 4, 6])]
        {
            assert_eq!(thinned((0..count).collect(), wanted), want, "{wanted} of {count}");
        }
    }

    /// Ages of which every page is old, and which count what is read unseen.
    #[derive(Default)]
    struct Old(std::cell::Cell<u32>);

    impl PageAges for Old {
        fn age(&self, _pid: i32, _address: u64, _entry: Entry) -> Option<Age> {
            Some(Age(9))
        }

        fn unseen(&self, _entry: Entry, access: &mut dyn FnMut()) {
            self.0.set(self.0.get() + 1);
            access();
        }
    }

    #[test]
    fn a_sample_is_taken_of_old_pages_and_unseen() {
        let (roots, pid) = (Roots::host(), i32::try_from(std::process::id()).unwrap());
        let memory = vec![7u8; 1 << 20];
        for (threshold, pids, want) in [(9, &[pid][..], 8), (10, &[pid], 0), (9, &[], 0), (9, &[i32::MAX, pid], 8)] {
            let old = Old::default();
            let sample = take(&roots, &mut Walker::default(), pids, Some(&old), Age(threshold), 8, RatioPpm(730_000)).unwrap();
            assert_eq!((sample.pages, old.0.get()), (want, want), "{threshold} {pids:?}");
        }
        drop(memory);
    }

    #[test]
    fn text_shrinks_and_noise_does_not() {
        let text: Vec<u8> = b"the lake is warm above and cold below; ".iter().copied().cycle().take(4096).collect();
        let mut x = 1u64;
        let noise: Vec<u8> = (0..4096)
            .map(|_| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                x.to_le_bytes()[3]
            })
            .collect();
        let ratio = RatioPpm(730_000);
        assert!(payload_fits(&text, ratio) && payload_fits(&[0; 4096], ratio));
        assert!(!payload_fits(&noise, ratio));
    }
}
