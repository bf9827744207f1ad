//! What a job's memory would shrink to: a few of its cold pages through the kernel's families of compressors.
//!
//! Reading a page marks it accessed, so samples are few and rare, and trackers that would see it are told.

mod codecs;
mod lzo;
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

/// Compressors that differ little among themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Repeated bytes only, with a short form for short matches: `lzo`, `lzo-rle`.
    Lzo,
    /// Repeated bytes only, made for speed: `lz4`, `lz4hc`, `842`.
    Lz4,
    /// Repeated bytes, and frequent ones in fewer bits: `zstd`, `deflate`.
    Zstd,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Lzo, Self::Lz4, Self::Zstd];

    /// The kernel's name of its usual member.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lzo => "lzo",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// The family of a compressor, by its name in `/sys/module/zswap/parameters/compressor`.
    ///
    /// `lzo-rle` writes what `lzo` writes, and runs of zeros shorter. `lz4hc` searches longer than `lz4`, so LZ4's ratio
    /// is a cautious one for it. `deflate` codes by frequency as `zstd` does. `842` knows only repeats, of two, four and
    /// eight bytes; LZ4 is the nearest, and shrinks more than it. A name that is not known is judged as the kernel's
    /// default, `lzo`.
    #[must_use]
    pub fn of_compressor(name: &str) -> Self {
        match name.trim() {
            "lz4" | "lz4hc" | "842" => Self::Lz4,
            "zstd" | "deflate" => Self::Zstd,
            _ => Self::Lzo,
        }
    }
}

/// What is asked of a sample.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Only pages at least this old, where single pages' ages are known.
    pub threshold: Age,
    /// At most this many pages.
    pub pages: usize,
    /// A page that shrinks to more than this share of its size counts as incompressible.
    pub ratio_max: RatioPpm,
    /// The family in use, which decides what is incompressible.
    pub family: Family,
}

/// What another compressor must save more to be worth the trouble, as a share of the pages' size: a tenth.
const MUCH: RatioPpm = RatioPpm(100_000);

/// What one family made of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shrunk {
    /// Memory that the pages would take in zswap, to their size; one where none was sampled. It counts what zsmalloc
    /// allocates for a page rather than the compressed bytes. A page that does not shrink counts as whole; one of zeros
    /// counts as nothing, because swap keeps it as a bit (6.12; before, zswap did). Other pages of one repeated byte,
    /// which kernels before 6.12 keep for nothing too, count as what they compress to.
    pub ratio: RatioPpm,
    /// Time to decompress a page, in microseconds: the median over the pages that shrank, rounded up; at least one. It
    /// was measured on this machine, with the compressed page in the processor's cache. A fault costs the kernel's own
    /// path on top.
    pub decompress_us: u64,
}

/// A sample through every family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// How many pages there were, and how many the family in use could not shrink.
    pub sample: Sample,
    families: [Shrunk; 3],
}

impl Measured {
    /// What a family made of the sample.
    #[must_use]
    pub const fn of(&self, family: Family) -> Shrunk {
        self.families[family as usize]
    }

    /// What another compressor than `used`, the one in use, would make of a job's cold pages, and how to switch; where that
    /// is much better.
    #[must_use]
    pub fn advice(&self, used: &str) -> Option<String> {
        let family = Family::of_compressor(used);
        let better = self.better_than(family)?;
        let (now, then, name) = (self.of(family), self.of(better), better.as_str());
        let percent = |ratio: RatioPpm| ratio.as_f64() * 100.0;
        Some(format!(
            "zswap uses {used}, which shrinks its cold pages to {:.0}%; {name} would to {:.0}%, and take {} us rather than {} to bring \
             one back: set zswap.compressor = \"{name}\" with zswap.manage, or echo {name} > /sys/module/zswap/parameters/compressor",
            percent(now.ratio),
            percent(then.ratio),
            then.decompress_us,
            now.decompress_us,
        ))
    }

    /// The family that shrinks the sample most, where it would save much more than the one in use: a fifth more, and
    /// [`MUCH`] of the pages' size.
    fn better_than(&self, used: Family) -> Option<Family> {
        let best = Family::ALL.into_iter().min_by_key(|&family| self.of(family).ratio)?;
        let saved = |family| u64::from(RatioPpm::ONE.0.saturating_sub(self.of(family).ratio.0));
        let (now, then) = (saved(used), saved(best));
        (then >= now + u64::from(MUCH.0) && 5 * then >= 6 * now).then_some(best)
    }
}

/// Reads and compresses resident pages of the given processes, spread evenly over the processes and, in each, over the
/// pages that are old enough, or over all where single pages' ages are not known.
///
/// Costs some 100 us a page.
///
/// # Errors
/// Any error but the end of a process.
pub fn measure(roots: &Roots, walker: &mut Walker, pids: &[i32], ages: Option<&dyn PageAges>, wanted: &Wanted) -> Result<Measured> {
    let mut tally = Tally::new()?;
    for (done, &pid) in pids.iter().enumerate() {
        // What one process has too few pages for, the later ones make up.
        let share = wanted.pages.saturating_sub(tally.sample.pages as usize).div_ceil(pids.len() - done);
        if share == 0 {
            break;
        }
        let chosen = match choose(roots, walker, pid, ages, wanted.threshold, share) {
            Err(error) if error.is_gone() => continue,
            chosen => chosen?,
        };
        for (address, entry) in chosen {
            let mut page = None;
            let mut read = || page = read_page(roots, pid, address);
            match ages {
                Some(ages) => ages.unseen(entry, &mut read),
                None => read(),
            }
            if let Some(page) = page {
                tally.add(&page, wanted);
            }
        }
    }
    Ok(tally.finish())
}

/// A sample being taken.
struct Tally {
    codecs: Codecs,
    sample: Sample,
    original_bytes: u64,
    /// By family: bytes in zsmalloc, and times to decompress.
    stored_bytes: [u64; 3],
    times: [Vec<Duration>; 3],
}

impl Tally {
    fn new() -> Result<Self> {
        let failed = |source| Error::Io { path: "zstd".into(), op: "set up", source };
        Ok(Self {
            codecs: Codecs::new().map_err(failed)?,
            sample: Sample { pages: 0, incompressible: 0 },
            original_bytes: 0,
            stored_bytes: [0; 3],
            times: Default::default(),
        })
    }

    fn add(&mut self, page: &[u8], wanted: &Wanted) {
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
            if family == wanted.family && payload > wanted.ratio_max.share_of(size) {
                self.sample.incompressible += 1;
            }
        }
    }

    fn finish(mut self) -> Measured {
        let families = Family::ALL.map(|family| {
            let stored = self.stored_bytes[family as usize];
            Shrunk {
                ratio: RatioPpm::of(stored, self.original_bytes).unwrap_or(RatioPpm::ONE),
                decompress_us: median_us(&mut self.times[family as usize]),
            }
        });
        Measured { sample: self.sample, families }
    }
}

/// The median, rounded up to microseconds; at least one.
fn median_us(times: &mut [Duration]) -> u64 {
    times.sort_unstable();
    let median = times.get(times.len() / 2).map_or(0, |time| time.as_nanos().div_ceil(1000));
    u64::try_from(median).unwrap_or(u64::MAX).max(1)
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

/// A page's content; `None` where it cannot be read any more.
fn read_page(roots: &Roots, pid: i32, address: u64) -> Option<Vec<u8>> {
    let size = usize::try_from(kernel::page_size().bytes()).ok()?;
    let mut page = vec![0; size];
    (process::read_memory(roots, pid, address, &mut page).ok()? == size).then_some(page)
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
            let wanted = Wanted { threshold: Age(threshold), pages: 8, ratio_max: RatioPpm(730_000), family: Family::Lzo };
            let measured = measure(&roots, &mut Walker::default(), pids, Some(&old), &wanted).unwrap();
            assert_eq!((measured.sample.pages, old.0.get()), (want, want), "{threshold} {pids:?}");
        }
        drop(memory);
    }

    /// A sample of pages of these kinds: those that the family in use leaves too large, and every family's ratio, within
    /// one part in a hundred.
    fn check(kinds: &[&str], family: Family, incompressible: u32, percent: [u32; 3]) {
        let wanted = Wanted { threshold: Age(0), pages: 64, ratio_max: RatioPpm(730_000), family };
        let mut tally = Tally::new().unwrap();
        for kind in kinds {
            let (_, page) = pages::all().into_iter().find(|(name, _)| name == kind).unwrap();
            tally.add(&page, &wanted);
        }
        let measured = tally.finish();
        let pages = u32::try_from(kinds.len()).unwrap();
        assert_eq!(measured.sample, Sample { pages, incompressible }, "{kinds:?} {family:?}");
        for (family, want) in Family::ALL.into_iter().zip(percent) {
            let Shrunk { ratio, decompress_us } = measured.of(family);
            assert!(ratio.0.abs_diff(want * 10_000) < 10_000, "{kinds:?} {family:?}: {ratio}, not {want}%");
            assert!(decompress_us >= 1, "{kinds:?} {family:?}");
        }
    }

    #[test]
    fn families_differ_in_what_they_shrink() {
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
    fn another_compressor_is_better_where_it_saves_much_more() {
        let check = |percent: [u32; 3], used, want: Option<Family>| {
            let families = percent.map(|percent| Shrunk { ratio: RatioPpm(percent * 10_000), decompress_us: 1 });
            let measured = Measured { sample: Sample { pages: 64, incompressible: 0 }, families };
            assert_eq!(measured.better_than(used), want, "{percent:?} {used:?}");
            let advice = measured.advice(used.as_str());
            assert_eq!(advice.is_some(), want.is_some(), "{advice:?}");
            for (family, word) in [(used, "uses"), (want.unwrap_or(used), "set zswap.compressor =")] {
                let said = advice.as_ref().is_none_or(|advice| advice.contains(word) && advice.contains(family.as_str()));
                assert!(said, "{advice:?}");
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
    fn names_of_compressors() {
        for family in Family::ALL {
            assert_eq!(Family::of_compressor(family.as_str()), family);
        }
        for (name, want) in [
            ("lzo", Family::Lzo),
            ("lzo-rle\n", Family::Lzo),
            ("lz4", Family::Lz4),
            ("lz4hc", Family::Lz4),
            ("842", Family::Lz4),
            ("zstd", Family::Zstd),
            ("deflate", Family::Zstd),
            ("a new one", Family::Lzo),
        ] {
            assert_eq!(Family::of_compressor(name), want, "{name}");
        }
    }

    #[test]
    fn a_median_is_at_least_a_microsecond() {
        for (nanos, want) in [(&[][..], 1), (&[0], 1), (&[1001], 2), (&[9000, 1000, 900_000], 9), (&[1000, 3000], 3)] {
            let mut times: Vec<_> = nanos.iter().copied().map(Duration::from_nanos).collect();
            assert_eq!(median_us(&mut times), want, "{nanos:?}");
        }
    }
}
