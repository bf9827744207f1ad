use proptest::prelude::*;

use super::*;

const PERIOD: Millis = Millis(120_000);
const PARAMS: Params =
    Params { promotion_rate_max: RatioPpm(2_000), percentile: RatioPpm(990_000), warmup_ms: Millis(600_000), floor: LEAST };
/// As dear as a promotion.
const EVEN: RatioPpm = RatioPpm(1_000_000);

fn input(cache: u64, refaulted: u64) -> Input {
    Input {
        job_age_ms: Millis(3_600_000),
        elapsed_ms: PERIOD,
        cache: Pages(cache),
        working_set: Pages(0),
        promoted: Pages(0),
        refaulted: Pages(refaulted),
        refault_cost: EVEN,
        waited: None,
        cold: None,
        spare: None,
        allowance: None,
        trial_max: None,
        saved: None,
        reclaimed: None,
        veto: None,
    }
}

/// A closed loop: parts of a cache, each with the share of its pages that is read in a period.
struct Loop {
    parts: Vec<(f64, f64)>,
    /// Of each part, what is out.
    out: Vec<f64>,
    state: State,
    periods: u64,
    over: u64,
    returned: u64,
    allowance: Option<Pages>,
    /// Whether the job knows what is out.
    knows: bool,
}

impl Loop {
    fn new(parts: &[(f64, f64)]) -> Self {
        Self {
            parts: parts.to_vec(),
            out: vec![0.0; parts.len()],
            state: State::default(),
            periods: 0,
            over: 0,
            returned: 0,
            allowance: None,
            knows: true,
        }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "pages of a simulation")]
    fn period(&mut self, refault_cost: RatioPpm) {
        let mut returned = 0.0;
        for ((_, read), out) in self.parts.iter().zip(&mut self.out) {
            returned += *out * read;
            *out -= *out * read;
        }
        self.periods += 1;
        let resident = self.parts.iter().map(|(pages, _)| pages).sum::<f64>() - self.out.iter().sum::<f64>();
        let job_age_ms = Millis(self.periods * PERIOD.0);
        let saved = self.knows.then(|| Pages(self.out.iter().sum::<f64>() as u64));
        let input = Input { job_age_ms, refault_cost, allowance: self.allowance, saved, ..input(resident as u64, returned as u64) };
        let (state, step) = step(&PARAMS, &self.state, &input);
        self.state = state;
        self.returned += step.returned.0;
        self.over += u64::from(step.returned > step.allowed);
        if let Decision::Reclaim { pages } = step.decision {
            self.evict(pages);
        }
    }

    /// The kernel evicts from each part by how many of its pages were not read lately.
    #[expect(clippy::cast_precision_loss, reason = "pages of a simulation")]
    fn evict(&mut self, pages: Pages) {
        let idle: Vec<f64> = self.parts.iter().zip(&self.out).map(|((pages, read), out)| (pages - out) * (1.0 - read).powi(10)).collect();
        let sum: f64 = idle.iter().sum();
        for ((part, out), idle) in self.parts.iter().zip(&mut self.out).zip(idle) {
            *out = (*out + pages.0 as f64 * idle / sum.max(1.0)).min(part.0);
        }
    }

    fn out_ratio(&self) -> f64 {
        self.out.iter().sum::<f64>() / self.parts.iter().map(|(pages, _)| pages).sum::<f64>()
    }
}

#[test]
fn a_cache_that_nothing_reads_goes_out() {
    let mut job = Loop::new(&[(2_621_440.0, 0.0)]);
    (0..60).for_each(|_| job.period(EVEN));
    assert!(job.out_ratio() > 0.6, "{} of 10 GiB after two hours", job.out_ratio());
    (0..200).for_each(|_| job.period(EVEN));
    assert!(job.out_ratio() > 0.99 && job.over == 0);
}

#[test]
fn a_cache_that_is_read_at_random_keeps_the_objective_in_k_of_the_periods() {
    for read in [0.001, 0.003, 0.01, 0.05] {
        let mut job = Loop::new(&[(1_000_000.0, 0.3), (1_000_000.0, read), (500_000.0, read / 10.0)]);
        (0..5_000).for_each(|_| job.period(EVEN));
        #[expect(clippy::cast_precision_loss, reason = "counts of a test")]
        let over = job.over as f64 / job.periods as f64;
        assert!(over < 0.011, "{read}: {over} of the periods were over");
        assert!(job.out_ratio() > 0.02, "{read}: {}", job.out_ratio());
    }
}

#[test]
fn a_stall_target_is_kept_in_the_mean() {
    for read in [0.001, 0.003, 0.01, 0.05] {
        let mut job = Loop::new(&[(1_000_000.0, 0.3), (1_000_000.0, read), (500_000.0, 0.0)]);
        job.allowance = Some(Pages(1_000));
        (0..5_000).for_each(|_| job.period(EVEN));
        assert!(job.returned < 1_050 * job.periods, "{read}: {} in the mean", job.returned / job.periods);
        assert!(job.returned > 500 * job.periods, "{read}: {} in the mean", job.returned / job.periods);
        assert!(job.out_ratio() > 0.2, "{read}: {}", job.out_ratio());
    }
}

#[test]
fn a_cache_whose_pages_return_at_once_is_left_alone() {
    let run = |knows: bool, read: f64| {
        let mut job = Loop { allowance: Some(Pages(1_000)), knows, ..Loop::new(&[(100_000.0, read)]) };
        (0..5_000).for_each(|_| job.period(EVEN));
        job
    };
    // A page is out for two periods, and a warm-up has five.
    let (before, now) = (run(false, 0.5), run(true, 0.5));
    assert!(before.returned > 2_000_000 && now.returned < 50_000, "{} {}", before.returned, now.returned);
    assert_eq!(now.state.resting.times, RESTS_MAX);
    // For twenty periods.
    let (before, now) = (run(false, 0.05), run(true, 0.05));
    assert!(now.returned * 10 > before.returned * 9 && now.state.resting.times == 0, "{} {}", before.returned, now.returned);
}

#[test]
fn so_is_what_returned_in_a_burst() {
    // A third of the cache, 10,000 pages, is of a program that starts every 40 periods; the kernel evicts the rest first.
    let run = |knows: bool, permitted: u64| {
        let (mut state, mut out, mut lost, mut far) = (State::default(), 0u64, 0u64, 0u64);
        for period in 0..4_000u64 {
            let returned = if period % 40 == 39 { out.saturating_sub(20_000) } else { 0 };
            out -= returned;
            let (job_age_ms, reclaimed) = (Millis(period * PERIOD.0), Pages(std::mem::take(&mut far)));
            let reclaimed = knows.then_some(reclaimed);
            let allowance = Some(Pages(permitted));
            let input = Input { job_age_ms, allowance, reclaimed, saved: Some(Pages(out)), ..input(30_000 - out, returned) };
            let (next, step) = step(&PARAMS, &state, &input);
            state = next;
            lost += returned;
            if let Decision::Reclaim { pages } = step.decision {
                far = pages.0.min(30_000 - out);
                out += far;
            }
        }
        (lost, out)
    };
    let (before, now) = (run(false, 10), run(true, 10));
    assert!(now.0 * 4 < before.0, "{before:?} {now:?} pages returned, and are out");
    assert!(now.1 >= 19_000, "{} of 20,000 that nothing reads are out", now.1);
    let paid = run(true, 1_000);
    assert!(paid.0 > now.0 && paid.0 < 1_000 * 4_000, "{paid:?}: quiet periods pay for 40,000");
}

/// A job that reads all of its cache every few periods, until a period from which on it reads nothing.
struct Rounds {
    every: u64,
    until: u64,
    /// How much of what a round reads returns a period later, in per cent.
    later: u64,
    allowance: Pages,
    /// Whether the agent knows what it reclaimed, which the rule needs.
    knows: bool,
}

impl Rounds {
    /// What returned in each of 2,000 periods, what is out at the end, and the state then.
    fn run(&self) -> (Vec<u64>, u64, State) {
        let (mut state, mut out, mut far, mut delayed) = (State::default(), 0u64, 0u64, 0u64);
        let returned = |period: u64| {
            let mut returned = std::mem::take(&mut delayed);
            if period % self.every == self.every - 1 && period < self.until {
                delayed = out * self.later / 100;
                returned += out - delayed;
                out = 0;
            }
            let reclaimed = self.knows.then_some(Pages(std::mem::take(&mut far)));
            let (job_age_ms, saved) = (Millis(period * PERIOD.0), Some(Pages(out + delayed)));
            let allowance = Some(self.allowance);
            let input = Input { job_age_ms, allowance, reclaimed, saved, ..input(30_000 - out, returned) };
            let (next, step) = step(&PARAMS, &state, &input);
            state = next;
            if let Decision::Reclaim { pages } = step.decision {
                far = pages.0.min(30_000 - out);
                out += far;
            }
            returned
        };
        let returned = (0..2_000).map(returned).collect();
        (returned, out, state)
    }
}

/// Nine periods are almost two warm-ups; a target of one page per period permits fewer than a request in a warm-up, unused or not.
const ROUNDS: Rounds = Rounds { every: 9, until: u64::MAX, later: 0, allowance: Pages(1), knows: true };

#[test]
fn after_a_failure_one_request_at_a_time_is_tried() {
    let rounds = |knows, until| Rounds { every: 6, until, knows, ..ROUNDS }.run();
    let lost = |returned: &[u64]| returned[500..].iter().sum::<u64>();
    let (before, now) = (rounds(false, u64::MAX), rounds(true, u64::MAX));
    assert!(lost(&now.0) * 3 < lost(&before.0), "{} {} pages returned", lost(&before.0), lost(&now.0));
    assert!(lost(&now.0) <= 1_500 / 64 * LEAST.0, "one request per pause: {}", lost(&now.0));
    let calm = rounds(true, 1_000);
    assert!(calm.1 > 25_000 && calm.2.pauses.doublings == 0, "what nothing reads any more goes out: {}", calm.1);
}

#[test]
fn a_pause_lasts_until_what_went_out_has_had_time_to_return() {
    for later in [0, 50] {
        let (returned, ..) = Rounds { later, ..ROUNDS }.run();
        let failed = returned.iter().position(|&returned| returned > 0).unwrap();
        let at_once = |period: usize| returned[period] + returned.get(period + 1).unwrap_or(&0);
        assert!(at_once(failed) > 3 * LEAST.0, "before the first failure more follows: {}", at_once(failed));
        let next = (failed + 2..1_999).map(at_once).max().unwrap();
        assert!(next <= 2 * LEAST.0, "{later} %: {next} in one round after it, with what quiet periods pay for");
    }
}

#[test]
fn what_failed_requests_cost_is_owed_several_times() {
    let owed = |doublings: u32, allowed: u64| {
        let pauses = serde_json::from_value(serde_json::json!({"left": 0, "doublings": doublings, "calm": true})).unwrap();
        let input = Input { allowance: Some(Pages(allowed)), ..input(100_000, 100) };
        step(&PARAMS, &State { pauses, ..State::default() }, &input).0.budget.owed.0 * allowed / PERIOD.0
    };
    assert_eq!([owed(0, 10), owed(1, 10), owed(2, 10)], [90, 180, 360]);
    assert_eq!(owed(7, 10), 640, "at most 64 periods' worth");
    assert_eq!([owed(0, 20), owed(2, 20)], [80, 80], "as many may return within a warm-up");
}

#[test]
fn what_may_return_within_a_warm_up_needs_no_pause() {
    let pauses = serde_json::json!({"left": 10_000_000, "doublings": 5, "calm": true});
    let state = State { pauses: serde_json::from_value(pauses).unwrap(), ..State::default() };
    let decide = |allowance, cost| {
        let input = Input { allowance: Some(Pages(allowance)), refault_cost: RatioPpm(cost), ..input(100_000, 0) };
        step(&PARAMS, &state, &input).1.decision
    };
    // 64 pages in the five periods of a warm-up.
    let (reclaim, awaited) = (Decision::Reclaim { pages: LEAST }, Decision::Hold { reason: Hold::Awaited });
    assert_eq!((decide(13, 1_000_000), decide(12, 1_000_000)), (reclaim, awaited));
    assert_eq!((decide(26, 2_000_000), decide(25, 2_000_000)), (reclaim, awaited));
}

#[test]
fn nothing_is_kept_after_a_burst_where_ages_are_known() {
    let burst = Input { allowance: Some(Pages(10)), reclaimed: Some(Pages(500)), ..input(10_000, 450) };
    let keeps = |input: &Input| step(&PARAMS, &State::default(), input).0.needed.0;
    assert_eq!([keeps(&burst), keeps(&Input { cold: Some(Pages(100)), ..burst })], [10_000, 0]);
    assert_eq!(keeps(&Input { reclaimed: Some(Pages(600)), ..burst }), 0, "three quarters");
    assert_eq!(keeps(&Input { allowance: Some(Pages(450)), ..burst }), 0, "as permitted");
}

#[test]
fn a_cache_that_was_left_alone_is_tried_again() {
    let mut job = Loop { allowance: Some(Pages(1_000)), ..Loop::new(&[(100_000.0, 0.5)]) };
    (0..200).for_each(|_| job.period(EVEN));
    assert!(job.state.resting.times > 0);
    job.parts[0].1 = 0.0;
    (0..2_000).for_each(|_| job.period(EVEN));
    assert!(job.out_ratio() > 0.9 && job.state.resting.times == 0, "{} {}", job.out_ratio(), job.state.resting.times);
}

#[test]
fn dearer_refaults_leave_more_of_the_cache() {
    let out = |cost| {
        let mut job = Loop::new(&[(1_000_000.0, 0.3), (1_000_000.0, 0.003)]);
        let mut mean = 0.0;
        for _ in 0..3_000 {
            job.period(cost);
            mean += job.out_ratio() / 3_000.0;
        }
        mean
    };
    let (even, dear) = (out(EVEN), out(RatioPpm(8_000_000)));
    assert!(dear < even, "{dear} {even}");
}

#[test]
fn it_never_acts_before_the_warm_up() {
    let early = Input { job_age_ms: Millis(599_999), ..input(1 << 20, 0) };
    assert_eq!(step(&PARAMS, &State::default(), &early).1.decision, Decision::Hold { reason: Hold::WarmingUp });
    let first = Input { elapsed_ms: Millis::ZERO, ..input(1 << 20, 0) };
    assert_eq!(step(&PARAMS, &State::default(), &first).1.decision, Decision::Hold { reason: Hold::NoHistory });
}

#[test]
fn promotions_count_as_well_as_refaults() {
    let state = State { amount: Pages(6_400), ..State::default() };
    // 0.4 % of a million pages in two minutes.
    let check = |promoted, refaulted, cost| {
        let input = Input { promoted: Pages(promoted), refault_cost: RatioPpm(cost), ..input(1_000_000, refaulted) };
        let (next, step) = step(&PARAMS, &state, &input);
        assert_eq!(step.allowed, Pages(4_000));
        (step.decision, next)
    };
    assert!(matches!(check(2_000, 2_000, 1_000_000).0, Decision::Reclaim { .. }));
    let (decision, next) = check(2_000, 2_001, 1_000_000);
    assert_eq!(decision, Decision::Hold { reason: Hold::Refaults });
    assert_eq!((next.amount, next.wait), (Pages(3_200), 100));
    assert!(matches!(check(0, 1_000, 4_000_000).0, Decision::Reclaim { .. }));
    assert!(matches!(check(0, 1_001, 4_000_000).0, Decision::Hold { .. }));
}

#[test]
fn only_old_pages_are_taken_where_ages_are_known() {
    let state = State { amount: Pages(6_400), ..State::default() };
    let decide = |cold, cache, veto| step(&PARAMS, &state, &Input { cold, veto, ..input(cache, 0) }).1.decision;
    assert_eq!(decide(Some(Pages(100)), 1_000_000, None), Decision::Reclaim { pages: Pages(100) });
    assert_eq!(decide(Some(Pages(63)), 1_000_000, None), Decision::Hold { reason: Hold::NothingCold });
    assert_eq!(decide(None, 1_000_000, None), Decision::Reclaim { pages: Pages(9_948) }, "times 1 + 0.693 * 120 / 150");
    let spare = |pages| step(&PARAMS, &state, &Input { spare: Some(Pages(pages)), ..input(1_000_000, 0) }).1.decision;
    assert_eq!(spare(200), Decision::Reclaim { pages: Pages(200) });
    assert_eq!(spare(63), Decision::Hold { reason: Hold::NothingCold });
    assert_eq!(decide(None, 63, None), Decision::Hold { reason: Hold::AtFloor });
    assert_eq!(decide(None, 2_000, None), Decision::Reclaim { pages: Pages(64) }, "one part in 32");
    let journal: Params = serde_json::from_str(r#"{"promotion_rate_max":2000,"percentile":990000,"warmup_ms":600000}"#).unwrap();
    assert_eq!(
        (journal.floor, step(&journal, &state, &input(1_023, 0)).1.decision),
        (Pages(1_024), Decision::Hold { reason: Hold::AtFloor })
    );
    assert_eq!(decide(None, 2_000, Some(Veto::AtLimit)), Decision::Hold { reason: Hold::Vetoed(Veto::AtLimit) });
}

proptest! {
    #[test]
    fn it_is_deterministic_for_any_input(
        (age, elapsed, cache, refaulted) in any::<(u64, u64, u64, u64)>(),
        (promoted, cost, amount, wait) in any::<(u64, u32, u64, u32)>(),
        (owed, unused, allowance, saved) in any::<(u64, u64, Option<u64>, Option<u64>)>(),
        (back, out, needed, reclaimed) in any::<(u64, u64, u64, Option<u64>)>(),
        (left, times, calm) in any::<(u64, u32, u64)>(),
    ) {
        let resting: Rests = serde_json::from_value(serde_json::json!({"left": left, "times": times, "calm": calm})).unwrap();
        let pauses = serde_json::json!({"left": calm, "doublings": times, "calm": left % 2 == 0});
        let pauses: Pauses = serde_json::from_value(pauses).unwrap();
        let budget: Budget = serde_json::from_value(serde_json::json!({"owed": owed, "unused": unused, "taken": back})).unwrap();
        let (amount, needed, spared) = (Pages(amount), Pages(needed), RatioPpm(wait));
        let (waits, held, keeping) = (out, owed, resting);
        let state = State { amount, wait, budget, back, waits, held, resting, out, refaulted: Pages(left), needed, keeping, pauses, spared };
        let input = Input {
            job_age_ms: Millis(age),
            elapsed_ms: Millis(elapsed),
            promoted: Pages(promoted),
            refault_cost: RatioPpm(cost),
            waited: saved.map(Pages),
            allowance: allowance.map(Pages),
            saved: saved.map(Pages),
            reclaimed: reclaimed.map(Pages),
            ..input(cache, refaulted)
        };
        let (next, decided) = step(&PARAMS, &state, &input);
        prop_assert_eq!((next, decided), step(&PARAMS, &state, &input));
        if let Decision::Reclaim { pages } = decided.decision {
            prop_assert!(pages <= Pages(cache / 8).max(LEAST));
        }
    }
}

#[test]
fn a_trial_limits_what_may_return() {
    let check = |allowance: Option<u64>, trial_max: Option<u64>, allowed: u64| {
        let input = Input { allowance: allowance.map(Pages), trial_max: trial_max.map(Pages), ..input(100_000, 500) };
        let (_, found) = step(&PARAMS, &State::default(), &input);
        assert_eq!(found.allowed, Pages(allowed), "{allowance:?} {trial_max:?}");
        assert_eq!(found.decision == Decision::Hold { reason: Hold::Refaults }, allowed < 500);
    };
    check(Some(700), None, 700);
    check(Some(700), Some(499), 499);
    check(Some(700), Some(900), 700);
    check(None, None, 400);
    check(None, Some(10), 10);
}

#[test]
fn pages_that_one_wait_brings_cost_as_much_as_the_wait() {
    // 256 pages came back by eight reads of 32 pages. Each read takes as long as a hundred promotions, of which 1,000 are permitted.
    let decide = |waited: Option<u64>| {
        let waited = waited.map(Pages);
        let period = Input { allowance: Some(Pages(1_000)), refault_cost: RatioPpm(100_000_000), waited, ..input(100_000, 256) };
        let (state, step) = step(&PARAMS, &State::default(), &period);
        (Pages(state.budget.owed.0 / (PERIOD.0 / 1_000)), step.returned, step.decision)
    };
    let over = Decision::Hold { reason: Hold::Refaults };
    assert_eq!(decide(None), (Pages(24_600), Pages(25_600), over), "each as if it had waited alone");
    assert_eq!(decide(Some(800)), (Pages::ZERO, Pages(800), Decision::Reclaim { pages: LEAST }));
    assert_eq!(decide(Some(0)), decide(Some(800)), "tasks that are not seen to wait for what they read");
    assert_eq!(decide(Some(1_800)), (Pages(800), Pages(1_800), over));
    assert_eq!(decide(Some(1_000_000)), decide(None), "other waits, for what the job reads for the first time, are no refaults");
}

#[test]
fn what_pages_cost_that_one_wait_brings_is_what_the_next_are_expected_to() {
    // Of 64 pages that may return within a warm-up, five periods, all are affordable only if one read brings 32 of them.
    let affordable = |periods: usize| {
        let mut state = State::default();
        let period = Input { allowance: Some(Pages(100)), refault_cost: RatioPpm(100_000_000), ..input(100_000, 64) };
        for _ in 0..periods {
            state = step(&PARAMS, &state, &Input { waited: Some(Pages(100)), ..period }).0;
        }
        state.is_affordable(&PARAMS, &period, Pages(100))
    };
    assert_eq!([0, 1, 8].map(affordable), [false, false, true]);
}

#[test]
fn what_returns_all_the_time_is_no_failure_of_a_request() {
    // 40 pages return in each period, as the objective permits, and the last ones took longer.
    let fails = |steady: u64, last: u64| {
        let mut state = State::default();
        let period = |refaulted, reclaimed, allowed| Input {
            allowance: Some(Pages(allowed)),
            saved: Some(Pages(10_000)),
            reclaimed: Some(Pages(reclaimed)),
            ..input(100_000, refaulted)
        };
        for _ in 0..40 {
            state = step(&PARAMS, &state, &period(steady, 0, steady)).0;
        }
        state = step(&PARAMS, &state, &period(steady, 64, steady)).0;
        step(&PARAMS, &state, &period(last, 0, 1)).0.pauses.times() > 1
    };
    assert!(!fails(40, 40));
    assert!(fails(0, 80) && fails(40, 120), "what returned beyond that is");
}

#[test]
fn a_cache_that_few_waits_bring_back_may_be_out_in_between() {
    // All that is out returns in each third period, 32 pages for each wait or one.
    let out_at_most = |pages_per_wait: u64| {
        let (mut state, mut out, mut most) = (State::default(), 0u64, 0);
        for period in 0..600u64 {
            let returned = if period % 3 == 2 { std::mem::take(&mut out) } else { 0 };
            let (cost, waited) = (RatioPpm(10_000_000), Some(Pages(10 * returned / pages_per_wait)));
            let allowance = Some(Pages(100_000));
            let input = Input { refault_cost: cost, waited, allowance, saved: Some(Pages(out)), ..input(30_000 - out, returned) };
            let (next, step) = step(&PARAMS, &state, &input);
            state = next;
            if let Decision::Reclaim { pages } = step.decision {
                out += pages.0;
                most = most.max(if period > 300 { out } else { 0 });
            }
        }
        most
    };
    assert!(out_at_most(32) > 1_000 && out_at_most(1) < 400, "{} {}", out_at_most(32), out_at_most(1));
}

#[test]
fn while_little_returns_larger_parts_go_out() {
    // 1,000 promotions are permitted in a period; a refault costs ten, and so many returned in each period.
    let reclaims = |refaults: u64, (knows, cold): (bool, Option<u64>), doublings: u32| {
        let pauses = serde_json::from_value(serde_json::json!({"left": 0, "doublings": doublings, "calm": true})).unwrap();
        let back = refaults * 20 * PARTS_OF_PAGE;
        let state = State { amount: Pages(32_000), back, pauses, ..State::default() };
        let period = Input {
            allowance: Some(Pages(1_000)),
            refault_cost: RatioPpm(10_000_000),
            reclaimed: knows.then_some(Pages::ZERO),
            cold: cold.map(Pages),
            ..input(32_000, 0)
        };
        let Decision::Reclaim { pages } = step(&PARAMS, &state, &period).1.decision else { return 0 };
        pages.0
    };
    for known in [(true, None), (true, Some(32_000))] {
        assert_eq!([1_000, 100, 51, 26, 0].map(|refaults| reclaims(refaults, known, 0)), [1_000, 1_066, 2_133, 4_000, 4_000]);
    }
    assert_eq!(reclaims(0, (false, None), 0), 1_000, "it is not known what went out");
    assert_eq!(reclaims(0, (true, None), 1), 1_000, "a request failed");
}

#[test]
fn what_is_owed_is_time() {
    // Twice what is permitted returned; in the next period promotions are found to take four times as long, so that a quarter is.
    let period = |allowed, refaulted| Input { allowance: Some(Pages(allowed)), ..input(100_000, refaulted) };
    let (state, _) = step(&PARAMS, &State::default(), &period(1_000, 2_000));
    assert_eq!(state.budget.owed, PERIOD);
    let (state, next) = step(&PARAMS, &state, &period(250, 0));
    assert_eq!((state.budget.owed, next.decision), (Millis::ZERO, Decision::Reclaim { pages: LEAST }));
}
