//! One period of sampling the accessed bits of blocks, in stages (Thermostat section 3.2).
//!
//! 1. *Whole.* Each sampled huge page is sampled as a whole. If some samples find it idle, they give its rate.
//! 2. *Dense.* Huge pages that half of the samples found accessed are sampled at a shorter interval, which resolves higher rates. It is a
//!    short stage of few points, so that it costs less than a shorter interval for all.
//! 3. *Touched.* Huge pages that every sample found accessed are split, to find out which of their parts are touched at all.
//!    Sampled blocks of base pages, which have no common accessed bit, join here.
//! 4. *Rates.* A few of the touched parts are sampled for their rates, which stand for all touched parts.
//!
//! After each of the last two, slow huge pages that all of its samples found accessed are sampled densely, if those of the first stage
//! did not for one of them: memory that became hot within the period is known before its end. The period takes longer then.
//!
//! Blocks in the slow node are sampled in all stages, in the second like the others. Of a slow block of base pages only a few pages
//! are sampled, other ones each period. In slow memory only the few huge pages are split that the owner names ([`Blocks::split`]): they
//! show for how many accessed pages a set bit of the others stands.
//!
//! The tracker limits the number of points. Slow blocks have priority: those of base pages get fewer points each the more
//! of them there are, and the bound on their rates grows with that, until the policy promotes some. Sampled blocks that exceed
//! the limit are lost for this period, and counted ([`Lost`]).
//!
//! The sampler has no access to clock or kernel: its owner calls [`Sampler::tick`] at [`Sampler::due`], with a [`RateTracker`]
//! and a [`Memory`].

use std::collections::BTreeSet;
use std::time::Duration;

use kernel::Result;

use super::blocks::Block;
use super::tracker::{Observation, RateTracker, Watch};

mod block_rate;
mod candidate;
mod memory;
mod round;
mod slow_block;
mod split_blocks;
#[cfg(test)]
mod tests;

pub use block_rate::BlockRate;
pub use memory::{Host, Memory};
pub use round::{Blocks, DENSER, Lost, Round, Settings};
pub use slow_block::PARTS_MIN;

use candidate::Candidate;
use round::Pace;
use slow_block::SlowBlocks;
use split_blocks::SplitBlocks;

/// How soon a tracker whose report takes a while is polled again.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Whole,
    Dense,
    Touched,
    DenseAfterTouched,
    Rates,
    DenseAfterRates,
    Over,
}

impl Stage {
    fn is_dense(self) -> bool {
        matches!(self, Self::Dense | Self::DenseAfterTouched | Self::DenseAfterRates)
    }

    /// Whether only slow blocks are sampled.
    fn is_for_slow(self) -> bool {
        matches!(self, Self::DenseAfterTouched | Self::DenseAfterRates)
    }
}

/// A stage under way.
#[derive(Debug)]
struct Sampling {
    /// When to sample next; `None` until the first tick after the watch began. Splitting and marking take time, and a
    /// sample right after them would find pages idle that no process had time to access.
    due: Option<Duration>,
    /// Samples still to take; at 0 the tracker is polled for its report.
    left: u32,
}

/// One period under way.
#[derive(Debug)]
pub struct Sampler {
    settings: Settings,
    pace: Pace,
    dense: Option<Pace>,
    stage: Stage,
    /// `None` between two stages.
    sampling: Option<Sampling>,
    sampled: Vec<Candidate>,
    slow: SlowBlocks,
    split: SplitBlocks,
    /// Seed of the choice of parts.
    seed: u64,
    /// Limit on the points of the sampled blocks.
    points_max: usize,
    round: Round,
}

impl Sampler {
    /// Prepares a period; sampling starts with the first tick. No block may be in two lists, nor twice in one.
    ///
    /// `seed` differs from period to period, so that other parts are sampled. If the tracker cannot sample at the requested
    /// interval, the period takes longer.
    #[must_use]
    pub fn begin(blocks: Blocks, settings: Settings, seed: u64, tracker: &dyn RateTracker, memory: &dyn Memory) -> Self {
        let Blocks { sampled, slow, split } = blocks;
        let mut lost = Lost::default();
        let slow = SlowBlocks::new(slow, settings, tracker.points_max(), seed, memory, &mut lost);
        let mut left = tracker.points_max().saturating_sub(slow.point_count());
        let split = SplitBlocks::new(split, &mut left, &mut lost);
        let points_max = left;
        let sampled = sampled.into_iter().map(|block| Candidate::new(block, &mut left, &mut lost)).collect();
        let round = Round { lost, measurable: settings.measurable(tracker), ..Round::default() };
        let (pace, dense) = (settings.pace(tracker), settings.dense(tracker));
        Self { settings, pace, dense, stage: Stage::Whole, sampling: None, sampled, slow, split, seed, points_max, round }
    }

    /// The processes whose memory is sampled, sorted.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        self.sampled
            .iter()
            .map(Candidate::pid)
            .chain(self.slow.pids())
            .chain(self.split.pids())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    /// When to call [`Sampler::tick`] next.
    #[must_use]
    pub fn due(&self) -> Duration {
        self.sampling.as_ref().and_then(|sampling| sampling.due).unwrap_or(Duration::ZERO)
    }

    /// Rates of the slow blocks in the last stage, once after each stage: a block that became hot shows there first.
    pub fn slow_by_last_stage(&mut self) -> Option<Vec<BlockRate>> {
        self.slow.rates_of_last_stage()
    }

    /// Whether slow blocks became too hot to be measured, as of the last stage: what they add to the rates is unknown.
    #[must_use]
    pub fn slow_is_too_hot_to_measure(&self) -> bool {
        self.slow.are_too_hot_to_measure()
    }

    /// Ends a period early because of `slow`, the rates of the last stage. The slow blocks that were split have the rates that are known so
    /// far; there are none of sampled blocks.
    #[must_use]
    pub fn end_early(mut self, slow: Vec<BlockRate>) -> Round {
        let Round { split, lost, .. } = std::mem::take(&mut self.round);
        let mut round = Round { slow, split, lost, ..Round::default() };
        (round.slow_split, round.slow_lost) = self.split.take_rates(&mut round.lost);
        round
    }

    /// Ends a period early, without a result. Returns the blocks that were split and are to be collapsed again.
    #[must_use]
    pub fn abandon(self) -> Vec<Block> {
        self.round.split
    }

    /// Begins a stage, takes a sample or ends a stage, if it is due. Returns the result at the end of the last stage.
    ///
    /// # Errors
    /// Those of the tracker and of the kernel's files. The period cannot continue then: call [`Sampler::abandon`].
    pub fn tick(&mut self, now: Duration, tracker: &mut dyn RateTracker, memory: &dyn Memory) -> Result<Option<Round>> {
        if self.sampling.is_some() {
            let Some(observed) = self.sample(now, tracker)? else { return Ok(None) };
            self.sampling = None;
            self.split.check(memory)?;
            self.end_stage(&observed);
        }
        while self.stage != Stage::Over {
            match self.stage {
                Stage::Whole => self.split.split(memory, self.seed, &mut self.round.split, &mut self.round.lost)?,
                Stage::Touched => self.split_saturated(memory)?,
                Stage::Dense | Stage::DenseAfterTouched | Stage::Rates | Stage::DenseAfterRates | Stage::Over => {}
            }
            if self.begin_stage(tracker)? {
                return Ok(None);
            }
            self.end_stage(&Observation::default());
        }
        Ok(Some(self.finish()))
    }

    /// Takes a sample, if it is due; returns the tracker's report after the last one.
    fn sample(&mut self, now: Duration, tracker: &mut dyn RateTracker) -> Result<Option<Observation>> {
        let Pace { interval, .. } = self.pace();
        let Some(Sampling { due, left }) = &mut self.sampling else { return Ok(None) };
        // Relative to now: a late sample does not make the next one early.
        let next = Some(now + interval);
        let Some(time) = *due else {
            *due = next;
            return Ok(None);
        };
        if now < time {
            return Ok(None);
        }
        if *left > 0 {
            tracker.sample()?;
            self.round.samples += u32::from(!self.stage.is_dense());
            (*due, *left) = (next, *left - 1);
        }
        if *left > 0 {
            return Ok(None);
        }
        let observed = tracker.finish()?;
        if observed.is_none() {
            *due = Some(now + POLL_INTERVAL);
        }
        Ok(observed)
    }

    /// How often this stage samples.
    fn pace(&self) -> Pace {
        self.dense.filter(|_| self.stage.is_dense()).unwrap_or(self.pace)
    }

    /// Watches the points of this stage; returns `false` if there are none.
    fn begin_stage(&mut self, tracker: &mut dyn RateTracker) -> Result<bool> {
        let Pace { samples, interval } = self.pace();
        let mut repeated = if self.stage.is_dense() { self.slow.dense_points().collect() } else { self.slow.points().collect() };
        let mut once = Vec::new();
        if !self.stage.is_for_slow() {
            self.sampled.iter().for_each(|candidate| candidate.add_points(&mut repeated, &mut once));
        }
        if !self.stage.is_dense() {
            once.extend(self.split.points());
        }
        if repeated.is_empty() && once.is_empty() {
            return Ok(false);
        }
        tracker.watch(&Watch { repeated: &repeated, once: &once, interval, samples })?;
        self.sampling = Some(Sampling { due: None, left: samples.max(1) });
        Ok(true)
    }

    /// Passes the samples on to their blocks, in the order in which [`Sampler::begin_stage`] listed the points.
    ///
    /// The tracker reports repeated points before those sampled once; in one stage, the sampled blocks use
    /// only one of the two. The pages of split blocks are the last.
    fn end_stage(&mut self, observed: &Observation) {
        let mut samples = observed.samples.iter().copied();
        if self.stage.is_dense() {
            let slow_points = self.slow.dense_points().count();
            self.slow.add_dense(&mut samples.by_ref().take(slow_points), observed.window);
        } else {
            let slow_points = self.slow.point_count();
            self.slow.add(&mut samples.by_ref().take(slow_points), observed.window);
            self.round.window += observed.window;
        }
        let densely = self.dense.is_some();
        if !self.stage.is_for_slow() {
            for candidate in &mut self.sampled {
                candidate.end_stage(&mut samples, observed.window, densely, self.settings.parts_max, self.seed, &mut self.round.lost);
            }
        }
        if !self.stage.is_dense() {
            self.split.add(&mut samples, observed.window);
        }
        self.stage = self.next_stage();
    }

    /// The stage after this one. Chooses the blocks of a dense one.
    fn next_stage(&mut self) -> Stage {
        let densely = self.dense.is_some();
        match self.stage {
            Stage::Whole if densely => {
                self.slow.choose_dense();
                Stage::Dense
            }
            Stage::Touched if densely => {
                self.slow.choose_newly_hot();
                Stage::DenseAfterTouched
            }
            Stage::Rates if densely => {
                self.slow.choose_newly_hot();
                Stage::DenseAfterRates
            }
            Stage::Whole | Stage::Dense => Stage::Touched,
            Stage::Touched | Stage::DenseAfterTouched => Stage::Rates,
            Stage::Rates | Stage::DenseAfterRates | Stage::Over => Stage::Over,
        }
    }

    /// Splits huge pages that were accessed at every sample, and lists the pages of the blocks that are sampled in parts.
    fn split_saturated(&mut self, memory: &dyn Memory) -> Result<()> {
        let mut left = self.points_max;
        let Round { split, lost, .. } = &mut self.round;
        for candidate in &mut self.sampled {
            candidate.split_if_saturated(memory, &mut left, split, lost)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Round {
        let mut round = std::mem::take(&mut self.round);
        round.sampled = std::mem::take(&mut self.sampled).into_iter().filter_map(Candidate::into_rate).collect();
        round.slow = self.slow.take_rates(&mut round.lost);
        (round.slow_split, round.slow_lost) = self.split.take_rates(&mut round.lost);
        round
    }
}
