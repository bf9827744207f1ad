//! Moving the hot part of a guest's pool memory home, before the guest is moved whole.

use std::ops::Range;
use std::time::Duration;

use units::Bytes;

use super::table::{Claim, Host, now};
use crate::accesses::{Blocks, Placed};
use crate::driver::Error;
use crate::events::{Event, label};
use crate::hot::{self, Decision, Plan};
use crate::monitor::Verdict;
use crate::process::Process;

/// A verdict by the blocks of a guest's pool memory.
pub(super) struct Advice {
    pub(super) verdict: Verdict,
    /// What it rests on, to be appended to the event; empty if the blocks were not read.
    pub(super) why: String,
    pub(super) part: Part,
}

/// Blocks that move home, the hottest first.
#[derive(Default)]
pub(super) struct Part {
    blocks: Vec<Range<u64>>,
    bytes: Bytes,
}

impl Host {
    /// Refines a verdict by the rates of the blocks. One that needs no mitigation stays, and so does one on a guest whose blocks are not seen.
    pub(super) fn by_its_blocks(&self, guest: &Claim<'_>, process: &Process, verdict: Verdict) -> Advice {
        let advice = |verdict, why, part| Advice { verdict, why, part };
        let in_part = guest.home_bytes.is_some();
        // What was moved home counts as pool memory in its sample, so that such a guest is judged by its blocks alone.
        let is_due = matches!(verdict, Verdict::Mitigate | Verdict::NoLocalMemory) || (in_part && verdict.is_mispredicted());
        if !is_due || !self.settings.hot.has_budget() {
            return advice(verdict, String::new(), Part::default());
        }
        let free = self.settings.local.saturating_sub(self.table().local_used());
        let (decision, part) = match self.decide(guest, process, free) {
            Ok(decided) => decided,
            Err(why) => {
                self.counts.count(Event::Hot, "not_seen");
                let verdict = if in_part { Verdict::NotVisible } else { verdict };
                return advice(verdict, format!("; its hot part is not known: {why}"), Part::default());
            }
        };
        let (verdict, outcome) = match decision.plan {
            Plan::Stay => (Verdict::WithinSlowdown, "within_slowdown"),
            Plan::Part(_) => (Verdict::MoveHot, "moved"),
            Plan::Whole(_) => (verdict, "whole"),
        };
        // A move is counted by its own outcome.
        if verdict != Verdict::MoveHot {
            self.counts.count(Event::Hot, outcome);
        }
        advice(verdict, format!("; {decision}"), part)
    }

    /// Reads the rates of the blocks of a guest's pool memory, and decides which move home.
    ///
    /// # Errors
    /// Why they cannot be seen or moved.
    fn decide(&self, guest: &Claim<'_>, process: &Process, free: Bytes) -> Result<(Decision, Part), String> {
        let see = || self.driver.blocks(&guest.machine, process, self.settings.accesses.window);
        let kernel = |blocks: &Result<Blocks, Error>| blocks.as_ref().map_or(Duration::ZERO, |blocks| blocks.kernel_cpu);
        let placed = self.counts.observing(see, kernel).map_err(|error| error.to_string())?.seen?;
        let blocks: Vec<_> = placed.iter().map(|placed| placed.block).collect();
        let decision = hot::plan(&self.settings.hot, &blocks, free, guest.home_bytes.is_some());
        let range = |&at: &usize| placed.get(at).map(|Placed { range, .. }| range.clone());
        let part = match &decision.plan {
            Plan::Part(order) => Part { blocks: order.iter().filter_map(range).collect(), bytes: decision.bytes },
            Plan::Stay | Plan::Whole(_) => Part::default(),
        };
        Ok((decision, part))
    }

    /// Moves the hot part of a guest home. If that does not bring it within the permitted slowdown, it is moved whole.
    pub(super) fn move_hot(&self, guest: &mut Claim<'_>, process: &Process, part: &Part) {
        // Before the first page moves: this memory must not be promised to another guest, by the next daemon neither.
        guest.home_bytes = Some(part.bytes);
        if let Err(error) = guest.save() {
            guest.home_bytes = None;
            guest.publish();
            guest.note(format!("its hot part is not moved home, because that cannot be recorded: {error}"));
            return;
        }
        let moved = self.driver.move_blocks(&guest.machine, process, &part.blocks, part.bytes, self.settings.mitigation_timeout);
        self.update_totals(|totals| {
            totals.mitigated += 1;
            totals.last_mitigation = Some(now());
        });
        match moved {
            Ok(bytes) => {
                guest.home_bytes = Some(bytes);
                guest.note(format!("moved home {} of {} bytes of hot pool memory; it keeps its slices", bytes.0, part.bytes.0));
                guest.try_save();
                self.check_rest(guest, process);
            }
            // How much was moved is not known: the whole part counts as local, and the next sample decides on the guest.
            Err(error) => {
                self.counts.count(Event::Hot, "failed");
                guest.mitigation_failures += 1;
                guest.note(format!("its hot part was not moved home: {error}"));
                guest.try_save();
            }
        }
    }

    /// Whether what a guest has left in the pool is within the permitted slowdown. If not, it is moved whole at once.
    fn check_rest(&self, guest: &mut Claim<'_>, process: &Process) {
        let free = self.settings.local.saturating_sub(self.table().local_used());
        let decision = match self.decide(guest, process, free) {
            Ok((decision, _)) => decision,
            Err(why) => {
                self.counts.count(Event::Hot, "not_seen");
                guest.note(format!("whether that is enough cannot be seen before the next sample: {why}"));
                guest.try_save();
                return;
            }
        };
        if decision.plan == Plan::Stay {
            self.counts.count(Event::Hot, "moved");
            guest.note(format!("that is enough: {decision}"));
            guest.try_save();
            return;
        }
        self.counts.count(Event::Hot, "not_enough");
        let needed = self.driver.mitigation_bytes(&guest.machine).saturating_sub(guest.moved_home());
        let verdict = if needed <= free { Verdict::Mitigate } else { Verdict::NoLocalMemory };
        guest.add_verdict(verdict);
        guest.note(format!("that is not enough, {}: {decision}", label(verdict)));
        guest.try_save();
        if verdict == Verdict::Mitigate {
            self.mitigate(guest);
        }
    }
}
