//! Changes that the program makes to its address space, told by the kernel: what is parked has to follow.
//!
//! Whoever makes a change goes on as soon as its message has been read, and as long as one has not been, pages cannot be
//! moved (`EAGAIN`). So a change may have to be read in the middle of another; it is dealt with afterwards. A fork is
//! dealt with at once, for what is parked at that moment is what the child lacks.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use crate::resident::{CALLS_MAX, Call, Resident, parking};
use crate::userfaultfd::Event;

use crate::choice::{BLOCK, PAGE};
use crate::memory::{Memory, bytes_done};

const ENOENT: i32 = 2;
const EAGAIN: i32 = 11;
const EEXIST: i32 = 17;

/// Changes under way.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Read, and still to be dealt with.
    pending: VecDeque<Event>,
    /// Pages whose faults were read meanwhile.
    faults: Vec<u64>,
    /// A mapping that has moved, whose parked pages are just following it to the new address.
    moving: Option<(Range<u64>, u64)>,
}

/// Parked pages that a child lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owed {
    /// Their addresses in the child.
    to: Range<u64>,
    /// Where they are parked in the parent.
    from: u64,
    /// Where they belong if the child has nothing at `to`: it was forked before the mapping moved.
    otherwise: Option<u64>,
}

impl Owed {
    /// What is left behind the first `bytes`.
    fn behind(&self, bytes: u64) -> Option<Self> {
        let to = self.to.start + bytes..self.to.end;
        (!to.is_empty()).then(|| Self { to, from: self.from + bytes, otherwise: self.otherwise.map(|other| other + bytes) })
    }

    /// What is left without the addresses `gone`.
    fn without(&self, gone: &Range<u64>) -> impl Iterator<Item = Self> + use<> {
        let before = Self { to: self.to.start..self.to.end.min(gone.start), ..self.clone() };
        let before = (!before.to.is_empty()).then_some(before);
        let after = if gone.end <= self.to.start { None } else { self.behind((gone.end - self.to.start).min(self.to.end - self.to.start)) };
        let untouched = gone.end <= self.to.start || gone.start >= self.to.end;
        if untouched { [Some(self.clone()), None] } else { [before, after] }.into_iter().flatten()
    }
}

impl Memory {
    /// Deals with what the resident could not deal with alone, and lets it go on.
    pub(crate) fn deal_with(&mut self, event: Event, resident: &mut Resident) -> kernel::Result<()> {
        self.changes.pending.push_back(event);
        while let Some(event) = self.changes.pending.pop_front() {
            log::debug!("{event:x?}");
            match event {
                Event::Fault(address) => self.fetch(address & !(PAGE - 1), resident)?,
                Event::Remove(range) => {
                    resident.strike(&range);
                    self.discard(&range, resident)?;
                    self.given_back.push((range, Instant::now()));
                }
                Event::Unmap(range) => {
                    resident.strike(&range);
                    self.forget(&range, resident)?;
                }
                Event::Remap(from, to, bytes) => self.follow(&(from..from.saturating_add(bytes)), to, resident)?,
                Event::Fork(child) => self.endow(child, resident)?,
            }
        }
        // Those threads look again; what they find missing is told anew.
        let faults: Vec<Call> = self.changes.faults.drain(..).map(|page| Call::wake(page & !(PAGE - 1))).collect();
        for batch in faults.chunks(CALLS_MAX) {
            resident.run_for_event(batch)?;
        }
        resident.go_on();
        Ok(())
    }

    /// Reads a message that stands in the way; whether there was one.
    fn read(&mut self, resident: &mut Resident) -> kernel::Result<bool> {
        let replies = resident.run_for_event(&[Call::read_own()])?;
        match replies.first().and_then(crate::resident::Reply::message) {
            None => return Ok(false),
            Some(Event::Fault(page)) => self.changes.faults.push(page),
            Some(Event::Fork(child)) => self.endow(child, resident)?,
            Some(event) => self.changes.pending.push_back(event),
        }
        Ok(true)
    }

    /// A parked page that could not be moved back, because its mapping may not be written to any more or for another
    /// reason, is copied.
    fn fetch(&mut self, page: u64, resident: &mut Resident) -> kernel::Result<()> {
        let range = page..page + PAGE;
        if self.parked(&range)?.is_empty() {
            resident.run_for_event(&[Call::zero(page), Call::wake(page)])?;
            return Ok(());
        }
        let replies = resident.run_for_event(&[Call::copy(page, parking(page), PAGE), Call::wake(page)])?;
        // Had it not been copied, the thread would fault again.
        if replies.first().is_some_and(|reply| reply.result.is_ok()) {
            self.discard(&range, resident)?;
        }
        Ok(())
    }

    /// Gives back what is parked of this range. No events come from a range that is not registered, so that the
    /// resident does not wait for itself.
    fn discard(&self, range: &Range<u64>, resident: &mut Resident) -> kernel::Result<()> {
        for block in self.touching(range) {
            let part = block.max(range.start)..(block + BLOCK).min(range.end);
            let there = parking(part.start)..parking(part.start) + (part.end - part.start);
            resident.run_for_event(&[Call::unregister(&there), Call::discard(&there), Call::register(&there)])?;
        }
        Ok(())
    }

    /// Forgets the blocks that a range touches, which is no longer mapped. Of a block that was cut, the rest comes
    /// home.
    fn forget(&mut self, range: &Range<u64>, resident: &mut Resident) -> kernel::Result<()> {
        for block in self.touching(range) {
            let rest: Vec<Range<u64>> =
                [block..range.start, range.end..block + BLOCK].into_iter().filter(|rest| !rest.is_empty()).collect();
            for rest in &rest {
                resident.strike(rest);
                self.bring_home(rest, rest.start, resident)?;
            }
            let mut calls: Vec<Call> = rest.iter().map(Call::unregister).collect();
            let there = parking(block)..parking(block) + BLOCK;
            calls.extend([Call::unregister(&there), Call::unmap(&there)]);
            resident.run_for_event(&calls)?;
            self.blocks.remove(&block);
        }
        Ok(())
    }

    /// A mapping has moved; what was parked of it goes to its new place, and is no longer slow until the next survey.
    fn follow(&mut self, from: &Range<u64>, to: u64, resident: &mut Resident) -> kernel::Result<()> {
        resident.strike(from);
        self.changes.moving = Some((from.clone(), to));
        self.bring_home(from, to, resident)?;
        self.changes.moving = None;
        resident.run_for_event(&[Call::unregister(&(to..to + (from.end - from.start)))])?;
        self.forget(from, resident)
    }

    /// Moves what is parked of a range to where that range is now. What cannot be moved is copied.
    fn bring_home(&mut self, range: &Range<u64>, now_at: u64, resident: &mut Resident) -> kernel::Result<()> {
        let mut left: VecDeque<Range<u64>> = self.parked(range)?.into();
        let mut copy = false;
        while let Some(run) = left.pop_front() {
            let (to, bytes) = (run.start - range.start + now_at, run.end - run.start);
            let call = if copy { Call::copy(to, parking(run.start), bytes) } else { Call::move_pages(to, parking(run.start), bytes) };
            let replies = resident.run_for_event(&[call])?;
            let Some(reply) = replies.first() else { break };
            let rest = run.start + bytes_done(reply)..run.end;
            match reply.result {
                Ok(_) => copy = false,
                Err(EAGAIN) => {
                    left.push_front(rest);
                    if !self.read(resident)? && resident.ended() {
                        break;
                    }
                }
                // There is something, or nothing is mapped there any more: this page is not missed.
                Err(_) if copy => {
                    copy = false;
                    left.push_front(rest.start + PAGE..rest.end);
                }
                Err(_) => {
                    copy = true;
                    left.push_front(rest);
                }
            }
            left.retain(|run| !run.is_empty());
        }
        Ok(())
    }

    /// What a child forked at this moment lacks.
    fn owed(&self) -> kernel::Result<Vec<Owed>> {
        let plain = |run: Range<u64>| Owed { from: parking(run.start), to: run, otherwise: None };
        let Some((moved, to)) = &self.changes.moving else { return Ok(self.parked(&(0..u64::MAX))?.into_iter().map(plain).collect()) };
        let mut owed: Vec<Owed> = Vec::new();
        for outside in [0..moved.start, moved.end..u64::MAX] {
            owed.extend(self.parked(&outside)?.into_iter().map(plain));
        }
        owed.extend(self.parked(moved)?.into_iter().map(|run| {
            let at = run.start - moved.start + to;
            Owed { to: at..at + (run.end - run.start), from: parking(run.start), otherwise: Some(run.start) }
        }));
        Ok(owed)
    }

    /// Gives a forked child copies of what is parked here, which it does not have, and lets it go. The parent's other
    /// threads wait meanwhile if they miss a page, so that the content is that of the fork.
    fn endow(&mut self, child: u64, resident: &mut Resident) -> kernel::Result<()> {
        self.forks += 1;
        let mut families = vec![(child, self.owed()?)];
        while let Some((child, mut owed)) = families.pop() {
            while let Some(run) = owed.pop() {
                let bytes = run.to.end - run.to.start;
                let replies = resident.run_for_event(&[Call::copy_to(child, run.to.start, run.from, bytes), Call::read(child)])?;
                let [copied, message] = replies.as_slice() else { break };
                match copied.result {
                    Ok(_) => {}
                    // Its mappings are changing, which it tells us of.
                    Err(EAGAIN) => owed.extend(run.behind(bytes_done(copied).min(bytes))),
                    Err(ENOENT) if run.otherwise.is_some() => {
                        let at = run.otherwise.unwrap_or_default();
                        owed.push(Owed { to: at..at + bytes, from: run.from, otherwise: None });
                    }
                    // The page is there already, or nothing is mapped there.
                    Err(EEXIST | ENOENT) => owed.extend(run.behind(bytes_done(copied).min(bytes - PAGE) + PAGE)),
                    // The child has ended.
                    Err(_) => break,
                }
                match message.message() {
                    Some(Event::Fork(grandchild)) => families.push((grandchild, owed.clone())),
                    Some(Event::Remove(gone) | Event::Unmap(gone)) => owed = owed.iter().flat_map(|run| run.without(&gone)).collect(),
                    Some(Event::Remap(from, to, bytes)) => {
                        for run in owed.iter_mut().filter(|run| (from..from.saturating_add(bytes)).contains(&run.to.start)) {
                            run.to = run.to.start - from + to..run.to.end - from + to;
                        }
                    }
                    // It is woken when its page is copied, or when its descriptor is closed.
                    Some(Event::Fault(_)) | None => {}
                }
            }
            resident.run_for_event(&[Call::close(child)])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_child_unmaps_is_no_longer_owed() {
        let owed = Owed { to: 100..200, from: 1100, otherwise: Some(5100) };
        let check = |gone: Range<u64>, expected: &[(Range<u64>, u64, u64)]| {
            let left: Vec<_> = owed.without(&gone).map(|left| (left.to, left.from, left.otherwise.unwrap())).collect();
            assert_eq!(left, expected, "{gone:?}");
        };
        check(0..100, &[(100..200, 1100, 5100)]);
        check(200..300, &[(100..200, 1100, 5100)]);
        check(0..300, &[]);
        check(100..200, &[]);
        check(50..120, &[(120..200, 1120, 5120)]);
        check(180..250, &[(100..180, 1100, 5100)]);
        check(120..140, &[(100..120, 1100, 5100), (140..200, 1140, 5140)]);
    }
}
