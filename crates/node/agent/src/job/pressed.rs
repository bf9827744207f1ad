//! What the pressure controller and the balance between anonymous and file memory know of one job.

use std::collections::VecDeque;
use std::time::Duration;

use kernel::cgroup::MemoryStat;
use policy::balance::{self, Lean};
use policy::pressure;
use policy::veto::Veto;
use serde::{Deserialize, Serialize};
use units::{Bytes, Pages, millis};

use crate::journal::PressureRecord;

/// Periods kept in memory for `explain`.
const RECENT_MAX: usize = 64;

/// The controllers of a job under pressure-driven offloading, and what they last decided.
#[derive(Debug)]
pub struct Pressed {
    /// Parameters of the pressure controller.
    pub params: pressure::Params,
    /// Its memory.
    pub state: pressure::State,
    /// Memory of the balance between anonymous and file memory.
    pub balance: balance::State,
    /// What is to be reclaimed until the next decision.
    pub plan: Option<Amount>,
    /// The last periods, oldest first.
    pub recent: VecDeque<PressedPeriod>,
    outcome: Reclaimed,
    /// Taken beyond what was asked for: the kernel reclaims in batches, and small jobs are asked for less than one.
    owed: Bytes,
    stepped_at: Option<Duration>,
    counted: Option<Counted>,
    returned: Pages,
    /// Stall for memory and I/O, ever, at the last step.
    stalled_us: Option<u64>,
    /// What the return of a page was seen to cost this job, smoothed; zero before enough came back.
    seen_cost_us: u64,
}

/// Memory to reclaim, by kind.
///
/// The kernel is asked for one kind at a time: with swappiness between its ends MGLRU picks the kind with the older
/// generation and minds the leaning only where both are of the same age (`isolate_folios()` in `mm/vmscan.c`), so that a
/// mixed job lost page cache alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// Of anonymous and shared memory, how much is left to ask for.
    pub anon: Bytes,
    /// The same of page cache.
    pub file: Bytes,
}

impl Amount {
    /// Divides an amount between the kinds as the leaning wants it, in proportion to what is resident of each: that is
    /// how the kernel weighs its lists, too.
    fn of(bytes: Bytes, lean: Lean, anon: Bytes, file: Bytes) -> Self {
        let Lean::Swappiness(swappiness) = lean else { return Self { anon: Bytes::ZERO, file: bytes } };
        let swappiness = u128::from(swappiness).min(FULL_LEAN);
        let (anon, file) = (u128::from(anon.0) * swappiness, u128::from(file.0) * (FULL_LEAN - swappiness));
        let part = (u128::from(bytes.0) * anon).checked_div(anon + file).unwrap_or(0);
        let anon = Bytes(u64::try_from(part).unwrap_or(bytes.0));
        Self { anon, file: bytes - anon }
    }

    /// Everything.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.anon + self.file
    }
}

/// The swappiness that means anonymous memory alone.
const FULL_LEAN: u128 = 200;

/// What was reclaimed from a job between two decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaimed {
    /// What the kernel was asked for.
    pub asked: Bytes,
    /// Anonymous memory that left DRAM.
    pub anon: Bytes,
    /// Page cache that left DRAM.
    pub file: Bytes,
}

/// What people are shown of a period that has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PressedPeriod {
    /// Milliseconds since the epoch.
    pub unix_ms: u64,
    /// What was decided, and the stalls that it rests on.
    pub step: pressure::Step,
    /// The leaning between anonymous and file memory.
    pub lean: Lean,
    /// What was reclaimed since the decision before.
    pub reclaimed: Reclaimed,
}

/// What came back, ever, by kind.
#[derive(Clone, Copy, Debug)]
struct Counted {
    anon: Pages,
    file: Pages,
}

/// Pages that came back since the last look, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Returned {
    /// From swap, compressed or not.
    pub anon: Pages,
    /// Page cache that had been evicted.
    pub file: Pages,
}

/// What a decision rests on besides the job's own counters.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings {
    /// Time since boot.
    pub now: Duration,
    /// Milliseconds since the job was first seen.
    pub job_age_ms: u64,
    /// What may be reclaimed: `memory.current` without the compressed pool, or page cache alone where nothing else may go.
    pub resident: Bytes,
    /// Of that, what the operator's own protection covers.
    pub protected: Bytes,
    /// Pages that came back from swap since the agent started ([`super::Totals::promoted`]).
    pub promoted: Pages,
    /// Stall of the job's tasks for memory, ever.
    pub memory_stall_us: u64,
    /// Stall of the job's tasks for I/O, ever.
    pub io_stall_us: u64,
    /// What the return of a page costs.
    pub costs: Costs,
    /// Whether anonymous memory has anywhere to go.
    pub swap: bool,
    /// What forbids acting.
    pub veto: Option<Veto>,
}

/// Mean stall of the return of one page, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// From the job's tier.
    pub anon_us: u32,
    /// From the file systems' devices.
    pub file_us: u32,
    /// Of `anon_us`, what the kernel books nowhere. A wait for a device is booked as I/O, whatever page it is for; one for
    /// a page from zswap only if that belonged to the working set when it went (`mm/memory.c`, `mm/workingset.c`).
    pub unbooked_us: u32,
}

impl Pressed {
    /// Controllers that know nothing yet.
    #[must_use]
    pub fn new(params: pressure::Params) -> Self {
        Self {
            params,
            state: pressure::State::default(),
            balance: balance::State::default(),
            plan: None,
            recent: VecDeque::new(),
            outcome: Reclaimed::default(),
            owed: Bytes::ZERO,
            stepped_at: None,
            counted: None,
            returned: Pages::ZERO,
            stalled_us: None,
            seen_cost_us: 0,
        }
    }

    /// What the return of a page costs this job: what its tier takes, or what its tasks were seen to wait, whichever is
    /// more. They may wait for each other, and for a device that others keep busy.
    #[must_use]
    pub fn cost_us(&self, tier_us: u32) -> u32 {
        tier_us.max(u32::try_from(self.seen_cost_us).unwrap_or(u32::MAX))
    }

    fn learn_cost(&mut self, stalled_us: u64, returned: Returned) {
        let waited = self.stalled_us.replace(stalled_us).map_or(0, |before| stalled_us.saturating_sub(before));
        let pages = returned.anon.0 + returned.file.0;
        if pages >= LEARN_PAGES_MIN {
            self.seen_cost_us = (self.seen_cost_us * (LEARN_PARTS - 1) + waited / pages) / LEARN_PARTS;
        }
    }

    /// What came back since the last call.
    fn returned(&mut self, stat: &MemoryStat, promoted: Pages) -> Returned {
        let now = Counted { anon: promoted, file: Pages(stat.workingset_refault_file.unwrap_or(0)) };
        let before = self.counted.replace(now).unwrap_or(now);
        let returned = Returned { anon: now.anon - before.anon, file: now.file - before.file };
        self.returned += returned.anon + returned.file;
        returned
    }

    /// One period: what the controllers see and decide. The plan follows the decision.
    pub fn step(&mut self, stat: &MemoryStat, around: &Surroundings) -> Stepped {
        let returned = self.returned(stat, around.promoted);
        self.learn_cost(around.memory_stall_us.saturating_add(around.io_stall_us), returned);
        let shmem = stat.shmem.unwrap_or_default();
        let balance_input = balance::Input {
            anon_refaults: returned.anon,
            file_refaults: returned.file,
            anon_cost_us: around.costs.anon_us,
            file_cost_us: around.costs.file_us,
            // Shared memory is swapped, however the kernel books it.
            anon: stat.anon.unwrap_or_default() + shmem,
            file: stat.file.unwrap_or_default() - shmem,
            swap: around.swap,
        };
        let (balance, lean) = balance::step(&self.balance, &balance_input);
        self.balance = balance;
        let elapsed = self.stepped_at.map_or(Duration::ZERO, |then| around.now.saturating_sub(then));
        self.stepped_at = Some(around.now);
        let input = pressure::Input {
            job_age_ms: around.job_age_ms,
            elapsed_ms: millis(elapsed),
            resident: around.resident,
            protected: around.protected,
            counters: pressure::Counters {
                memory_stall_us: around.memory_stall_us,
                io_stall_us: around.io_stall_us,
                refaults: self.returned,
            },
            refault_cost_us: unbooked_cost(returned, around.costs),
            veto: around.veto,
        };
        let (state, step) = pressure::step(&self.params, &self.state, &input);
        self.state = state;
        self.plan = match step.decision {
            pressure::Decision::Reclaim { bytes } => {
                let paid = self.owed.0.min(bytes.0);
                self.owed = self.owed - Bytes(paid);
                let mut amount = Amount::of(bytes - Bytes(paid), lean, balance_input.anon, balance_input.file);
                if balance_input.file == Bytes::ZERO {
                    amount.file = Bytes::ZERO;
                }
                Some(amount).filter(|amount| amount.total() > Bytes::ZERO)
            }
            pressure::Decision::Hold { .. } => None,
        };
        Stepped { input, step, balance: balance_input, lean, file_returned: returned.file, reclaimed: std::mem::take(&mut self.outcome) }
    }

    /// Takes note of what one request reclaimed.
    pub fn took(&mut self, reclaimed: Reclaimed) {
        self.outcome.asked += reclaimed.asked;
        self.outcome.anon += reclaimed.anon;
        self.outcome.file += reclaimed.file;
        let beyond = reclaimed.anon + reclaimed.file - reclaimed.asked;
        // Memory that the job itself freed meanwhile looks the same: no more is owed than a few periods ask for.
        self.owed = (self.owed + beyond).min(Bytes(reclaimed.asked.0.saturating_mul(OWED_MAX)));
    }

    /// Remembers a closed period.
    pub fn remember(&mut self, period: &PressureRecord) {
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        let &PressureRecord { unix_ms, step, lean, reclaimed, .. } = period;
        self.recent.push_back(PressedPeriod { unix_ms, step, lean, reclaimed });
    }

    /// Whether the last period's stall was at its target.
    #[must_use]
    pub fn stalled(&self) -> bool {
        use pressure::{Decision, Hold};
        self.recent.back().is_some_and(|period| {
            matches!(period.step.decision, Decision::Hold { reason: Hold::MemoryStall | Hold::IoStall | Hold::Refaults })
        })
    }
}

/// From fewer returns than this in a period no cost is learned: other waits would be taken for theirs.
const LEARN_PAGES_MIN: u64 = 32;

/// Each period counts for one part of these.
const LEARN_PARTS: u64 = 4;

/// The most that may be owed, in requests like the last.
const OWED_MAX: u64 = 64;

/// One period of the controllers.
#[derive(Clone, Copy, Debug)]
pub struct Stepped {
    /// What the pressure controller saw.
    pub input: pressure::Input,
    /// What it decided.
    pub step: pressure::Step,
    /// What the balance saw.
    pub balance: balance::Input,
    /// Which way it leans.
    pub lean: Lean,
    /// Page cache that came back since the period before.
    pub file_returned: Pages,
    /// What was reclaimed since the period before.
    pub reclaimed: Reclaimed,
}

/// The mean cost of what came back, as far as no pressure file tells of it: that of page cache all does.
fn unbooked_cost(returned: Returned, costs: Costs) -> u32 {
    let mean = (u64::from(costs.unbooked_us) * returned.anon.0).checked_div(returned.anon.0 + returned.file.0);
    mean.map_or(costs.unbooked_us, |mean| u32::try_from(mean).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_returns_are_seen_to_cost_is_learned() {
        let config = config::Config::default();
        let mut pressed = Pressed::new(config.pressure_for(config::Class::Standard));
        let mut costs = Vec::new();
        // The first look has nothing to compare with; then 100 us a page twice, too few pages, and none of a wait.
        for (stalled_us, pages) in [(5_000, 100), (15_000, 100), (25_000, 100), (90_000, 31), (90_000, 400)] {
            pressed.learn_cost(stalled_us, Returned { anon: Pages(pages / 2), file: Pages(pages - pages / 2) });
            costs.push((pressed.seen_cost_us, pressed.cost_us(30)));
        }
        assert_eq!(costs, [(0, 30), (25, 30), (43, 43), (43, 43), (32, 32)]);
    }

    #[test]
    fn an_amount_is_divided_as_the_leaning_and_the_sizes_are() {
        let check = |lean, anon, file, want: (u64, u64)| {
            let amount = Amount::of(Bytes(1_000), lean, Bytes(anon), Bytes(file));
            assert_eq!((amount.anon.0, amount.file.0), want, "{lean:?} {anon} {file}");
        };
        check(Lean::FileOnly, 500, 500, (0, 1_000));
        check(Lean::Swappiness(100), 500, 500, (500, 500));
        check(Lean::Swappiness(100), 900, 100, (900, 100));
        check(Lean::Swappiness(150), 500, 500, (750, 250));
        check(Lean::Swappiness(200), 1, u64::MAX, (1_000, 0));
        check(Lean::Swappiness(1), 0, 0, (0, 1_000));
    }
}
