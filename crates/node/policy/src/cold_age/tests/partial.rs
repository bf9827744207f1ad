//! A part of the cold pages, in closed loops.

use super::*;

pub(super) const PARTIAL: Params = Params { bound: true, partial: true, returns: true, percentile: RatioPpm(990_000), ..PARAMS };

/// Pages that are accessed in each scan, beside those of a job's tail.
const HOT: u64 = 20_000;
/// Promotions that the objective permits in a scan of a minute.
pub(super) const ALLOWED: u64 = 40;

/// A job of hot pages and a tail, of which the oldest pages are offloaded as decided.
pub(super) struct Job {
    ages: Vec<u8>,
    far: Vec<bool>,
    pub(super) state: State,
    minutes: u64,
    /// One page of so many is counted; what returns is counted always.
    every: usize,
}

/// What one period of a job gave.
pub(super) struct Period {
    pub(super) returned: u64,
    pub(super) far: usize,
    pub(super) decision: Decision,
}

impl Job {
    pub(super) fn new(tail: usize) -> Self {
        Self::sampled(tail, 1)
    }

    /// A job of whose tail one page in `every` is counted.
    pub(super) fn sampled(tail: usize, every: usize) -> Self {
        Self { ages: vec![0; tail], far: vec![false; tail], state: State::default(), minutes: 0, every }
    }

    /// One scan in which `accessed` pages of the tail were accessed.
    pub(super) fn period(&mut self, params: &Params, accessed: impl Iterator<Item = usize>) -> Period {
        let (mut promotions, mut returned) = (AgeCounts::default(), AgeCounts::default());
        let weight = |page: usize| Pages(if page.is_multiple_of(self.every) { self.every as u64 } else { 0 });
        self.ages.iter_mut().for_each(|age| *age = age.saturating_add(1));
        for page in accessed {
            if self.ages[page] == 0 {
                continue;
            }
            promotions.add(Age(self.ages[page] - 1), weight(page));
            if std::mem::take(&mut self.far[page]) {
                returned.add(Age(self.ages[page] - 1), Pages(1));
            }
            self.ages[page] = 0;
        }
        let (mut cold, mut resident) = (AgeCounts::default(), AgeCounts::default());
        cold.add(Age(0), Pages(HOT));
        resident.add(Age(0), Pages(HOT));
        for (&age, &far) in self.ages.iter().zip(&self.far) {
            cold.add(Age(age), Pages(1));
            resident.add(Age(age), Pages(u64::from(!far)));
        }
        let of = Pages(self.ages.len() as u64);
        let sample = (self.every > 1).then(|| Sample { pages: Pages(of.0 / self.every as u64), of });
        self.minutes += 1;
        let of = |counts: &AgeCounts| Histogram::from_counts(counts, &set());
        let input = Input {
            job_age_ms: Millis(60_000) * self.minutes,
            cold: of(&cold),
            resident: of(&resident),
            promotions: of(&promotions),
            returned: Some(of(&returned)),
            allowance: Some(Pages(ALLOWED)),
            sample,
            ..minute(&[])
        };
        let (state, step) = step(params, &set(), &self.state, &input);
        self.state = state;
        if let Decision::Offload { threshold, pages, .. } = step.decision {
            let mut old: Vec<_> = (0..self.ages.len()).filter(|&page| !self.far[page] && self.ages[page] >= threshold.0).collect();
            old.sort_by_key(|&page| std::cmp::Reverse(self.ages[page]));
            old.iter().take(usize::try_from(pages.0).unwrap()).for_each(|&page| self.far[page] = true);
        }
        let returned = returned.at_least(Age(1)).0;
        Period { returned, far: self.far.iter().filter(|far| **far).count(), decision: step.decision }
    }
}

#[test]
fn of_pages_that_are_accessed_at_random_as_many_are_far_as_the_objective_permits() {
    // 160 of 16,000 pages are accessed in each scan: four times as many as permitted, at every age.
    let mut random = fastrand::Rng::with_seed(5);
    let (mut job, mut over, mut far, periods) = (Job::new(16_000), 0, 0, 1_000);
    for _ in 0..periods {
        let accessed: Vec<_> = (0..160).map(|_| random.usize(0..16_000)).collect();
        let period = job.period(&PARTIAL, accessed.into_iter());
        over += u32::from(period.returned > ALLOWED);
        far += period.far;
    }
    // A quarter would be permitted on average: 4,000 pages with 40 promotions, which half of the periods would exceed.
    let mean = far / periods;
    assert!((1_500..3_500).contains(&mean), "{mean} pages are far");
    assert!(over <= 12, "{over} of {periods} periods are over the objective");
    // Without this rule, all pages go out in the first minute, before any of them could be promoted at their age.
    let (mut job, mut over) = (Job::new(16_000), 0);
    for _ in 0..100 {
        let accessed: Vec<_> = (0..160).map(|_| random.usize(0..16_000)).collect();
        over += u32::from(job.period(&Params { partial: false, ..PARTIAL }, accessed.into_iter()).returned > ALLOWED);
    }
    assert!(over > 90, "{over}");
}

#[test]
fn with_a_sample_an_age_is_observed_from_the_scan_that_reached_it() {
    // Pages that are accessed at random, four times as often as permitted; one in 16 is counted, and eight scans are one observation.
    // In the last of these alone pages are eight scans old, and none was accessed at that age yet: then all went out.
    for seed in 0..10 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut job = Job::sampled(32_000, 16);
        for scan in 0..64 {
            let accessed: Vec<_> = (0..160).map(|_| random.usize(0..32_000)).collect();
            let far = job.period(&PARTIAL, accessed.into_iter()).far;
            let permitted = if scan < 7 { 0..1 } else { 1_000..8_000 };
            assert!(permitted.contains(&far), "seed {seed}, scan {scan}: {far} pages are far");
        }
    }
}

#[test]
fn of_pages_in_a_loop_those_that_return_at_once_are_given_up() {
    // A loop over 6,000 pages in 60 scans: the oldest pages, which go out first, come next.
    let (mut job, mut over, periods) = (Job::new(6_000), 0, 2_000usize);
    for period in 0..periods {
        let at = period % 60 * 100;
        over += u32::from(job.period(&PARTIAL, at..at + 100).returned > ALLOWED);
    }
    assert!(over <= 20, "{over} of {periods} periods are over the objective");
}

#[test]
fn pages_that_are_not_accessed_go_out_a_minute_later_than_without_this_rule() {
    let mut job = Job::new(5_000);
    let decisions: Vec<_> = (0..30).map(|_| job.period(&PARTIAL, 0..0).decision).collect();
    let mut before = Job::new(5_000);
    let without: Vec<_> = (0..30).map(|_| before.period(&Params { partial: false, ..PARTIAL }, 0..0).decision).collect();
    assert_eq!(decisions[1..], without[..29]);
    assert!(job.far.iter().all(|far| *far));
}

#[test]
fn where_no_generation_is_as_old_as_the_threshold_a_part_of_younger_pages_goes_out() {
    for mean in [false, true] {
        let params = Params { mean, ..PARTIAL };
        let mut job = Job::new(16_000);
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..300 {
            job.period(&Params { warmup_ms: Millis(u64::MAX), ..params }, (0..160).map(|_| random.usize(0..16_000)));
        }
        let (cold, job_age_ms) = (histogram(&[(0, HOT), (3, 4_000), (10, 6_000), (40, 6_000)]), Millis(60_000 * 301));
        let promotions = histogram(&[(3, 40), (10, 60), (40, 60)]);
        let decide = |reach| {
            let returned = Some(histogram(&[]));
            let allowance = Some(Pages(ALLOWED));
            let input = Input { job_age_ms, cold, resident: cold, promotions, returned, allowance, reach, ..minute(&[]) };
            step(&params, &set(), &job.state, &input).1
        };
        let old = |step: Step| match step.decision {
            Decision::Offload { threshold, pages, .. } => (threshold, pages),
            Decision::Hold { reason } => panic!("{reason:?}"),
        };
        let (all, near, none) = (decide(None), decide(Some(Age(12))), decide(Some(Age(0))));
        let (threshold, pages) = old(near);
        assert!(threshold <= Age(12) && threshold < old(all).0 && pages > Pages(0), "{mean}: {near:?}, without a limit {all:?}");
        assert_eq!((all.pace, near.pace), (None, Some(old(all).0)), "{mean}: generations are opened for the threshold without a limit");
        let held = matches!(none.decision, Decision::Hold { reason: Hold::OutOfReach | Hold::NoThresholdQualifies });
        assert!(held && none.pace == Some(old(all).0), "{mean}: {none:?}");
    }
}

#[test]
fn a_part_survives_a_restart_and_ends_with_a_veto() {
    let mut job = Job::new(16_000);
    let mut random = fastrand::Rng::with_seed(6);
    for _ in 0..300 {
        job.period(&PARTIAL, (0..160).map(|_| random.usize(0..16_000)));
    }
    let stored: State = serde_json::from_str(&serde_json::to_string(&job.state).unwrap()).unwrap();
    assert_eq!(stored, job.state);
    assert!(serde_json::to_string(&stored).unwrap().contains("taken"), "periods over the objective have reduced the part");
    let input = Input { veto: Some(Veto::Stalled), allowance: Some(Pages(ALLOWED)), ..minute(&[(9, 10_000)]) };
    let held = step(&PARTIAL, &set(), &job.state, &input).1.decision;
    assert_eq!(held, Decision::Hold { reason: Hold::Vetoed(Veto::Stalled) });
}

proptest! {
    #[test]
    fn a_more_conservative_class_takes_no_more_pages_with_parts(
        minutes in proptest::collection::vec((any::<u8>(), 0u64..2_000, any::<u8>(), 0u64..2_000, any::<u8>()), 1..160),
        p in 0u32..20_000, less_p in 0u32..20_000, k in 500_000u32..=1_000_000, more_k in 0u32..500_000,
        sample in proptest::option::of(1u64..200_000),
    ) {
        let class = |p, k| Params { promotion_rate_max: RatioPpm(p), percentile: RatioPpm(k), ..PARTIAL };
        let (bold, careful) = (class(p, k), class(p.saturating_sub(less_p), (k + more_k).min(1_000_000)));
        let inputs = minutes.iter().enumerate().map(|(at, &(a, n, b, m, oldest))| Input {
            job_age_ms: Millis(60_000) * (at as u64 + 1),
            cold: histogram(&[(0, 100_000), (oldest, 100_000)]),
            resident: histogram(&[(0, 100_000), (oldest, 100_000)]),
            sample: sample.map(|pages| Sample { pages: Pages(pages), of: Pages(200_000) }),
            ..minute(&[(a, n), (b, m)])
        });
        let inputs: Vec<_> = inputs.collect();
        let taken = |params: &Params| {
            let pages = |step: &Step| if let Decision::Offload { pages, .. } = step.decision { pages } else { Pages::ZERO };
            run(params, &inputs).iter().map(pages).collect::<Vec<_>>()
        };
        for (bold, careful) in taken(&bold).into_iter().zip(taken(&careful)) {
            prop_assert!(careful <= bold, "{careful:?} {bold:?}");
        }
    }
}
