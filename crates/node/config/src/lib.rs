//! The agent's configuration: its tables of knobs, the files that set them, and parameter bundles.
//!
//! # Invariants
//! - `table.rs` is the only place where a knob's key, unit, default, range and meaning are written. The typed [`Config`], its checks,
//!   the reference page and the example file are derived from it; a test compares the generated files.
//! - A [`Config`] is always valid: every value is in its range, every pattern could match.
//! - No text causes a panic, and all problems are reported together with remedies.

#![deny(missing_docs)]

pub mod bundle;
mod choice;
mod config;
mod guidance;
mod job;
mod load;
mod manual;
mod params;
mod reload;
mod table;

pub use bundle::Bundle;
pub use choice::{Actuator, AtLimit, Class, Kind, Policy, Tier, Tracker};
pub use config::{Classes, Config, SCHEMA, knob, knobs};
pub use guidance::{Arm, Guidance, Poll};
pub use job::{JobRule, JobTable, rules_to_toml};
pub use load::MAIN_FILE;
pub use manual::{example_toml, manual};
pub use reload::{Reload, reloads};
pub use settings::{Invalid, Knob, Problem, Problems, Scale, Search, Unit, Value};
pub use table::*;
