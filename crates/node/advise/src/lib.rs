//! Read-only advice about a machine: nothing here changes a job's memory.
//!
//! - [`doctor`]: what this machine supports, and how to enable the rest (`thermocline doctor`).
//! - [`jobs`]: the services, containers and virtual machines of a machine without configuration (`thermocline observe`).
//! - [`import`]: a configuration from that of another program (`thermocline import`).
//! - [`setup`]: a configuration for what was observed (`thermocline setup`).
//! - [`plan`]: how much memory an observed machine could have done without (`thermocline plan`).
//! - [`report`]: what an agent saved and what its jobs felt, as one page (`thermocline report`).
//! - [`rates`]: how often processes access their memory, and how much of it slow memory could hold (`thermocline rates`).
#![deny(missing_docs)]

pub mod doctor;
pub mod import;
pub mod jobs;
pub mod plan;
pub mod rates;
pub mod report;
pub mod setup;
