use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;

use kernel::Error;
use policy::slowdown::rate::{self, BitSamples, Estimate, Parts};
use units::{AccessRate, Bytes};

use super::*;
use crate::rates::Point;

mod dense;

const BLOCK: u64 = crate::rates::blocks::BLOCK_BYTES;
const PAGE: u64 = 4096;
const SETTINGS: Settings = Settings { samples: 10, interval: Duration::from_secs(1), parts_max: 50 };
const DENSE: Duration = Duration::from_millis(125);
const STAGE_US: u64 = 10_000_000;
const SECOND_US: u64 = 1_000_000;

/// Memory in which each page is accessed in a known number of ten samples.
#[derive(Default)]
struct Machine {
    /// That number by address; a page that is not listed is never accessed.
    accessed: BTreeMap<u64, u32>,
    /// The same number of the dense samples.
    dense: BTreeMap<u64, u32>,
    /// Present pages of blocks that are not whole, by start.
    present: BTreeMap<u64, Vec<u64>>,
    split: RefCell<BTreeSet<u64>>,
    cannot_split: bool,
    /// Starts of blocks that are collapsed once they are split.
    collapsed: BTreeSet<u64>,
    /// A process that exits, and the number of watches after which it does.
    exits: Option<(i32, usize)>,
    /// The address of a page that becomes hot, and the number of watches after which it does.
    turns_hot: Option<(u64, usize)>,
    watches: Cell<usize>,
}

impl Machine {
    fn gone(&self, pid: i32) -> bool {
        self.exits.is_some_and(|(exited, after)| exited == pid && self.watches.get() >= after)
    }

    fn check_alive(&self, block: &Block) -> Result<()> {
        if self.gone(block.pid) { Err(Error::Gone { path: PathBuf::from(format!("/proc/{}", block.pid)) }) } else { Ok(()) }
    }
}

impl Memory for Machine {
    fn present(&self, block: &Block) -> Result<Vec<u64>> {
        self.check_alive(block)?;
        Ok(self.present.get(&block.start).cloned().unwrap_or_else(|| (block.start..block.end).step_by(4096).collect()))
    }

    fn is_huge(&self, block: &Block) -> Result<bool> {
        self.check_alive(block)?;
        Ok(self.collapsed.contains(&block.start))
    }

    fn split(&self, block: &Block) -> Result<bool> {
        self.check_alive(block)?;
        assert!(block.huge && self.split.borrow_mut().insert(block.start), "split twice: {block:?}");
        Ok(!self.cannot_split)
    }
}

#[derive(Debug)]
struct Fake {
    machine: Rc<Machine>,
    points_max: usize,
    /// The shortest interval of dense samples.
    closest: Duration,
    watched: Option<(Vec<Point>, Vec<Point>)>,
    taken: u32,
    interval: Duration,
    samples_in_all: u32,
    /// Repeated points and points sampled once, of each watch.
    watches: Vec<(usize, usize)>,
    refuses: bool,
    /// How often `finish` returns `None` before each result.
    polls: u32,
    polled: u32,
}

impl Fake {
    fn new(machine: &Rc<Machine>, points_max: usize) -> Self {
        let machine = machine.clone();
        let watches = Vec::new();
        let closest = SETTINGS.interval;
        Self {
            machine,
            points_max,
            closest,
            watched: None,
            taken: 0,
            interval: Duration::ZERO,
            samples_in_all: 0,
            watches,
            refuses: false,
            polls: 0,
            polled: 0,
        }
    }
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Machine")
    }
}

impl RateTracker for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn points_max(&self) -> usize {
        self.points_max
    }

    fn dense_interval_min(&self) -> Duration {
        self.closest
    }

    fn watch(&mut self, watch: &Watch<'_>) -> Result<()> {
        let pace = (watch.samples, watch.interval);
        assert!(pace == (10, SETTINGS.interval) || pace == (30, DENSE), "{pace:?}");
        self.interval = watch.interval;
        if self.refuses {
            return Err(Error::Unsupported { what: "no accessed bits".into(), remedy: "none".into() });
        }
        let all: BTreeSet<_> = watch.repeated.iter().chain(watch.once).collect();
        assert_eq!(all.len(), watch.repeated.len() + watch.once.len(), "no point is watched twice");
        assert!(all.len() <= self.points_max, "{} points", all.len());
        self.watches.push((watch.repeated.len(), watch.once.len()));
        self.watched = Some((watch.repeated.to_vec(), watch.once.to_vec()));
        self.taken = 0;
        Ok(())
    }

    fn sample(&mut self) -> Result<()> {
        self.taken += 1;
        self.samples_in_all += 1;
        Ok(())
    }

    fn finish(&mut self) -> Result<Option<Observation>> {
        if self.polled < self.polls {
            self.polled += 1;
            return Ok(None);
        }
        self.polled = 0;
        let machine = self.machine.clone();
        machine.watches.set(machine.watches.get() + 1);
        let (repeated, once) = self.watched.take().expect("watched");
        let accessed = if self.interval == DENSE { &machine.dense } else { &machine.accessed };
        let found = |point: &Point, taken: u32| {
            let is_hot = machine.turns_hot.is_some_and(|(address, after)| address == point.address && machine.watches.get() > after);
            let usual = accessed.get(&point.address).copied().unwrap_or(0);
            let known = if is_hot && self.interval != DENSE { taken } else { usual };
            (!machine.gone(point.pid)).then_some(BitSamples { taken, accessed: known.min(taken) })
        };
        let samples = repeated.iter().map(|point| found(point, self.taken)).chain(once.iter().map(|point| found(point, 1))).collect();
        Ok(Some(Observation { samples, window: self.interval * self.taken }))
    }
}

fn block(pid: i32, number: u64, huge: bool) -> Block {
    let start = number * BLOCK;
    Block { pid, start, end: start + BLOCK, first: start, bytes: Bytes(BLOCK), huge, node: 0 }
}

fn blocks(sampled: Vec<Block>, slow: Vec<Block>) -> Blocks {
    Blocks { sampled, slow, split: Vec::new() }
}

/// Runs a complete period.
fn run(machine: Machine, points_max: usize, sampled: &[Block], slow: &[Block]) -> (Round, Fake) {
    // Without dense samples.
    run_with(SETTINGS.interval, machine, points_max, sampled, slow)
}

fn run_with(closest: Duration, machine: Machine, points_max: usize, sampled: &[Block], slow: &[Block]) -> (Round, Fake) {
    let machine = Rc::new(machine);
    let mut tracker = Fake { closest, ..Fake::new(&machine, points_max) };
    let mut sampler = Sampler::begin(blocks(sampled.to_vec(), slow.to_vec()), SETTINGS, 1, &tracker, &*machine);
    for _ in 0..100 {
        let now = sampler.due();
        if let Some(early) = now.checked_sub(Duration::from_millis(1)) {
            let samples = tracker.samples_in_all;
            assert!(sampler.tick(early, &mut tracker, &*machine).unwrap().is_none());
            assert_eq!(tracker.samples_in_all, samples, "too early");
        }
        if let Some(round) = sampler.tick(now, &mut tracker, &*machine).unwrap() {
            return (round, tracker);
        }
    }
    panic!("the period did not end");
}

fn bits(taken: u32, accessed: u32) -> BitSamples {
    BitSamples { taken, accessed }
}

/// A huge page whose bit is always set; each listed part is accessed in this number of ten samples.
fn saturated(machine: &mut Machine, number: u64, parts: &[(u64, u32)]) {
    machine.accessed.extend(parts.iter().map(|&(part, accessed)| (number * BLOCK + part * PAGE, accessed)));
}

#[test]
fn samples_of_every_stage_reach_the_right_block() {
    let mut machine = Machine::default();
    // Block 1 is idle, 2 is rarely accessed, 3 is always accessed in two parts, 4 and 5 consist of base pages, 5 is untouched.
    machine.accessed.extend([(2 * BLOCK, 3), (4 * BLOCK + PAGE, 2), (8 * BLOCK, 2)]);
    saturated(&mut machine, 3, &[(0, 10), (7, 4)]);
    machine.present.extend([(4 * BLOCK, vec![4 * BLOCK, 4 * BLOCK + PAGE]), (5 * BLOCK, vec![5 * BLOCK + 9 * PAGE])]);
    machine.present.insert(9 * BLOCK, vec![9 * BLOCK, 9 * BLOCK + PAGE, 9 * BLOCK + 2 * PAGE]);
    let sampled = [block(7, 1, true), block(7, 2, true), block(7, 3, true), block(7, 4, false), block(8, 5, false)];
    let slow = [block(8, 8, true), block(8, 9, false)];
    let (round, tracker) = run(machine, 10_000, &sampled, &slow);

    let page = |bits| rate::page(bits, SECOND_US);
    let parts = |of, touched, touch_window_us, bits: &[BitSamples]| {
        rate::parts(&Parts { of, touched, touch_window_us, samples: bits, interval_us: if bits.is_empty() { 0 } else { SECOND_US } })
    };
    let rated = |block: &Block, estimate, samples, parts| BlockRate { block: *block, estimate, samples, parts };
    let want = [
        rated(&sampled[0], page(bits(10, 0)), bits(10, 0), None),
        rated(&sampled[1], page(bits(10, 3)), bits(10, 3), None),
        rated(&sampled[2], parts(512, 2, STAGE_US, &[bits(10, 10), bits(10, 4)]), bits(20, 14), Some((512, 2))),
        rated(&sampled[3], parts(2, 1, STAGE_US, &[bits(10, 2)]), bits(10, 2), Some((2, 1))),
        rated(&sampled[4], parts(1, 0, STAGE_US, &[]), bits(1, 0), Some((1, 0))),
    ];
    assert_eq!(round.sampled, want);
    let want = [
        rated(&slow[0], page(bits(30, 6)), bits(30, 6), None),
        rated(&slow[1], parts(3, 3, 0, &[bits(30, 0); 3]), bits(90, 0), Some((3, 3))),
    ];
    assert_eq!(round.slow, want);
    assert_eq!((round.split, round.lost, round.window), (vec![sampled[2]], Lost::default(), Duration::from_secs(30)));
    // Four points of slow blocks in each stage. Then three huge pages; the parts of one of them and the base pages; the touched parts.
    assert_eq!((tracker.watches, tracker.samples_in_all), (vec![(7, 0), (4, 515), (7, 0)], 30));
}

#[test]
fn the_first_sample_is_due_one_interval_after_marking() {
    let machine = Rc::new(Machine::default());
    let mut tracker = Fake::new(&machine, 10);
    let mut sampler = Sampler::begin(blocks(vec![block(7, 1, true)], Vec::new()), SETTINGS, 1, &tracker, &*machine);
    let mut tick = |second, due| {
        assert!(sampler.tick(Duration::from_secs(second), &mut tracker, &*machine).unwrap().is_none());
        assert_eq!(sampler.due(), Duration::from_secs(due), "at {second} s");
        tracker.samples_in_all
    };
    assert_eq!(tick(100, 0), 0);
    // Marking took longer than an interval.
    assert_eq!(tick(103, 104), 0);
    assert_eq!(tick(104, 105), 1);
}

#[test]
fn a_tracker_with_a_delayed_report_is_polled_without_more_samples() {
    let (sampled, slow) = ([block(7, 1, true), block(7, 2, false)], [block(8, 8, true)]);
    let period = |polls: u32| {
        let machine = Rc::new(Machine { accessed: [(BLOCK, 3), (2 * BLOCK, 2)].into(), ..Machine::default() });
        let mut tracker = Fake { polls, ..Fake::new(&machine, 10_000) };
        let mut sampler = Sampler::begin(blocks(sampled.to_vec(), slow.to_vec()), SETTINGS, 1, &tracker, &*machine);
        for ticks in 1.. {
            if let Some(round) = sampler.tick(sampler.due(), &mut tracker, &*machine).unwrap() {
                return (ticks, tracker.samples_in_all, format!("{round:?}"));
            }
        }
        panic!("the period did not end");
    };
    let (prompt, late) = (period(0), period(4));
    assert_eq!((late.0, late.1), (prompt.0 + 3 * 4, prompt.1), "ticks and samples");
    assert_eq!(late.2, prompt.2, "the result is the same");
}

#[test]
fn stages_without_points_take_no_time() {
    let check = |machine: Machine, sampled: &[Block], stages: u32| {
        let (round, tracker) = run(machine, 10_000, sampled, &[]);
        assert_eq!((round.window, tracker.samples_in_all), (Duration::from_secs(10) * stages, 10 * stages));
        assert_eq!((round.sampled.len(), round.lost), (sampled.len(), Lost::default()));
    };
    check(Machine::default(), &[], 0);
    check(Machine::default(), &[block(7, 1, true)], 1);
    check(Machine::default(), &[block(7, 1, false)], 1);
    check(Machine { accessed: [(BLOCK, 1)].into(), ..Machine::default() }, &[block(7, 1, false)], 2);
}

#[test]
fn a_saturated_page_that_is_not_split_has_no_upper_bound() {
    let mut machine = Machine { cannot_split: true, ..Machine::default() };
    saturated(&mut machine, 1, &[(0, 10)]);
    let (round, _) = run(machine, 10_000, &[block(7, 1, true), block(7, 2, true)], &[]);
    assert_eq!(round.lost, Lost { not_split: 1, ..Lost::default() });
    assert!(round.split.is_empty());
    assert_eq!(round.sampled.iter().map(|rated| rated.estimate.upper.is_some()).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn a_few_touched_parts_stand_for_all() {
    let mut machine = Machine::default();
    saturated(&mut machine, 1, &(0..512).map(|part| (part, if part == 0 { 10 } else { 5 })).collect::<Vec<_>>());
    let (round, tracker) = run(machine, 10_000, &[block(7, 1, true)], &[]);
    assert_eq!(tracker.watches, [(1, 0), (0, 512), (50, 0)]);
    assert_eq!((round.sampled[0].samples.taken, round.sampled[0].parts), (500, Some((512, 512))));
    assert!(round.sampled[0].estimate.mean > AccessRate::per_second(300), "512 parts at 0.69 per second");
}

#[test]
fn only_the_blocks_of_an_exited_process_are_lost() {
    for after in 1..=3 {
        let mut machine = Machine { exits: Some((7, after)), ..Machine::default() };
        for number in [1, 2] {
            saturated(&mut machine, number, &[(0, 10)]);
        }
        let (round, _) = run(machine, 10_000, &[block(7, 1, true), block(8, 2, true)], &[block(7, 3, true), block(8, 4, true)]);
        let sampled: Vec<_> = round.sampled.iter().map(|rated| rated.block.pid).collect();
        let slow: Vec<_> = round.slow.iter().map(|rated| rated.block.pid).collect();
        // The exit shows at the end of a watch: after the third one, all other samples have been taken.
        assert_eq!((sampled, slow, round.lost.changed), (vec![8], vec![8], 2), "after {after}");
    }
}

#[test]
fn blocks_over_capacity_are_counted_and_slow_blocks_have_priority() {
    let mut machine = Machine::default();
    for number in 1..=3 {
        saturated(&mut machine, number, &[(0, 10)]);
    }
    let sampled: Vec<_> = (1..=4).map(|number| block(7, number, true)).collect();
    let slow: Vec<_> = (10..20).map(|number| block(7, number, true)).collect();
    // Enough points for ten slow pages and the parts of one sampled page.
    let (round, _) = run(machine, 10 + 600, &sampled, &slow);
    assert_eq!((round.split.len(), round.lost), (1, Lost { over_capacity: 2, ..Lost::default() }));
    assert_eq!((round.slow.len(), round.sampled.len()), (10, 4));
    assert_eq!(round.sampled.iter().filter(|rated| rated.estimate.upper.is_none()).count(), 3, "{:?}", round.sampled);

    let (round, _) = run(Machine::default(), 4, &sampled, &slow);
    assert_eq!((round.lost.over_capacity, round.sampled.len(), round.slow.len()), (4 + 6, 0, 10));
    let unknown = round.slow.iter().filter(|rated| rated.estimate == Estimate::default()).count();
    assert_eq!(unknown, 6, "slow blocks that are not sampled have no upper bound, so that they are promoted");

    // Slow blocks of base pages share the available points.
    let slow: Vec<_> = (10..20).map(|number| block(7, number, false)).collect();
    let (round, tracker) = run(Machine::default(), 100, &[], &slow);
    assert_eq!((tracker.watches[0], round.lost), ((100, 0), Lost::default()));
    assert!(round.slow.iter().all(|rated| rated.parts == Some((512, 512)) && rated.estimate.upper.is_some()));
}

#[test]
fn an_abandoned_period_returns_the_split_blocks() {
    let mut machine = Machine::default();
    saturated(&mut machine, 1, &[(0, 10)]);
    let machine = Rc::new(machine);
    let mut tracker = Fake::new(&machine, 600);
    let mut sampler = Sampler::begin(blocks(vec![block(9, 1, true)], vec![block(7, 2, true)]), SETTINGS, 1, &tracker, &*machine);
    assert_eq!(sampler.pids(), [7, 9]);
    while tracker.watches.len() < 2 {
        assert!(sampler.tick(sampler.due(), &mut tracker, &*machine).unwrap().is_none());
    }
    let latest = sampler.slow_by_last_stage().expect("a stage has ended");
    assert_eq!(latest.iter().map(|rated| (rated.block, rated.samples)).collect::<Vec<_>>(), [(block(7, 2, true), bits(10, 0))]);
    assert_eq!(sampler.slow_by_last_stage(), None, "returned once");
    tracker.refuses = true;
    let error = loop {
        match sampler.tick(sampler.due(), &mut tracker, &*machine) {
            Ok(round) => assert!(round.is_none()),
            Err(error) => break error,
        }
    };
    assert!(error.is_unsupported());
    assert_eq!(sampler.abandon(), [block(9, 1, true)]);
}

#[test]
fn split_blocks_of_the_slow_node_show_their_accessed_pages() {
    let mut machine = Machine::default();
    // Of block 3 every page is accessed in each stage, of block 4 none; block 5 consists of two pages.
    machine.accessed.extend((0..512).map(|page| (3 * BLOCK + page * PAGE, 1)));
    machine.present.insert(5 * BLOCK, vec![5 * BLOCK, 5 * BLOCK + PAGE]);
    machine.accessed.insert(5 * BLOCK, 1);
    // Block 6 is collapsed by the kernel, so that each of its pages shows what one of them shows.
    machine.accessed.extend((0..512).map(|page| (6 * BLOCK + page * PAGE, 1)));
    machine.collapsed.insert(6 * BLOCK);
    let split = [3, 4, 5, 6].map(|number| block(8, number, true));
    let machine = Rc::new(machine);
    let mut tracker = Fake::new(&machine, 1_000);
    let all = Blocks { sampled: vec![block(7, 1, true)], slow: vec![block(8, 2, true)], split: split.to_vec() };
    let mut sampler = Sampler::begin(all, SETTINGS, 1, &tracker, &*machine);
    assert_eq!(sampler.pids(), [7, 8]);
    let round = loop {
        if let Some(round) = sampler.tick(sampler.due(), &mut tracker, &*machine).unwrap() {
            break round;
        }
    };
    let found: Vec<_> = round.slow_split.iter().map(|rated| (rated.block, rated.estimate, rated.parts)).collect();
    let counted = |accessed, share| rate::counted(accessed, 3 * STAGE_US / share);
    assert_eq!(
        found,
        [
            (split[0], counted(3 * 128, 4), Some((512, 512))),
            (split[1], counted(0, 4), Some((512, 0))),
            (split[2], counted(3, 1), Some((2, 2))),
        ]
    );
    let lost = Lost { collapsed: 1, ..Lost::default() };
    assert_eq!((round.split, round.lost, round.slow.len(), round.sampled.len()), (split.to_vec(), lost, 1, 1));
    assert_eq!(round.slow_lost, [split[3]]);
    // The pages of all four, in each stage.
    assert_eq!(tracker.watches, [(2, 386), (1, 386), (1, 386)]);
}

#[test]
fn a_period_that_ends_early_has_the_rates_of_split_blocks() {
    let mut machine = Machine::default();
    machine.accessed.extend((0..512).map(|page| (3 * BLOCK + page * PAGE, 1)));
    machine.collapsed.insert(4 * BLOCK);
    let machine = Rc::new(machine);
    let mut tracker = Fake::new(&machine, 1_000);
    let split = [3, 4].map(|number| block(8, number, true));
    let all = Blocks { sampled: vec![block(7, 1, true)], slow: vec![block(8, 2, true)], split: split.to_vec() };
    let mut sampler = Sampler::begin(all, SETTINGS, 1, &tracker, &*machine);
    let slow = loop {
        assert!(sampler.tick(sampler.due(), &mut tracker, &*machine).unwrap().is_none());
        if let Some(slow) = sampler.slow_by_last_stage() {
            break slow;
        }
    };
    let round = sampler.end_early(slow.clone());
    assert_eq!((round.slow, round.sampled.len(), round.window), (slow, 0, Duration::ZERO));
    let found: Vec<_> = round.slow_split.iter().map(|rated| (rated.block, rated.estimate)).collect();
    assert_eq!(found, [(split[0], rate::counted(128, STAGE_US / 4))], "of one stage");
    assert_eq!((round.slow_lost, round.split), (vec![split[1]], split.to_vec()));
}

#[test]
fn blocks_that_cannot_be_split_are_lost() {
    let machine = Rc::new(Machine { cannot_split: true, ..Machine::default() });
    let mut tracker = Fake::new(&machine, 300);
    let split = [3, 4, 5].map(|number| block(8, number, true));
    let all = Blocks { split: split.to_vec(), ..Blocks::default() };
    let mut sampler = Sampler::begin(all, SETTINGS, 1, &tracker, &*machine);
    let round = sampler.tick(sampler.due(), &mut tracker, &*machine).unwrap().expect("nothing to sample");
    assert_eq!(round.lost, Lost { not_split: 2, over_capacity: 1, ..Lost::default() });
    assert!(round.slow_split.is_empty() && round.split.is_empty());
    assert_eq!(round.slow_lost.iter().map(|block| block.start / BLOCK).collect::<Vec<_>>(), [5, 3, 4]);
}
