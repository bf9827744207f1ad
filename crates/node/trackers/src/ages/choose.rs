//! The choice of a tracker for a job.

use config::Tracker as Kind;
use kernel::Roots;
use kernel::lru_gen::LruGen;
use kernel::page_idle::IdleBitmap;

use units::Bytes;

use super::{page_idle, sampled};

/// The most memory that `auto` spends on the ages of all page frames: those of 128 GiB.
const PAGE_IDLE_MEMORY_MAX: Bytes = Bytes::mib(64);

/// Trackers that this kernel offers, and the reasons why others are not available.
#[derive(Debug)]
pub struct Offer {
    /// Whether idle page tracking is available.
    pub page_idle: kernel::Result<()>,
    /// What the ages of all page frames would take.
    pub page_idle_memory: Bytes,
    /// Whether DAMON is available and not in use, and its trace event as well.
    pub sampled: kernel::Result<()>,
    /// Whether MGLRU's debugfs file is available.
    pub lru_gen: kernel::Result<()>,
    /// Whether DAMON is available and not in use.
    pub damon: kernel::Result<()>,
    excluded: Vec<Kind>,
}

impl Offer {
    /// Probes all trackers; changes nothing.
    #[must_use]
    pub fn probe(roots: &Roots) -> Self {
        Self {
            page_idle: IdleBitmap::open(roots).map(drop),
            page_idle_memory: page_idle::memory(roots).unwrap_or_default(),
            sampled: sampled::probe(roots),
            lru_gen: LruGen::probe(roots).map(drop),
            damon: kernel::damon::Damon::probe(roots).map(drop),
            excluded: Vec::new(),
        }
    }

    /// The reason why `kind` is not available; `None` if it is.
    #[must_use]
    pub fn unavailable(&self, kind: Kind) -> Option<&kernel::Error> {
        match kind {
            Kind::PageIdle | Kind::SampledFrames => self.page_idle.as_ref().err(),
            Kind::Sampled => self.sampled.as_ref().err(),
            Kind::LruGen => self.lru_gen.as_ref().err(),
            Kind::Damon => self.damon.as_ref().err(),
            Kind::Auto => None,
        }
    }

    /// Returns the tracker for a job and the reason for the choice; `None` if it is not available.
    ///
    /// `auto` prefers idle page tracking, which sees every access; then a random sample, whose ages are exact: of page frames, then of
    /// pages of processes; then generations, which distinguish three ages; DAMON's regions last, which are neither exact nor cheap. On a
    /// machine where the ages of all page frames take more than 64 MiB, it prefers a sample: its cost does not grow with the machine.
    #[must_use]
    pub fn choose(&self, requested: Kind) -> Option<(Kind, &'static str)> {
        if requested != Kind::Auto {
            return self.unavailable(requested).is_none().then_some((requested, CONFIGURED));
        }
        let large = self.page_idle_memory > PAGE_IDLE_MEMORY_MAX;
        let sample = [Kind::SampledFrames, Kind::Sampled].into_iter().find(|kind| large && self.offers(*kind));
        match sample {
            Some(sample) => Some((sample, LARGE)),
            None => ORDER.into_iter().find(|(kind, _)| self.offers(*kind)),
        }
    }

    fn offers(&self, kind: Kind) -> bool {
        !self.excluded.contains(&kind) && self.unavailable(kind).is_none()
    }

    /// Returns the tracker that `auto` would choose after `kind`.
    #[must_use]
    pub fn next_after(&self, kind: Kind) -> Option<(Kind, &'static str)> {
        ORDER.into_iter().skip_while(|(other, _)| *other != kind).skip(1).find(|(other, _)| self.unavailable(*other).is_none())
    }

    /// Excludes `kind` from the choice of `auto`.
    pub fn exclude(&mut self, kind: Kind) {
        self.excluded.push(kind);
    }
}

/// The reason for a tracker that the configuration names.
pub const CONFIGURED: &str = "configured";

/// The reason for a sample where idle page tracking is available.
const LARGE: &str = "the ages of all page frames would take more than 64 MiB here; those of a random sample are exact";

/// The order of preference of `auto`.
const ORDER: [(Kind, &str); 5] = [
    (Kind::PageIdle, "this kernel has idle page tracking, which sees every access"),
    (Kind::SampledFrames, "this kernel has idle page tracking; of all page frames it costs too much"),
    (Kind::Sampled, "this kernel has no idle page tracking; the ages of a random sample are exact"),
    (Kind::LruGen, "this kernel has no idle page tracking, and DAMON is in use or absent; generations distinguish three ages"),
    (Kind::Damon, "this kernel has neither idle page tracking nor MGLRU"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn check(available: [bool; 4], requested: Kind, want: Option<Kind>) {
        let result = |yes: bool| {
            if yes { Ok(()) } else { Err(kernel::Error::Unsupported { what: "not available".into(), remedy: "enable it".into() }) }
        };
        let offer = Offer {
            page_idle: result(available[0]),
            page_idle_memory: Bytes::mib(64),
            sampled: result(available[1]),
            lru_gen: result(available[2]),
            damon: result(available[3]),
            excluded: Vec::new(),
        };
        assert_eq!(offer.choose(requested).map(|(kind, _)| kind), want);
    }

    fn all(page_idle_memory: Bytes) -> Offer {
        Offer { page_idle: Ok(()), page_idle_memory, sampled: Ok(()), lru_gen: Ok(()), damon: Ok(()), excluded: Vec::new() }
    }

    #[test]
    fn a_large_machine_is_sampled_unless_configured_otherwise() {
        let mut offer = all(Bytes(Bytes::mib(64).0 + 1));
        let chosen = |offer: &Offer, requested| offer.choose(requested).map(|(kind, _)| kind);
        assert_eq!(chosen(&offer, Kind::Auto), Some(Kind::SampledFrames));
        assert_eq!(chosen(&offer, Kind::PageIdle), Some(Kind::PageIdle));
        offer.exclude(Kind::SampledFrames);
        assert_eq!(chosen(&offer, Kind::Auto), Some(Kind::Sampled));
        offer.exclude(Kind::Sampled);
        assert_eq!(chosen(&offer, Kind::Auto), Some(Kind::PageIdle), "exact ages are worth their memory where there is no sample");
    }

    #[test]
    fn auto_chooses_the_best_available_tracker() {
        check([true, true, true, true], Kind::Auto, Some(Kind::PageIdle));
        check([false, true, true, true], Kind::Auto, Some(Kind::Sampled));
        check([false, false, true, true], Kind::Auto, Some(Kind::LruGen));
        check([false, false, false, true], Kind::Auto, Some(Kind::Damon));
        check([false; 4], Kind::Auto, None);
    }

    #[test]
    fn an_excluded_tracker_is_chosen_only_if_configured() {
        let mut offer = all(Bytes::mib(64));
        assert_eq!(offer.next_after(Kind::PageIdle).map(|(kind, _)| kind), Some(Kind::SampledFrames));
        assert_eq!(offer.next_after(Kind::SampledFrames).map(|(kind, _)| kind), Some(Kind::Sampled));
        offer.exclude(Kind::PageIdle);
        assert_eq!(offer.choose(Kind::Auto).map(|(kind, _)| kind), Some(Kind::SampledFrames));
        offer.exclude(Kind::SampledFrames);
        assert_eq!(offer.choose(Kind::Auto).map(|(kind, _)| kind), Some(Kind::Sampled));
        assert_eq!(offer.choose(Kind::PageIdle).map(|(kind, _)| kind), Some(Kind::PageIdle), "the configuration has priority");
        assert_eq!(offer.next_after(Kind::Damon), None);
    }

    #[test]
    fn a_configured_tracker_has_no_fallback() {
        check([true; 4], Kind::Damon, Some(Kind::Damon));
        check([true, true, true, false], Kind::Damon, None);
    }
}
