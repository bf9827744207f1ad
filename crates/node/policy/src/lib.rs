//! Pure far-memory policies.
//!
//! # Invariants
//! - No files, clock, threads, randomness or logging: time and page counts are arguments, decisions are values.
//! - The agent, the offline model and the simulator call the same functions, so a recorded journal replays exactly.
//! - Integer arithmetic only where a decision depends on it, so that every machine rounds alike.

#![deny(missing_docs)]

pub mod background;
pub mod balance;
pub mod cold_age;
pub mod compressor;
pub mod endurance;
pub mod histogram;
pub mod incompressible;
pub mod page_cache;
pub mod pressure;
pub mod refaults;
pub mod slowdown;
pub mod thresholds;
pub mod tiering;
pub mod trial;
pub mod veto;
pub mod writeback;
