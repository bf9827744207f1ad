use proptest::prelude::*;

use super::*;
use crate::slowdown::bounds::Bounds;
use crate::slowdown::rate::Estimate;
use crate::slowdown::{Input, Params, Runs, claim, step};
use units::{AccessRate, RatioPpm};

fn claims(list: &[(u64, u64, u32)]) -> Vec<Claim> {
    list.iter().map(|&(has, demand, weight)| Claim { has: Bytes(has), demand: Bytes(demand), weight }).collect()
}

fn check(free: u64, list: &[(u64, u64, u32)], shares: Option<&[u64]>, rooms: &[u64]) {
    let portions = divide(Bytes(free), &claims(list));
    let got: Vec<_> = portions.iter().map(|portion| portion.share.map(|share| share.0)).collect();
    let want: Vec<_> = (0..list.len()).map(|index| shares.map(|shares| shares[index])).collect();
    assert_eq!(got, want, "{free} {list:?}");
    assert_eq!(portions.iter().map(|portion| portion.room.0).collect::<Vec<_>>(), rooms, "{free} {list:?}");
}

/// Jain's index of fairness: 1 if all are equal, 1 / n if one has everything.
fn jain(values: &[f64]) -> f64 {
    let count = f64::from(u32::try_from(values.len()).unwrap());
    values.iter().sum::<f64>().powi(2) / (count * values.iter().map(|value| value * value).sum::<f64>())
}

#[test]
fn what_each_job_gets() {
    check(100, &[], None, &[]);
    // Room for all.
    check(100, &[(10, 40, 1), (0, 70, 1)], None, &[30, 70]);
    check(0, &[(10, 10, 1), (50, 50, 1)], None, &[0, 0]);
    // Equal jobs, equal shares, whatever their order.
    check(100, &[(0, 90, 1), (0, 90, 1)], Some(&[50, 50]), &[50, 50]);
    // One that needs less leaves the rest to the others.
    check(100, &[(0, 90, 1), (0, 20, 1), (0, 90, 1)], Some(&[40, 20, 40]), &[40, 20, 40]);
    check(100, &[(0, 90, 300), (0, 90, 100)], Some(&[75, 25]), &[75, 25]);
    // The first one filled the node. The second gets no more than it can use now, and nothing is free yet.
    check(0, &[(100, 100, 1), (0, 10, 1)], Some(&[90, 10]), &[0, 0]);
    check(10, &[(90, 100, 1), (0, 20, 1)], Some(&[80, 20]), &[0, 10]);
    check(0, &[(60, 60, 1), (40, 50, 1)], Some(&[50, 50]), &[0, 0]);
    check(0, &[(50, 60, 1), (50, 60, 1)], Some(&[50, 50]), &[0, 0]);
    // A weight of zero is one; a demand below what a job has is what it has.
    check(0, &[(60, 0, 0), (40, 70, 1)], Some(&[50, 50]), &[0, 0]);
}

#[test]
fn jobs_that_are_not_satisfied_are_equal_by_jains_index() {
    let list = [(0, 1 << 40, 100), (0, 1 << 40, 100), (0, 1 << 40, 100), (0, 1 << 20, 100)];
    let portions = divide(Bytes(1 << 32), &claims(&list));
    let shares: Vec<f64> = portions.iter().map(|portion| f64::from(u32::try_from(portion.share.unwrap().0).unwrap())).collect();
    assert!(jain(&shares[..3]) > 0.999_999, "{shares:?}");
    // In the order of the jobs, the first would have had all of it.
    assert!(jain(&[1.0, 0.0, 0.0]) < 0.34);
}

proptest! {
    #[test]
    fn no_job_starves_and_nothing_is_left_over(
        free in 0..1u64 << 40,
        list in prop::collection::vec((0..1u64 << 40, 0..1u64 << 40, 1..10_000u32), 1..20),
    ) {
        let claims = claims(&list);
        let portions = divide(Bytes(free), &claims);
        let wants: Vec<u128> = claims.iter().map(|claim| u128::from(claim.has.max(claim.demand).0)).collect();
        let capacity = u128::from(free) + claims.iter().map(|claim| u128::from(claim.has.0)).sum::<u128>();
        let weights: u128 = claims.iter().map(|claim| u128::from(claim.weight)).sum();
        let count = claims.len() as u128;
        let rooms: u128 = portions.iter().map(|portion| u128::from(portion.room.0)).sum();
        prop_assert!(rooms <= free.into());
        let all: u128 = wants.iter().sum();
        prop_assert_eq!(portions[0].share.is_some(), all > capacity);
        let Some(shares) = portions.iter().map(|portion| portion.share.map(|share| u128::from(share.0))).collect::<Option<Vec<_>>>() else {
            return Ok(());
        };
        let given: u128 = shares.iter().sum();
        prop_assert!(given <= capacity && given + count >= capacity, "{given} of {capacity}");
        for (index, claim) in claims.iter().enumerate() {
            let fair = capacity * u128::from(claim.weight) / weights;
            prop_assert!(shares[index] <= wants[index] && shares[index] + count >= wants[index].min(fair), "job {index}");
            // No other job has more for its weight, unless this one has what it demands. Each is rounded down.
            for (other, others) in claims.iter().enumerate() {
                let (own, theirs) = (shares[index] * u128::from(others.weight), shares[other] * u128::from(claim.weight));
                let slack = (count + 1) * u128::from(others.weight.max(claim.weight));
                prop_assert!(shares[index] >= wants[index] || own + slack >= theirs, "jobs {index} and {other}");
            }
        }
    }

    #[test]
    fn the_order_of_jobs_does_not_matter(
        free in 0..1u64 << 40,
        list in prop::collection::vec((0..1u64 << 40, 0..1u64 << 40, 1..10_000u32), 1..10),
    ) {
        let forward = divide(Bytes(free), &claims(&list));
        let reversed: Vec<_> = list.iter().rev().copied().collect();
        let backward = divide(Bytes(free), &claims(&reversed));
        for (one, other) in forward.iter().zip(backward.iter().rev()) {
            let near = |a: Bytes, b: Bytes| a.0.abs_diff(b.0) <= list.len() as u64;
            prop_assert!(near(one.room, other.room) && one.share.zip(other.share).is_none_or(|(a, b)| near(a, b)));
        }
    }
}

/// Jobs whose memory is cold, on a node that is too small for them: what each has after so many periods, in blocks.
struct Machine {
    blocks: u64,
    has: Vec<u64>,
    weights: Vec<u32>,
    /// Blocks moved in the last period.
    moved: u64,
}

impl Machine {
    const BLOCK: Bytes = Bytes::mib(2);

    fn bytes(blocks: u64) -> Bytes {
        Bytes(blocks * Self::BLOCK.0)
    }

    /// One period, in which each job samples 40 cold blocks and moves 30.
    fn period(&mut self) {
        let params = Params { slowdown: RatioPpm(500_000), latency_ns: 100, sample: RatioPpm(1_000_000), bounds: Bounds::default() };
        let cold = Estimate { mean: AccessRate(0), upper: Some(AccessRate(1)) };
        let runs = |blocks: u64| (0..blocks).map(|_| (Self::BLOCK, cold)).collect::<Runs>();
        let step_max = Self::bytes(30);
        let input = |has: u64| Input { slow: runs(has), sampled: runs(40), trackable: u32::MAX, step_max, ..Input::default() };
        let inputs: Vec<Input> = self.has.iter().map(|&has| input(has)).collect();
        let claims: Vec<Claim> = inputs.iter().zip(&self.weights).map(|(input, weight)| claim(&params, input, *weight)).collect();
        let free = Self::bytes(self.blocks - self.has.iter().sum::<u64>());
        self.moved = 0;
        for ((has, input), portion) in self.has.iter_mut().zip(inputs).zip(divide(free, &claims)) {
            let step = step(&params, &Input { room: portion.room, share: portion.share, ..input });
            *has = *has + u64::from(step.place) - u64::from(step.home);
            self.moved += u64::from(step.place + step.home);
        }
    }

    fn jain(&self) -> f64 {
        let of = |value: u64| f64::from(u32::try_from(value).unwrap());
        jain(&self.has.iter().zip(&self.weights).map(|(&has, &weight)| of(has) / f64::from(weight)).collect::<Vec<_>>())
    }
}

#[test]
fn jobs_that_come_later_get_their_share_and_then_nothing_moves() {
    for weights in [vec![100, 100], vec![100, 100, 100], vec![200, 100, 100]] {
        let mut machine = Machine { blocks: 1_000, has: vec![0], weights: vec![weights[0]], moved: 0 };
        for _ in 0..40 {
            machine.period();
        }
        assert_eq!(machine.has, [1_000], "alone, the first job fills the node");
        machine.has.resize(weights.len(), 0);
        machine.weights.clone_from(&weights);
        machine.period();
        assert!(machine.has[0] >= 1_000 - 30, "no more than the move rate: {:?}", machine.has);
        for _ in 0..60 {
            machine.period();
        }
        assert!(machine.jain() > 0.999, "{:?} by {weights:?}", machine.has);
        assert!(machine.has.iter().sum::<u64>() >= 1_000 - weights.len() as u64, "no room is left over: {:?}", machine.has);
        assert!(machine.moved <= weights.len() as u64, "{} blocks still move", machine.moved);
    }
}
