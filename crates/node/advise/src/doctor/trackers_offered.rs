//! Trackers: which this kernel offers, and what a missing one means beside the others.

use config::Tracker;
use kernel::Roots;
use trackers::ages::choose::Offer;

use super::check::{Check, Rank, Status, from_result};

/// The results for all trackers, the most exact first.
pub(super) fn all(roots: &Roots, offer: &Offer) -> Vec<Check> {
    let mut checks = vec![
        from_result("page_idle", &offer.page_idle, "idle page tracking: ages of single pages, based on every access"),
        from_result("sampled", &offer.sampled, "exact ages of a random sample of pages, by DAMON's trace event"),
        from_result("lru_gen", &offer.lru_gen, "generations of every cgroup, in debugfs"),
        from_result("damon", &offer.damon, "DAMON's sysfs interface, not in use"),
    ];
    let chosen = offer.choose(Tracker::Auto).map(|(kind, _)| kind);
    let exact = matches!(chosen, Some(Tracker::PageIdle | Tracker::SampledFrames | Tracker::Sampled));
    let busy = checks.iter().any(|check| check.status == Status::Busy);
    for check in &mut checks {
        let rank = match (chosen, check.name) {
            // Of trackers that are all missing, one is needed: the busy one, if there is one.
            (None, _) if !busy || check.status == Status::Busy => Rank::Blocks,
            (None, _) => Rank::Better,
            // One exact tracker is enough.
            (Some(_), "sampled") if !exact => Rank::Costs,
            (Some(_), _) => Rank::Fine,
        };
        *check = check.clone().ranked(rank);
    }
    if let Some(first) = checks.iter_mut().find(|check| check.status == Status::Busy) {
        *first = first.clone().with_commands(free_damon(roots));
    }
    checks
}

/// Commands that free DAMON from a kernel module, or from the kdamonds of another program.
fn free_damon(roots: &Roots) -> Vec<String> {
    const KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds";
    let modules = ["damon_stat", "damon_reclaim", "damon_lru_sort"].into_iter().filter(|module| {
        let enabled = roots.sys.join("module").join(module).join("parameters/enabled");
        std::fs::read_to_string(enabled).is_ok_and(|text| text.trim() == "Y")
    });
    let switched: Vec<_> = modules.map(|module| format!("echo N > /sys/module/{module}/parameters/enabled")).collect();
    if switched.is_empty() {
        return vec![format!("for state in {KDAMONDS}/*/state; do echo off > $state; done; echo 0 > {KDAMONDS}/nr_kdamonds")];
    }
    switched
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn damon_is_freed_from_the_program_that_uses_it() {
        let commands = |files: &[(&str, &str)]| {
            let (_keep, roots) = tree(files);
            let found = all(&roots, &Offer::probe(&roots));
            found
                .into_iter()
                .find(|check| check.status == Status::Busy || check.name == "damon")
                .map(|check| (check.status, check.commands.join("; ")))
                .unwrap()
        };
        let kdamonds = |count| ("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", count);
        let (status, foreign) = commands(&[kdamonds("1\n")]);
        assert!(status == Status::Busy && foreign.contains("echo off > $state") && foreign.ends_with("nr_kdamonds"), "{foreign}");
        let stat = ("sys/module/damon_stat/parameters/enabled", "Y\n");
        assert_eq!(commands(&[kdamonds("1\n"), stat]).1, "echo N > /sys/module/damon_stat/parameters/enabled");
        assert_eq!(commands(&[kdamonds("0\n")]), (Status::Ok, String::new()));
    }
}
