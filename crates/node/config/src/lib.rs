//! The one table of knobs, configuration files, and their checking.
//!
//! # Invariants
//! - One list, [`KNOBS`], is the only home of every key, unit, default, range and meaning. The typed [`Config`], its
//!   checks, the reference manual and the example file follow from it; a test fails where a generated file drifts.
//! - A [`Config`] that exists is right: every value lies in its range, every pattern could match.
//! - No text makes it panic, and everything that is wrong is reported together, with what to write instead.

pub mod bundle;
mod choice;
mod document;
mod job;
mod knob;
mod load;
mod nearest;
mod params;
mod problem;
mod render;
mod table;

pub use bundle::{Arm, Bundle, Guidance, Told};
pub use choice::{Actuator, AtLimit, Class, Kind, Policy, Tier, Tracker};
pub use job::{JOB_KNOBS, JobRule};
pub use knob::{Knob, Scale, Search, Unit, Value};
pub use load::MAIN_FILE;
pub use problem::{Problem, Problems};
pub use render::{example_toml, manual};
pub use table::{
    Agent, Aggressive, Classes, ColdAge, Config, Conservative, Guard, Incompressible, KNOBS, Pressure, Rollout, Slow, Swap, TABLES, Tiers,
    Trace, Zswap, knob,
};
