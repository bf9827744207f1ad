//! Customers and their workloads, each computed from its number: no state is kept for the customers, of which there may be
//! millions.

use fastrand::Rng;

use super::kinds::{ANOTHER, GUEST_SYSTEMS, LIVES, SIZES};
use super::random::{normal, pick, stream};

/// Mean number of deployments of a recurring customer. A few of them make most deployments.
const DEPLOYMENTS: f64 = 40.0;
/// Share of deployments by customers that deploy only once.
const ONE_TIME: f64 = 0.08;
/// Share of customers whose VMs touch all their memory.
const TOUCH_ALL: f64 = 0.08;
/// Number of workloads of a customer.
const WORKLOADS: u64 = 3;
/// Differences of the untouched share between customers, and between the workloads of one customer: standard deviations of
/// log odds.
const BETWEEN: (f64, f64) = (0.45, 0.30);
/// Log odds of the median untouched share.
const MIDDLE: f64 = 0.03;

/// A workload and its customer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workload {
    pub(super) customer: u64,
    /// Sensitivity to latency: the share of workloads that are less sensitive.
    pub(super) rank: f64,
    /// Log odds of the untouched share; `None` if all memory is touched.
    pub(super) untouched: Option<f64>,
    pub(super) guest_os: usize,
    /// Position among the families of types, from 0 to 1.
    pub(super) family: f64,
    /// Index in [`SIZES`] of its most frequent size.
    pub(super) size: usize,
    /// Index in [`LIVES`].
    pub(super) life: usize,
}

/// Returns the number of recurring customers of a region for a total of `vms` arrivals.
pub(super) fn regulars(vms: u64, regions: u32) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    let deployments = vms as f64 * (1.0 - ANOTHER) / f64::from(regions);
    (deployments / DEPLOYMENTS).max(10.0)
}

/// Draws the customer of the next deployment in a region, and its workload.
pub(super) fn next(seed: u64, (region, regions): (u32, u32), regulars: f64, random: &mut Rng) -> Workload {
    let customer = if random.f64() < ONE_TIME {
        // A number above all recurring customers, unlikely to be drawn twice.
        (1 << 40) | (random.u64(..) >> 24)
    } else {
        // Customers are ordered by frequency; each octave of them makes the same number of deployments.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to the number of regulars")]
        let place = libm::pow(regulars, random.f64()) as u64;
        place * u64::from(regions) + u64::from(region)
    };
    workload(seed, customer, random.u64(..WORKLOADS))
}

/// Returns a workload of a customer.
fn workload(seed: u64, customer: u64, which: u64) -> Workload {
    let of_customer = &mut stream(seed ^ 0x6375_7374_6f6d_6572, customer);
    let shift = BETWEEN.0 * normal(of_customer);
    let touches_all = spread(customer, of_customer) < TOUCH_ALL;
    let random = &mut stream(seed ^ 0x776f_726b_6c6f_6164, customer.wrapping_mul(WORKLOADS).wrapping_add(which));
    let rank = spread(customer.wrapping_mul(WORKLOADS).wrapping_add(which), random);
    let guest_os = pick(GUEST_SYSTEMS.iter().map(|of| of.share * odds(of.sensitive, rank)), random.f64());
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

/// Returns the factor by which a sensitivity changes a share: from `exp(-sensitive)` for the least sensitive workload to
/// `exp(sensitive)` for the most sensitive one.
pub(super) fn odds(sensitive: f64, rank: f64) -> f64 {
    libm::exp(sensitive * (2.0 * rank - 1.0))
}

/// Returns a share for an item. Consecutive numbers are spread evenly (multiples of the golden ratio), so that the few most
/// frequent customers vary as much as all customers do.
fn spread(number: u64, random: &mut Rng) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    let even = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) as f64 / (u64::MAX as f64 + 1.0);
    let moved = even + 0.02 * random.f64();
    moved - libm::floor(moved)
}
