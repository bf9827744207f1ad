//! A stall target in the mean, in closed loops.

use super::partial::{ALLOWED, Job, PARTIAL};
use super::*;

const MEAN: Params = Params { mean: true, ..PARTIAL };

/// Pages that returned in so many scans, and the mean of those that were far in the second half.
fn run_job(params: &Params, tail: usize, scans: usize, mut accessed: impl FnMut(usize) -> Vec<usize>) -> (u64, usize) {
    let (mut job, mut returned, mut far) = (Job::new(tail), 0, 0);
    for scan in 0..scans {
        let period = job.period(params, accessed(scan).into_iter());
        returned += period.returned;
        far += if scan < scans / 2 { 0 } else { period.far };
    }
    (returned, far * 2 / scans)
}

fn idle(job: &mut Job, scans: usize) {
    for _ in 0..scans {
        job.period(&MEAN, 0..0);
    }
}

#[test]
fn memory_that_is_used_in_a_loop_keeps_the_target_in_the_mean() {
    // 1,200 pages at once in each fortieth scan: 30 in the mean, of 40 permitted.
    let bursts = |scan: usize| if scan % 40 == 39 { (0..1_200).collect() } else { Vec::new() };
    let (returned, far) = run_job(&MEAN, 1_200, 2_000, bursts);
    assert!(returned <= 2_000 * ALLOWED, "{returned}");
    assert!(far > 700, "{far} of 1,200 are far");
    let (_, far) = run_job(&PARTIAL, 1_200, 2_000, bursts);
    assert!(far < 300, "{far}: each scan by itself permits 40");
    // 400 pages in each scan, one after another: ten times as many as permitted, at every age.
    let (returned, far) = run_job(&MEAN, 16_000, 2_000, |scan| (0..400).map(|page| scan % 40 * 400 + page).collect());
    assert!(returned <= 2_000 * ALLOWED * 11 / 10, "{returned}");
    assert!(far < 1_800, "{far}: no more than a part of a tenth");
}

#[test]
fn memory_that_is_accessed_at_random_keeps_the_target_in_the_mean() {
    let mut random = fastrand::Rng::with_seed(8);
    // Four times as many as permitted.
    let (returned, far) = run_job(&MEAN, 16_000, 2_000, |_| (0..160).map(|_| random.usize(0..16_000)).collect());
    assert!((1_500 * ALLOWED..=2_000 * ALLOWED).contains(&returned), "{returned}");
    assert!((2_500..4_500).contains(&far), "{far}");
}

#[test]
fn of_a_sampled_job_what_does_not_return_is_soon_far_and_what_is_used_keeps_the_target() {
    // A sample of 20 pages: each stands for 800, of which 40 may return in a scan.
    let far = |params: &Params| {
        let mut job = Job::sampled(16_000, 800);
        (0..12).map(|_| job.period(params, 0..0).far).collect::<Vec<_>>()
    };
    let (shown, sample) = (far(&MEAN), far(&Params { returns: false, ..MEAN }));
    assert_eq!(shown[11], 16_000);
    assert!(sample[11] < 4_000, "{sample:?}");
    let grows = |pair: &[usize]| pair[0] == 0 || pair[1] <= 2 * pair[0];
    assert!(shown.windows(2).all(grows), "{shown:?}: twice as many in a scan at most");
    let mut random = fastrand::Rng::with_seed(9);
    let mut job = Job::sampled(16_000, 100);
    let (mut returned, mut far) = (0, 0);
    for _ in 0..2_000 {
        let period = job.period(&MEAN, (0..160).map(|_| random.usize(0..16_000)).collect::<Vec<_>>().into_iter());
        (returned, far) = (returned + period.returned, far + period.far);
    }
    assert!(returned <= 2_000 * ALLOWED * 21 / 20, "{returned}");
    assert!(far / 2_000 > 2_000, "{far}");
}

#[test]
fn what_is_owed_stops_reclaim_until_it_is_made_up_for() {
    let mut job = Job::new(4_000);
    let owed = Decision::Hold { reason: Hold::Owed };
    let quiet = |job: &mut Job, most: usize| (0..most).take_while(|_| job.period(&MEAN, 0..0).decision == owed).count();
    idle(&mut job, 19);
    // In 20 scans, twenty scans' worth may return, and thirty do.
    assert_eq!(job.period(&MEAN, 0..30 * 40).decision, owed);
    assert_eq!(quiet(&mut job, 40), 9, "the tenth quiet scan has made up for it");
    // All 4,000 pages are a hundred scans' worth, of which 64 are remembered.
    let mut job = Job::new(4_000);
    idle(&mut job, 20);
    assert_eq!(job.period(&MEAN, 0..4_000).decision, owed);
    assert_eq!(quiet(&mut job, 99), 63);
}

#[test]
fn a_threshold_that_was_not_measured_is_not_used() {
    let mut job = Job::new(1_000);
    let first = job.period(&MEAN, 0..0).decision;
    assert_eq!(first, Decision::Hold { reason: Hold::ShortHistory });
    let second = job.period(&MEAN, 0..0).decision;
    assert_eq!(second, Decision::Offload { threshold: Age(1), pages: Pages(1_000), reason: Reason::Mean });
}

#[test]
fn an_objective_without_a_stall_target_is_not_one_in_the_mean() {
    let inputs: Vec<_> = (1..40).map(|at| Input { job_age_ms: Millis(60_000) * at, ..minute(&[(9, 150), (30, at * 9)]) }).collect();
    assert_eq!(run(&MEAN, &inputs), run(&PARTIAL, &inputs));
}

#[test]
fn the_mean_survives_a_restart_and_a_switch_forgets_it() {
    let mut job = Job::new(4_000);
    for at in 0..300 {
        job.period(&MEAN, at..at + 100);
    }
    let stored: State = serde_json::from_str(&serde_json::to_string(&job.state).unwrap()).unwrap();
    assert_eq!(stored, job.state);
    assert!(stored.mean.is_some());
    job.period(&PARTIAL, 0..0);
    assert!(job.state.mean.is_none());
}

proptest! {
    #[test]
    fn a_lower_target_never_takes_more(
        minutes in proptest::collection::vec((any::<u8>(), 0u64..2_000, any::<u8>(), 0u64..2_000, any::<u8>()), 1..160),
        allowed in 0u64..4_000, less in 0u64..4_000, sample in proptest::option::of(1u64..200_000),
    ) {
        let inputs = |allowed: u64| minutes.iter().enumerate().map(|(at, &(a, n, b, m, oldest))| Input {
            job_age_ms: Millis(60_000) * (at as u64 + 1),
            cold: histogram(&[(0, 100_000), (oldest, 100_000)]),
            resident: histogram(&[(0, 100_000), (oldest, 100_000)]),
            sample: sample.map(|pages| Sample { pages: Pages(pages), of: Pages(200_000) }),
            allowance: Some(Pages(allowed)),
            ..minute(&[(a, n), (b, m)])
        }).collect::<Vec<_>>();
        let pages = |step: &Step| if let Decision::Offload { pages, .. } = step.decision { pages } else { Pages::ZERO };
        let taken = |allowed: u64| run(&MEAN, &inputs(allowed)).iter().map(pages).collect::<Vec<_>>();
        // A trial that permits fewer is as good as a lower target, and one that permits more is as good as none.
        let limited = |most: u64| {
            let inputs: Vec<_> = inputs(allowed).into_iter().map(|input| Input { trial_max: Some(Pages(most)), ..input }).collect();
            run(&MEAN, &inputs).iter().map(pages).collect::<Vec<_>>()
        };
        prop_assert_eq!(limited(allowed.saturating_sub(less)), taken(allowed.saturating_sub(less)));
        prop_assert_eq!(limited(allowed + less), taken(allowed));
        for (more, fewer) in taken(allowed).into_iter().zip(taken(allowed.saturating_sub(less))) {
            prop_assert!(fewer <= more, "{fewer:?} {more:?}");
        }
    }
}
