//! The difference between two groups of machines, with its standard error.
//!
//! # Problem
//! The figures of a fleet are ratios of sums: far bytes over cold bytes, stall over time. The jobs of a machine share
//! its load, its kernel and its neighbours, and the entries of a job share the job; a thousand entries of ten machines
//! are ten observations.
//!
//! # Approach
//! Machines are the units that are assigned to groups, so machines are the observations. A group's value is `R = sum(n)
//! / sum(d)` over the numerators and denominators of its machines. The linearised values `y = R + (n - R d) / mean(d)`
//! of its machines have the mean `R`, and their spread over machines gives its standard error (the ratio estimator of
//! survey sampling: Cochran,
//! *Sampling Techniques*, 1977, section 6.4). The degrees of freedom are those of Welch and Satterthwaite. A machine
//! that is in both groups, with some jobs in each, affects both; its covariance is subtracted.
//!
//! Machines differ from each other more than bundles make them differ. Values from *before* the rollout explain most of
//! that, and no bundle can have influenced them: the part of `y` that a linear regression on them explains, with one
//! slope for both groups, is subtracted (Deng, Xu, Kohavi and Walker, *Improving the sensitivity of online controlled
//! experiments by utilizing pre-experiment data*, WSDM 2013).

/// Contribution of one machine to a group's ratio.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Part {
    /// Numerator of the ratio.
    pub numerator: f64,
    /// Denominator of the ratio. A machine with a denominator of 0 is not in the group.
    pub denominator: f64,
}

/// A machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Unit {
    /// Its contribution to each group, if it is in the group.
    pub groups: [Option<Part>; 2],
    /// The same figure from before the rollout, if known.
    pub before: Option<Part>,
}

/// The comparison of two groups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contrast {
    /// The ratios of the groups, without adjustment.
    pub values: [f64; 2],
    /// Their standard errors.
    pub standard_errors: [f64; 2],
    /// The second group's ratio minus the first one's, adjusted for the values from before.
    pub difference: f64,
    /// Standard error of the difference.
    pub standard_error: f64,
    /// Degrees of freedom of the standard error.
    pub degrees_of_freedom: f64,
    /// Number of machines of each group.
    pub machines: [usize; 2],
}

/// Compares the second group with the first. Returns `None` if a group has fewer than two machines or a denominator of
/// 0.
#[must_use]
pub fn contrast(units: &[Unit]) -> Option<Contrast> {
    let before = before(units);
    let groups = [Group::of(units, 0)?, Group::of(units, 1)?];
    let slope = slope(&groups, &before);
    let adjusted = [groups[0].adjusted(slope, &before), groups[1].adjusted(slope, &before)];
    let [first, second] = [adjusted[0].spread(), adjusted[1].spread()];
    let variance = (first.variance + second.variance - 2.0 * covariance(&adjusted)).max(0.0);
    let freedom = |spread: &Spread| spread.variance.powi(2) / (spread.machines - 1.0);
    let line = if slope == 0.0 { 0.0 } else { 1.0 };
    let sum = freedom(&first) + freedom(&second);
    let degrees_of_freedom = if sum > 0.0 {
        ((first.variance + second.variance).powi(2) / sum - line).max(1.0)
    } else {
        (first.machines + second.machines - 2.0 - line).max(1.0)
    };
    Some(Contrast {
        values: [groups[0].ratio, groups[1].ratio],
        standard_errors: [groups[0].spread().variance.sqrt(), groups[1].spread().variance.sqrt()],
        difference: second.mean - first.mean,
        standard_error: variance.sqrt(),
        degrees_of_freedom,
        machines: [groups[0].values.len(), groups[1].values.len()],
    })
}

/// A group's ratio, and the linearised values of its machines with their indices among the units.
struct Group {
    ratio: f64,
    values: Vec<(usize, f64)>,
}

struct Spread {
    machines: f64,
    mean: f64,
    /// Variance of the mean.
    variance: f64,
}

impl Group {
    fn of(units: &[Unit], group: usize) -> Option<Self> {
        let parts: Vec<(usize, Part)> =
            units.iter().enumerate().filter_map(|(at, unit)| Some((at, unit.groups[group].filter(counts)?))).collect();
        let (ratio, values) = linearised(&parts)?;
        (values.len() >= 2).then_some(Self { ratio, values })
    }

    fn adjusted(&self, slope: f64, before: &[f64]) -> Self {
        Self { ratio: self.ratio, values: self.values.iter().map(|&(at, value)| (at, value - slope * before[at])).collect() }
    }

    fn spread(&self) -> Spread {
        let machines = count(self.values.len());
        let mean = self.values.iter().map(|(_, value)| value).sum::<f64>() / machines;
        let squares: f64 = self.values.iter().map(|(_, value)| (value - mean).powi(2)).sum();
        Spread { machines, mean, variance: squares / (machines - 1.0) / machines }
    }
}

fn counts(part: &Part) -> bool {
    part.denominator > 0.0 && part.denominator.is_finite() && part.numerator.is_finite()
}

fn linearised(parts: &[(usize, Part)]) -> Option<(f64, Vec<(usize, f64)>)> {
    let below: f64 = parts.iter().map(|(_, part)| part.denominator).sum();
    let ratio = parts.iter().map(|(_, part)| part.numerator).sum::<f64>() / below;
    let mean = below / count(parts.len());
    let value = |part: &Part| ratio + (part.numerator - ratio * part.denominator) / mean;
    ratio.is_finite().then(|| (ratio, parts.iter().map(|(at, part)| (*at, value(part))).collect()))
}

/// Returns the centred value of each unit from before the rollout; 0 if unknown.
fn before(units: &[Unit]) -> Vec<f64> {
    let parts: Vec<(usize, Part)> = units.iter().enumerate().filter_map(|(at, unit)| Some((at, unit.before.filter(counts)?))).collect();
    let mut before = vec![0.0; units.len()];
    if let Some((ratio, values)) = linearised(&parts) {
        values.into_iter().for_each(|(at, value)| before[at] = value - ratio);
    }
    before
}

/// Returns the slope of the regression on the values from before, within the groups.
fn slope(groups: &[Group; 2], before: &[f64]) -> f64 {
    let (mut products, mut squares) = (0.0, 0.0);
    for group in groups {
        let machines = count(group.values.len());
        let mean_before = group.values.iter().map(|&(at, _)| before[at]).sum::<f64>() / machines;
        let mean = group.values.iter().map(|(_, value)| value).sum::<f64>() / machines;
        for &(at, value) in &group.values {
            products += (before[at] - mean_before) * (value - mean);
            squares += (before[at] - mean_before).powi(2);
        }
    }
    if squares > 0.0 { products / squares } else { 0.0 }
}

/// Returns the covariance of the groups' means, due to the machines that are in both.
fn covariance([first, second]: &[Group; 2]) -> f64 {
    let [a, b] = [first.spread(), second.spread()];
    let (mut seconds, mut sum) = (second.values.iter().peekable(), 0.0);
    for &(at, value) in &first.values {
        while seconds.next_if(|(other, _)| *other < at).is_some() {}
        if let Some((_, other)) = seconds.next_if(|(other, _)| *other == at) {
            sum += (value - a.mean) * (other - b.mean);
        }
    }
    sum / ((a.machines - 1.0).max(1.0).sqrt() * (b.machines - 1.0).max(1.0).sqrt()) / (a.machines * b.machines).sqrt()
}

#[expect(clippy::cast_precision_loss, reason = "machines of a fleet, far below 2^52")]
pub(crate) fn count(machines: usize) -> f64 {
    machines as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::random::normal;
    use crate::sequential::student;

    fn part(numerator: f64, denominator: f64) -> Option<Part> {
        Some(Part { numerator, denominator })
    }

    fn groups(first: &[(f64, f64)], second: &[(f64, f64)]) -> Vec<Unit> {
        let unit = |group: usize, &(numerator, denominator): &(f64, f64)| {
            let mut unit = Unit::default();
            unit.groups[group] = part(numerator, denominator);
            unit
        };
        first.iter().map(|part| unit(0, part)).chain(second.iter().map(|part| unit(1, part))).collect()
    }

    #[test]
    fn a_small_example_agrees_with_manual_computation() {
        let units = groups(&[(1.0, 1.0), (2.0, 1.0), (3.0, 1.0)], &[(6.0, 2.0), (10.0, 2.0)]);
        let found = contrast(&units).unwrap();
        assert_eq!((found.values, found.difference, found.machines), ([2.0, 4.0], 2.0, [3, 2]));
        // Variances of the means: 1/3, and 2/2.
        assert!((found.standard_error - (1.0f64 / 3.0 + 1.0).sqrt()).abs() < 1e-12);
        let welch = (4.0f64 / 3.0).powi(2) / ((1.0f64 / 3.0).powi(2) / 2.0 + 1.0);
        assert!((found.degrees_of_freedom - welch).abs() < 1e-12);
        // Machines without a denominator are not in a group.
        let with_empty = groups(&[(1.0, 1.0), (2.0, 1.0), (3.0, 1.0), (0.0, 0.0), (f64::NAN, 1.0)], &[(6.0, 2.0), (10.0, 2.0)]);
        assert_eq!(contrast(&with_empty), Some(found));
        assert_eq!(contrast(&groups(&[(1.0, 1.0)], &[(1.0, 1.0), (2.0, 1.0)])), None);
        assert_eq!(contrast(&[]), None);
    }

    #[test]
    fn differences_from_before_are_subtracted() {
        // Machines differ by ten times the effect of the second group, and did so before.
        let units: Vec<Unit> = (0..20u32)
            .map(|machine| {
                let own = f64::from(machine % 10);
                let mut unit = Unit { before: part(own, 1.0), ..Unit::default() };
                let group = usize::from(machine % 3 == 0);
                unit.groups[group] = part(2.0 * own + if group == 1 { 1.0 } else { 0.0 }, 1.0);
                unit
            })
            .collect();
        let found = contrast(&units).unwrap();
        assert!((found.difference - 1.0).abs() < 1e-9 && found.standard_error < 1e-9, "{found:?}");
        let blind: Vec<Unit> = units.iter().map(|unit| Unit { before: None, ..*unit }).collect();
        assert!(contrast(&blind).unwrap().standard_error > 1.0);
    }

    #[test]
    fn a_machine_in_both_groups_affects_both() {
        // Half of a machine's jobs are in each group: the machine's own level is no difference.
        let mut random = fastrand::Rng::with_seed(1);
        let units: Vec<Unit> = (0..50)
            .map(|_| {
                let own = 10.0 * normal(&mut random);
                let mut drawn = || part(own + normal(&mut random), 1.0);
                Unit { groups: [drawn(), drawn()], before: None }
            })
            .collect();
        let found = contrast(&units).unwrap();
        // The result of the paired test.
        let differences: Vec<f64> =
            units.iter().map(|unit| unit.groups[1].unwrap().numerator - unit.groups[0].unwrap().numerator).collect();
        let mean = differences.iter().sum::<f64>() / 50.0;
        let variance = differences.iter().map(|difference| (difference - mean).powi(2)).sum::<f64>() / 49.0 / 50.0;
        assert!((found.standard_error - variance.sqrt()).abs() < 1e-9, "{found:?} {variance}");
    }

    /// Ratios over machines of very different sizes, with and without values from before: 95 % intervals cover in about
    /// 95 %.
    #[test]
    fn confidence_intervals_cover_the_difference() {
        let check = |sizes: [usize; 2], known: bool| {
            let mut covered = 0;
            for seed in 0..2_000 {
                let random = &mut fastrand::Rng::with_seed(seed);
                let mut units = Vec::new();
                for (group, &size) in sizes.iter().enumerate() {
                    for _ in 0..size {
                        let weight = (0.5 * normal(random)).exp();
                        let own = 0.2 + 0.05 * normal(random);
                        let mut at = |mean: f64| part(weight * (mean + 0.02 * normal(random)), weight);
                        let mut unit = Unit { before: at(own).filter(|_| known), ..Unit::default() };
                        unit.groups[group] = at(own + if group == 1 { 0.03 } else { 0.0 });
                        units.push(unit);
                    }
                }
                let found = contrast(&units).unwrap();
                let half = student(1.959_964, found.degrees_of_freedom) * found.standard_error;
                covered += u32::from((found.difference - 0.03).abs() <= half);
            }
            println!("{sizes:?}, before known: {known}: {covered} of 2000 covered");
            assert!((1_850..=1_950).contains(&covered), "{sizes:?} {known}: {covered} of 2000");
        };
        check([100, 50], true);
        check([100, 50], false);
        check([40, 12], true);
        check([40, 12], false);
    }

    proptest! {
        #[test]
        fn swapping_the_groups_negates_the_difference(
            parts in proptest::collection::vec((-9.0f64..9.0, 0.0f64..9.0, any::<bool>(), proptest::option::of(-9.0f64..9.0)), 0..40)
        ) {
            let units = |swap: bool| -> Vec<Unit> {
                let unit = |&(n, d, second, before): &(f64, f64, bool, Option<f64>)| {
                    let mut unit = Unit { before: before.and_then(|before| part(before, 1.0)), ..Unit::default() };
                    unit.groups[usize::from(second != swap)] = part(n, d);
                    unit
                };
                parts.iter().map(unit).collect()
            };
            let (one, other) = (contrast(&units(false)), contrast(&units(true)));
            prop_assert_eq!(one.is_some(), other.is_some());
            if let (Some(one), Some(other)) = (one, other) {
                let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * (1.0 + a.abs().max(b.abs()));
                prop_assert!(near(one.difference, -other.difference) && near(one.standard_error, other.standard_error));
                prop_assert!(one.standard_error.is_finite() && one.degrees_of_freedom >= 1.0);
            }
        }
    }
}
