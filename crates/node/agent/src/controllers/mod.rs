//! The controllers: one module per policy, with its state per job, its plan, its veto, its view, its journal record and the
//! record's replay.
//!
//! [`seam`] is what a controller is; [`policies`] is the only list of them. To add one: a module here, a line in
//! [`policies`], and its records in [`crate::journal::record`].

pub mod background;
pub mod cold_age;
pub mod page_cache;
pub mod policy;
pub mod pressure;
pub mod recent;
pub mod replay;
pub mod seam;
pub mod slots;
pub mod slowdown;
pub mod tiering;
pub mod veto;
pub mod words;
pub mod writeback;

use policy::Policy;

/// All policies, in the order in which they decide.
#[must_use]
pub fn policies() -> Vec<Box<dyn Policy>> {
    vec![
        Box::new(cold_age::ColdAgePolicy),
        Box::new(page_cache::PageCachePolicy),
        Box::new(background::BackgroundPolicy),
        Box::new(pressure::PressurePolicy),
        Box::new(slowdown::machine::SlowdownPolicy::default()),
        Box::new(tiering::TieringPolicy),
        Box::new(writeback::WritebackPolicy),
    ]
}
