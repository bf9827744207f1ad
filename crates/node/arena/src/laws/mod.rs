//! The laws that compete, a module each. Times are those of the trace, in milliseconds.

pub mod ages;
pub mod damon;
pub mod high;
pub mod idle;
pub mod katalyst;
pub mod marginal;
pub mod mglru_script;
pub mod pace;
pub mod senpai;
pub mod thermocline;
pub mod tuning;
pub mod twice_cold;
pub mod writeback;
