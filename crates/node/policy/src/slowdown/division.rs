//! The division of the slow node's room among the jobs that compete for it.
//!
//! # Problem
//! The jobs' demands may add up to more than the node has. Room that is given to whoever asks first leaves later jobs without any, for as
//! long as the first ones stay cold.
//!
//! # Rule
//! Weighted max-min fairness. With capacity `C`, demands `d_i` and weights `w_i`, job `i` gets `min(d_i, L w_i)`, where the level `L` is such
//! that the shares add up to `C`. Its properties:
//! - no room is left over while a demand is not met;
//! - a job gets its demand, or at least `C w_i / sum(w)`: the level is at least `C / sum(w)`, as no share is above `L w_i`. No job starves,
//!   whatever the others demand, and a job gains nothing by demanding more than it can use;
//! - jobs whose demands are not met have the same `x = share / weight`, so that Jain's index of these, `(sum x)^2 / (n sum x^2)`, is 1: its
//!   largest value, taken only if all are equal.
//!
//! # Algorithm
//! In ascending order of `d_i / w_i`, with `R` bytes and weights of `W` left: if `d_i <= R w_i / W`, the job gets `d_i`. From the first
//! one on that does not, each gets `R w_i / W`: the later ones demand more for their weight. Rounded down; a few bytes stay.
//!
//! # What is demanded
//! What a job has, and what it could place in this period if there were room: a demand is bounded by what was sampled and may be
//! moved. A job that has more than its share gives up only as much as others can use in the period, and two jobs that take turns to
//! demand do not move the same memory in each.

use units::Bytes;

/// What a job claims of the slow node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// What it has there and may keep by its own bounds.
    pub has: Bytes,
    /// What it would have there at the end of the period if there were room: `has` or more.
    pub demand: Bytes,
    /// Its weight. Zero counts as one.
    pub weight: u32,
}

/// What a job gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portion {
    /// What it may have in the slow node; `None` if there is room for all demands.
    pub share: Option<Bytes>,
    /// Its part of what is free now.
    pub room: Bytes,
}

/// Divides the node's `free` room, and what the jobs have there. The portions' rooms add up to `free` at most.
///
/// What jobs above their share give up becomes free when it was moved. Until then the free room is divided by the same rule, by what
/// each job lacks of its share.
#[must_use]
pub fn divide(free: Bytes, claims: &[Claim]) -> Vec<Portion> {
    let capacity: Bytes = claims.iter().map(|claim| claim.has).fold(free, |sum, has| sum + has);
    let demands: Vec<_> = claims.iter().map(|claim| (claim.demand.max(claim.has), claim.weight)).collect();
    let shares = fill(capacity, &demands);
    let scarce = shares.iter().zip(&demands).any(|(share, (demand, _))| share < demand);
    let lacks: Vec<_> = shares.iter().zip(claims).map(|(share, claim)| (*share - claim.has, claim.weight)).collect();
    let rooms = fill(free, &lacks);
    shares.into_iter().zip(rooms).map(|(share, room)| Portion { share: scarce.then_some(share), room }).collect()
}

/// Divides `capacity` by demands and weights.
fn fill(capacity: Bytes, demands: &[(Bytes, u32)]) -> Vec<Bytes> {
    let mut shares = vec![Bytes::ZERO; demands.len()];
    let weight = |index: usize| u128::from(demands[index].1.max(1));
    let demand = |index: usize| u128::from(demands[index].0.0);
    let mut order: Vec<usize> = (0..demands.len()).collect();
    // d_i / w_i, without division.
    order.sort_unstable_by(|&a, &b| (demand(a) * weight(b)).cmp(&(demand(b) * weight(a))));
    let mut weights: u128 = order.iter().map(|&index| weight(index)).sum();
    let mut left = u128::from(capacity.0);
    for index in order {
        // A weight has 32 bits and the rest 64: the product has 96. Those that are not met take from `left` what keeps `left / weights`.
        let share = demand(index).min(left * weight(index) / weights);
        (left, weights) = (left - share, weights - weight(index));
        shares[index] = Bytes(u64::try_from(share).unwrap_or(u64::MAX));
    }
    shares
}

#[cfg(test)]
mod tests;
