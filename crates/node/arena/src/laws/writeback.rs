//! Policy `auto` by its defaults: what stays unaccessed in zswap for a second threshold goes on to the device.
//!
//! `policy::writeback` decides. What it is asked with is the agent's survey (`survey.rs` of its controller `writeback`): of each block
//! of 16 pages of which 12 or more are swapped out, since when its swap entries are the same. An entry is the same as long as its page
//! was not accessed, which is all that is read of [`View::last_access`] here.
//!
//! Left out: the write budget and the bound on blocks, which no trace here reaches; the time that pages wait in the swap cache; other
//! memory that the kernel writes in place of the chosen one.

use std::collections::BTreeMap;

use policy::veto::Veto;
use policy::writeback::{self, Decision, Input, Params, State, expected_rate};
use units::{Bytes, Millis, Pages, RatioPpm};

use super::pace::Pace;
use super::thermocline::Thermocline;
use super::tuning::Constants;
use crate::kernel::Place;
use crate::law::{Law, Request};
use crate::trace::Kind;
use crate::view::View;

/// Pages of a block, and the fewest that are swapped out of one that is watched (`PAGES` and `SWAPPED_MIN` of the survey).
const BLOCK: (u64, u64) = (16, 12);

/// A block that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    /// Its groups that are swapped out, each with the interval of its last access: their swap entries.
    entries: Vec<(u32, u32)>,
    since_ms: u64,
    is_written: bool,
}

/// What a survey found.
#[derive(Clone, Copy, Debug, Default)]
struct Surveyed {
    oldest: Option<Millis>,
    written_rate: u64,
    expected: u64,
    returned: Pages,
    stored: Bytes,
}

/// `auto`, and the policy behind zswap.
#[derive(Debug)]
pub struct Writeback {
    first: Thermocline,
    params: Params,
    stall_target: RatioPpm,
    pace: Pace,
    state: State,
    /// By the first group.
    blocks: BTreeMap<u32, Block>,
    after: Option<Millis>,
    decided_ms: Option<u64>,
    written: Pages,
}

impl Writeback {
    /// The policy behind `first`, which has the same constants.
    #[must_use]
    pub fn new(first: Thermocline, constants: Constants) -> Self {
        Self {
            first,
            params: constants.writeback,
            stall_target: constants.pressure.stall_target,
            pace: Pace::every(constants.control_ms),
            state: State::default(),
            blocks: BTreeMap::new(),
            after: None,
            decided_ms: None,
            written: Pages::ZERO,
        }
    }

    fn decide(&mut self, view: &View<'_>) -> Option<Request> {
        let elapsed_ms = Millis(view.now_ms() - self.decided_ms.replace(view.now_ms()).unwrap_or(view.now_ms()));
        let surveyed = self.survey(view, elapsed_ms);
        let input = Input {
            elapsed_ms,
            threshold_ms: self.first.threshold_ms(),
            latencies_us: self.first.costs_by_tier(view),
            compressed: RatioPpm::of(view.pool().0, surveyed.stored.0).unwrap_or_default(),
            stall_target: self.stall_target,
            writable: Pages(u64::MAX),
            oldest_ms: surveyed.oldest,
            written_rate: surveyed.written_rate,
            expected: surveyed.expected,
            returned: surveyed.returned,
            written: std::mem::take(&mut self.written),
            spilled: false,
            obstacle: None,
            veto: self.first.is_at_target().then_some(Veto::Stalled),
        };
        let (state, step) = writeback::step(&self.params, &self.state, &input);
        (self.state, self.after) = (state, step.after_ms);
        match (step.decision, step.after_ms) {
            (Decision::Write { pages }, Some(after)) => Some(Request::WriteBack(self.take_oldest(view, after, pages))),
            _ => None,
        }
    }

    /// Goes through all blocks, and counts what returned of those that were far for longer than the second threshold.
    fn survey(&mut self, view: &View<'_>, elapsed: Millis) -> Surveyed {
        let before = std::mem::take(&mut self.blocks);
        let of_block = u32::try_from(BLOCK.0.div_ceil(view.group_pages())).unwrap_or(1);
        let mut surveyed = Surveyed::default();
        for start in (0..view.groups()).step_by(of_block as usize) {
            let groups = start..view.groups().min(start + of_block);
            let far = groups.filter(|&group| view.kind(group) == Kind::Anon && matches!(view.place(group), Place::Zswap | Place::Device));
            let entries: Vec<(u32, u32)> = far.filter_map(|group| Some((group, view.last_access(group)?))).collect();
            let in_zswap = entries.iter().filter(|(group, _)| view.place(*group) == Place::Zswap).count() as u64;
            surveyed.stored += Bytes(in_zswap * view.group_bytes().0);
            let known = before.get(&start);
            if let Some(known) = known.filter(|known| self.after.is_some_and(|after| known.age(view) >= after)) {
                let expected = expected_rate(known.pages(view), known.age(view)).saturating_mul(elapsed.0) / 1_000_000;
                surveyed.expected = surveyed.expected.saturating_add(expected);
                surveyed.returned += known.returned(view, &entries);
            }
            let block = match known {
                Some(known) if known.entries == entries => known.clone(),
                _ => Block { entries, since_ms: view.now_ms(), is_written: false },
            };
            if block.pages(view).0 * BLOCK.0 < u64::from(of_block) * view.group_pages() * BLOCK.1 {
                continue;
            }
            if block.is_written {
                surveyed.written_rate = surveyed.written_rate.saturating_add(expected_rate(block.pages(view), block.age(view)));
            } else {
                surveyed.oldest = surveyed.oldest.max(Some(block.age(view)));
            }
            self.blocks.insert(start, block);
        }
        surveyed
    }

    /// The groups of the oldest blocks, of `pages` at most, which are written from now on.
    fn take_oldest(&mut self, view: &View<'_>, after: Millis, pages: Pages) -> Vec<u32> {
        let mut due: Vec<&mut Block> = self.blocks.values_mut().filter(|block| !block.is_written && block.age(view) >= after).collect();
        due.sort_by_key(|block| block.since_ms);
        let mut groups = Vec::new();
        for block in due {
            if self.written + block.pages(view) > pages {
                break;
            }
            self.written += block.pages(view);
            block.is_written = true;
            groups.extend(block.entries.iter().map(|(group, _)| *group));
        }
        groups
    }
}

impl Block {
    fn pages(&self, view: &View<'_>) -> Pages {
        view.pages(self.entries.len() as u64)
    }

    /// For how long its entries are the same.
    fn age(&self, view: &View<'_>) -> Millis {
        Millis(view.now_ms() - self.since_ms)
    }

    /// Pages that returned since: those in DRAM, or one for every block of the survey, if the same groups have other entries.
    fn returned(&self, view: &View<'_>, now: &[(u32, u32)]) -> Pages {
        let resident = self.entries.iter().filter(|(group, _)| view.place(*group) == Place::Resident).count();
        let is_same = self.entries.iter().map(|(group, _)| group).eq(now.iter().map(|(group, _)| group));
        let again = if is_same && self.entries != now { Pages(self.pages(view).0.div_ceil(BLOCK.0)) } else { Pages::ZERO };
        view.pages(resident as u64).max(again)
    }
}

impl Law for Writeback {
    fn step(&mut self, view: &View<'_>) -> Vec<Request> {
        let mut asked = self.first.step(view);
        if self.pace.is_due(view.now_ms()) {
            asked.extend(self.decide(view));
        }
        asked
    }
}
