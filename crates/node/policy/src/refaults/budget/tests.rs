use proptest::prelude::*;

use super::*;

const PERIOD: Millis = Millis(120_000);

fn spent(cost: u64, allowed: u64) -> Spent {
    Spent { cost: Pages(cost), allowed: Pages(allowed), elapsed: PERIOD }
}

#[test]
fn a_burst_that_quiet_periods_have_paid_for_is_no_failure() {
    let mut budget = Budget::default();
    assert!(budget.is_exceeded(&spent(101, 100)), "nothing was left unused yet");
    (0..10).for_each(|_| budget.settle(&spent(0, 100), 1));
    assert!(!budget.is_exceeded(&spent(1_100, 100)) && budget.is_exceeded(&spent(1_102, 100)));
    budget.settle(&spent(1_100, 100), 4);
    assert_eq!((budget.unused, budget.owed), (Millis::ZERO, Millis::ZERO));
    budget.settle(&spent(150, 100), 4);
    assert_eq!(budget.owed, Millis(2 * PERIOD.0), "half a period beyond, four times");
    budget.settle(&spent(0, 100), 1);
    assert_eq!((budget.owed, budget.unused), (PERIOD, Millis::ZERO), "nothing is left over while some is owed");
}

#[test]
fn each_kind_gets_half_of_a_stall_target_and_what_the_other_leaves_of_it() {
    let part = |promoted| Budget::part(Pages(1_000), Pages(promoted)).0;
    assert_eq!([0, 300, 500, 5_000].map(part), [1_000, 700, 500, 500]);
    let taken = |cost: u64| {
        let mut budget = Budget::default();
        (0..1_000).for_each(|_| budget.take(Pages(cost), Pages(1_000), PERIOD, Millis(20 * PERIOD.0)));
        budget.taken().0
    };
    assert_eq!(taken(0), 0);
    assert!((295_000..=300_000).contains(&taken(300)), "{}", taken(300));
    assert_eq!(taken(9_000), 500_000);
}

proptest! {
    #[test]
    fn the_target_is_kept_in_the_mean_of_any_costs_that_it_permits(costs in prop::collection::vec(0u64..2_000, 1..200)) {
        // Nothing returns while the budget is exceeded or owed: what is spent stays within the target and 64 periods.
        let (mut budget, mut sum) = (Budget::default(), 0);
        for (periods, cost) in (1u64..).zip(costs) {
            let asked = spent(cost, 100);
            let cost = if budget.is_exceeded(&asked) || budget.is_owed() { 0 } else { cost };
            budget.settle(&spent(cost, 100), 1);
            sum += cost;
            prop_assert!(sum <= 100 * periods);
            prop_assert!(budget.unused <= Millis(64 * PERIOD.0));
        }
    }
}
