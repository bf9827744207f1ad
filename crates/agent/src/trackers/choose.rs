//! Which tracker a job gets.

use config::Tracker as Kind;
use kernel::Roots;
use kernel::lru_gen::LruGen;
use kernel::page_idle::IdleBitmap;

/// What this kernel offers, each with the reason where it does not.
#[derive(Debug)]
pub struct Offer {
    /// Whether idle page tracking is there.
    pub page_idle: kernel::Result<()>,
    /// Whether MGLRU's debugfs file is there.
    pub lru_gen: kernel::Result<()>,
    /// Whether DAMON is there and free.
    pub damon: kernel::Result<()>,
}

impl Offer {
    /// Looks, and changes nothing.
    #[must_use]
    pub fn probe(roots: &Roots) -> Self {
        Self {
            page_idle: IdleBitmap::open(roots).map(drop),
            lru_gen: LruGen::probe(roots).map(drop),
            damon: kernel::damon::Damon::probe(roots).map(drop),
        }
    }

    /// The reason why `kind` cannot be had, if it cannot.
    #[must_use]
    pub fn refusal(&self, kind: Kind) -> Option<&kernel::Error> {
        match kind {
            Kind::PageIdle => self.page_idle.as_ref().err(),
            Kind::LruGen => self.lru_gen.as_ref().err(),
            Kind::Damon => self.damon.as_ref().err(),
            Kind::Auto => None,
        }
    }

    /// The tracker for a job, and why; `None` where the kernel has none at all.
    ///
    /// `auto` prefers the exact one; then generations, which cost a page-table walk per scan and nothing in between;
    /// DAMON last, because the machine has only one and others may want it.
    #[must_use]
    pub fn choose(&self, wanted: Kind) -> Option<(Kind, &'static str)> {
        if wanted != Kind::Auto {
            return self.refusal(wanted).is_none().then_some((wanted, "configured"));
        }
        [
            (Kind::PageIdle, "exact, and this kernel has idle page tracking"),
            (Kind::LruGen, "this kernel has no idle page tracking; generations resolve three ages"),
            (Kind::Damon, "this kernel has neither idle page tracking nor MGLRU"),
        ]
        .into_iter()
        .find(|(kind, _)| self.refusal(*kind).is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(there: [bool; 3], wanted: Kind, want: Option<Kind>) {
        let result = |yes: bool| {
            if yes { Ok(()) } else { Err(kernel::Error::Unsupported { what: "not there".into(), remedy: "build it".into() }) }
        };
        let offer = Offer { page_idle: result(there[0]), lru_gen: result(there[1]), damon: result(there[2]) };
        assert_eq!(offer.choose(wanted).map(|(kind, _)| kind), want);
    }

    #[test]
    fn auto_takes_the_best_there_is() {
        check([true, true, true], Kind::Auto, Some(Kind::PageIdle));
        check([false, true, true], Kind::Auto, Some(Kind::LruGen));
        check([false, false, true], Kind::Auto, Some(Kind::Damon));
        check([false, false, false], Kind::Auto, None);
    }

    #[test]
    fn a_configured_tracker_is_taken_or_nothing() {
        check([true, true, true], Kind::Damon, Some(Kind::Damon));
        check([true, true, false], Kind::Damon, None);
    }
}
