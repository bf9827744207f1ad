//! Customers and their workloads, each made from its number alone: nothing is kept of the millions that there may be.

use fastrand::Rng;

use super::kinds::{GUEST_SYSTEMS, LIVES, SIZES};
use super::random::{normal, pick, stream};

/// Deployments per customer that comes again and again, in the mean. Few of them deploy most.
const DEPLOYMENTS: f64 = 40.0;
/// The share of deployments by somebody who never came before and never will again.
const PASSING: f64 = 0.08;
/// The share of customers whose VMs touch all that they rent.
const TOUCH_ALL: f64 = 0.08;
/// Workloads of a customer.
const WORKLOADS: u64 = 3;
/// How much the untouched share differs between customers, and between the workloads of one, as standard deviations of log odds.
const BETWEEN: (f64, f64) = (0.45, 0.30);
/// The logarithm of odds of the untouched share in the middle.
const MIDDLE: f64 = 0.03;

/// Whose VMs they are, and what they run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workload {
    pub(super) customer: u64,
    /// Sensitivity to latency: the share of workloads that are less sensitive.
    pub(super) rank: f64,
    /// Log odds of the untouched share; `None` where all memory is touched.
    pub(super) untouched: Option<f64>,
    pub(super) guest_os: usize,
    /// Where it falls among the families of types, from 0 to 1.
    pub(super) family: f64,
    /// Place in [`SIZES`] that it is deployed in most.
    pub(super) size: usize,
    /// Place in [`LIVES`].
    pub(super) life: usize,
}

/// How many customers of a region come again, where so many VMs arrive.
pub(super) fn regulars(vms: u64, regions: u32) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    let deployments = vms as f64 * (1.0 - super::cluster::ANOTHER) / f64::from(regions);
    (deployments / DEPLOYMENTS).max(10.0)
}

/// Draws who deploys next in a region with so many regular customers, and which workload.
pub(super) fn next(seed: u64, (region, regions): (u32, u32), regulars: f64, random: &mut Rng) -> Workload {
    let customer = if random.f64() < PASSING {
        // Beyond all regulars: never drawn twice, in all likelihood.
        (1 << 40) | (random.u64(..) >> 24)
    } else {
        // Each octave of customers, by how often they come, deploys as much as the next.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to the number of regulars")]
        let place = libm::pow(regulars, random.f64()) as u64;
        place * u64::from(regions) + u64::from(region)
    };
    workload(seed, customer, random.u64(..WORKLOADS))
}

/// What a workload of a customer is like.
fn workload(seed: u64, customer: u64, which: u64) -> Workload {
    let of_customer = &mut stream(seed ^ 0x6375_7374_6f6d_6572, customer);
    let shift = BETWEEN.0 * normal(of_customer);
    let touches_all = spread(customer, of_customer) < TOUCH_ALL;
    let random = &mut stream(seed ^ 0x776f_726b_6c6f_6164, customer.wrapping_mul(WORKLOADS).wrapping_add(which));
    let rank = spread(customer.wrapping_mul(WORKLOADS).wrapping_add(which), random);
    let guest_os = pick(GUEST_SYSTEMS.iter().map(|of| of.share * leaning(of.sensitive, rank)), random.f64());
    Workload {
        customer,
        rank,
        untouched: (!touches_all).then(|| MIDDLE + shift + BETWEEN.1 * normal(random)),
        guest_os,
        family: random.f64(),
        size: pick(SIZES.iter().map(|(_, share)| *share), random.f64()),
        life: pick(LIVES.iter().map(|(share, _)| *share), random.f64()),
    }
}

/// How a sensitivity moves a share: from one over to that times it, between the least and the most sensitive.
pub(super) fn leaning(sensitive: f64, rank: f64) -> f64 {
    libm::exp(sensitive * (2.0 * rank - 1.0))
}

/// A share for an item: neighbours in number are spread evenly (the golden ratio's multiples), so that the few that count most are
/// as varied as all are.
fn spread(number: u64, random: &mut Rng) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    let even = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) as f64 / (u64::MAX as f64 + 1.0);
    let moved = even + 0.02 * random.f64();
    moved - libm::floor(moved)
}
