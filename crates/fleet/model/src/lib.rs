//! The fast far memory model (000 section 5.3): what a fleet would have saved, and felt, under parameters that it did
//! not run.
//!
//! # What it needs
//! Of each job, over time: its cold-age histogram, its promotion histogram, and how long it has been running
//! ([`series`]). The two histograms know the answer for every cold-age threshold, so any other controller can be
//! asked what it would have chosen, and what would have followed.
//!
//! # What it cannot know
//! A page that stays in DRAM and one that comes back from far memory take the same place in the histograms, so what
//! far memory itself changes (a job that runs slower touches less) is not in the answer.
//!
//! # Parts
//! - [`replay`] feeds a series through the cold-age controller, for all percentiles K and warm-ups S in one pass.
//! - [`tally`] sums what came of it, exactly: however the work is split, the totals are the same to the bit.
//! - [`front`] picks from the totals: the best pair within an objective, and what each margin costs.
//! - [`partial`] is such sums as a file: the unit of more machines than one, and of work that is resumed ([`resume`]).
//! - [`coverage`] says what was counted, so nothing is twice.
//! - [`fleet`] spreads jobs over all cores.
//! - [`detail`] tells of a single pair what it comes to by hour, machine and job.
//! - [`survey`] shows a fleet as it is, before anything is moved.
//! - [`waits`] asks the same of the policies that go by time lost: `pressure` and `slowdown`.
//! - [`traces`] reads what agents recorded.
//! - [`generate`] makes a fleet where none has been measured. It says so wherever it is shown.

pub mod coverage;
pub mod detail;
pub mod fleet;
pub mod front;
pub mod generate;
pub mod grid;
pub mod partial;
pub mod rates;
pub mod replay;
pub mod resume;
pub mod series;
pub mod survey;
pub mod tally;
pub mod traces;
pub mod waits;
