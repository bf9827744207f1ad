//! Slows khugepaged down while slow huge pages are split for a period: what it collapses meanwhile shows nothing.
//!
//! khugepaged wakes every ten seconds and examines `pages_to_scan` pages, by default 4,096: eight split huge pages. On Linux 6.12 a huge
//! page that is whole counts as 512 of them, on 7.2 as one (`mm/khugepaged.c`), so that there the few split ones of a job are collapsed at
//! its next wake. With `pages_to_scan` 1 it examines one range each time. That concerns all processes of the machine, so it is done
//! only where split pages were lost to it, and for a bounded part of the time.

use kernel::Roots;
use trackers::rates::sampler::Lost;

use crate::undo::UndoLog;

const PAGES_TO_SCAN: &str = "kernel/mm/transparent_hugepage/khugepaged/pages_to_scan";

/// The least that the kernel accepts.
const SLOWEST: &str = "1";

/// Periods in which khugepaged may be slow before the pause between them: enough to see a burst that comes in one of ten.
const FIRST_PERIODS: u32 = 16;

/// Afterwards it is slow in one of so many periods at most.
const PERIODS_APART: u64 = 4;

/// What is known of khugepaged, and whether it is slow now.
#[derive(Debug, Default)]
pub(super) struct Khugepaged {
    /// Whether it collapsed huge pages that were split.
    interferes: bool,
    /// Periods in which it was slow.
    periods: u32,
    /// Whether it is.
    is_slow: bool,
}

impl Khugepaged {
    /// Whether slow huge pages may be split in the period of this number; `manage` is the operator's `slow.manage`.
    pub(super) fn allows_split(&self, manage: bool, period: u64) -> bool {
        !self.interferes || (manage && self.periods < FIRST_PERIODS) || period.is_multiple_of(PERIODS_APART)
    }

    /// Slows it down for a period with split pages, where that is necessary and `manage` allows it. Returns what is to be reported.
    pub(super) fn slow_down(&mut self, roots: &Roots, undo: &mut UndoLog, manage: bool) -> Option<String> {
        let file = roots.sys.join(PAGES_TO_SCAN);
        if self.is_slow || !self.interferes || !manage || !file.exists() {
            return None;
        }
        if let Err(error) = undo.set(&file, SLOWEST) {
            return Some(format!("{} cannot be set to {SLOWEST}: {error}", file.display()));
        }
        self.is_slow = true;
        self.periods = self.periods.saturating_add(1);
        let what = "khugepaged/pages_to_scan is 1 while huge pages in slow memory are split to count accesses: it collapsed some before";
        (self.periods == 1).then(|| what.to_owned())
    }

    /// Ends that, and takes in what was lost to it in the period. Returns what is to be reported.
    pub(super) fn end_period(&mut self, lost: &Lost, roots: &Roots, undo: &mut UndoLog, manage: bool) -> Option<String> {
        self.restore(roots, undo);
        if lost.collapsed == 0 || std::mem::replace(&mut self.interferes, true) {
            return None;
        }
        let what = "khugepaged collapses huge pages that were split to count accesses, so that bursts of accesses may not be seen: set \
                    slow.manage to true to slow it down meanwhile";
        (!manage).then(|| what.to_owned())
    }

    /// Restores its pace. What fails stays on the undo list.
    pub(super) fn restore(&mut self, roots: &Roots, undo: &mut UndoLog) {
        if std::mem::take(&mut self.is_slow) {
            undo.restore(&roots.sys.join(PAGES_TO_SCAN));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Machine;

    const FILE: &str = "sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan";

    const LOST: Lost = Lost { changed: 0, collapsed: 1, over_capacity: 0, not_split: 0 };

    fn machine() -> (Machine, UndoLog) {
        let machine = Machine::new();
        machine.put(FILE, "4096\n");
        let undo = UndoLog::open(machine.path("run/undo.json"), &machine.roots).unwrap();
        std::fs::create_dir_all(machine.path("run")).unwrap();
        (machine, undo)
    }

    #[test]
    fn it_is_slow_only_after_it_collapsed_a_split_page_and_for_the_period_only() {
        let (machine, mut undo) = machine();
        let roots = &machine.roots;
        let mut khugepaged = Khugepaged::default();
        assert_eq!(khugepaged.slow_down(roots, &mut undo, true), None);
        assert_eq!(machine.get(FILE).trim(), "4096", "it has not interfered");
        assert_eq!(khugepaged.end_period(&LOST, roots, &mut undo, true), None);
        for period in 0..3 {
            assert_eq!(khugepaged.slow_down(roots, &mut undo, true).is_some(), period == 0, "reported once");
            assert_eq!((machine.get(FILE).trim(), undo.is_empty()), ("1", false));
            khugepaged.end_period(&Lost::default(), roots, &mut undo, true);
            assert_eq!(machine.get(FILE).trim(), "4096");
        }
        khugepaged.slow_down(roots, &mut undo, true);
        khugepaged.restore(roots, &mut undo);
        assert_eq!((machine.get(FILE).trim(), undo.is_empty()), ("4096", true));
    }

    #[test]
    fn without_the_operators_consent_it_keeps_its_pace_and_that_is_reported_once() {
        let (machine, mut undo) = machine();
        let roots = &machine.roots;
        let mut khugepaged = Khugepaged::default();
        assert!(khugepaged.end_period(&LOST, roots, &mut undo, false).unwrap().contains("slow.manage"));
        assert_eq!(khugepaged.slow_down(roots, &mut undo, false), None);
        assert_eq!(machine.get(FILE).trim(), "4096");
        assert_eq!(khugepaged.end_period(&LOST, roots, &mut undo, false), None);
    }

    #[test]
    fn it_is_slow_in_a_quarter_of_the_periods_in_the_long_run() {
        let (machine, mut undo) = machine();
        let roots = &machine.roots;
        let mut khugepaged = Khugepaged { interferes: true, ..Khugepaged::default() };
        let mut slow = 0;
        for period in 0..1_000 {
            if khugepaged.allows_split(true, period) {
                khugepaged.slow_down(roots, &mut undo, true);
                slow += u32::from(machine.get(FILE).trim() == "1");
                khugepaged.end_period(&LOST, roots, &mut undo, true);
            }
        }
        assert!((250..=250 + FIRST_PERIODS).contains(&slow), "{slow}");
        assert!(Khugepaged::default().allows_split(false, 1), "it has not interfered");
        assert!(!khugepaged.allows_split(false, 1) && khugepaged.allows_split(false, 4));
    }
}
