//! One period of looks at the blocks of jobs, in three stages of equal length (002 section 3.2).
//!
//! 1. *Whole.* Each sampled huge page is looked at as a whole. Where some looks find it idle, that gives its rate.
//! 2. *Touched.* Those found accessed at every look are split, to see which of their parts are accessed at all. Sampled blocks of
//!    small pages, which have no bit in common, join here.
//! 3. *Rates.* A few of the touched parts are looked at for their rates, which stand for all of the touched ones.
//!
//! What is in the slow node is looked at in all three. There, of a block of small pages only a few are looked at, others each
//! period; nothing in slow memory is ever split.
//!
//! The tracker has a limit on points. What is slow comes first: its blocks of small pages get fewer points each the more they
//! are, and the bound on their rates grows with that, until the policy brings some home. Sampled blocks that find no room are
//! lost for this period, and counted.
//!
//! The machine knows neither clock nor kernel: [`Sampler::tick`] is called when [`Sampler::due`] says so, and works through a
//! [`RateTracker`] and a [`Memory`].

use std::collections::BTreeSet;
use std::time::Duration;

use kernel::Result;
use policy::slowdown::rate::{self, Estimate, Looks};
use serde::Serialize;

use super::blocks::Block;
use super::selection;
use super::{Point, RateTracker, Seen, Watch};

mod host;
mod rated;
#[cfg(test)]
mod tests;

pub use host::Host;
pub use rated::Rated;
use rated::{Counted, interval_us, micros};

/// How soon a tracker that takes its time to tell what it saw is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// The fewest parts of a slow block of small pages that are looked at: one alone could not stand for the others.
const PARTS_MIN: usize = 2;

/// What a block may be asked for while it is sampled.
pub trait Memory {
    /// The addresses of its pages that are present.
    ///
    /// # Errors
    /// `Gone` where its process has ended; any other error of the kernel's files.
    fn present(&self, block: &Block) -> Result<Vec<u64>>;

    /// Splits a huge page. Returns whether it is small pages now.
    ///
    /// # Errors
    /// `Gone` where its process has ended; any other error of the kernel's interface.
    fn split(&self, block: &Block) -> Result<bool>;
}

/// How to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Looks in each of the three stages.
    pub looks: u32,
    /// The time from look to look.
    pub look_period: Duration,
    /// Parts of a block that are looked at for their rates, at most (002: 50).
    pub parts_max: u32,
}

/// The result of a period.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// The sampled blocks, but for those lost, in the order given.
    pub sampled: Vec<Rated>,
    /// The slow blocks, but for those lost, in the order given.
    pub slow: Vec<Rated>,
    /// Blocks that were split, to be collapsed again.
    pub split: Vec<Block>,
    /// What was not told.
    pub lost: Lost,
    /// How many looks were taken, one after the other.
    pub looks: u32,
    /// How long they took together.
    pub window: Duration,
}

/// Blocks without an estimate, or without the one they needed, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// Their pages vanished, moved or changed their size meanwhile, or their process ended.
    pub changed: u32,
    /// The tracker had no room for them. Huge pages whose parts found none, and slow blocks, count as accessed too much to
    /// tell.
    pub no_room: u32,
    /// They are accessed too much to tell as a whole, and were not split: splitting is off, or the kernel refused.
    pub not_split: u32,
}

/// The three stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Whole,
    Touched,
    Rates,
    Over,
}

/// What is known of a sampled block so far.
#[derive(Debug)]
enum Progress {
    /// A huge page, to be looked at as a whole.
    Whole,
    /// Its accessed bit was found set at every look.
    Saturated(Rated),
    /// Small pages, to be looked at from the second stage on.
    Small,
    /// Which of these pages are touched?
    Touching(Vec<u64>),
    /// How often are these accessed, which stand for all touched ones?
    Counting { chosen: Vec<u64>, of: u32, touched: u32, touch_window_us: u64 },
    /// Done.
    Rated(Rated),
    /// There will be no estimate.
    Lost,
}

/// Looks of a stage that are still to be taken.
#[derive(Debug)]
struct Looking {
    /// `None` until the first tick after the watch began: to split what is watched and to mark it takes time, and a look that
    /// came right after would find idle what nobody had time to access.
    due: Option<Duration>,
    left: u32,
}

/// A sampled block.
#[derive(Debug)]
struct Sampled {
    block: Block,
    progress: Progress,
}

/// A slow block: its points, and what was seen of each so far.
#[derive(Debug)]
struct Slow {
    block: Block,
    points: Vec<u64>,
    looks: Vec<Looks>,
    /// What was seen of each in the last stage alone.
    latest: Vec<Looks>,
    /// How many pages the points stand for.
    of: u32,
    changed: bool,
}

/// One period under way.
#[derive(Debug)]
pub struct Sampler {
    settings: Settings,
    stage: Stage,
    /// When to look next, and how often still; with none left, when to ask what was seen. `None` between two stages.
    looking: Option<Looking>,
    sampled: Vec<Sampled>,
    slow: Vec<Slow>,
    /// What the parts that are looked at are chosen by.
    seed: u64,
    /// Points that the sampled blocks may have.
    room: usize,
    round: Round,
    /// Looks taken of the slow blocks: number and time.
    slow_looks: (u32, Duration),
    /// The same in the last stage, until somebody asks.
    slow_looks_latest: Option<(u32, Duration)>,
}

impl Sampler {
    /// Prepares a period; nothing is looked at before the first tick. No block may be in both lists, nor twice in one.
    ///
    /// `seed` differs from period to period, so that other parts are looked at. Where the tracker cannot look as often as the
    /// settings say, the period takes longer.
    #[must_use]
    pub fn begin(
        sampled: Vec<Block>,
        slow: Vec<Block>,
        mut settings: Settings,
        seed: u64,
        tracker: &dyn RateTracker,
        memory: &dyn Memory,
    ) -> Self {
        settings.look_period = settings.look_period.max(tracker.look_min());
        let points_max = tracker.points_max();
        let mut lost = Lost::default();
        let slow = slow_points(slow, settings, points_max, seed, memory, &mut lost);
        let room = points_max.saturating_sub(slow.iter().map(|slow| slow.points.len()).sum());
        let mut left = room;
        let start = |block: Block| {
            let progress = match block.huge {
                false => Progress::Small,
                true if left > 0 => {
                    left -= 1;
                    Progress::Whole
                }
                true => {
                    lost.no_room += 1;
                    Progress::Lost
                }
            };
            Sampled { block, progress }
        };
        let sampled = sampled.into_iter().map(start).collect();
        let round = Round { lost, ..Round::default() };
        Self {
            settings,
            stage: Stage::Whole,
            looking: None,
            sampled,
            slow,
            seed,
            room,
            round,
            slow_looks: (0, Duration::ZERO),
            slow_looks_latest: None,
        }
    }

    /// The processes whose memory is looked at, sorted.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        let sampled = self.sampled.iter().map(|sampled| sampled.block.pid);
        sampled.chain(self.slow.iter().map(|slow| slow.block.pid)).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// When to call [`Sampler::tick`] next.
    #[must_use]
    pub fn due(&self) -> Duration {
        self.looking.as_ref().and_then(|looking| looking.due).unwrap_or(Duration::ZERO)
    }

    /// The slow blocks by the looks of the last stage alone, once after each stage: what has turned hot shows there first.
    pub fn slow_by_last_stage(&mut self) -> Option<Vec<Rated>> {
        let (taken, window) = self.slow_looks_latest.take()?;
        let interval = micros(window) / u64::from(taken.max(1));
        Some(self.slow.iter().filter_map(|slow| slow.rate(&slow.latest, interval)).collect())
    }

    /// Ends a period before its time. Returns what was split and is to be collapsed again.
    #[must_use]
    pub fn abandon(self) -> Vec<Block> {
        self.round.split
    }

    /// Goes on, if it is time: begins a stage, looks once, or ends a stage. Returns the result at the end of the last.
    ///
    /// # Errors
    /// Those of the tracker, and of the kernel's files. The period cannot go on then: [`Sampler::abandon`] it.
    pub fn tick(&mut self, now: Duration, tracker: &mut dyn RateTracker, memory: &dyn Memory) -> Result<Option<Round>> {
        if let Some(Looking { due, left }) = &mut self.looking {
            // One that comes late does not make the next come early.
            let next = Some(now + self.settings.look_period);
            let Some(time) = *due else {
                *due = next;
                return Ok(None);
            };
            if now < time {
                return Ok(None);
            }
            if *left > 0 {
                tracker.look()?;
                self.round.looks += 1;
                (*due, *left) = (next, *left - 1);
            }
            if *left > 0 {
                return Ok(None);
            }
            let Some(seen) = tracker.finish()? else {
                *due = Some(now + ASK_AGAIN);
                return Ok(None);
            };
            self.looking = None;
            self.end_stage(&seen);
        }
        while self.stage != Stage::Over {
            if self.stage == Stage::Touched {
                self.split_saturated(memory)?;
            }
            if self.begin_stage(tracker)? {
                return Ok(None);
            }
            self.end_stage(&Seen::default());
        }
        Ok(Some(self.finish()))
    }

    /// Watches what this stage is about; `false` where there is nothing.
    fn begin_stage(&mut self, tracker: &mut dyn RateTracker) -> Result<bool> {
        let Settings { looks, look_period, .. } = self.settings;
        let mut often: Vec<Point> = self.slow.iter().flat_map(|slow| points(&slow.block, &slow.points)).collect();
        let mut once = Vec::new();
        for Sampled { block, progress } in &self.sampled {
            match progress {
                Progress::Whole => often.push(Point { pid: block.pid, address: block.first }),
                Progress::Touching(pages) => once.extend(points(block, pages)),
                Progress::Counting { chosen, .. } => often.extend(points(block, chosen)),
                _ => {}
            }
        }
        if often.is_empty() && once.is_empty() {
            return Ok(false);
        }
        tracker.watch(&Watch { often: &often, once: &once, look_period, looks })?;
        self.looking = Some(Looking { due: None, left: looks.max(1) });
        Ok(true)
    }

    /// Gives every block what was seen of it, in the order in which [`Sampler::begin_stage`] listed them.
    fn end_stage(&mut self, seen: &Seen) {
        let mut looks = seen.looks.iter().copied();
        let slow_points: usize = self.slow.iter().map(|slow| slow.points.len()).sum();
        self.take_slow(looks.by_ref().take(slow_points), seen.window);
        for Sampled { block, progress } in &mut self.sampled {
            match progress {
                Progress::Whole => {
                    *progress = match looks.next().flatten().filter(|looks| looks.taken > 0) {
                        Some(looks) => whole(*block, looks, seen.window),
                        None => lost(&mut self.round.lost.changed),
                    };
                }
                Progress::Touching(pages) => {
                    let seen_pages: Vec<_> = pages.iter().copied().zip(looks.by_ref().take(pages.len())).collect();
                    *progress = touched(*block, &seen_pages, seen.window, self.settings.parts_max, self.seed)
                        .unwrap_or_else(|| lost(&mut self.round.lost.changed));
                }
                Progress::Counting { chosen, of, touched, touch_window_us } => {
                    let parts: Vec<_> = looks.by_ref().take(chosen.len()).flatten().filter(|looks| looks.taken > 0).collect();
                    let counted = Counted { of: *of, touched: *touched, touch_window_us: *touch_window_us, parts: &parts };
                    *progress = match parts.is_empty() {
                        false => Progress::Rated(counted.rate(*block, interval_us(seen.window, &parts))),
                        true => lost(&mut self.round.lost.changed),
                    };
                }
                _ => {}
            }
        }
        self.round.window += seen.window;
        self.stage = match self.stage {
            Stage::Whole => Stage::Touched,
            Stage::Touched => Stage::Rates,
            Stage::Rates | Stage::Over => Stage::Over,
        };
    }

    fn take_slow(&mut self, mut looks: impl Iterator<Item = Option<Looks>>, window: Duration) {
        let mut taken = 0;
        for slow in &mut self.slow {
            for (sum, latest) in slow.looks.iter_mut().zip(&mut slow.latest) {
                match looks.next().flatten() {
                    Some(looks) => {
                        *latest = looks;
                        sum.taken = sum.taken.saturating_add(looks.taken);
                        sum.accessed = sum.accessed.saturating_add(looks.accessed);
                        taken = taken.max(looks.taken);
                    }
                    None => slow.changed = true,
                }
            }
        }
        self.slow_looks.0 = self.slow_looks.0.saturating_add(taken);
        self.slow_looks.1 += window;
        self.slow_looks_latest = Some((taken, window));
    }

    /// Splits what was accessed at every look, and lists the pages of what is to be looked at in parts.
    fn split_saturated(&mut self, memory: &dyn Memory) -> Result<()> {
        let mut left = self.room;
        let Round { split, lost: count, .. } = &mut self.round;
        for Sampled { block, progress } in &mut self.sampled {
            let was_huge = match std::mem::replace(progress, Progress::Lost) {
                Progress::Small => false,
                Progress::Saturated(rated) => {
                    *progress = Progress::Rated(rated);
                    if left < whole_parts() {
                        count.no_room += 1;
                        continue;
                    }
                    match unless_gone(memory.split(block))? {
                        Some(true) => split.push(*block),
                        Some(false) => {
                            count.not_split += 1;
                            continue;
                        }
                        None => {
                            *progress = lost(&mut count.changed);
                            continue;
                        }
                    }
                    true
                }
                other => {
                    *progress = other;
                    continue;
                }
            };
            *progress = match unless_gone(memory.present(block))? {
                Some(pages) if !pages.is_empty() && pages.len() <= left => {
                    left -= pages.len();
                    Progress::Touching(pages)
                }
                Some(pages) if !pages.is_empty() && !was_huge => lost(&mut count.no_room),
                _ => lost(&mut count.changed),
            };
        }
        Ok(())
    }

    fn finish(&mut self) -> Round {
        let mut round = std::mem::take(&mut self.round);
        for sampled in std::mem::take(&mut self.sampled) {
            if let Progress::Rated(rated) | Progress::Saturated(rated) = sampled.progress {
                round.sampled.push(rated);
            }
        }
        let (taken, window) = self.slow_looks;
        let interval = micros(window) / u64::from(taken.max(1));
        for slow in std::mem::take(&mut self.slow) {
            match slow.rate(&slow.looks, interval) {
                Some(rated) => round.slow.push(rated),
                None => round.lost.changed += 1,
            }
        }
        round
    }
}

impl Slow {
    /// `None` where it has changed.
    fn rate(&self, seen: &[Looks], interval_us: u64) -> Option<Rated> {
        let Some(&looks) = seen.first() else {
            // Not looked at for want of room: nobody can tell that it may stay.
            return Some(Rated { block: self.block, estimate: Estimate::default(), looks: Looks::default(), parts: None });
        };
        if self.block.huge {
            let estimate = rate::page(looks, interval_us);
            return (looks.taken > 0 && !self.changed).then_some(Rated { block: self.block, estimate, looks, parts: None });
        }
        let parts: Vec<_> = seen.iter().copied().filter(|looks| looks.taken > 0).collect();
        // All pages count as touched: whether the others were is not looked at.
        let counted = Counted { of: self.of, touched: self.of, touch_window_us: 0, parts: &parts };
        (!parts.is_empty()).then(|| counted.rate(self.block, interval_us))
    }
}

/// What looks at a huge page as a whole say of it.
fn whole(block: Block, looks: Looks, window: Duration) -> Progress {
    let rated = Rated { block, estimate: rate::page(looks, interval_us(window, &[looks])), looks, parts: None };
    if looks.accessed >= looks.taken { Progress::Saturated(rated) } else { Progress::Rated(rated) }
}

/// What the pages of a block say that were or were not touched within the window; `None` where all have vanished.
fn touched(block: Block, seen: &[(u64, Option<Looks>)], window: Duration, parts_max: u32, seed: u64) -> Option<Progress> {
    let of = count(seen.iter().filter(|(_, looks)| looks.is_some()));
    let mut chosen: Vec<u64> =
        seen.iter().filter(|(_, looks)| looks.is_some_and(|looks| looks.accessed > 0)).map(|&(page, _)| page).collect();
    let (touched, touch_window_us) = (count(chosen.iter()), micros(window));
    if of == 0 {
        return None;
    }
    if touched == 0 {
        let looks = Looks { taken: of, accessed: 0 };
        let untouched = Counted { of, touched, touch_window_us, parts: &[] };
        return Some(Progress::Rated(Rated { looks, ..untouched.rate(block, 0) }));
    }
    selection::some_of(&mut chosen, usize::try_from(parts_max.max(1)).unwrap_or(usize::MAX), seed);
    Some(Progress::Counting { chosen, of, touched, touch_window_us })
}

/// The points at which slow blocks are looked at: one of a huge page, a few of small pages.
fn slow_points(blocks: Vec<Block>, settings: Settings, points_max: usize, seed: u64, memory: &dyn Memory, lost: &mut Lost) -> Vec<Slow> {
    let small = blocks.iter().filter(|block| !block.huge).count();
    let left = points_max.saturating_sub(blocks.len() - small);
    let each = (left / small.max(1)).clamp(PARTS_MIN, usize::try_from(settings.parts_max).unwrap_or(usize::MAX).max(PARTS_MIN));
    let mut left = points_max;
    let mut slow = Vec::with_capacity(blocks.len());
    for block in blocks {
        // A process that ended or a file that cannot be read: nothing is seen of the block.
        let mut points = if block.huge { vec![block.first] } else { memory.present(&block).unwrap_or_default() };
        let of = count(points.iter());
        selection::some_of_stretches(&mut points, each, seed);
        if points.is_empty() {
            lost.changed += 1;
            continue;
        }
        if points.len() > left {
            lost.no_room += 1;
            points.clear();
        }
        left -= points.len();
        let none = vec![Looks::default(); points.len()];
        slow.push(Slow { block, looks: none.clone(), latest: none, points, of, changed: false });
    }
    slow
}

fn points<'a>(block: &Block, pages: &'a [u64]) -> impl Iterator<Item = Point> + use<'a> {
    let pid = block.pid;
    pages.iter().map(move |&address| Point { pid, address })
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

/// The parts that a whole block has.
fn whole_parts() -> usize {
    usize::try_from(super::blocks::BLOCK_BYTES / kernel::page_size().bytes()).unwrap_or(usize::MAX)
}

fn lost(count: &mut u32) -> Progress {
    *count += 1;
    Progress::Lost
}

fn unless_gone<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(error) if error.is_gone() => Ok(None),
        other => other.map(Some),
    }
}
