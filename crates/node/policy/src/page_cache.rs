//! How much of the page cache that the agent reclaimed is still saved.
//!
//! # Problem
//! A page that leaves far memory is counted by the kernel. A reclaimed page of a file is not: nothing reports that its file was
//! deleted, or that the kernel would have evicted it by now. A sum of what was reclaimed, minus refaults, therefore only grows: a
//! stream of 3 MiB in 6 s would add 43 GiB a day to the savings of a machine that has less.
//!
//! # Derivation
//! Reclaimed page cache is saved while two conditions hold.
//!
//! **It was there.** Reclaim frees no more DRAM than the cache occupied. If the cache occupied `held` and occupies `cache` now, the
//! saving is at most `held - cache`. A stream that is reclaimed as fast as it is read keeps `cache` at `held` and saves nothing.
//!
//! **The kernel would still hold it.** The kernel decides the same question at a refault (`mm/workingset.c`): a page that was evicted
//! belongs to the working set if no more pages were evicted since (its refault distance) than there are slots for. Without the agent,
//! each page that is new in the cache takes such a slot. A cache of `held` bytes that takes in `entered` new ones loses the share
//! `entered / held` of the old ones if it evicts at random, and of the oldest ones if it evicts in order: the share `1 - entered /
//! held` of the saving remains. After many small steps this is `exp(-sum / held)`, so the half-life is the time in which `0.69 held`
//! are read: it follows the turnover of the job's cache.
//!
//! `entered` needs no counter. The cache grows by what enters and by refaults, and shrinks by what the agent reclaims and by what
//! others drop: `entered >= cache - before + reclaimed - refaulted`.
//!
//! `held` decays together with the saving, toward `cache`. A job that reads nothing has no turnover, and a deleted file cannot be
//! distinguished from one that is not used: there the saving has a half-life of an hour ([`LIFE`]). And the kernel would hold no page
//! for which there is no free memory: the caller limits the sum over all jobs to it, after what is swapped out ([`Saved::limit`]).
//!
//! # Properties
//! Each is a test of this name: a stream saves nothing; a saving is at most what the cache shrank by; a refault ends it; turnover
//! halves it when 0.69 of the cache was read; an idle job's saving halves in an hour; any input is answered.

use serde::{Deserialize, Serialize};

use units::{Bytes, Millis};

/// Mean life of a saving without turnover: a half-life of one hour. It is the bound where the kernel gives no evidence, and long
/// against a control period, so that it costs a job that keeps its cold files only what an hour without any read justifies.
const LIFE: Millis = Millis(5_194_000);

/// The page cache of one job that the agent reclaimed and that counts as saved. A restart keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// The saving.
    saved: Bytes,
    /// What the cache would occupy.
    held: Bytes,
    /// What it occupied at the last observation; `None` before the first.
    cache: Option<Bytes>,
    /// Reclaimed since then.
    reclaimed: Bytes,
    /// The time of the last [`Saved::age`], in the caller's milliseconds.
    at_ms: Option<Millis>,
}

impl Saved {
    /// The saving.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.saved
    }

    /// The agent reclaimed page cache. It counts from the next observation on.
    pub fn reclaimed(&mut self, bytes: Bytes) {
        self.reclaimed += bytes;
    }

    /// The cache now occupies `cache`, and `refaulted` were read back since the last observation.
    pub fn observe(&mut self, cache: Bytes, refaulted: Bytes) {
        let reclaimed = std::mem::take(&mut self.reclaimed);
        let Some(before) = self.cache.replace(cache) else {
            self.held = self.held.max(cache);
            return;
        };
        let entered = (cache + reclaimed) - (before + refaulted);
        let kept = self.held - entered;
        self.saved = self.saved + reclaimed - refaulted;
        self.decay(kept.0, self.held.0);
        self.held = self.held.max(cache);
        self.saved = self.saved.min(self.held - cache);
    }

    /// Time has passed, of which only differences count.
    pub fn age(&mut self, now_ms: Millis) {
        let elapsed = self.at_ms.replace(now_ms).map_or(Millis::ZERO, |before| now_ms.saturating_sub(before));
        self.decay(LIFE.0, (LIFE + elapsed).0);
    }

    /// There is room for `room` of the `all` bytes that all jobs count as saved.
    pub fn limit(&mut self, room: Bytes, all: Bytes) {
        if room < all {
            self.decay(room.0, all.0);
        }
    }

    /// Reduces the saving, and what the cache would occupy beyond what it occupies, to the share `part / whole`.
    fn decay(&mut self, part: u64, whole: u64) {
        let share = |bytes: Bytes| {
            let kept = u128::from(bytes.0) * u128::from(part.min(whole)) / u128::from(whole.max(1));
            Bytes(u64::try_from(kept).unwrap_or(bytes.0))
        };
        let cache = self.cache.unwrap_or_default();
        self.saved = share(self.saved);
        self.held = cache + share(self.held - cache);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A job whose cache shrank from 1000 MiB to 100 because of the agent.
    fn trimmed() -> Saved {
        let mut saved = Saved::default();
        saved.observe(Bytes::mib(1000), Bytes::ZERO);
        saved.reclaimed(Bytes::mib(900));
        saved.observe(Bytes::mib(100), Bytes::ZERO);
        assert_eq!(saved.bytes(), Bytes::mib(900));
        saved
    }

    #[test]
    fn a_stream_saves_nothing() {
        let mut saved = Saved::default();
        for _ in 0..14_400 {
            saved.observe(Bytes::mib(50), Bytes::ZERO);
            saved.reclaimed(Bytes::mib(3));
        }
        assert_eq!(saved.bytes(), Bytes::ZERO);
    }

    #[test]
    fn a_saving_is_at_most_what_the_cache_shrank_by() {
        let mut saved = trimmed();
        // Another process read the files again, or the job others: the cache is what it was.
        saved.observe(Bytes::mib(1000), Bytes::mib(0));
        assert_eq!(saved.bytes(), Bytes::ZERO);
    }

    #[test]
    fn a_refault_ends_it() {
        let mut saved = trimmed();
        saved.observe(Bytes::mib(300), Bytes::mib(200));
        assert_eq!(saved.bytes(), Bytes::mib(700));
        saved.observe(Bytes::mib(100), Bytes::gib(7));
        assert_eq!(saved.bytes(), Bytes::ZERO);
    }

    #[test]
    fn turnover_halves_it_when_0_69_of_the_cache_was_read() {
        let mut saved = trimmed();
        // 10 MiB in and out again, 69 times: of a cache that would be 1000 MiB at first, and less later.
        for _ in 0..69 {
            saved.reclaimed(Bytes::mib(10));
            saved.observe(Bytes::mib(100), Bytes::ZERO);
        }
        let half = saved.bytes();
        assert!(Bytes::mib(300) < half && half < Bytes::mib(460), "{half}");
        for _ in 0..1_000 {
            saved.reclaimed(Bytes::mib(10));
            saved.observe(Bytes::mib(100), Bytes::ZERO);
        }
        assert!(saved.bytes() < Bytes::mib(10), "{}", saved.bytes());
    }

    #[test]
    fn an_idle_jobs_saving_halves_in_an_hour() {
        let mut saved = trimmed();
        for second in (0..=3_600).step_by(60) {
            saved.age(Millis(second * 1000));
            saved.observe(Bytes::mib(100), Bytes::ZERO);
        }
        let half = saved.bytes();
        assert!(Bytes::mib(445) < half && half < Bytes::mib(455), "{half}");
        saved.age(Millis(0));
        assert_eq!(saved.bytes(), half, "a clock that goes backwards");
    }

    #[test]
    fn a_machine_without_free_memory_saved_no_page_cache() {
        let (mut one, mut two) = (trimmed(), trimmed());
        for saved in [&mut one, &mut two] {
            saved.limit(Bytes::mib(600), Bytes::mib(1800));
            assert_eq!(saved.bytes(), Bytes::mib(300));
            saved.limit(Bytes::mib(600), Bytes::mib(600));
            assert_eq!(saved.bytes(), Bytes::mib(300), "there is room for both");
        }
        one.limit(Bytes::ZERO, Bytes::mib(300));
        assert_eq!(one.bytes(), Bytes::ZERO);
    }

    proptest! {
        #[test]
        fn any_input_is_answered(steps in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()), 0..20)) {
            let (mut saved, mut largest) = (Saved::default(), 0);
            for (cache, reclaimed, refaulted, at) in steps {
                saved.observe(Bytes(cache), Bytes(refaulted));
                largest = largest.max(cache);
                prop_assert!(saved.bytes().0 <= largest - cache);
                saved.reclaimed(Bytes(reclaimed));
                saved.age(Millis(at));
                saved.limit(Bytes(refaulted), Bytes(reclaimed));
            }
        }
    }
}
