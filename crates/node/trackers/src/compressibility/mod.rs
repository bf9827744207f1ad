//! Sampled compressibility: compresses a few of a job's cold pages with each family of the kernel's compressors.
//!
//! Reading a page marks it accessed, so samples are few and rare, and hidden from trackers ([`PageAges::hide_access`]).

mod codecs;
mod family;
mod lzo;
mod page_test;
#[cfg(test)]
mod pages;
mod zsmalloc;

use std::time::Duration;

use kernel::pagemap::Entry;
use kernel::{Error, Result, Roots, process};
use policy::incompressible::Sample;
use units::{Age, RatioPpm};

use crate::ages::PageAges;
use crate::walk::{Flow, Walker};
use codecs::Codecs;

pub use family::Family;
pub use page_test::PageTest;

/// Which pages to sample, and when a page counts as incompressible.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Minimum age of the pages, if the ages of single pages are known.
    pub threshold: Age,
    /// Upper limit of the number of pages.
    pub pages: usize,
    /// A page whose compressed size is more than this share of its size counts as incompressible.
    pub ratio_max: RatioPpm,
    /// The family in use, which determines whether a page is incompressible.
    pub family: Family,
}

/// Page map entries that one measurement reads at most, of all processes: those of 16 GiB.
const ENTRIES_MAX: u64 = 1 << 22;

/// Additional saving that justifies another compressor, as a share of the pages' size.
const SAVING_MIN: RatioPpm = RatioPpm(100_000);

/// Result of one family for a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    /// Memory that the pages would take in zswap as a share of their size; one if no page was sampled. It counts
    /// zsmalloc's allocation for a page, not only the compressed bytes. A page that does not compress counts in full; a
    /// page of zeros does not count, because swap stores it as a bit (6.12; before, zswap did). Other pages of one
    /// repeated byte, which kernels before 6.12 store without an allocation as well, count with their compressed size.
    pub ratio: RatioPpm,
    /// Time to decompress a page, in microseconds: the median of the compressible pages, rounded up; at least one.
    /// Measured on this machine, with the compressed page in the processor's cache. A page fault adds the kernel's own
    /// path.
    pub decompress_us: u64,
    /// The same to compress a page, incompressible ones included.
    pub compress_us: u64,
}

/// Results of all families for a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// Number of pages, and number of pages that are incompressible for the family in use.
    pub sample: Sample,
    families: [Compression; 3],
}

impl Measurement {
    /// Of a sample, and the results in the order of [`Family::ALL`].
    #[must_use]
    pub const fn new(sample: Sample, families: [Compression; 3]) -> Self {
        Self { sample, families }
    }

    /// Returns the result of a family.
    #[must_use]
    pub const fn of(&self, family: Family) -> Compression {
        self.families[family as usize]
    }

    /// Recommends another compressor than `used`, the one in use, if it compresses the job's cold pages much better.
    #[must_use]
    pub fn advice(&self, used: &str) -> Option<String> {
        let family = Family::of_compressor(used);
        let better = self.better_than(family)?;
        let (now, then, name) = (self.of(family), self.of(better), better.as_str());
        let percent = |ratio: RatioPpm| ratio.as_f64() * 100.0;
        Some(format!(
            "zswap uses {used}, which compresses this job's cold pages to {:.0}%; {name} would compress them to {:.0}%, and decompress \
             a page in {} us instead of {}: set zswap.compressor = \"{name}\" with zswap.manage, or echo {name} > \
             /sys/module/zswap/parameters/compressor",
            percent(now.ratio),
            percent(then.ratio),
            then.decompress_us,
            now.decompress_us,
        ))
    }

    /// Returns the family with the best ratio, if it saves much more than the one in use: a fifth more, and
    /// [`SAVING_MIN`] of the pages' size.
    fn better_than(&self, used: Family) -> Option<Family> {
        let best = Family::ALL.into_iter().min_by_key(|&family| self.of(family).ratio)?;
        let saved = |family| u64::from(RatioPpm::ONE.0.saturating_sub(self.of(family).ratio.0));
        let (now, then) = (saved(used), saved(best));
        (then >= now + u64::from(SAVING_MIN.0) && 5 * then >= 6 * now).then_some(best)
    }
}

/// Reads and compresses resident pages of the given processes, spread evenly over the processes and, in each, over the
/// pages that are old enough, or over all pages if the ages of single pages are not known.
///
/// Costs about 100 us per page.
///
/// # Errors
/// Any error, except that a process has exited.
pub fn measure(roots: &Roots, walker: &mut Walker, pids: &[i32], ages: Option<&dyn PageAges>, request: &Request) -> Result<Measurement> {
    let mut tally = Tally::new()?;
    for (done, &pid) in pids.iter().enumerate() {
        // Later processes make up for a process with too few pages.
        let share = request.pages.saturating_sub(tally.sample.pages as usize).div_ceil(pids.len() - done);
        if share == 0 {
            break;
        }
        let entries = ENTRIES_MAX / pids.len() as u64;
        let chosen = match choose(roots, walker, (pid, entries), ages, request.threshold, share) {
            Err(error) if error.is_gone() => continue,
            chosen => chosen?,
        };
        for (address, entry) in chosen {
            let mut page = None;
            let mut read = || page = read_page(roots, pid, address);
            match ages {
                Some(ages) => ages.hide_access(pid, address, entry, &mut read),
                None => read(),
            }
            if let Some(page) = page {
                tally.add(&page, request);
            }
        }
    }
    Ok(tally.finish())
}

fn codecs() -> Result<Codecs> {
    Codecs::new().map_err(|source| Error::Io { path: "zstd".into(), op: "set up", source })
}

/// Sums over the sampled pages.
struct Tally {
    codecs: Codecs,
    sample: Sample,
    original_bytes: u64,
    /// Bytes in zsmalloc, by family.
    stored_bytes: [u64; 3],
    /// Times to decompress a page, by family.
    times: [Vec<Duration>; 3],
    /// Times to compress a page, by family.
    compress_times: [Vec<Duration>; 3],
}

impl Tally {
    fn new() -> Result<Self> {
        Ok(Self {
            codecs: codecs()?,
            sample: Sample { pages: 0, incompressible: 0 },
            original_bytes: 0,
            stored_bytes: [0; 3],
            times: Default::default(),
            compress_times: Default::default(),
        })
    }

    fn add(&mut self, page: &[u8], request: &Request) {
        let size = page.len() as u64;
        self.sample.pages += 1;
        self.original_bytes += size;
        if page.iter().all(|&byte| byte == 0) {
            return;
        }
        for family in Family::ALL {
            let trial = self.codecs.try_page(family, page);
            let payload = trial.payload as u64;
            self.stored_bytes[family as usize] += zsmalloc::stored_bytes(payload, size);
            self.times[family as usize].extend(trial.decompress);
            self.compress_times[family as usize].push(trial.compress);
            if family == request.family && payload > request.ratio_max.share_of(size) {
                self.sample.incompressible += 1;
            }
        }
    }

    fn finish(mut self) -> Measurement {
        let families = Family::ALL.map(|family| {
            let stored = self.stored_bytes[family as usize];
            Compression {
                ratio: RatioPpm::of(stored, self.original_bytes).unwrap_or(RatioPpm::ONE),
                decompress_us: median_us(&mut self.times[family as usize]),
                compress_us: median_us(&mut self.compress_times[family as usize]),
            }
        });
        Measurement::new(self.sample, families)
    }
}

/// Returns the median in microseconds, rounded up; at least one.
fn median_us(times: &mut [Duration]) -> u64 {
    times.sort_unstable();
    let median = times.get(times.len() / 2).map_or(0, |time| time.as_nanos().div_ceil(1000));
    u64::try_from(median).unwrap_or(u64::MAX).max(1)
}

/// Chooses at most `count` cold pages, evenly spread over those that the first `entries` of the process's page map have.
fn choose(
    roots: &Roots,
    walker: &mut Walker,
    (pid, entries): (i32, u64),
    ages: Option<&dyn PageAges>,
    threshold: Age,
    count: usize,
) -> Result<Vec<(u64, Entry)>> {
    let is_cold = |address: u64, entry: Entry| {
        entry.present() && ages.is_none_or(|ages| ages.age(pid, address, entry).is_some_and(|age| age >= threshold))
    };
    let mut chosen = Vec::with_capacity(2 * count);
    let (mut stride, mut visited) = (1usize, 0usize);
    walker.walk(roots, pid, 0, entries, &mut |address, entry| {
        if is_cold(address, entry) {
            if visited.is_multiple_of(stride) {
                chosen.push((address, entry));
            }
            visited += 1;
            // Too many: keep every other page, and take half as many from here on.
            if chosen.len() == 2 * count {
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
    Ok(thin_out(chosen, count))
}

/// Keeps at most `count` of the pages, evenly spread from the first on.
fn thin_out<T: Copy>(pages: Vec<T>, count: usize) -> Vec<T> {
    if pages.len() <= count {
        return pages;
    }
    (0..count).map(|i| pages[i * pages.len() / count]).collect()
}

/// Returns the content of a page; `None` if it cannot be read any more.
fn read_page(roots: &Roots, pid: i32, address: u64) -> Option<Vec<u8>> {
    let size = usize::try_from(kernel::page_size().bytes()).ok()?;
    let mut page = vec![0; size];
    (process::read_memory(roots, pid, address, &mut page).ok()? == size).then_some(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_spread_over_all_memory() {
        for (pages, count, want) in
            [(0, 4, &[][..]), (3, 4, &[0, 1, 2]), (4, 4, &[0, 1, 2, 3]), (7, 4, &[0, 1, 3, 5]), (8, 4, &[0, 2, 4, 6])]
        {
            assert_eq!(thin_out((0..pages).collect(), count), want, "{count} of {pages}");
        }
    }

    /// A tracker for which every page is old. Counts hidden accesses.
    #[derive(Default)]
    struct Old(std::cell::Cell<u32>);

    impl PageAges for Old {
        fn age(&self, _pid: i32, _address: u64, _entry: Entry) -> Option<Age> {
            Some(Age(9))
        }

        fn hide_access(&self, _pid: i32, _address: u64, _entry: Entry, access: &mut dyn FnMut()) {
            self.0.set(self.0.get() + 1);
            access();
        }
    }

    #[test]
    fn only_old_pages_are_sampled_and_the_accesses_hidden() {
        let (roots, pid) = (Roots::host(), i32::try_from(std::process::id()).unwrap());
        let memory = vec![7u8; 1 << 20];
        for (threshold, pids, want) in [(9, &[pid][..], 8), (10, &[pid], 0), (9, &[], 0), (9, &[i32::MAX, pid], 8)] {
            let old = Old::default();
            let request = Request { threshold: Age(threshold), pages: 8, ratio_max: RatioPpm(730_000), family: Family::Lzo };
            let measured = measure(&roots, &mut Walker::default(), pids, Some(&old), &request).unwrap();
            // Other tests of this process free memory meanwhile: a page may be gone before it is read.
            let pages = measured.sample.pages;
            assert!((want / 2..=want).contains(&pages) && old.0.get() == want, "{pages}, {} for {threshold} {pids:?}", old.0.get());
        }
        drop(memory);
    }

    /// Checks a sample of pages of these kinds: the number that is incompressible for the family in use, and every
    /// family's ratio, within one percentage point.
    fn check(kinds: &[&str], family: Family, incompressible: u32, percent: [u32; 3]) {
        let request = Request { threshold: Age(0), pages: 64, ratio_max: RatioPpm(730_000), family };
        let mut tally = Tally::new().unwrap();
        for kind in kinds {
            let (_, page) = pages::all().into_iter().find(|(name, _)| name == kind).unwrap();
            tally.add(&page, &request);
        }
        let measured = tally.finish();
        let pages = u32::try_from(kinds.len()).unwrap();
        assert_eq!(measured.sample, Sample { pages, incompressible }, "{kinds:?} {family:?}");
        for (family, want) in Family::ALL.into_iter().zip(percent) {
            let Compression { ratio, decompress_us, compress_us } = measured.of(family);
            assert!(ratio.0.abs_diff(want * 10_000) < 10_000, "{kinds:?} {family:?}: {ratio}, not {want}%");
            assert!(decompress_us >= 1 && compress_us >= 1, "{kinds:?} {family:?}");
        }
    }

    #[test]
    fn families_differ_in_the_pages_that_they_compress() {
        check(&[], Family::Lzo, 0, [100, 100, 100]);
        check(&["zeros"], Family::Lzo, 0, [0, 0, 0]);
        check(&["ones"], Family::Lzo, 0, [2, 1, 1]);
        check(&["text"], Family::Lzo, 0, [38, 53, 24]);
        check(&["pointers"], Family::Lz4, 0, [57, 70, 38]);
        check(&["weights"], Family::Lzo, 1, [100, 100, 62]);
        check(&["weights"], Family::Zstd, 0, [100, 100, 62]);
        check(&["noise"], Family::Zstd, 1, [100, 100, 100]);
        check(&["zeros", "noise", "noise", "zeros"], Family::Lz4, 2, [50, 50, 50]);
    }

    #[test]
    fn another_compressor_is_recommended_if_it_saves_much_more() {
        let check = |percent: [u32; 3], used, want: Option<Family>| {
            let families = percent.map(|percent| Compression { ratio: RatioPpm(percent * 10_000), decompress_us: 1, compress_us: 1 });
            let measured = Measurement { sample: Sample { pages: 64, incompressible: 0 }, families };
            assert_eq!(measured.better_than(used), want, "{percent:?} {used:?}");
            let advice = measured.advice(used.as_str());
            assert_eq!(advice.is_some(), want.is_some(), "{advice:?}");
            for (family, word) in [(used, "uses"), (want.unwrap_or(used), "set zswap.compressor =")] {
                let contained = advice.as_ref().is_none_or(|advice| advice.contains(word) && advice.contains(family.as_str()));
                assert!(contained, "{advice:?}");
            }
        };
        check([100, 100, 62], Family::Lzo, Some(Family::Zstd));
        check([100, 100, 62], Family::Zstd, None);
        check([38, 53, 24], Family::Lz4, Some(Family::Zstd));
        check([38, 53, 39], Family::Lz4, Some(Family::Lzo));
        check([50, 50, 41], Family::Lzo, None);
        check([50, 50, 40], Family::Lzo, Some(Family::Zstd));
        check([34, 34, 22], Family::Lzo, None);
        check([100, 100, 100], Family::Lzo, None);
    }

    #[test]
    fn a_median_is_at_least_a_microsecond() {
        for (nanos, want) in [(&[][..], 1), (&[0], 1), (&[1001], 2), (&[9000, 1000, 900_000], 9), (&[1000, 3000], 3)] {
            let mut times: Vec<_> = nanos.iter().copied().map(Duration::from_nanos).collect();
            assert_eq!(median_us(&mut times), want, "{nanos:?}");
        }
    }
}
