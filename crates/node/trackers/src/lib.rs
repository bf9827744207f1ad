//! Measures a job's memory through the kernel's interfaces: page ages, access rates, compressibility.
//!
//! | module | measures | used by |
//! |---|---|---|
//! | [`ages`] | how long ago pages were accessed, as histograms per job | policies `cold_age` and `background` |
//! | [`rates`] | how often blocks of 2 MiB are accessed | policy `slowdown`, `thermocline rates` |
//! | [`compressibility`] | what cold pages would shrink to | the choice of tier |
//!
//! Nothing here decides or moves memory. [`walk`] visits the pages of a process for all of them.
#![deny(missing_docs)]

pub mod ages;
pub mod compressibility;
mod kdamond_time;
pub mod rates;
#[cfg(test)]
mod testing;
pub mod walk;
