use super::*;
use crate::slowdown::bounds::Bounds;
use crate::slowdown::{Input, Params, Step, rank, step};
use units::{Bytes, RatioPpm};

const SECOND_US: u64 = 1_000_000;
const WINDOW_US: u64 = 7 * SECOND_US;
const HUGE: Bytes = Bytes::mib(2);

/// A rate of so many events in a window.
fn events(count: u64) -> AccessRate {
    AccessRate(count * MICRO * MICRO / WINDOW_US)
}

/// A block that is known.
fn known(bursts: &mut Bursts, blocks: u64) {
    (0..blocks).for_each(|block| bursts.add_whole((1, block), events(1), WINDOW_US));
}

#[test]
fn accesses_at_random_count_once() {
    let mut bursts = Bursts::default();
    known(&mut bursts, 20);
    for period in 0..200u64 {
        for block in 0..20 {
            // Between two and four accesses, by bit as by page.
            let count = 2 + (block * 7 + period * 3) % 3;
            if block % 5 == period % 5 {
                bursts.add_split((1, block), events(count), WINDOW_US);
            } else {
                bursts.add_whole((1, block), events(count), WINDOW_US);
            }
            assert_eq!(bursts.pages_per_bit(), MICRO, "period {period}");
        }
        bursts.end_period();
    }
    assert!(bursts.has_evidence());
    let own = Estimate { mean: events(3), upper: Some(events(5)) };
    assert_eq!(bursts.weigh((1, 3), own), own);
}

#[test]
fn one_scan_of_known_blocks_shows_for_how_many_pages_a_bit_stands() {
    let mut bursts = Bursts::default();
    known(&mut bursts, 20);
    bursts.end_period();
    for count in [1, 0, 0, 1] {
        (0..4).for_each(|block| bursts.add_split((1, block), events(512 * count), WINDOW_US));
        (4..20).for_each(|block| bursts.add_whole((1, block), events(count), WINDOW_US));
        bursts.end_period();
        assert!((500..=512).contains(&(bursts.pages_per_bit() / MICRO)), "{}", bursts.pages_per_bit());
    }
    // Two scans in five windows of 7 s, but for what is forgotten.
    let quiet = Estimate { mean: AccessRate::ZERO, upper: Some(events(3)) };
    let weighed = bursts.weigh((1, 7), quiet);
    let scans = AccessRate(events(3).0 * bursts.pages_per_bit() / MICRO / 5);
    assert!(weighed.mean > AccessRate(scans.0 * 9 / 10) && weighed.mean < AccessRate(scans.0 * 11 / 10), "{} {scans}", weighed.mean);
    assert_eq!(weighed.upper, Some(events(3) + weighed.mean));
    assert_eq!(bursts.weigh((1, 99), quiet), quiet, "nothing was seen of it");
    let long_run = bursts.long_run((1, 7));
    assert!(long_run.mean > AccessRate::ZERO && long_run.mean < events(1) && long_run.upper > Some(long_run.mean), "{long_run:?}");
    assert_eq!(bursts.long_run((1, 99)), Estimate { mean: AccessRate::ZERO, upper: Some(AccessRate::ZERO) });
    assert_eq!(bursts.weigh((1, 99), Estimate { mean: events(1), upper: None }).upper, None);
}

#[test]
fn what_is_not_accessed_again_is_forgotten() {
    let mut bursts = Bursts::default();
    known(&mut bursts, 2);
    for _ in 0..200 {
        bursts.add_whole((1, 0), AccessRate::ZERO, WINDOW_US);
        bursts.end_period();
    }
    assert!(bursts.knows((1, 0)) && bursts.knows((1, 1)));
    for _ in 0..400 {
        bursts.add_whole((1, 0), AccessRate::ZERO, WINDOW_US);
        bursts.end_period();
    }
    assert!(!bursts.knows((1, 0)) && !bursts.knows((1, 1)), "neither, as it was idle or not there");
}

#[test]
fn any_input_is_answered() {
    let most = AccessRate(u64::MAX);
    let mut bursts = Bursts::default();
    for _ in 0..3 {
        bursts.add_whole((0, 0), most, u64::MAX);
        bursts.add_split((0, 0), most, u64::MAX);
        bursts.add_fast((0, 0), most, 0);
        bursts.end_period();
        let estimate = Estimate { mean: most, upper: Some(most) };
        assert_eq!(bursts.weigh((0, 0), estimate), estimate);
    }
}

/// A job of 24 blocks that are scanned once in `every` periods, and 48 that are never accessed. 50 accesses per second are allowed.
struct Job {
    slow: [bool; BLOCKS],
    bursts: Bursts,
    every: u64,
}

const BLOCKS: usize = 72;
const TABLE: usize = 24;
const PARAMS: Params = Params {
    slowdown: RatioPpm(5_000),
    latency_ns: 100_000,
    sample: RatioPpm(200_000),
    bounds: Bounds { fast_min: Bytes::ZERO, fast_share_min: RatioPpm(0), slow_max: None },
};

impl Job {
    fn key(block: usize) -> Key {
        (1, block as u64)
    }

    /// One period. Returns the accesses to slow memory per second, and how many blocks were there.
    fn period(&mut self, period: u64) -> (u64, usize) {
        let scanned = period.is_multiple_of(self.every);
        let bit = |block: usize| if scanned && block < TABLE { events(1) } else { AccessRate::ZERO };
        let slow: Vec<usize> = (0..BLOCKS).filter(|&block| self.slow[block]).collect();
        let accesses = slow.iter().filter(|&&block| scanned && block < TABLE).count() as u64 * 512 / 7;
        let split: Vec<usize> = slow
            .iter()
            .copied()
            .filter(|&block| self.bursts.knows(Self::key(block)))
            .skip(usize::try_from(period % 8).unwrap())
            .step_by(6)
            .take(4)
            .collect();
        for &block in &slow {
            if split.contains(&block) {
                self.bursts.add_split(Self::key(block), AccessRate(bit(block).0 * 512), WINDOW_US);
            } else {
                self.bursts.add_whole(Self::key(block), bit(block), WINDOW_US);
            }
        }
        let fast: Vec<usize> = (0..BLOCKS).filter(|block| !self.slow[*block] && (*block as u64 + period).is_multiple_of(5)).collect();
        fast.iter().for_each(|&block| self.bursts.add_fast(Self::key(block), bit(block), WINDOW_US / 3));
        self.bursts.end_period();
        self.step(&slow, &fast, bit);
        (accesses, slow.len())
    }

    fn step(&mut self, slow: &[usize], fast: &[usize], bit: impl Fn(usize) -> AccessRate) -> Step {
        let rated = |blocks: &[usize], window_us: u64| -> Vec<(Estimate, usize)> {
            let bound = AccessRate(3 * MICRO * MICRO / window_us);
            let own = |block| Estimate { mean: bit(block), upper: Some(bit(block) + bound) };
            blocks.iter().map(|&block| (self.bursts.weigh(Self::key(block), own(block)), block)).collect()
        };
        let (mut slow, mut fast) = (rated(slow, WINDOW_US), rated(fast, WINDOW_US / 3));
        let runs = |rated: &[(Estimate, usize)]| rated.iter().map(|&(estimate, _)| (HUGE, estimate)).collect();
        let room = Bytes::mib(1024);
        let input = Input { slow: runs(&slow), sampled: runs(&fast), room, trackable: u32::MAX, step_max: room, ..Input::default() };
        let step = step(&PARAMS, &input);
        slow.sort_by_key(|(estimate, _)| std::cmp::Reverse(rank(HUGE, estimate)));
        fast.sort_by_key(|(estimate, _)| rank(HUGE, estimate));
        slow[..step.home as usize].iter().for_each(|&(_, block)| self.slow[block] = false);
        fast[..step.place as usize].iter().for_each(|&(_, block)| self.slow[block] = true);
        step
    }
}

/// Without bursts all blocks are placed, and a scan in 8 periods is 219 accesses per second in the mean, one in 20 is 88.
#[test]
fn a_table_that_is_scanned_stays_within_the_budget_in_the_mean() {
    for every in [8, 20] {
        let mut job = Job { slow: [false; BLOCKS], bursts: Bursts::default(), every };
        let (mut accesses, mut placed) = (0, 0);
        let (settle, judged) = (every * 4, every * 40);
        for period in 0..settle + judged {
            let (in_slow, blocks) = job.period(period);
            if period >= settle {
                accesses += in_slow;
                placed += blocks as u64;
            }
        }
        assert!(accesses <= 50 * judged, "one scan in {every} periods: {} accesses per second", accesses / judged);
        assert!(placed >= 48 * judged, "one scan in {every} periods: {} of 72 blocks", placed / judged);
    }
}
