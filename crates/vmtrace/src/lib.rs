//! Traces of virtual machines: what was asked for, when it came and went, and what it made of its memory.
//!
//! A [`Vm`] is one row. What a trace does not tell is `None`: no public trace has all of it.

mod vm;

pub use vm::{CORES_MAX, Fault, MEMORY_BYTES_MAX, SECONDS_MAX, SLOWDOWN_MAX, Vm};
