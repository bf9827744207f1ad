//! The node agent on a simulated kernel, with faults from a seed.
//!
//! The agent is the real one: its loop, controllers, undo list, history and journal, and the kernel handles below them, which find the
//! kernel's files under a temporary directory. [`machine`] writes these files from a population of pages whose accesses it knows, and
//! carries out requests for reclaim. [`time`] is the agent's clock. Nothing waits: simulated time goes on from one turn of the loop to
//! the next.
//!
//! [`plan`] draws a machine, a configuration and faults from a seed. [`run`] carries them out, and after every turn checks from
//! outside what the agent promises ([`promises`]). The same seed gives the same run, whose digest is compared. [`shrink`] removes
//! faults that a violation does not need.
#![deny(missing_docs)]

pub mod faults;
pub mod group;
pub mod kernel_files;
pub mod machine;
pub mod plan;
pub mod promises;
pub mod run;
pub mod shrink;
pub mod time;
