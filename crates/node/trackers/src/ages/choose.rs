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
    given_up: Vec<Kind>,
}

impl Offer {
    /// Looks, and changes nothing.
    #[must_use]
    pub fn probe(roots: &Roots) -> Self {
        Self {
            page_idle: IdleBitmap::open(roots).map(drop),
            lru_gen: LruGen::probe(roots).map(drop),
            damon: kernel::damon::Damon::probe(roots).map(drop),
            given_up: Vec::new(),
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
            return self.refusal(wanted).is_none().then_some((wanted, CONFIGURED));
        }
        ORDER.into_iter().find(|(kind, _)| !self.given_up.contains(kind) && self.refusal(*kind).is_none())
    }

    /// What `auto` would take if it were not for `kind` and those before it.
    #[must_use]
    pub fn next_after(&self, kind: Kind) -> Option<(Kind, &'static str)> {
        ORDER.into_iter().skip_while(|(other, _)| *other != kind).skip(1).find(|(other, _)| self.refusal(*other).is_none())
    }

    /// Has `auto` pass over `kind` from here on.
    pub fn give_up(&mut self, kind: Kind) {
        self.given_up.push(kind);
    }
}

/// The reason for a tracker that the operator has named.
pub const CONFIGURED: &str = "configured";

/// What `auto` takes, best first.
const ORDER: [(Kind, &str); 3] = [
    (Kind::PageIdle, "exact, and this kernel has idle page tracking"),
    (Kind::LruGen, "this kernel has no idle page tracking; generations resolve three ages"),
    (Kind::Damon, "this kernel has neither idle page tracking nor MGLRU"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn check(there: [bool; 3], wanted: Kind, want: Option<Kind>) {
        let result = |yes: bool| {
            if yes { Ok(()) } else { Err(kernel::Error::Unsupported { what: "not there".into(), remedy: "build it".into() }) }
        };
        let offer = Offer { page_idle: result(there[0]), lru_gen: result(there[1]), damon: result(there[2]), given_up: Vec::new() };
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
    fn what_costs_too_much_is_passed_over() {
        let mut offer = Offer { page_idle: Ok(()), lru_gen: Ok(()), damon: Ok(()), given_up: Vec::new() };
        assert_eq!(offer.next_after(Kind::PageIdle).map(|(kind, _)| kind), Some(Kind::LruGen));
        offer.give_up(Kind::PageIdle);
        assert_eq!(offer.choose(Kind::Auto).map(|(kind, _)| kind), Some(Kind::LruGen));
        assert_eq!(offer.choose(Kind::PageIdle).map(|(kind, _)| kind), Some(Kind::PageIdle), "the operator's word stands");
        assert_eq!(offer.next_after(Kind::Damon), None);
    }

    #[test]
    fn a_configured_tracker_is_taken_or_nothing() {
        check([true, true, true], Kind::Damon, Some(Kind::Damon));
        check([true, true, false], Kind::Damon, None);
    }
}
