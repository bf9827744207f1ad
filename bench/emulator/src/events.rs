//! Events: changes of the program to its address space, which parked pages have to follow.
//!
//! A thread that makes a change continues as soon as the message about it has been read, and until then pages cannot be
//! moved (`EAGAIN`). A change may therefore have to be read while another is handled; it is handled afterwards. A fork
//! is handled at once, because the child lacks the pages that are parked at that moment.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use crate::choice::{BLOCK, PAGE};
use crate::helper::{CALLS_MAX, Call, Helper, Reply, parking};
use crate::memory::{Memory, bytes_done};
use crate::userfaultfd::Event;

const ENOENT: i32 = 2;
const EAGAIN: i32 = 11;
const EEXIST: i32 = 17;

/// Parked pages that a forked child lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Missing {
    /// Their addresses in the child.
    to: Range<u64>,
    /// Their parking address in the parent.
    from: u64,
    /// Their addresses if nothing is mapped at `to` in the child, because it was forked before the mapping moved.
    fallback: Option<u64>,
}

impl Missing {
    /// Returns the part after the first `bytes`.
    fn after(&self, bytes: u64) -> Option<Self> {
        let to = self.to.start + bytes..self.to.end;
        (!to.is_empty()).then(|| Self { to, from: self.from + bytes, fallback: self.fallback.map(|other| other + bytes) })
    }

    /// Returns the parts outside the addresses `gone`.
    fn without(&self, gone: &Range<u64>) -> impl Iterator<Item = Self> + use<> {
        let before = Self { to: self.to.start..self.to.end.min(gone.start), ..self.clone() };
        let before = (!before.to.is_empty()).then_some(before);
        let after = if gone.end <= self.to.start { None } else { self.after((gone.end - self.to.start).min(self.to.end - self.to.start)) };
        let untouched = gone.end <= self.to.start || gone.start >= self.to.end;
        if untouched { [Some(self.clone()), None] } else { [before, after] }.into_iter().flatten()
    }
}

impl Memory {
    /// Handles an event that the helper cannot handle itself, and resumes the helper.
    pub(crate) fn handle(&mut self, event: Event, helper: &mut Helper) -> kernel::Result<()> {
        self.pending.events.push_back(event);
        while let Some(event) = self.pending.events.pop_front() {
            log::debug!("{event:x?}");
            match event {
                Event::Fault(address) => self.restore_page(address & !(PAGE - 1), helper)?,
                Event::Remove(range) => {
                    helper.forget_open(&range);
                    self.discard(&range, helper)?;
                    self.freed.push((range, Instant::now()));
                }
                Event::Unmap(range) => {
                    helper.forget_open(&range);
                    self.forget(&range, helper)?;
                }
                Event::Remap(from, to, bytes) => self.follow(&(from..from.saturating_add(bytes)), to, helper)?,
                Event::Fork(child) => self.copy_to_child(child, helper)?,
            }
        }
        // The threads of these faults retry, and cause new faults if their page is still missing.
        let faults: Vec<Call> = self.pending.faults.drain(..).map(|page| Call::wake(page & !(PAGE - 1))).collect();
        for batch in faults.chunks(CALLS_MAX) {
            helper.run_for_event(batch)?;
        }
        helper.resume();
        Ok(())
    }

    /// Reads a message that blocks the moving of pages. Returns whether there was one.
    fn read(&mut self, helper: &mut Helper) -> kernel::Result<bool> {
        let replies = helper.run_for_event(&[Call::read_own()])?;
        match replies.first().and_then(Reply::message) {
            None => return Ok(false),
            Some(Event::Fault(page)) => self.pending.faults.push(page),
            Some(Event::Fork(child)) => self.copy_to_child(child, helper)?,
            Some(event) => self.pending.events.push_back(event),
        }
        Ok(true)
    }

    /// Copies a parked page that cannot be moved back, for instance because its mapping is no longer writable.
    fn restore_page(&mut self, page: u64, helper: &mut Helper) -> kernel::Result<()> {
        let range = page..page + PAGE;
        if self.parked(&range)?.is_empty() {
            helper.run_for_event(&[Call::zero(page), Call::wake(page)])?;
            return Ok(());
        }
        let replies = helper.run_for_event(&[Call::copy(page, parking(page), PAGE), Call::wake(page)])?;
        // If the copy failed, the thread faults again.
        if replies.first().is_some_and(|reply| reply.result.is_ok()) {
            self.discard(&range, helper)?;
        }
        Ok(())
    }

    /// Frees the parked pages of a range. The range is unregistered meanwhile, because the event of a registered range
    /// would make the helper wait for itself.
    fn discard(&self, range: &Range<u64>, helper: &mut Helper) -> kernel::Result<()> {
        for block in self.overlapping(range) {
            let part = block.max(range.start)..(block + BLOCK).min(range.end);
            let there = parking(part.start)..parking(part.start) + (part.end - part.start);
            helper.run_for_event(&[Call::unregister(&there), Call::discard(&there), Call::register(&there)])?;
        }
        Ok(())
    }

    /// Unregisters the blocks that overlap with an unmapped range. Parked pages in the rest of a block are restored.
    fn forget(&mut self, range: &Range<u64>, helper: &mut Helper) -> kernel::Result<()> {
        for block in self.overlapping(range) {
            let rest: Vec<Range<u64>> =
                [block..range.start, range.end..block + BLOCK].into_iter().filter(|rest| !rest.is_empty()).collect();
            for rest in &rest {
                helper.forget_open(rest);
                self.restore(rest, rest.start, helper)?;
            }
            let mut calls: Vec<Call> = rest.iter().map(Call::unregister).collect();
            let there = parking(block)..parking(block) + BLOCK;
            calls.extend([Call::unregister(&there), Call::unmap(&there)]);
            helper.run_for_event(&calls)?;
            self.blocks.remove(&block);
        }
        Ok(())
    }

    /// Restores the parked pages of a moved mapping at its new address. It is not slow until the next survey.
    fn follow(&mut self, from: &Range<u64>, to: u64, helper: &mut Helper) -> kernel::Result<()> {
        helper.forget_open(from);
        self.pending.moving = Some((from.clone(), to));
        self.restore(from, to, helper)?;
        self.pending.moving = None;
        helper.run_for_event(&[Call::unregister(&(to..to + (from.end - from.start)))])?;
        self.forget(from, helper)
    }

    /// Restores the parked pages of a range at its present address `now_at`. Pages that cannot be moved are copied.
    fn restore(&mut self, range: &Range<u64>, now_at: u64, helper: &mut Helper) -> kernel::Result<()> {
        let mut left: VecDeque<Range<u64>> = self.parked(range)?.into();
        let mut copy = false;
        while let Some(run) = left.pop_front() {
            let (to, bytes) = (run.start - range.start + now_at, run.end - run.start);
            let call = if copy { Call::copy(to, parking(run.start), bytes) } else { Call::move_pages(to, parking(run.start), bytes) };
            let replies = helper.run_for_event(&[call])?;
            let Some(reply) = replies.first() else { break };
            let rest = run.start + bytes_done(reply)..run.end;
            match reply.result {
                Ok(_) => copy = false,
                Err(EAGAIN) => {
                    left.push_front(rest);
                    if !self.read(helper)? && helper.program_exited() {
                        break;
                    }
                }
                // The page exists, or its address is no longer mapped: skip this page.
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

    /// Returns the pages that a child forked at this moment lacks.
    fn missing(&self) -> kernel::Result<Vec<Missing>> {
        let plain = |run: Range<u64>| Missing { from: parking(run.start), to: run, fallback: None };
        let Some((moved, to)) = &self.pending.moving else { return Ok(self.parked(&(0..u64::MAX))?.into_iter().map(plain).collect()) };
        let mut missing: Vec<Missing> = Vec::new();
        for outside in [0..moved.start, moved.end..u64::MAX] {
            missing.extend(self.parked(&outside)?.into_iter().map(plain));
        }
        missing.extend(self.parked(moved)?.into_iter().map(|run| {
            let at = run.start - moved.start + to;
            Missing { to: at..at + (run.end - run.start), from: parking(run.start), fallback: Some(run.start) }
        }));
        Ok(missing)
    }

    /// Copies the parked pages to a forked child, and releases it. Meanwhile, threads of the parent that fault wait, so
    /// that the child gets the content at the time of the fork.
    fn copy_to_child(&mut self, child: u64, helper: &mut Helper) -> kernel::Result<()> {
        self.forks += 1;
        let mut children = vec![(child, self.missing()?)];
        while let Some((child, mut missing)) = children.pop() {
            while let Some(run) = missing.pop() {
                let bytes = run.to.end - run.to.start;
                let replies = helper.run_for_event(&[Call::copy_to(child, run.to.start, run.from, bytes), Call::read(child)])?;
                let [copied, message] = replies.as_slice() else { break };
                match copied.result {
                    Ok(_) => {}
                    // Its mappings are changing; the message about that follows.
                    Err(EAGAIN) => missing.extend(run.after(bytes_done(copied).min(bytes))),
                    Err(ENOENT) if run.fallback.is_some() => {
                        let at = run.fallback.unwrap_or_default();
                        missing.push(Missing { to: at..at + bytes, from: run.from, fallback: None });
                    }
                    // The page exists already, or its address is not mapped.
                    Err(EEXIST | ENOENT) => missing.extend(run.after(bytes_done(copied).min(bytes - PAGE) + PAGE)),
                    // The child has exited.
                    Err(_) => break,
                }
                match message.message() {
                    Some(Event::Fork(grandchild)) => children.push((grandchild, missing.clone())),
                    Some(Event::Remove(gone) | Event::Unmap(gone)) => missing = missing.iter().flat_map(|run| run.without(&gone)).collect(),
                    Some(Event::Remap(from, to, bytes)) => {
                        for run in missing.iter_mut().filter(|run| (from..from.saturating_add(bytes)).contains(&run.to.start)) {
                            run.to = run.to.start - from + to..run.to.end - from + to;
                        }
                    }
                    // The thread is woken when its page is copied, or when the descriptor is closed.
                    Some(Event::Fault(_)) | None => {}
                }
            }
            helper.run_for_event(&[Call::close(child)])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_unmapped_by_the_child_are_not_copied() {
        let missing = Missing { to: 100..200, from: 1100, fallback: Some(5100) };
        let check = |gone: Range<u64>, expected: &[(Range<u64>, u64, u64)]| {
            let left: Vec<_> = missing.without(&gone).map(|left| (left.to, left.from, left.fallback.unwrap())).collect();
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
