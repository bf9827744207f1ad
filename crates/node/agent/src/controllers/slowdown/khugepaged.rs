//! Slows khugepaged down while slow huge pages are split for a period: what it collapses meanwhile shows nothing.
//!
//! khugepaged wakes every ten seconds and examines `pages_to_scan` pages, by default 4,096: eight split huge pages. On Linux 6.12 a huge
//! page that is whole counts as 512 of them, on 7.2 as hardly any (`mm/khugepaged.c`), so that there the few split ones of a job are
//! collapsed at its next wake. Meanwhile it sleeps for ten minutes instead. A new time to sleep wakes it, so that what it examines is
//! limited before. That concerns all processes of the machine, so it is done only where split pages were lost to it, and for a bounded
//! part of the time.

use kernel::Roots;
use trackers::rates::sampler::Lost;

use crate::undo::UndoLog;

const DIRECTORY: &str = "kernel/mm/transparent_hugepage/khugepaged";

/// The settings that slow it down, in this order.
const SLOW: [(&str, &str); 2] = [("pages_to_scan", "1"), ("scan_sleep_millisecs", "600000")];

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
        let directory = roots.sys.join(DIRECTORY);
        if self.is_slow || !self.interferes || !manage || !directory.exists() {
            return None;
        }
        for (name, value) in SLOW {
            let file = directory.join(name);
            if let Err(error) = undo.set(&file, value) {
                restore(roots, undo);
                return Some(format!("{} cannot be set to {value}: {error}", file.display()));
            }
        }
        self.is_slow = true;
        self.periods = self.periods.saturating_add(1);
        let what = "khugepaged is slowed down while huge pages in slow memory are split to count accesses: it collapsed some before";
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
            restore(roots, undo);
        }
    }
}

fn restore(roots: &Roots, undo: &mut UndoLog) {
    for (name, _) in SLOW {
        undo.restore(&roots.sys.join(DIRECTORY).join(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Machine;

    const PAGES: &str = "sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan";
    const SLEEP: &str = "sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs";

    const LOST: Lost = Lost { changed: 0, collapsed: 1, over_capacity: 0, not_split: 0 };

    fn machine() -> (Machine, UndoLog) {
        let machine = Machine::new();
        machine.put(PAGES, "4096\n");
        machine.put(SLEEP, "10000\n");
        let undo = UndoLog::open(machine.path("run/undo.json"), &machine.roots).unwrap();
        std::fs::create_dir_all(machine.path("run")).unwrap();
        (machine, undo)
    }

    fn is_slow(machine: &Machine) -> bool {
        let (pages, sleep) = (machine.get(PAGES), machine.get(SLEEP));
        match (pages.trim(), sleep.trim()) {
            ("1", "600000") => true,
            ("4096", "10000") => false,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn it_is_slow_only_after_it_collapsed_a_split_page_and_for_the_period_only() {
        let (machine, mut undo) = machine();
        let roots = &machine.roots;
        let mut khugepaged = Khugepaged::default();
        assert_eq!(khugepaged.slow_down(roots, &mut undo, true), None);
        assert!(!is_slow(&machine), "it has not interfered");
        assert_eq!(khugepaged.end_period(&LOST, roots, &mut undo, true), None);
        for period in 0..3 {
            assert_eq!(khugepaged.slow_down(roots, &mut undo, true).is_some(), period == 0, "reported once");
            assert!(is_slow(&machine) && !undo.is_empty());
            khugepaged.end_period(&Lost::default(), roots, &mut undo, true);
            assert!(!is_slow(&machine));
        }
        khugepaged.slow_down(roots, &mut undo, true);
        khugepaged.restore(roots, &mut undo);
        assert!(!is_slow(&machine) && undo.is_empty());
    }

    #[test]
    fn half_of_the_settings_are_not_left() {
        let (machine, mut undo) = machine();
        std::fs::remove_file(machine.path(SLEEP)).unwrap();
        let mut khugepaged = Khugepaged { interferes: true, ..Khugepaged::default() };
        let reported = khugepaged.slow_down(&machine.roots, &mut undo, true).unwrap();
        assert!(reported.contains("scan_sleep_millisecs cannot be set"), "{reported}");
        assert_eq!((machine.get(PAGES).trim(), undo.is_empty()), ("4096", true));
    }

    #[test]
    fn without_the_operators_consent_it_keeps_its_pace_and_that_is_reported_once() {
        let (machine, mut undo) = machine();
        let roots = &machine.roots;
        let mut khugepaged = Khugepaged::default();
        assert!(khugepaged.end_period(&LOST, roots, &mut undo, false).unwrap().contains("slow.manage"));
        assert_eq!(khugepaged.slow_down(roots, &mut undo, false), None);
        assert!(!is_slow(&machine));
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
                slow += u32::from(is_slow(&machine));
                khugepaged.end_period(&LOST, roots, &mut undo, true);
            }
        }
        assert!((250..=250 + FIRST_PERIODS).contains(&slow), "{slow}");
        assert!(Khugepaged::default().allows_split(false, 1), "it has not interfered");
        assert!(!khugepaged.allows_split(false, 1) && khugepaged.allows_split(false, 4));
    }
}
