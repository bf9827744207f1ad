//! The fast far memory model (SDFM section 5.3): what a fleet would have saved, and what that would have cost, under
//! parameters that it did not run.
//!
//! # Input
//! For each job over time: its cold-age histogram, its promotion histogram and its age ([`series`]). The two histograms
//! give the outcome for every cold-age threshold, so the decisions of any cold-age controller and their outcome can be
//! computed from them.
//!
//! # Limitation
//! A page that stays in DRAM and one that is promoted from far memory appear alike in the histograms. Effects of far
//! memory on the job itself (a slower job accesses less memory) are not part of the result.
//!
//! # Modules
//! - [`replay`] replays a series through the cold-age controller, for all percentiles K and warm-ups S in one pass.
//! - [`agents`] replays one setting through the agents' controller, with parts of the cold pages.
//! - [`tally`] sums the outcomes in integers: totals do not depend on how the work is split.
//! - [`front`] selects from the totals: the best pair within an objective, and the Pareto front.
//! - [`partial`] stores such sums in files: the unit of distributed and of resumed work ([`resume`]).
//! - [`coverage`] records which parts of a fleet were counted, so that none is counted twice.
//! - [`fleet`] distributes jobs over all cores.
//! - [`estimate`] measures a small part, from which the time of the whole is estimated.
//! - [`detail`] reports a single pair by hour, machine and job.
//! - [`survey`] describes a fleet before any memory is moved.
//! - [`waits`] models the policies that are bounded by lost time: `pressure` and `slowdown`.
//! - [`tiers`] compares tiers by the DRAM that each saves for the time that it costs.
//! - [`traces`] reads recorded traces.
//! - [`origin`] describes how ages were obtained, [`trackers`] counts it, [`sampling`] computes the sampling error.
//! - [`generate`] generates a synthetic fleet, labelled as such in every report.
#![deny(missing_docs)]

pub mod agents;
pub mod coverage;
pub mod detail;
pub mod estimate;
pub mod fleet;
pub mod front;
pub mod generate;
pub mod grid;
pub mod origin;
pub mod partial;
mod random;
pub mod rates;
pub mod replay;
pub mod resume;
pub mod sampling;
pub mod series;
pub mod survey;
pub mod tally;
pub mod tiers;
pub mod traces;
pub mod trackers;
pub mod waits;
