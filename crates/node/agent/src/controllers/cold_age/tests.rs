use config::{Class, Kind, Tier, Tracker};
use policy::cold_age::Hold;

use super::*;
use crate::memory::Outcome;
use units::{Millis, UnixMillis};

fn controller(policy: Named) -> ColdAge {
    let treatment = Treatment {
        class: Class::Standard,
        kind: Kind::Application,
        policy,
        tier: Tier::Auto,
        tracker: Tracker::Auto,
        slow: Default::default(),
        slow_weight: 100,
    };
    let mut controller = ColdAge::new(&Config::default(), &treatment, &Thresholds::log_spaced(32).unwrap());
    controller.params.warmup_ms = Millis(60_000);
    controller
}

fn period(job_age_ms: Millis, promoted: u64) -> Period {
    let step = Step {
        decision: Decision::Hold { reason: Hold::NothingCold },
        best: None,
        threshold: None,
        working_set: Pages(1_000),
        promotions_max: Pages(0),
        pace: None,
    };
    let outcome = Outcome { elapsed_ms: Millis(60_000), promoted: Pages(promoted), ..Outcome::default() };
    Period { unix_ms: UnixMillis(0), job_age_ms, window_ms: Millis(60_000), step, outcome }
}

#[test]
fn periods_count_against_the_objective_once_the_job_has_far_memory() {
    let check = |far: u64, job_age_ms: Millis, promoted: u64, expected: (u64, u64)| {
        let mut controller = controller(Named::ColdAge);
        controller.count(&period(job_age_ms, promoted), Bytes(far));
        assert_eq!((controller.periods, controller.slo_violations), expected, "{far} {job_age_ms:?} {promoted}");
    };
    check(0, Millis(60_000), 0, (0, 0));
    check(4096, Millis(59_999), 9, (0, 0));
    check(4096, Millis(60_000), 0, (1, 0));
    check(4096, Millis(60_000), 2, (1, 0));
    check(4096, Millis(60_000), 3, (1, 1));
    // All far memory was promoted: the worst case.
    check(0, Millis(60_000), 500, (1, 1));
}
