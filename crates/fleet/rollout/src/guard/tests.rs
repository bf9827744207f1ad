use super::*;
use crate::random::normal;

/// A fleet with `sizes` machines per side, whose figures are set by the test.
struct Fleet {
    machines: Vec<(MachineId, Side, Slot, Slot, Option<Failure>)>,
}

impl Fleet {
    fn of(sizes: [usize; 2], mut set: impl FnMut(Side, usize, &mut Slot, &mut Slot) -> Option<Failure>) -> Self {
        let mut machines = Vec::new();
        for (side, size) in [Side::Control, Side::Treated].into_iter().zip(sizes) {
            for index in 0..size {
                let id = MachineId { cluster: "c".to_owned(), machine: format!("{side:?}-{index}") };
                let (mut before, mut since) = (Slot::default(), Slot::default());
                let failure = set(side, index, &mut before, &mut since);
                machines.push((id, side, before, since, failure));
            }
        }
        Self { machines }
    }

    fn judge(&self, guard: &Guard, values: Option<&Values>) -> Judgement {
        let machines: Vec<MachineEvidence> = self
            .machines
            .iter()
            .map(|(id, side, before, since, failure)| MachineEvidence { id, side: *side, before, since, failure: *failure })
            .collect();
        judge(guard, &machines, values, SequentialTest { alpha: 0.01, elapsed: 1.0 }, 3)
    }
}

fn guard(watched: Watched, margin: Margin, limit: Option<f64>) -> Guard {
    Guard { name: "g".to_owned(), watched, margin, limit, proof: true }
}

fn stall() -> Guard {
    guard(Watched::Metric("memory_stall".to_owned()), Margin::Absolute(0.01), None)
}

/// Returns machines with these shares of stall, and a standard deviation of 0.1 % between machines.
fn stalled(control: f64, treated: f64, sizes: [usize; 2]) -> Fleet {
    let mut random = fastrand::Rng::with_seed(1);
    Fleet::of(sizes, |side, _, _, since| {
        let share = if side == Side::Treated { treated } else { control };
        since.sums.time_ms = 1e6;
        since.sums.memory_stall_us = 1e9 * (share + 0.001 * normal(&mut random));
        None
    })
}

#[test]
fn verdicts_follow_from_the_bounds() {
    let check = |control, treated, sizes, expected: Verdict, why: &str| {
        let found = stalled(control, treated, sizes).judge(&stall(), None);
        assert!(found.verdict == expected && found.why.contains(why), "{control} {treated} {sizes:?}: {found:?}");
    };
    check(0.01, 0.01, [50, 20], Verdict::Pass, "no worse");
    check(0.01, 0.015, [50, 20], Verdict::Pass, "no worse");
    check(0.01, 0.02, [50, 20], Verdict::Hold, "too early");
    check(0.01, 0.03, [50, 20], Verdict::Breach, "worse than allowed");
    check(0.01, 0.9, [50, 2], Verdict::Hold, "not enough machines: 50 of control and 2 treated");
    check(0.01, 0.9, [2, 50], Verdict::Hold, "3 each are needed");
    check(0.01, 0.9, [0, 0], Verdict::Hold, "not enough");
}

#[test]
fn without_evidence_the_verdict_is_hold() {
    let fleet = stalled(0.01, 0.9, [50, 20]);
    let machines: Vec<MachineEvidence> = fleet
        .machines
        .iter()
        .map(|(id, side, before, since, failure)| MachineEvidence { id, side: *side, before, since, failure: *failure })
        .collect();
    let found = judge(&stall(), &machines, None, SequentialTest { alpha: 0.01, elapsed: 0.0 }, 3);
    assert!(found.verdict == Verdict::Hold && found.measured.is_none(), "{found:?}");
}

#[test]
fn three_machines_without_spread_are_no_proof() {
    let found = Fleet::of([3, 3], |side, _, _, since| {
        since.sums.time_ms = 1e6;
        // 0.9 percentage points, of 1 allowed.
        since.sums.memory_stall_us = if side == Side::Treated { 0.009e9 } else { 0.0 };
        None
    });
    assert_eq!(found.judge(&stall(), None).verdict, Verdict::Hold);
}

#[test]
fn a_lower_value_is_worse_if_higher_is_better() {
    let saved = guard(Watched::Metric("saved".to_owned()), Margin::Absolute(0.01), None);
    let check = |control: f64, treated: f64, expected: Verdict| {
        let mut random = fastrand::Rng::with_seed(2);
        let fleet = Fleet::of([50, 20], |side, _, before, since| {
            // Machines differ by much more than the bundle changes, and did so before.
            let own = 0.3 + 0.1 * normal(&mut random);
            let change = if side == Side::Treated { treated } else { control };
            for (slot, share) in [(before, own), (since, own + change + 0.002 * normal(&mut random))] {
                (slot.sums.memory, slot.sums.saved) = (1.0 - share, share);
            }
            None
        });
        let found = fleet.judge(&saved, None);
        assert_eq!(found.verdict, expected, "{control} {treated}: {found:?}");
    };
    check(0.0, 0.05, Verdict::Pass);
    check(0.0, -0.05, Verdict::Breach);
    check(-0.05, -0.05, Verdict::Pass);
}

#[test]
fn a_higher_value_within_the_limit_is_no_breach() {
    let over = |limit| guard(Watched::Metric("promotion_rate_over".to_owned()), Margin::Absolute(0.001), limit);
    let fleet = |share: f64| {
        Fleet::of([50, 50], |side, index, _, since| {
            let over = if side == Side::Treated { share } else { 0.001 };
            (0..1_000).for_each(|_| since.sums.rates.add(0.001));
            since.sums.over = 1_000.0 * over + if index % 2 == 0 { 0.5 } else { -0.5 };
            None
        })
    };
    assert_eq!(fleet(0.01).judge(&over(None), None).verdict, Verdict::Breach);
    let within = fleet(0.01).judge(&over(Some(0.02)), None);
    assert!(within.verdict == Verdict::Pass && within.why.contains("within the limit"), "{within:?}");
    assert_eq!(fleet(0.0199).judge(&over(Some(0.02)), None).verdict, Verdict::Hold);
    assert_eq!(fleet(0.03).judge(&over(Some(0.02)), None).verdict, Verdict::Breach);
}

#[test]
fn failed_agents_are_counted_by_kind() {
    let failures = guard(Watched::AgentFailures, Margin::Absolute(0.05), None);
    let check = |sizes: [usize; 2], failed: [usize; 2], expected: Verdict| {
        let kinds = [Failure::Silent, Failure::Restarted, Failure::Reverted];
        let fleet = Fleet::of(sizes, |side, index, _, _| (index < failed[side as usize]).then(|| kinds[index % 3]));
        let found = fleet.judge(&failures, None);
        assert_eq!(found.verdict, expected, "{sizes:?} {failed:?}: {found:?}");
        found
    };
    check([50, 10], [1, 0], Verdict::Hold);
    check([50, 10], [1, 1], Verdict::Hold);
    let all = check([50, 10], [1, 10], Verdict::Breach);
    assert!(all.why.contains("treated 4 silent, 3 restarted, 3 reverted; control 1 silent"), "{all:?}");
    let measured = all.measured.unwrap();
    assert_eq!((measured.treated, measured.control, measured.treated_machines), (1.0, 0.02, 10));
    check([500, 1_000], [2, 4], Verdict::Pass);
}

#[test]
fn a_query_guard_judges_one_value_per_machine() {
    let watched = Watched::Query { url: String::new(), query: String::new(), machine_label: String::new(), better: Better::Lower };
    let errors = guard(watched, Margin::Relative(0.10), None);
    let mut random = fastrand::Rng::with_seed(3);
    let fleet = Fleet::of([40, 40], |_, _, _, _| None);
    let mut check = |treated: f64, known: bool, expected: Verdict, piece: &str| {
        let value = |id: &MachineId, side: Side, random: &mut fastrand::Rng| {
            let mean = if side == Side::Treated { treated } else { 100.0 };
            (id.machine.clone(), mean + normal(random))
        };
        let values: std::collections::BTreeMap<String, f64> =
            fleet.machines.iter().filter(|_| known).map(|(id, side, ..)| value(id, *side, &mut random)).collect();
        let found = fleet.judge(&errors, Some(&Ok(values)));
        assert!(found.verdict == expected && found.why.contains(piece), "{treated}: {found:?}");
    };
    check(100.0, true, Verdict::Pass, "no worse");
    check(120.0, true, Verdict::Breach, "worse");
    check(100.0, false, Verdict::Hold, "0 of control and 0 treated");
    let failed = fleet.judge(&errors, Some(&Err("connection refused".to_owned())));
    assert!(failed.verdict == Verdict::Hold && failed.why.contains("connection refused"), "{failed:?}");
}

/// A detectable harm is detected with the stated power.
#[test]
fn a_detectable_harm_is_detected_with_the_stated_power() {
    let detected = (0..400).filter(|&seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut fleet = |harm: f64| {
            Fleet::of([60, 30], |side, _, _, since| {
                let share = 0.01 + if side == Side::Treated { harm } else { 0.0 };
                since.sums.time_ms = 1e6;
                since.sums.memory_stall_us = 1e9 * (share + 0.004 * normal(&mut random));
                None
            })
        };
        let detectable = fleet(0.0).judge(&stall(), None).measured.unwrap().detectable;
        fleet(0.01 + detectable).judge(&stall(), None).verdict == Verdict::Breach
    });
    let detected = detected.count();
    assert!((280..=370).contains(&detected), "{detected} of 400");
}
