//! Pure far-memory policies.
//!
//! # Invariants
//! - No files, clock, threads, randomness or logging: time and page counts are arguments, decisions are values.
//! - The agent, the offline model and the simulator call the same functions, so a recorded journal replays exactly.

pub mod units;
